// BROKEN ON PURPOSE: the bias gradient is summed by atomics, in whatever order the blocks come.
// Row: 1000x4 float32 relu backward
// Caught by asan: grad_bias: two runs gave different bits
#pragma once

#include "ops/add_relu/kernel.cuh"

namespace atomic_sum {
template <class T>
__global__ void clear(T* grad_bias, long long columns) {
    long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column < columns) grad_bias[column] = narrow<T>(0);
}

template <class T>
__global__ void sum(const T* grad, const T* out, T* grad_bias, long long elements, long long columns) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    float grad_x = input_gradient<Activation::relu>(widen(grad[i]), widen(out[i]));
    atomicAdd(&grad_bias[i % columns], grad_x);  // the wrong line
}

template <class T>
cudaError_t launch_backward(const T* grad, const T* out, T* grad_x, T* grad_bias, Accumulator<T>* workspace,
                            long long rows, long long columns, cudaStream_t stream, long long elements) {
    cudaError_t error =
        add_relu::launch_backward(grad, out, grad_x, grad_bias, workspace, rows, columns, stream, elements);
    if (error != cudaSuccess || !grad_bias || rows * columns == 0) return error;
    error = launch_kernel(clear<T>, pointwise_grid(columns, 1), dim3(pointwise_threads), 0, stream, grad_bias, columns);
    if (error != cudaSuccess) return error;
    return launch_kernel(sum<T>, pointwise_grid(rows * columns, 1), dim3(pointwise_threads), 0, stream, grad, out,
                         grad_bias, rows * columns, columns);
}

static const testing::Broken<Kernels> broken("atomic_sum", [](Kernels& kernels) {
    kernels.launch_backward = launch_backward<float>;
});
}  // namespace atomic_sum
