// BROKEN ON PURPOSE: ids that are a column of a matrix are read as if they lay side by side.
// Row: 30x16 float32 one id forward
// Caught by asan, gpu: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/embedding_bags_apart/kernel.cuh"

namespace stride_ignored {
using namespace embedding_bags_apart;

inline cudaError_t launch(Tables tables, const float* const* rows, const Bags& bags, Mode mode, float* out, long long columns,
                          cudaStream_t stream, long long enough) {
    Bags dense = bags;
    for (long long& stride : dense.strides) stride = 1;  // the wrong line
    return embedding_bags_apart::launch<float>(tables, rows, dense, mode, out, columns, stream, enough);
}

static const testing::Broken<Kernels> broken("stride_ignored", [](Kernels& kernels) { kernels.launch = launch; });
}  // namespace stride_ignored
