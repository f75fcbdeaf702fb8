// BROKEN ON PURPOSE: a block is as wide as the row, which beyond 1024 columns is no block.
// Row: 3x1025 float32 relu forward
// Caught by asan, gpu: invalid (configuration )?argument
#pragma once

#include "ops/add_relu/kernel.cuh"

namespace block_of_a_row {
template <class T>
__global__ void forward(const T* x, const T* bias, T* out) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = narrow<T>(activate<Activation::relu>(widen(x[i]) + widen(bias[threadIdx.x])));
}

template <class T>
cudaError_t launch(const T* x, const T* bias, T* out, long long rows, long long columns, cudaStream_t stream,
                   long long) {
    if (rows * columns == 0) return cudaSuccess;
    dim3 block{unsigned(columns)};  // the wrong line
    return launch_kernel(forward<T>, dim3(unsigned(rows)), block, 0, stream, x, bias, out);
}

static const testing::Broken<Kernels> broken("block_of_a_row", [](Kernels& kernels) {
    kernels.launch = launch<float>;
});
}  // namespace block_of_a_row
