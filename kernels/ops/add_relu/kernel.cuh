// out = relu(x + bias)                            x, out [rows, columns], bias [columns], row-major
//
// Bytes: x read, out written: 2 · rows · columns · sizeof(T); the bias stays in cache. FLOPs: 2 an element. The backward
// reads the gradient and out, writes grad_x, and sums grad_bias on the way: it reads nothing twice.
#pragma once

#include "device/activations.cuh"
#include "device/column_sum.cuh"
#include "device/vector.cuh"

namespace add_relu {

constexpr Activation relu = Activation::relu;

// A thread computes `width` consecutive elements: a Pack, or one.
template <class T, int width, class Index>
__global__ void __launch_bounds__(pointwise_threads)
    forward_kernel(const T* x, const T* bias, T* out, Index elements, Columns<Index> columns, bool whole_bias) {
    Index first = (Index(blockIdx.x) * pointwise_threads + threadIdx.x) * width;
    if (first + width <= elements) {
        Pack<T, width> xs = load<width>(x + first);
        Pack<T, width> biases = load_columns<width>(bias, columns, first, whole_bias);
        Accumulator<T> results[width];
#pragma unroll
        for (int e = 0; e < width; ++e) results[e] = activate<relu>(widen(xs.element[e]) + widen(biases.element[e]));
        store<width>(out + first, results);
    } else {  // the tail: fewer than `width` elements, in one thread
#pragma unroll 1
        for (Index i = first; i < elements; ++i)
            out[i] = narrow<T>(activate<relu>(widen(x[i]) + widen(bias[columns.of(i)])));
    }
}

// grad_x = grad where out > 0, else 0; grad_bias is its sum over the rows. A null pointer is not computed.
template <class T, int width>
__global__ void __launch_bounds__(tile_threads)
    backward_kernel(const T* __restrict__ grad, const T* __restrict__ out, T* __restrict__ grad_x, T* grad_bias,
                    Accumulator<T>* workspace, long long rows, long long columns, long long chunk_rows, int lanes) {
    Tile tile(lanes, width, rows, chunk_rows);
    Accumulator<T> sums[width] = {};
    if (tile.column < columns) {
#pragma unroll 4
        for (long long row = tile.first_row; row < tile.end_row; row += tile.step) {
            long long i = row * columns + tile.column;
            Pack<T, width> grads = load<width>(grad + i), outs = load<width>(out + i);
            Accumulator<T> results[width];
#pragma unroll
            for (int e = 0; e < width; ++e) {
                results[e] = input_gradient<relu>(widen(grads.element[e]), widen(outs.element[e]));
                sums[e] += results[e];
            }
            if (grad_x) store<width>(grad_x + i, results);
        }
    }
    if (grad_bias) column_sum<T, width>(sums, tile, grad_bias, workspace, columns);
}

inline long long workspace_size(long long rows, long long columns, long long elements = chunk_elements) {
    return column_sum_workspace(rows, columns, elements);
}

#ifndef __CUDACC_RTC__
template <class T, int width, class Index>
cudaError_t launch_forward(const T* x, const T* bias, T* out, long long elements, long long columns,
                           cudaStream_t stream) {
    return launch_kernel(forward_kernel<T, width, Index>, pointwise_grid(elements, width), dim3(pointwise_threads), 0,
                         stream, x, bias, out, Index(elements), Columns<Index>(columns),
                         columns % width == 0 && aligned(bias));
}

// out may be x. An error is the launch's own: what the kernel does wrong shows later, as always in CUDA.
template <class T>
cudaError_t launch(const T* x, const T* bias, T* out, long long rows, long long columns, cudaStream_t stream,
                   long long wide_size = first_wide_size) {
    long long elements = rows * columns;
    if (elements == 0) return cudaSuccess;
    auto go = elements < wide_size ? launch_forward<T, 1, unsigned> : launch_forward<T, 1, long long>;
    if (pointwise_width<T>(elements, x, out) > 1)
        go = elements < wide_size ? launch_forward<T, widest<T>, unsigned> : launch_forward<T, widest<T>, long long>;
    return go(x, bias, out, elements, columns, stream);
}

template <class T>
cudaError_t launch_backward(const T* grad, const T* out, T* grad_x, T* grad_bias, Accumulator<T>* workspace,
                            long long rows, long long columns, cudaStream_t stream,
                            long long elements = chunk_elements) {
    if (columns == 0) return cudaSuccess;
    bool whole = columns % widest<T> == 0 && aligned(grad, out, grad_x);
    Tiling tiling(rows, columns, whole ? widest<T> : 1, elements);
    cudaError_t error = launch_kernel(whole ? backward_kernel<T, widest<T>> : backward_kernel<T, 1>, tiling.grid,
                                      dim3(tile_threads), 0, stream, grad, out, grad_x, grad_bias, workspace, rows,
                                      columns, tiling.chunks.rows, tiling.lanes);
    if (error != cudaSuccess || !grad_bias) return error;
    return launch_add_chunks(workspace, grad_bias, tiling.chunks, columns, stream);
}
#endif

}  // namespace add_relu
