// The interaction written down: a thread computes one element, and its operands come from the caches. The others reuse
// what they have read; these kernels are for what does not fit on chip, rows of too many numbers, and for float64.
#pragma once

#include "device/launch.cuh"
#include "device/vector.cuh"

namespace dot_interaction {

constexpr int plain_threads = 256;

template <class T>
__global__ void __launch_bounds__(plain_threads)
    plain_forward(const T* dense, const T* sparse, T* out, long long rows, long long features, long long columns,
                  long long width) {
    long long index = (long long)blockIdx.x * plain_threads + threadIdx.x, row = index / width;
    if (row >= rows) return;
    long long pair = index % width - columns;
    if (pair < 0) {
        out[index] = dense[row * columns + pair + columns];
        return;
    }
    Accumulator<T> sum = 0;
    if (pair < features * (features + 1) / 2) {
        long long i = (long long)((sqrt(8.0 * double(pair) + 1) + 1) / 2);
        while (i * (i - 1) / 2 > pair) --i;
        while (i * (i + 1) / 2 <= pair) ++i;
        long long j = pair - i * (i - 1) / 2;
        const T* sparse_row = sparse + row * features * columns;
        const T *a = sparse_row + (i - 1) * columns, *b = j ? sparse_row + (j - 1) * columns : dense + row * columns;
        for (long long k = 0; k < columns; ++k) sum += widen(a[k]) * widen(b[k]);
    }
    out[index] = narrow<T>(sum);
}

template <class T>
__global__ void __launch_bounds__(plain_threads)
    plain_backward(const T* grad, const T* dense, const T* sparse, T* grad_dense, T* grad_sparse, long long rows,
                   long long features, long long columns, long long width) {
    long long index = (long long)blockIdx.x * plain_threads + threadIdx.x, vector = index / columns;
    long long row = vector / (features + 1), i = vector % (features + 1), column = index % columns;
    T* to = i ? grad_sparse : grad_dense;
    if (row >= rows || !to) return;
    const T *grads = grad + row * width, *pairs = grads + columns;
    const T *dense_row = dense + row * columns + column, *sparse_row = sparse + row * features * columns + column;
    Accumulator<T> sum = 0;
    for (long long j = 0; j <= features; ++j) {
        Accumulator<T> value = widen(j ? sparse_row[(j - 1) * columns] : *dense_row), weight = 0;
        if (j != i) weight = widen(pairs[j < i ? i * (i - 1) / 2 + j : j * (j - 1) / 2 + i]);
        sum += weight * value;
    }
    if (i == 0) sum += widen(grads[column]);
    to[(i ? row * features + i - 1 : row) * columns + column] = narrow<T>(sum);
}

#ifndef __CUDACC_RTC__
inline dim3 plain_grid(long long elements) { return dim3(unsigned((elements + plain_threads - 1) / plain_threads)); }
#endif

}  // namespace dot_interaction
