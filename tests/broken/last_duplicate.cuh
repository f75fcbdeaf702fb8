// BROKEN ON PURPOSE: of the gradients of one row's duplicates the last is left out.
// Row: 700x6 float32 text backward, 64
// Caught by asan, gpu: grad_table: .* wrong
#pragma once

#include "ops/vocabulary/kernel.cuh"

namespace last_duplicate {
__global__ void backward(const float* grad, vocabulary::Grouping grouping, float* to, long long rows,
                         long long first_row, long long columns) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * columns) return;
    const long long* starts = grouping.starts + first_row + i / columns;
    float sum = 0;
    for (long long k = starts[0]; k < starts[1] - 1; ++k)  // the wrong line: k < starts[1]
        sum += grad[grouping.positions[k] * columns + i % columns];
    to[i] = sum;
}

inline cudaError_t launch(const float* grad, const vocabulary::Grouping& grouping,
                          const vocabulary::Gradient<float> (&gradients)[3], float*, long long columns,
                          cudaStream_t stream, long long) {
    long long first_row = 0;
    for (const vocabulary::Gradient<float>& gradient : gradients) {
        if (gradient.data && gradient.rows > 0 && columns > 0) {
            cudaError_t error = launch_kernel(backward, pointwise_grid(gradient.rows * columns, 1),
                                              dim3(pointwise_threads), 0, stream, grad, grouping, gradient.data,
                                              gradient.rows, first_row, columns);
            if (error != cudaSuccess) return error;
        }
        first_row += gradient.rows;
    }
    return cudaSuccess;
}

static const testing::Broken<Kernels> broken("last_duplicate",
                                             [](Kernels& kernels) { kernels.launch_backward = launch; });
}  // namespace last_duplicate
