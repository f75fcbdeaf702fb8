// BROKEN ON PURPOSE: silu takes a negative multiplier for a positive one.
// Row: 33x8 float32 silu- forward
// Caught by asan, gpu: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/add_mul_activation/kernel.cuh"

namespace negative_multiplier {
template <class T>
cudaError_t launch(Activation activation, const T* x, const T* bias, const T* y, Scalar multiplier, T* out,
                   long long rows, long long columns, cudaStream_t stream, long long wide_size) {
    if (activation == Activation::silu) multiplier = fabs(multiplier.value);  // the wrong line
    return add_mul_activation::launch(activation, x, bias, y, multiplier, out, rows, columns, stream, wide_size);
}

static const testing::Broken<Kernels> broken("negative_multiplier", [](Kernels& kernels) {
    kernels.launch = launch<float>;
});
}  // namespace negative_multiplier
