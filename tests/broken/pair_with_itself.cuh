// BROKEN ON PURPOSE: the pairs of a vector with itself are written too, each over the next row's first.
// Row: 7x16 float32 F=26/1 forward
// Caught by asan, gpu: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/dot_interaction/kernel.cuh"

namespace pair_with_itself {
// A row for each thread.
__global__ void forward(const float* dense, const float* sparse, float* out, int rows, int features, int columns,
                        int width) {
    int row = int(blockIdx.x);
    float* to = out + row * width;
    for (int c = 0; c < columns; ++c) to[c] = dense[row * columns + c];
    for (int c = columns + features * (features + 1) / 2; c < width; ++c) to[c] = 0;
    for (int i = features; i > 0; --i)
        for (int j = 0; j <= i; ++j) {  // the wrong line
            const float* a = sparse + (row * features + i - 1) * columns;
            const float* b = j ? sparse + (row * features + j - 1) * columns : dense + row * columns;
            float sum = 0;
            for (int c = 0; c < columns; ++c) sum += a[c] * b[c];
            int place = columns + i * (i - 1) / 2 + j;
            if (place < width) to[place] = sum;
        }
}

cudaError_t launch(const float* dense, const float* sparse, float* out, long long rows, long long features,
                   long long columns, long long width, cudaStream_t stream, const dot_interaction::Limits&) {
    return launch_kernel(forward, dim3(unsigned(rows)), dim3(1), 0, stream, dense, sparse, out, int(rows),
                         int(features), int(columns), int(width));
}

static const testing::Broken<Kernels> broken("pair_with_itself", [](Kernels& kernels) { kernels.launch = launch; });
}  // namespace pair_with_itself
