// BROKEN ON PURPOSE: the gradient of a factorization machine's vector has the vector itself among its partners.
// Row: 9x16 float32 fm,F=26/1,int32,hostile backward
// Caught by asan, gpu: grad_(dense|sparse): [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/lookup_interact/columns.cuh"
#include "ops/lookup_interact/kernel.cuh"

namespace gradient_with_itself {
using Call = lookup_interact::Call<float>;

__device__ inline float element(const Call& call, long long row, long long v, long long column) {
    if (v == 0) return call.dense[row * call.columns + column];
    const lookup_interact::Range table = call.tables.of(v - 1);
    const auto place = call.tables.find(call.bags.indices[row * call.bags.features + v - 1], table);
    return place.inside ? call.rows[place.row * call.columns + column] : 0;
}

// A column of a row for each thread.
__global__ void backward(Call call, const float* grad, float* grad_dense, float* grad_sparse) {
    const long long row = blockIdx.x, column = threadIdx.x, features = call.bags.features;
    const float *const of_dense = grad + row * call.width, *const of_pairs = of_dense + call.columns;
    float sum = 0;
    for (long long v = 0; v <= features; ++v) sum += element(call, row, v, column);
    for (long long v = 0; v <= features; ++v) {
        const float value = of_pairs[column] * sum;  // the wrong line: (sum - element(call, row, v, column))
        if (v == 0 && grad_dense) grad_dense[row * call.columns + column] = of_dense[column] + value;
        if (v > 0 && grad_sparse) grad_sparse[(row * features + v - 1) * call.columns + column] = value;
    }
}

cudaError_t launch(const Call& call, lookup_interact::Kind, const float* grad, float* grad_dense, float* grad_sparse,
                   cudaStream_t stream, const lookup_interact::Limits&) {
    const dim3 grid(unsigned(call.bags.batch)), block(unsigned(call.columns));
    return launch_kernel(backward, grid, block, 0, stream, call, grad, grad_dense, grad_sparse);
}

static const testing::Broken<Kernels> broken("gradient_with_itself", [](Kernels& kernels) {
    kernels.launch_columns_backward = launch;
});
}  // namespace gradient_with_itself
