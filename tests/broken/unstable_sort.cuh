// BROKEN ON PURPOSE: of ids that name the same row, the last comes first, so that the order of a row's sum is another one.
// Row: 70x5 int32 alike by table
// Caught by asan, tsan, gpu: positions: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/embedding_bags_sort/kernel.cuh"

namespace unstable_sort {
__global__ void reverse(const unsigned* keys, int* positions, long long count) {
    long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x, last = first;
    if (first >= count || (first > 0 && keys[first - 1] == keys[first])) return;
    while (last + 1 < count && keys[last + 1] == keys[first]) ++last;
    for (; first < last; ++first, --last) {  // the wrong line
        int position = positions[first];
        positions[first] = positions[last];
        positions[last] = position;
    }
}

inline cudaError_t launch(Integers indices, Integers offsets, const embedding_bags_sort::Tables& tables, long long count,
                          long long batch, unsigned* keys, int* positions, int* bags, int* lengths, long long table_keys,
                          Memory allocate, cudaStream_t stream) {
    cudaError_t error = embedding_bags_sort::launch(indices, offsets, tables, count, batch, keys, positions, bags, lengths,
                                                    table_keys, allocate, stream);
    if (error != cudaSuccess || !count) return error;
    return launch_kernel(reverse, dim3(unsigned(count / 256 + 1)), dim3(256), 0, stream, (const unsigned*)keys, positions,
                         count);
}

static const testing::Broken<Kernels> broken("unstable_sort", [](Kernels& kernels) { kernels.launch = launch; });
}  // namespace unstable_sort
