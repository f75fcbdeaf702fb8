// BROKEN ON PURPOSE: relu by fmaxf, which returns 0 for NaN.
// Row: 13x40 special float32 relu forward
// Caught by asan, gpu: out: .*expected -?nan
#pragma once

#include "ops/add_relu/kernel.cuh"

namespace fmax_eats_nan {
template <class T>
__global__ void forward(const T* x, const T* bias, T* out, long long elements, long long columns) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    out[i] = narrow<T>(fmaxf(widen(x[i]) + widen(bias[i % columns]), 0.0f));  // the wrong line
}

template <class T>
cudaError_t launch(const T* x, const T* bias, T* out, long long rows, long long columns, cudaStream_t stream,
                   long long) {
    if (rows * columns == 0) return cudaSuccess;
    return launch_kernel(forward<T>, pointwise_grid(rows * columns, 1), dim3(pointwise_threads), 0, stream, x, bias,
                         out, rows * columns, columns);
}

static const testing::Broken<Kernels> broken("fmax_eats_nan", [](Kernels& kernels) { kernels.launch = launch<float>; });
}  // namespace fmax_eats_nan
