// out = relu(x + bias), by a kernel that may begin before its predecessor in the stream has ended.
//
// Bytes and FLOPs are those of add_relu. All that reads or writes memory stands behind the wait.
#pragma once

#include "device/activations.cuh"
#include "device/column_sum.cuh"
#include "device/vector.cuh"

namespace add_relu_early {

// A thread computes `width` consecutive elements: a Pack, or one.
template <class T, int width, class Index>
__global__ void __launch_bounds__(pointwise_threads)
    early_kernel(const T* x, const T* bias, T* out, Index elements, Columns<Index> columns, bool whole_bias) {
    let_successor_begin();  // its blocks may take the places that ours leave
    wait_for_predecessor();
    Index first = (Index(blockIdx.x) * pointwise_threads + threadIdx.x) * width;
    if (first + width <= elements) {
        Pack<T, width> xs = load<width>(x + first);
        Pack<T, width> biases = load_columns<width>(bias, columns, first, whole_bias);
        Accumulator<T> results[width];
#pragma unroll
        for (int e = 0; e < width; ++e)
            results[e] = activate<Activation::relu>(widen(xs.element[e]) + widen(biases.element[e]));
        store<width>(out + first, results);
    } else {  // the tail
#pragma unroll 1
        for (Index i = first; i < elements; ++i)
            out[i] = narrow<T>(activate<Activation::relu>(widen(x[i]) + widen(bias[columns.of(i)])));
    }
}

#ifndef __CUDACC_RTC__
template <class T, int width, class Index>
cudaError_t launch_early(const T* x, const T* bias, T* out, long long elements, long long columns,
                         cudaStream_t stream) {
    return launch_kernel_early(early_kernel<T, width, Index>, pointwise_grid(elements, width), dim3(pointwise_threads),
                               0, stream, x, bias, out, Index(elements), Columns<Index>(columns),
                               columns % width == 0 && aligned(bias));
}

template <class T>
cudaError_t launch(const T* x, const T* bias, T* out, long long rows, long long columns, cudaStream_t stream,
                   long long wide_size = first_wide_size) {
    long long elements = rows * columns;
    if (elements == 0) return cudaSuccess;
    auto go = elements < wide_size ? launch_early<T, 1, unsigned> : launch_early<T, 1, long long>;
    if (pointwise_width<T>(elements, x, out) > 1)
        go = elements < wide_size ? launch_early<T, widest<T>, unsigned> : launch_early<T, widest<T>, long long>;
    return go(x, bias, out, elements, columns, stream);
}
#endif

}  // namespace add_relu_early
