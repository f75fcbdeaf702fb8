// BROKEN ON PURPOSE: an id that names no row gives its gradient to the row that its even key would be.
// Row: 7x4 float32 sum backward
// Caught by asan, tsan, gpu: grad_tables: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/embedding_bags/backward.cuh"
#include "ops/embedding_bags/kernel.cuh"

namespace misses_summed {
using namespace embedding_bags;

__global__ void add(Terms<float> terms, Sorted ids, float* grad_tables, long long rows) {
    long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= terms.columns) return;
    for (long long s = 0; s < ids.count; ++s) {
        long long row = ids.row(ids.keys[s]);
        if (row < rows)  // the wrong line: whether the key is odd is not asked
            grad_tables[row * terms.columns + column] += terms.at(ids, ids.positions[s], column);
    }
}

inline cudaError_t launch(const float* grad, const Tables& tables, const float*, const Bags&, Mode mode,
                          const float* weights, const Sorted& ids, float* grad_tables, float* grad_weights, long long*,
                          float*, long long columns, cudaStream_t stream) {
    if (mode != Mode::sum || !grad_weights || !ids.count || !columns) return cudaErrorInvalidValue;
    cudaError_t error = clear_async(grad_tables, size_t(tables.rows * columns) * sizeof(float), stream);
    if (error != cudaSuccess) return error;
    return launch_kernel(add, grid_of(columns, 64), dim3(64), 0, stream, Terms<float>{grad, weights, nullptr, columns}, ids,
                         grad_tables, tables.rows);
}

static const testing::Broken<Kernels> broken("misses_summed", [](Kernels& kernels) { kernels.launch_backward = launch; });
}  // namespace misses_summed
