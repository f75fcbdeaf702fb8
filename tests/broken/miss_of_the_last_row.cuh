// BROKEN ON PURPOSE: an id that its table does not have names the table's last row, whose numbers then count.
// Row: 9x16 float32 F=26/1,int32,hostile forward
// Caught by asan, gpu: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/lookup_interact/kernel.cuh"

namespace miss_of_the_last_row {
using Call = lookup_interact::Call<float>;

__device__ inline float element(const Call& call, long long row, long long v, long long column) {
    if (v == 0) return call.dense[row * call.columns + column];
    const lookup_interact::Range table = call.tables.of(v - 1);
    long long id = call.bags.indices[row * call.bags.features + v - 1];
    if (id < 0 || id >= table.height) id = table.height - 1;  // the wrong line
    return call.rows[(table.begin + id) * call.columns + column];
}

// A row for each block.
__global__ void forward(Call call, float* out) {
    const long long row = blockIdx.x;
    float* const to = out + row * call.width;
    for (long long c = 0; c < call.columns; ++c) to[c] = element(call, row, 0, c);
    for (long long i = 1; i <= call.bags.features; ++i)
        for (long long j = 0; j < i; ++j) {
            float sum = 0;
            for (long long c = 0; c < call.columns; ++c) sum += element(call, row, i, c) * element(call, row, j, c);
            to[call.columns + i * (i - 1) / 2 + j] = sum;
        }
}

cudaError_t launch(const Call& call, bool, float* out, cudaStream_t stream, const lookup_interact::Limits&) {
    return launch_kernel(forward, dim3(unsigned(call.bags.batch)), dim3(1), 0, stream, call, out);
}

static const testing::Broken<Kernels> broken("miss_of_the_last_row", [](Kernels& kernels) { kernels.launch = launch; });
}  // namespace miss_of_the_last_row
