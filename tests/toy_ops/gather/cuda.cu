// toy_gather for tensors, a thread an element.
#include "dispatch/op.cuh"

using namespace fused;

template <class T, class Id>
__global__ void gather(const T* table, const Id* ids, T* out, long long elements, long long width) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < elements) out[i] = table[ids[i / width] * width + i % width];
}
template <class T, class Id>
__global__ void scatter(const T* grad, const Id* ids, T* grad_table, long long elements, long long count, long long width) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    T total = 0;
    for (long long n = 0; n < count; ++n)
        if (ids[n] == i / width) total += grad[n * width + i % width];
    grad_table[i] = total;
}

cudaError_t forward(Tensor table, Tensor ids, Tensor out, Stream stream) {
    if (!out.elements) return cudaSuccess;
    return with_dtype_of<float, double>(table.dtype, [&](auto t) {
        return with_dtype_of<int32_t, int64_t>(ids.dtype, [&](auto id) {
            using T = decltype(t);
            using Id = decltype(id);
            return launch_kernel(gather<T, Id>, dim3(unsigned((out.elements + 63) / 64)), dim3(64), 0, stream, table.as<T>(),
                                 ids.as<Id>(), out.as<T>(), (long long)out.elements, table.columns());
        });
    });
}

cudaError_t backward(Tensor grad, Tensor ids, Tensor table_shape, Tensor grad_table, Stream stream) {
    if (!grad_table) return cudaSuccess;
    return with_dtype_of<float, double>(grad.dtype, [&](auto t) {
        return with_dtype_of<int32_t, int64_t>(ids.dtype, [&](auto id) {
            using T = decltype(t);
            using Id = decltype(id);
            return launch_kernel(scatter<T, Id>, dim3(unsigned((table_shape.elements + 63) / 64)), dim3(64), 0, stream,
                                 grad.as<T>(), ids.as<Id>(), grad_table.as<T>(),
                                 (long long)table_shape.elements, (long long)ids.elements, table_shape.columns());
        });
    });
}

FUSED_OP(forward, backward)
