// BROKEN ON PURPOSE: no barrier stands between reading a row's vectors and writing the gradients in their place.
// Row: 7x16 float32 F=9/1 backward
// Caught by tsan: ThreadSanitizer: data race|grad_(dense|sparse): [0-9]+ of [0-9]+ wrong
// The gradients are wrong too: the host runs threads one after another until a barrier stops them.
#pragma once

#include "ops/dot_interaction/kernel.cuh"

namespace overtaken_vectors {
// A block takes a row, a thread a column's element of a vector.
__global__ void backward(const float* grad, const float* dense, const float* sparse, float* grad_dense,
                         float* grad_sparse, int features, int columns, int width) {
    float* vectors = dynamic_shared<float>();
    int row = int(blockIdx.x), place = int(threadIdx.x), i = place / columns, column = place % columns;
    const float* pairs = grad + row * width + columns;
    vectors[place] = i ? sparse[(row * features + i - 1) * columns + column] : dense[row * columns + column];
    __syncthreads();
    float sum = i ? 0 : grad[row * width + column];
    for (int j = 0; j <= features; ++j) {
        int larger = i > j ? i : j, smaller = i > j ? j : i;
        if (i != j) sum += pairs[larger * (larger - 1) / 2 + smaller] * vectors[j * columns + column];
    }
    // The wrong line is missing: __syncthreads();
    vectors[place] = sum;
    __syncthreads();
    float* to = i ? grad_sparse : grad_dense;
    if (to) to[(i ? row * features + i - 1 : row) * columns + column] = vectors[place];
}

cudaError_t launch_backward(const float* grad, const float* dense, const float* sparse, float* grad_dense,
                            float* grad_sparse, long long rows, long long features, long long columns, long long width,
                            cudaStream_t stream, const dot_interaction::Limits&) {
    unsigned threads = unsigned((features + 1) * columns);
    return launch_kernel(backward, dim3(unsigned(rows)), dim3(threads), threads * sizeof(float), stream, grad, dense,
                         sparse, grad_dense, grad_sparse, int(features), int(columns), int(width));
}

static const testing::Broken<Kernels> broken("overtaken_vectors", [](Kernels& kernels) {
    kernels.launch_backward = launch_backward;
});
}  // namespace overtaken_vectors
