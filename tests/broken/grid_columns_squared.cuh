// BROKEN ON PURPOSE: the grid covers columns², not rows · columns.
// Row: 1000x4 float32 relu forward
// Caught by asan, gpu: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/add_relu/kernel.cuh"

namespace grid_columns_squared {
template <class T>
__global__ void forward(const T* x, const T* bias, T* out, long long elements, long long columns) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < elements) out[i] = narrow<T>(activate<Activation::relu>(widen(x[i]) + widen(bias[i % columns])));
}

template <class T>
cudaError_t launch(const T* x, const T* bias, T* out, long long rows, long long columns, cudaStream_t stream,
                   long long) {
    if (rows * columns == 0) return cudaSuccess;
    dim3 grid = pointwise_grid(columns * columns, 1);  // the wrong line
    return launch_kernel(forward<T>, grid, dim3(pointwise_threads), 0, stream, x, bias, out, rows * columns, columns);
}

static const testing::Broken<Kernels> broken("grid_columns_squared", [](Kernels& kernels) {
    kernels.launch = launch<float>;
});
}  // namespace grid_columns_squared
