// BROKEN ON PURPOSE: of the vectors that a row lays out flat the last one's lane is taken for one that has none.
// Row: 3x16 float32 flat,F=31/1,bags forward
// Caught by asan, gpu: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/lookup_interact/columns.cuh"
#include "ops/lookup_interact/kernel.cuh"

namespace last_vector_left_out {
using Call = lookup_interact::Call<float>;

// A vector of a row for each thread.
__global__ void forward(Call call, float* out) {
    const long long row = blockIdx.x, v = threadIdx.x;
    if (v >= call.bags.features) return;  // the wrong line: v > call.bags.features
    for (long long column = 0; column < call.columns; ++column) {
        float sum = v ? 0 : call.dense[row * call.columns + column];
        if (v) {
            const lookup_interact::Range table = call.tables.of(v - 1);
            const auto bag = call.bag(row, v - 1, false);
            for (long long p = bag.begin; p < bag.end; ++p)
                if (const auto place = call.tables.find(call.bags.indices[p], table); place.inside)
                    sum += call.rows[place.row * call.columns + column];
        }
        out[row * call.width + v * call.columns + column] = sum;
    }
}

cudaError_t launch(const Call& call, lookup_interact::Kind, float* out, cudaStream_t stream,
                   const lookup_interact::Limits&) {
    const dim3 grid(unsigned(call.bags.batch)), block(unsigned(call.bags.features + 1));
    return launch_kernel(forward, grid, block, 0, stream, call, out);
}

static const testing::Broken<Kernels> broken("last_vector_left_out", [](Kernels& kernels) {
    kernels.launch_columns = launch;
});
}  // namespace last_vector_left_out
