// BROKEN ON PURPOSE: the gradient's rows that no id names keep what was in their memory.
// Row: 30x16 float32 sum backward
// Caught by asan, gpu: grad_table: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/embedding_bags_apart/kernel.cuh"

namespace gradient_not_cleared {
using namespace embedding_bags_apart;

inline cudaError_t launch_backward(const float* grad, const Gradients<float>& to, const embedding_bags::Sorted& ids,
                                   float* parts, long long columns, cudaStream_t stream) {
    embedding_bags::Terms<float> terms{grad, nullptr, nullptr, columns};
    return embedding_bags::launch_sums(terms, ids, to, parts, stream);  // the wrong line: alone
}

static const testing::Broken<Kernels> broken("gradient_not_cleared", [](Kernels& kernels) {
    kernels.launch_backward = launch_backward;
});
}  // namespace gradient_not_cleared
