// BROKEN ON PURPOSE: a layer's outputs are written over its inputs while other warps still read them.
// Row: 17x40 float32 relu-identity 40-64-8-3 tf32 16x64 cluster 4 in place
// Caught by asan: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/fused_mlp/kernel.cuh"

namespace outputs_over_inputs {
namespace op = fused_mlp;

inline cudaError_t launch(const op::Call<float>& call, cudaStream_t stream, const op::Plan& wanted) {
    using S = op::Shape<1, 1, 1, 256, 4>;  // 16 rows, 64 columns
    op::Device device;
    cudaError_t error = op::this_device(op::forward<float, true, S>, device);
    if (error != cudaSuccess) return error;
    op::Plan plan = op::choose(call.rows, call.widths, sizeof(float), true, device, wanted);
    op::Network<float> net = op::network_of(call, plan);
    net.in_place = false;  // the wrong line: it is what the barrier before the first write goes by
    error = set_shared_memory_limit(op::forward<float, true, S>, size_t(plan.shared_bytes));
    if (error != cudaSuccess) return error;
    return launch_clusters(op::forward<float, true, S>, plan.clusters, plan.cluster, dim3(op::threads),
                           size_t(plan.shared_bytes), stream, net);
}

static const testing::Broken<Kernels> broken("outputs_over_inputs", [](Kernels& kernels) { kernels.launch = launch; });
}  // namespace outputs_over_inputs
