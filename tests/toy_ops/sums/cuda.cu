// toy_sums for tensors: out[f] = factor · Σ rows of table f that its ids name; a thread an element.
#include "dispatch/op.cuh"

using namespace fused;

constexpr int most = 4;

template <class T>
struct Features {
    T* tables[most];
    const int64_t* ids[most];
    long long rows[most], count[most], stride[most];
};

template <class T>
__global__ void sums(Features<T> of, T* out, long long elements, long long width, Scalar factor) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x, f = i / width;
    if (i >= elements) return;
    T total = 0;
    for (long long n = 0; n < of.count[f]; ++n) total += of.tables[f][of.ids[f][n * of.stride[f]] * width + i % width];
    out[i] = total * factor.get<T>();
}
template <class T>
__global__ void scatter(Features<T> of, int f, const T* grad, long long width, Scalar factor) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= of.rows[f] * width) return;
    T total = 0;
    for (long long n = 0; n < of.count[f]; ++n)
        if (of.ids[f][n * of.stride[f]] == i / width) total += grad[f * width + i % width];
    of.tables[f][i] = total * factor.get<T>();
}

template <class T>
cudaError_t features_of(const Tensors& tables, const Tensors& ids, Features<T>& of) {
    if (ids.count > most) return cudaErrorInvalidValue;
    for (int f = 0; f < ids.count; ++f) {
        of.tables[f] = tables[f].as<T>();
        of.rows[f] = tables[f].rows();
        of.ids[f] = ids[f].as<int64_t>();
        of.count[f] = ids[f].elements;
        of.stride[f] = ids[f].stride;
    }
    return cudaSuccess;
}
static dim3 grid_of(long long elements) { return dim3(unsigned((elements + 63) / 64)); }

cudaError_t forward(Tensors tables, Tensors ids, Scalar factor, Tensor out, Stream stream) {
    if (!out.elements) return cudaSuccess;
    return with_dtype_of<float, double>(out.dtype, [&](auto t) {
        Features<decltype(t)> of = {};
        if (cudaError_t error = features_of(tables, ids, of)) return error;
        return launch_kernel(sums<decltype(t)>, grid_of(out.elements), dim3(64), 0, stream, of, out.as<decltype(t)>(),
                             (long long)out.elements, out.columns(), factor);
    });
}

// shapes: of each table 2, R and D.
cudaError_t backward(Tensor grad, Tensors ids, Tensor shapes, Scalar factor, Tensors grad_tables, Stream stream) {
    if (shapes.dimensions != 3 * ids.count || shapes.sizes[0] != 2) return cudaErrorInvalidValue;
    return with_dtype_of<float, double>(grad.dtype, [&](auto t) {
        using T = decltype(t);
        Features<T> of = {};
        cudaError_t error = features_of(grad_tables, ids, of);
        for (int f = 0; error == cudaSuccess && f < ids.count; ++f)
            if (grad_tables[f])
                error = launch_kernel(scatter<T>, grid_of(grad_tables[f].elements), dim3(64), 0, stream, of, f,
                                      grad.as<const T>(), grad.columns(), factor);
        return error;
    });
}

FUSED_OP(forward, backward)
