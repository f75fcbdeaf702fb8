// toy_sgd_ for tensors.
#include "dispatch/op.cuh"

using namespace fused;

template <class T>
__global__ void sgd(T* weights, const T* gradient, Scalar lr, long long elements) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < elements) weights[i] -= lr.get<T>() * gradient[i];
}

cudaError_t forward(Tensor weights, Tensor gradient, Scalar lr, Stream stream) {
    return with_dtype_of<float, double>(weights.dtype, [&](auto t) {
        using T = decltype(t);
        return launch_kernel(sgd<T>, dim3(unsigned((weights.elements + 63) / 64)), dim3(64), 0, stream, weights.as<T>(),
                             gradient.as<T>(), lr, (long long)weights.elements);
    });
}

FUSED_OP(forward)
