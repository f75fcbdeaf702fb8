// BROKEN ON PURPOSE: the copy engine is not told to wait for the pairs that threads have written.
// Row: 7x32 float32 F=9/4 forward
// Caught by asan, tsan: not all threads have put in order
#pragma once

#include "ops/dot_interaction/kernel.cuh"

namespace unordered_store {
// One block takes all rows, a thread an element of out.
__global__ void forward(const float* dense, const float* sparse, float* out, int rows, int features, int columns,
                        int width) {
    float* staged = dynamic_shared<float>();
    int place = int(threadIdx.x) - columns, i = 1;
    while (place >= i * (i + 1) / 2) ++i;
    int j = place - i * (i - 1) / 2;
    BulkStores stores;
    for (int row = 0; row < rows; ++row) {
        const float *of_dense = dense + row * columns, *of_sparse = sparse + (row * features - 1) * columns;
        float sum = 0;
        if (place < 0)
            sum = of_dense[threadIdx.x];
        else if (i <= features)
            for (int c = 0; c < columns; ++c)
                sum += of_sparse[i * columns + c] * (j ? of_sparse + j * columns : of_dense)[c];
        if (threadIdx.x == 0) stores.wait();
        __syncthreads();
        staged[threadIdx.x] = sum;
        // The wrong line is missing: order_before_bulk_copies();
        __syncthreads();
        if (threadIdx.x == 0) {
            stores.copy(out + row * width, staged, unsigned(width) * 4);
            stores.commit();
        }
    }
    if (threadIdx.x == 0) stores.wait();
}

cudaError_t launch(const float* dense, const float* sparse, float* out, long long rows, long long features,
                   long long columns, long long width, cudaStream_t stream, const dot_interaction::Limits&) {
    return launch_kernel(forward, dim3(1), dim3(unsigned(width)), size_t(width) * 4, stream, dense, sparse, out,
                         int(rows), int(features), int(columns), int(width));
}

static const testing::Broken<Kernels> broken("unordered_store", [](Kernels& kernels) { kernels.launch = launch; });
}  // namespace unordered_store
