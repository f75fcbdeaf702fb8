// BROKEN ON PURPOSE: the bias gradient is summed over the columns, not over the rows.
// Row: 5x1023 float32 relu backward
// Caught by asan, gpu: grad_bias: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/add_relu/kernel.cuh"

namespace wrong_axis {
template <class T>
__global__ void sum(const T* grad_x, T* grad_bias, long long rows, long long columns) {
    long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    Accumulator<T> sum = 0;
    for (long long c = 0; c < columns; ++c) sum += widen(grad_x[column % rows * columns + c]);  // the wrong line
    grad_bias[column] = narrow<T>(sum);
}

template <class T>
cudaError_t launch_backward(const T* grad, const T* out, T* grad_x, T* grad_bias, Accumulator<T>* workspace,
                            long long rows, long long columns, cudaStream_t stream, long long elements) {
    cudaError_t error =
        add_relu::launch_backward(grad, out, grad_x, grad_bias, workspace, rows, columns, stream, elements);
    if (error != cudaSuccess || !grad_x || !grad_bias || rows * columns == 0) return error;
    return launch_kernel(sum<T>, pointwise_grid(columns, 1), dim3(pointwise_threads), 0, stream, grad_x, grad_bias,
                         rows, columns);
}

static const testing::Broken<Kernels> broken("wrong_axis", [](Kernels& kernels) {
    kernels.launch_backward = launch_backward<float>;
});
}  // namespace wrong_axis
