// BROKEN ON PURPOSE: a row's vectors are read before the copy engine has brought them.
// Row: 7x16 float32 F=9/1 forward
// Caught by asan, tsan: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/dot_interaction/kernel.cuh"

namespace unwaited_vectors {
// A block takes a row, a thread an element of out.
__global__ void forward(const float* dense, const float* sparse, float* out, int features, int columns, int width) {
    BulkLoads* loads = dynamic_shared<BulkLoads>();
    float* vectors = dynamic_shared<float>() + 32;
    int row = int(blockIdx.x), place = int(threadIdx.x) - columns, i = 1;
    if (threadIdx.x == 0) {
        loads->init(1);
        loads->begin(unsigned((features + 1) * columns) * 4);
        loads->copy(vectors, dense + row * columns, unsigned(columns) * 4);
        loads->copy(vectors + columns, sparse + row * features * columns, unsigned(features * columns) * 4);
    }
    __syncthreads();
    // The wrong line is missing: loads->wait(0);
    float sum = 0;
    while (place >= i * (i + 1) / 2) ++i;
    if (place < 0)
        sum = vectors[threadIdx.x];
    else
        for (int c = 0; c < columns; ++c)
            sum += vectors[i * columns + c] * vectors[(place - i * (i - 1) / 2) * columns + c];
    out[row * width + int(threadIdx.x)] = sum;
    loads->wait(0);
}

cudaError_t launch(const float* dense, const float* sparse, float* out, long long rows, long long features,
                   long long columns, long long width, cudaStream_t stream, const dot_interaction::Limits&) {
    return launch_kernel(forward, dim3(unsigned(rows)), dim3(unsigned(width)),
                         size_t(128 + (features + 1) * columns * 4), stream, dense, sparse, out, int(features), int(columns), int(width));
}

static const testing::Broken<Kernels> broken("unwaited_vectors", [](Kernels& kernels) { kernels.launch = launch; });
}  // namespace unwaited_vectors
