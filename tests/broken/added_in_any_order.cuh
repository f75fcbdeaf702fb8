// BROKEN ON PURPOSE: each occurrence is added to its row as it comes, so that the order hangs on the run.
// Row: 70x7 float32 sgd partition 256, 3072
// Caught by asan, tsan, gpu: tables: two runs gave different bits
#pragma once

#include "ops/embedding_bags_update/kernel.cuh"
#include "ops/embedding_bags_update/partition.cuh"

namespace added_in_any_order {
namespace partition = embedding_bags_partition;
namespace update = embedding_bags_update;

__global__ void kernel(Integers indices, partition::Tables tables, update::Occurrences<float> all,
                       update::Target<float> to) {
    long long n = (long long)blockIdx.x * blockDim.x + threadIdx.x, f = n % tables.features, first = tables.bound(f);
    if (n >= all.count || !has_row(tables, tables.bound(f + 1) - first, indices[n])) return;
    for (long long column = 0; column < to.columns; ++column) {
        float step = to.learning_rate.get<float>() * all.share(int(n)) * all.gradient(int(n), to.columns)[column];
        atomicAdd(to.tables + (first + indices[n]) * to.columns + column, -step);  // the wrong line
    }
}

static const testing::Broken<Kernels> broken("added_in_any_order", [](Kernels& kernels) {
    kernels.partition = [](Integers indices, const partition::Tables& tables, const update::Occurrences<float>& all,
                           const update::Target<float>& to, const partition::Design&, std::function<char*(size_t)>,
                           cudaStream_t stream) {
        return launch_kernel(kernel, dim3(unsigned((all.count + 63) / 64)), dim3(64), 0, stream, indices, tables, all, to);
    };
});
}  // namespace added_in_any_order
