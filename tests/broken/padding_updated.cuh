// BROKEN ON PURPOSE: the row of the padding is updated as any other.
// Row: 70x7 float32 adagrad partition 256, 3072
// Caught by asan, tsan, gpu: tables: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/embedding_bags_update/kernel.cuh"
#include "ops/embedding_bags_update/partition.cuh"

namespace padding_updated {
namespace partition = embedding_bags_partition;
namespace update = embedding_bags_update;

static const testing::Broken<Kernels> broken("padding_updated", [](Kernels& kernels) {
    kernels.partition = [](Integers indices, const partition::Tables& tables, const update::Occurrences<float>& all,
                           const update::Target<float>& to, const partition::Design& design,
                           std::function<char*(size_t)> allocate, cudaStream_t stream) {
        partition::Tables others = tables;
        others.padding = -1;  // the wrong line
        return partition::launch(indices, others, all, to, design, allocate, stream);
    };
});
}  // namespace padding_updated
