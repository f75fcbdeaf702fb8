// BROKEN ON PURPOSE: an id is cut to 32 bits before it is compared, so that 2^32 + 5 is row 5.
// Row: 40x7 float32 text forward
// Caught by asan, gpu: out: .* wrong
#pragma once

#include "ops/vocabulary/kernel.cuh"

namespace narrow_ids {
__global__ void forward(vocabulary::Request request, float* out, long long count, long long columns) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count * columns) return;
    int id = int(request.ids[i / columns]);  // the wrong line: long long id
    bool hit = id >= 0 && id < request.table.rows;
    out[i] = hit ? static_cast<const float*>(request.table.data)[id * columns + i % columns] : 0;
}

inline cudaError_t launch(const vocabulary::Request& request, void* out, long long count, long long row_bytes,
                          cudaStream_t stream) {
    long long columns = row_bytes / (long long)sizeof(float);
    if (count * columns == 0) return cudaSuccess;
    return launch_kernel(forward, pointwise_grid(count * columns, 1), dim3(pointwise_threads), 0, stream, request,
                         static_cast<float*>(out), count, columns);
}

static const testing::Broken<Kernels> broken("narrow_ids", [](Kernels& kernels) { kernels.launch = launch; });
}  // namespace narrow_ids
