// BROKEN ON PURPOSE: of a factorization machine's pairs those of vectors of two groups of lanes are left out.
// Row: 9x16 float32 fm,F=26/1,int32,hostile forward
// Caught by asan, gpu: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/lookup_interact/columns.cuh"
#include "ops/lookup_interact/kernel.cuh"

namespace pairs_of_one_group {
using Call = lookup_interact::Call<float>;
constexpr int groups = 8;

__device__ inline float element(const Call& call, long long row, long long v, long long column) {
    if (v == 0) return call.dense[row * call.columns + column];
    const lookup_interact::Range table = call.tables.of(v - 1);
    const auto place = call.tables.find(call.bags.indices[row * call.bags.features + v - 1], table);
    return place.inside ? call.rows[place.row * call.columns + column] : 0;
}

// A column of a row for each thread.
__global__ void forward(Call call, float* out) {
    const long long row = blockIdx.x, column = threadIdx.x;
    float products = 0;
    for (int group = 0; group < groups; ++group) {
        float sum = 0;  // the wrong line: it belongs before the loop
        for (long long v = group; v <= call.bags.features; v += groups) {
            const float value = element(call, row, v, column);
            products += value * sum;
            sum += value;
        }
    }
    out[row * call.width + column] = element(call, row, 0, column);
    out[row * call.width + call.columns + column] = products;
}

cudaError_t launch(const Call& call, lookup_interact::Kind, float* out, cudaStream_t stream,
                   const lookup_interact::Limits&) {
    const dim3 grid(unsigned(call.bags.batch)), block(unsigned(call.columns));
    return launch_kernel(forward, grid, block, 0, stream, call, out);
}

static const testing::Broken<Kernels> broken("pairs_of_one_group", [](Kernels& kernels) {
    kernels.launch_columns = launch;
});
}  // namespace pairs_of_one_group
