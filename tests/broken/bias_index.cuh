// BROKEN ON PURPOSE: the bias is read at i % 8, whatever the number of columns.
// Row: 5x1023 float32 relu forward
// Caught by asan, gpu: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/add_relu/kernel.cuh"

namespace bias_index {
template <class T>
__global__ void forward(const T* x, const T* bias, T* out, long long elements) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < elements)
        out[i] = narrow<T>(activate<Activation::relu>(widen(x[i]) + widen(bias[i % 8])));  // the wrong line
}

template <class T>
cudaError_t launch(const T* x, const T* bias, T* out, long long rows, long long columns, cudaStream_t stream,
                   long long) {
    if (columns < 8) return add_relu::launch(x, bias, out, rows, columns, stream);
    return launch_kernel(forward<T>, pointwise_grid(rows * columns, 1), dim3(pointwise_threads), 0, stream, x, bias,
                         out, rows * columns);
}

static const testing::Broken<Kernels> broken("bias_index", [](Kernels& kernels) { kernels.launch = launch<float>; });
}  // namespace bias_index
