// BROKEN ON PURPOSE: the mask lets one element too many pass.
// Row: 5x1023 float32 relu forward
// Caught by asan, gpu: out: element 5115 of 5115 was written
#pragma once

#include "ops/add_relu/kernel.cuh"

namespace mask {
template <class T>
__global__ void forward(const T* x, const T* bias, T* out, long long elements, long long columns) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= elements)  // the wrong line: i < elements
        out[i] = narrow<T>(activate<Activation::relu>(widen(x[i]) + widen(bias[i % columns])));
}

template <class T>
cudaError_t launch(const T* x, const T* bias, T* out, long long rows, long long columns, cudaStream_t stream,
                   long long) {
    if (rows * columns == 0) return cudaSuccess;
    return launch_kernel(forward<T>, pointwise_grid(rows * columns, 1), dim3(pointwise_threads), 0, stream, x, bias,
                         out, rows * columns, columns);
}

static const testing::Broken<Kernels> broken("mask", [](Kernels& kernels) { kernels.launch = launch<float>; });
}  // namespace mask
