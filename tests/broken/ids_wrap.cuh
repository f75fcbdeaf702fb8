// BROKEN ON PURPOSE: an id is narrowed to 32 bits, so that 2^32 + 5 is taken for 5.
// Row: 30x16 float32 one id int64
// Caught by asan, gpu: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/embedding_bags/kernel.cuh"

namespace ids_wrap {
__global__ void look_up(embedding_bags::Tables tables, const float* rows, const long long* indices, float* out,
                        long long positions, long long features, long long width) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x, position = i / width;
    if (position >= positions) return;
    long long id = int(indices[position]);  // the wrong line
    embedding_bags::Place place = tables.find(id, tables.of(position % features));
    out[i] = place.inside ? rows[place.row * width + i % width] : 0;
}

inline cudaError_t launch(const embedding_bags::Tables& tables, const void* rows, const long long* indices, void* out,
                          long long positions, long long features, long long row_bytes, cudaStream_t stream, long long) {
    long long width = row_bytes / (long long)sizeof(float);
    if (positions * width == 0) return cudaSuccess;
    return launch_kernel(look_up, embedding_bags::grid_of(positions * width, 128), dim3(128), 0, stream, tables,
                         static_cast<const float*>(rows), indices, static_cast<float*>(out), positions, features, width);
}

static const testing::Broken<Kernels> broken("ids_wrap", [](Kernels& kernels) { kernels.launch_one_id_wide = launch; });
}  // namespace ids_wrap
