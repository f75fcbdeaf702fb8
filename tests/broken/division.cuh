// BROKEN ON PURPOSE: columns above 65,536 are divided by with too small a shift.
// Row: 2x70001 float32 relu forward
// Caught by asan, gpu: out: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/add_relu/kernel.cuh"

namespace division {
// As Columns<unsigned>.
struct Divisor {
    unsigned divisor, multiplier, shift;

    __host__ explicit Divisor(long long columns) : divisor(unsigned(columns)), shift(0) {
        while ((1LL << shift) < columns && shift < 16) ++shift;  // the wrong line: shift < 16
        multiplier = unsigned(((1ULL << 32) * ((1ULL << shift) - columns)) / columns + 1);
    }
    __device__ unsigned of(unsigned index) const {
        return index - ((__umulhi(index, multiplier) + index) >> shift) * divisor;
    }
};

template <class T>
__global__ void forward(const T* x, const T* bias, T* out, unsigned elements, Divisor columns) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= elements) return;
    unsigned column = columns.of(i) % columns.divisor;  // inside the bias, if not where it should be
    out[i] = narrow<T>(activate<Activation::relu>(widen(x[i]) + widen(bias[column])));
}

template <class T>
cudaError_t launch(const T* x, const T* bias, T* out, long long rows, long long columns, cudaStream_t stream,
                   long long) {
    if (rows * columns == 0) return cudaSuccess;
    return launch_kernel(forward<T>, pointwise_grid(rows * columns, 1), dim3(pointwise_threads), 0, stream, x, bias,
                         out, unsigned(rows * columns), Divisor(columns));
}

static const testing::Broken<Kernels> broken("division", [](Kernels& kernels) { kernels.launch = launch<float>; });
}  // namespace division
