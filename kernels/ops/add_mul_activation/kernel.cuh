// out = act(x + multiplier · y + bias)            x, y, out [rows, columns], bias [columns], row-major
//
// Bytes: x and y read, out written: 3 · rows · columns · sizeof(T); the bias stays in cache. FLOPs: 3 an element and
// the activation's. So memory sets the time. The backward reads the gradient and what the derivative needs (out; x and
// y; or nothing), writes grad_x and grad_y, and sums grad_bias on the way: it reads nothing twice.
#pragma once

#include "device/activations.cuh"
#include "device/column_sum.cuh"
#include "device/scalar.cuh"
#include "device/vector.cuh"

namespace add_mul_activation {

// A thread computes `width` consecutive elements: a Pack, or one.
template <class T, int width, class Index, Activation A>
__global__ void __launch_bounds__(pointwise_threads)
    forward_kernel(const T* x, const T* bias, const T* y, Scalar scalar, T* out, Index elements,
                   Columns<Index> columns, bool whole_bias) {
    Index first = (Index(blockIdx.x) * pointwise_threads + threadIdx.x) * width;
    auto multiplier = scalar.get<Accumulator<T>>();
    if (first + width <= elements) {
        Pack<T, width> xs = load<width>(x + first), ys = load<width>(y + first);
        Pack<T, width> biases = load_columns<width>(bias, columns, first, whole_bias);
        Accumulator<T> results[width];
#pragma unroll
        for (int e = 0; e < width; ++e)
            results[e] =
                activate<A>(widen(xs.element[e]) + multiplier * widen(ys.element[e]) + widen(biases.element[e]));
        store<width>(out + first, results);
    } else {  // the tail: fewer than `width` elements, in one thread
#pragma unroll 1
        for (Index i = first; i < elements; ++i)
            out[i] = narrow<T>(activate<A>(widen(x[i]) + multiplier * widen(y[i]) + widen(bias[columns.of(i)])));
    }
}

// grad_y = multiplier · grad_x, and grad_bias is the sum of grad_x over the rows; a null pointer is not computed.
template <class T, int width, Activation A>
__global__ void __launch_bounds__(tile_threads)
    backward_kernel(const T* __restrict__ grad, const T* __restrict__ out, const T* __restrict__ x,
                    const T* __restrict__ bias, const T* __restrict__ y, Scalar scalar,
                    T* __restrict__ grad_x, T* __restrict__ grad_y, T* grad_bias, Accumulator<T>* workspace,
                    long long rows, long long columns, long long chunk_rows, int lanes) {
    Tile tile(lanes, width, rows, chunk_rows);
    Accumulator<T> sums[width] = {};
    auto multiplier = scalar.get<Accumulator<T>>();
    if (tile.column < columns) {
        Pack<T, width> biases = {};
        if constexpr (derivative_reads_input(A)) biases = load<width>(bias + tile.column);
#pragma unroll 4
        for (long long row = tile.first_row; row < tile.end_row; row += tile.step) {
            long long i = row * columns + tile.column;
            Pack<T, width> grads = load<width>(grad + i), values = {}, ys = {};
            if constexpr (derivative_reads_output(A)) values = load<width>(out + i);
            if constexpr (derivative_reads_input(A)) values = load<width>(x + i), ys = load<width>(y + i);
            Accumulator<T> results[width], scaled[width];
#pragma unroll
            for (int e = 0; e < width; ++e) {
                Accumulator<T> value = widen(values.element[e]);
                if constexpr (derivative_reads_input(A))
                    value += multiplier * widen(ys.element[e]) + widen(biases.element[e]);
                results[e] = input_gradient<A>(widen(grads.element[e]), value);
                scaled[e] = multiplier * results[e];
                sums[e] += results[e];
            }
            if (grad_x) store<width>(grad_x + i, results);
            if (grad_y) store<width>(grad_y + i, scaled);
        }
    }
    if (grad_bias) column_sum<T, width>(sums, tile, grad_bias, workspace, columns);
}

inline long long workspace_size(long long rows, long long columns, long long elements = chunk_elements) {
    return column_sum_workspace(rows, columns, elements);
}

#ifndef __CUDACC_RTC__
template <class T, int width, class Index, Activation A>
cudaError_t launch_forward(const T* x, const T* bias, const T* y, Scalar multiplier, T* out, long long elements,
                           long long columns, cudaStream_t stream) {
    return launch_kernel(forward_kernel<T, width, Index, A>, pointwise_grid(elements, width), dim3(pointwise_threads),
                         0, stream, x, bias, y, multiplier, out, Index(elements),
                         Columns<Index>(columns), columns % width == 0 && aligned(bias));
}

// out may be x. An error is the launch's own: what the kernel does wrong shows later, as always in CUDA.
// activation: a value of Activation, or its name.
template <class T, class Name>
cudaError_t launch(Name activation, const T* x, const T* bias, const T* y, Scalar multiplier, T* out,
                   long long rows, long long columns, cudaStream_t stream, long long wide_size = first_wide_size) {
    long long elements = rows * columns;
    if (elements == 0) return cudaSuccess;
    return with_activation(activation, [&](auto a) {
        constexpr Activation A = decltype(a)::value;
        auto go = elements < wide_size ? launch_forward<T, 1, unsigned, A> : launch_forward<T, 1, long long, A>;
        if (pointwise_width<T>(elements, x, y, out) > 1)
            go = elements < wide_size ? launch_forward<T, widest<T>, unsigned, A>
                                      : launch_forward<T, widest<T>, long long, A>;
        return go(x, bias, y, multiplier, out, elements, columns, stream);
    });
}

template <class T, class Name>
cudaError_t launch_backward(Name activation, const T* grad, const T* out, const T* x, const T* bias, const T* y,
                            Scalar multiplier, T* grad_x, T* grad_y, T* grad_bias, Accumulator<T>* workspace,
                            long long rows, long long columns, cudaStream_t stream,
                            long long elements = chunk_elements) {
    if (columns == 0) return cudaSuccess;
    bool whole = columns % widest<T> == 0 && aligned(grad, out, x, bias, y, grad_x, grad_y);
    Tiling tiling(rows, columns, whole ? widest<T> : 1, elements);
    cudaError_t error = with_activation(activation, [&](auto a) {
        constexpr Activation A = decltype(a)::value;
        auto kernel = whole ? backward_kernel<T, widest<T>, A> : backward_kernel<T, 1, A>;
        return launch_kernel(kernel, tiling.grid, dim3(tile_threads), 0, stream, grad, out, x, bias, y,
                             multiplier, grad_x, grad_y, grad_bias, workspace, rows, columns,
                             tiling.chunks.rows, tiling.lanes);
    });
    if (error != cudaSuccess || !grad_bias) return error;
    return launch_add_chunks(workspace, grad_bias, tiling.chunks, columns, stream);
}
#endif

}  // namespace add_mul_activation
