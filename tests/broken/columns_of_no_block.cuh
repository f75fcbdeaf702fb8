// BROKEN ON PURPOSE: columns are divided among the blocks of a cluster, rounded down, and the rest is left out.
// Row: 17x40 float32 relu-identity 40-64-8-3 tf32 16x64 cluster 4
// Caught by asan, gpu: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/fused_mlp/kernel.cuh"

namespace columns_of_no_block {
namespace op = fused_mlp;

inline cudaError_t launch(const op::Call<float>& call, cudaStream_t stream, const op::Plan& wanted) {
    using S = op::Shape<1, 1, 1, 256, 4>;  // 16 rows, 64 columns
    op::Device device;
    cudaError_t error = op::this_device(op::forward<float, true, S>, device);
    if (error != cudaSuccess) return error;
    op::Plan plan = op::choose(call.rows, call.widths, sizeof(float), true, device, wanted);
    op::Network<float> net = op::network_of(call, plan);
    for (auto& layer : net.layers) layer.slice = layer.covered / 8 / net.cluster * 8;  // the wrong line
    error = set_shared_memory_limit(op::forward<float, true, S>, size_t(plan.shared_bytes));
    if (error != cudaSuccess) return error;
    return launch_clusters(op::forward<float, true, S>, plan.clusters, plan.cluster, dim3(op::threads),
                           size_t(plan.shared_bytes), stream, net);
}

static const testing::Broken<Kernels> broken("columns_of_no_block", [](Kernels& kernels) { kernels.launch = launch; });
}  // namespace columns_of_no_block
