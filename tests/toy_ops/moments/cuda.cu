// toy_moments for tensors.
#include "dispatch/op.cuh"

using namespace fused;

template <class T>
__global__ void moments(const T* x, const T* shift, T* doubled, T* squared, long long elements) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    T z = shift ? x[i] - shift[i] : x[i];
    doubled[i] = 2 * z;
    squared[i] = z * z;
}
template <class T>
__global__ void moments_backward(const T* doubled, const T* squared, const T* x, const T* shift, T* grad_x,
                                 long long elements) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < elements) grad_x[i] = 2 * doubled[i] + 2 * (shift ? x[i] - shift[i] : x[i]) * squared[i];
}

cudaError_t forward(Tensor x, Tensor shift, Tensor doubled, Tensor squared, Stream stream) {
    return with_dtype_of<float, double>(x.dtype, [&](auto t) {
        using T = decltype(t);
        return launch_kernel(moments<T>, dim3(unsigned((x.elements + 63) / 64)), dim3(64), 0, stream, x.as<T>(),
                             shift.as<T>(), doubled.as<T>(), squared.as<T>(), (long long)x.elements);
    });
}

cudaError_t backward(Tensor grad_doubled, Tensor grad_squared, Tensor x, Tensor shift, Tensor grad_x, Stream stream) {
    return with_dtype_of<float, double>(x.dtype, [&](auto t) {
        using T = decltype(t);
        return launch_kernel(moments_backward<T>, dim3(unsigned((x.elements + 63) / 64)), dim3(64), 0, stream,
                             grad_doubled.as<T>(), grad_squared.as<T>(), x.as<T>(), shift.as<T>(), grad_x.as<T>(),
                             (long long)x.elements);
    });
}

FUSED_OP(forward, backward)
