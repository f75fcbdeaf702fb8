// out = e^(x - max x) / Σ e^(x - max x), row by row             x, out [rows, columns], row-major
//
// Bytes: 2 · rows · columns · sizeof(T) where rows are held on chip, so that x is read once (narrow_forward,
// held_forward). Longer rows are read twice, 3 · rows · columns · sizeof(T) less what is still in the cache:
// long_forward and, where rows are too few to fill a GPU, finish_forward. FLOPs: 5 an element. The backward is
//
//     grad_x = out · (grad - Σ grad · out)
//
// Bytes: 3 · rows · columns · sizeof(T), for longer rows 5. FLOPs: 4 an element.
//
// NaN and ±Inf need no test. A row with +Inf has e^(Inf - Inf) = NaN in its sum; a row of -Inf alone becomes NaN as
// e^(-Inf + Inf) where the maximum is -Inf, or as 0 / 0 where the running maximum began at the least finite number.
#pragma once

#include "device/activations.cuh"
#include "device/reduce.cuh"

namespace softmax {

constexpr int narrow_threads = 128, held_threads = 128, most_threads = 1024, long_threads = 256;  // of a block

// A thread holds 16 elements, of double 8, in packs of `width`: the backward holds as many of two tensors, and of 1024
// threads each has 64 registers.
template <class T, int width>
constexpr int held_packs = (sizeof(T) == 8 ? 8 : 16) / width;

template <class C>
constexpr C least = sizeof(C) == 8 ? C(-1.7976931348623157e308) : C(-3.4028234663852886e38);  // finite

// ------------------------------------------------------------------------------------------------ what a thread holds

// A thread's packs: its neighbours' lie beside them, its own next one blockDim.x packs further.

// The thread's packs of row[0, count); `other` beyond.
template <int width, int packs, class T>
__device__ inline void load_row(Pack<T, width> (&held)[packs], const T* row, int count, Accumulator<T> other) {
    int column = int(threadIdx.x) * width, step = int(blockDim.x) * width;
    row += column;
#pragma unroll
    for (int p = 0; p < packs; ++p, column += step, row += step) {
#pragma unroll
        for (int e = 0; e < width; ++e) held[p].element[e] = narrow<T>(other);
        if (column < count) held[p] = load<width>(row);
    }
}

// row[0, count) = value(pack, element), where the thread's packs lie.
template <int width, int packs, class T, class Value>
__device__ inline void store_row(T* row, int count, Value value) {
    int column = int(threadIdx.x) * width, step = int(blockDim.x) * width;
    row += column;
#pragma unroll
    for (int p = 0; p < packs; ++p, column += step, row += step) {
        Accumulator<T> results[width];
#pragma unroll
        for (int e = 0; e < width; ++e) results[e] = value(p, e);
        if (column < count) store<width>(row, results);
    }
}

template <class T, int width, int packs>
__device__ inline Accumulator<T> maximum_of(const Pack<T, width> (&held)[packs]) {
    Accumulator<T> maximum = -infinity<Accumulator<T>>();
#pragma unroll
    for (int p = 0; p < packs; ++p)
#pragma unroll
        for (int e = 0; e < width; ++e) maximum = Maximum::of(maximum, widen(held[p].element[e]));
    return maximum;
}

template <class T, int width, int packs>
__device__ inline Accumulator<T> product_of(const Pack<T, width> (&grads)[packs], const Pack<T, width> (&outs)[packs]) {
    Accumulator<T> product = 0;
#pragma unroll
    for (int p = 0; p < packs; ++p)
#pragma unroll
        for (int e = 0; e < width; ++e) product += widen(grads[p].element[e]) * widen(outs[p].element[e]);
    return product;
}

// ------------------------------------------------------------------------------------- rows that a thread team holds

// A row is held by the blockDim.x threads of one threadIdx.y.
template <class T, int width, int packs>
__global__ void __launch_bounds__(most_threads) held_forward(const T* x, T* out, long long rows, int columns) {
    long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    int count = row < rows ? columns : 0;
    long long first = row < rows ? row * columns : 0;
    using C = Accumulator<T>;
    Pack<T, width> held[packs];
    load_row(held, x + first, count, -infinity<C>());
    C maximum = reduce_row<Maximum>(maximum_of(held));
    C exponentials[packs][width], sum = 0;
#pragma unroll
    for (int p = 0; p < packs; ++p)
#pragma unroll
        for (int e = 0; e < width; ++e)
            sum += exponentials[p][e] = exponential(widen(held[p].element[e]) - maximum);
    C scale = reciprocal(reduce_row<Sum>(sum));
    store_row<width, packs>(out + first, count, [&](int p, int e) { return exponentials[p][e] * scale; });
}

template <class T, int width, int packs>
__global__ void __launch_bounds__(most_threads)
    held_backward(const T* grad, const T* out, T* grad_x, long long rows, int columns) {
    long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    int count = row < rows ? columns : 0;
    long long first = row < rows ? row * columns : 0;
    Pack<T, width> grads[packs], outs[packs];
    load_row(grads, grad + first, count, Accumulator<T>(0));
    load_row(outs, out + first, count, Accumulator<T>(0));
    Accumulator<T> product = reduce_row<Sum>(product_of(grads, outs));
    store_row<width, packs>(grad_x + first, count, [&](int p, int e) {
        return widen(outs[p].element[e]) * (widen(grads[p].element[e]) - product);
    });
}

// ------------------------------------------------------------------------------------------------------- narrow rows

// A block's rows lie one after the other, so it moves them 16 bytes at a time, though none of them is made of whole 16
// bytes; a thread takes a row in shared memory.
template <class T>
__device__ inline void copy_rows(T* to, const T* from, int count, bool whole) {
    constexpr int width = widest<T>;
    int done = whole ? count / width : 0;
    for (int i = int(threadIdx.x); i < done; i += narrow_threads)
        reinterpret_cast<Pack<T, width>*>(to)[i] = load<width>(from + i * width);
    for (int i = done * width + int(threadIdx.x); i < count; i += narrow_threads) to[i] = from[i];
}

template <class T>
__global__ void __launch_bounds__(narrow_threads)
    narrow_forward(const T* x, T* out, long long rows, int columns, bool whole) {
    using C = Accumulator<T>;
    T* tile = dynamic_shared<T>();  // [narrow_threads, columns]
    long long first = (long long)blockIdx.x * narrow_threads;
    int here = rows - first < narrow_threads ? int(rows - first) : narrow_threads;
    copy_rows(tile, x + first * columns, here * columns, whole);
    __syncthreads();
    if (int(threadIdx.x) < here) {
        T* row = tile + int(threadIdx.x) * columns;
        C maximum = -infinity<C>(), sum = 0;
        for (int c = 0; c < columns; ++c) maximum = Maximum::of(maximum, widen(row[c]));
        for (int c = 0; c < columns; ++c) sum += exponential(widen(row[c]) - maximum);
        C scale = reciprocal(sum);
        for (int c = 0; c < columns; ++c) row[c] = narrow<T>(exponential(widen(row[c]) - maximum) * scale);
    }
    __syncthreads();
    copy_rows(out + first * columns, tile, here * columns, whole);
}

template <class T>
__global__ void __launch_bounds__(narrow_threads)
    narrow_backward(const T* grad, const T* out, T* grad_x, long long rows, int columns, bool whole) {
    using C = Accumulator<T>;
    T *grads = dynamic_shared<T>(), *outs = grads + narrow_threads * columns;
    long long first = (long long)blockIdx.x * narrow_threads;
    int here = rows - first < narrow_threads ? int(rows - first) : narrow_threads;
    copy_rows(grads, grad + first * columns, here * columns, whole);
    copy_rows(outs, out + first * columns, here * columns, whole);
    __syncthreads();
    if (int(threadIdx.x) < here) {
        T *own_grads = grads + int(threadIdx.x) * columns, *own_outs = outs + int(threadIdx.x) * columns;
        C product = 0;
        for (int c = 0; c < columns; ++c) product += widen(own_grads[c]) * widen(own_outs[c]);
        for (int c = 0; c < columns; ++c)
            own_grads[c] = narrow<T>(widen(own_outs[c]) * (widen(own_grads[c]) - product));
    }
    __syncthreads();
    copy_rows(grad_x + first * columns, grads, here * columns, whole);
}

// ------------------------------------------------------------------------------------------------------- longer rows

// The part of a row that a block takes, in steps of what its threads hold.
template <class T, int width>
struct Part {
    long long row, first, count, step;  // first: of the matrix, not of the row

    __device__ Part(long long columns, long long part_columns, int parts) {
        row = blockIdx.x / unsigned(parts);
        long long column = blockIdx.x % unsigned(parts) * part_columns;
        first = row * columns + column;
        count = columns - column < part_columns ? columns - column : part_columns;
        step = (long long)blockDim.x * held_packs<T, width> * width;
    }
    __device__ int held(long long start) const { return int(count - start < step ? count - start : step); }
    __device__ long long last() const { return (count - 1) / step * step; }
};

// The second pass goes from the end to the start: what was read last is still in the cache.
template <class T, int width>
__device__ inline void write_forward(const T* x, T* out, const Part<T, width>& part, Accumulator<T> maximum,
                                     Accumulator<T> scale) {
    for (long long start = part.last(); start >= 0; start -= part.step) {
        Pack<T, width> held[held_packs<T, width>];
        load_row(held, x + part.first + start, part.held(start), -infinity<Accumulator<T>>());
        store_row<width, held_packs<T, width>>(out + part.first + start, part.held(start), [&](int p, int e) {
            return exponential(widen(held[p].element[e]) - maximum) * scale;
        });
    }
}

// Both passes where a block takes a whole row; of parts the first alone, which leaves a maximum and a sum for each in
// `workspace`. Maximum and sum are kept while reading ("online": Milakov and Gimelshein 2018, arXiv:1805.02867).
// The maximum begins at a finite number, so that -Inf never meets -Inf.
template <class T, int width>
__global__ void __launch_bounds__(long_threads)
    long_forward(const T* x, T* out, Accumulator<T>* workspace, long long columns, long long part_columns, int parts) {
    using C = Accumulator<T>;
    Part<T, width> part(columns, part_columns, parts);
    C own_maximum = least<C>, sum = 0;
    for (long long start = 0; start < part.count; start += part.step) {
        Pack<T, width> held[held_packs<T, width>];
        load_row(held, x + part.first + start, part.held(start), -infinity<C>());
        C larger = Maximum::of(own_maximum, maximum_of(held));
        sum *= exponential(own_maximum - larger);
#pragma unroll
        for (int p = 0; p < held_packs<T, width>; ++p)
#pragma unroll
            for (int e = 0; e < width; ++e) sum += exponential(widen(held[p].element[e]) - larger);
        own_maximum = larger;
    }
    C maximum = reduce_row<Maximum>(own_maximum);
    sum = reduce_row<Sum>(sum * exponential(own_maximum - maximum));
    if (parts == 1) {
        write_forward(x, out, part, maximum, reciprocal(sum));
    } else if (threadIdx.x == 0) {
        workspace[2LL * blockIdx.x] = maximum;
        workspace[2LL * blockIdx.x + 1] = sum;
    }
}

// The second pass over parts. All blocks of a row combine the parts in the same order, so they agree on every bit.
template <class T, int width>
__global__ void __launch_bounds__(long_threads)
    finish_forward(const T* x, T* out, const Accumulator<T>* workspace, long long columns, long long part_columns,
                   int parts) {
    using C = Accumulator<T>;
    Part<T, width> part(columns, part_columns, parts);
    const C* found = workspace + 2 * part.row * parts;
    C own_maximum = least<C>, sum = 0;
    for (int p = int(threadIdx.x); p < parts; p += long_threads) own_maximum = Maximum::of(own_maximum, found[2 * p]);
    C maximum = reduce_row<Maximum>(own_maximum);
    for (int p = int(threadIdx.x); p < parts; p += long_threads)
        sum += found[2 * p + 1] * exponential(found[2 * p] - maximum);
    write_forward(x, out, part, maximum, reciprocal(reduce_row<Sum>(sum)));
}

template <class T, int width>
__device__ inline void write_backward(const T* grad, const T* out, T* grad_x, const Part<T, width>& part,
                                      Accumulator<T> product) {
    for (long long start = part.last(); start >= 0; start -= part.step) {
        Pack<T, width> grads[held_packs<T, width>], outs[held_packs<T, width>];
        load_row(grads, grad + part.first + start, part.held(start), Accumulator<T>(0));
        load_row(outs, out + part.first + start, part.held(start), Accumulator<T>(0));
        store_row<width, held_packs<T, width>>(grad_x + part.first + start, part.held(start), [&](int p, int e) {
            return widen(outs[p].element[e]) * (widen(grads[p].element[e]) - product);
        });
    }
}

// As long_forward; of a part the workspace gets one number, its Σ grad · out.
template <class T, int width>
__global__ void __launch_bounds__(long_threads)
    long_backward(const T* grad, const T* out, T* grad_x, Accumulator<T>* workspace, long long columns,
                  long long part_columns, int parts) {
    Part<T, width> part(columns, part_columns, parts);
    Accumulator<T> product = 0;
    for (long long start = 0; start < part.count; start += part.step) {
        Pack<T, width> grads[held_packs<T, width>], outs[held_packs<T, width>];
        load_row(grads, grad + part.first + start, part.held(start), Accumulator<T>(0));
        load_row(outs, out + part.first + start, part.held(start), Accumulator<T>(0));
        product += product_of(grads, outs);
    }
    product = reduce_row<Sum>(product);
    if (parts == 1)
        write_backward(grad, out, grad_x, part, product);
    else if (threadIdx.x == 0)
        workspace[blockIdx.x] = product;
}

template <class T, int width>
__global__ void __launch_bounds__(long_threads)
    finish_backward(const T* grad, const T* out, T* grad_x, const Accumulator<T>* workspace, long long columns,
                    long long part_columns, int parts) {
    Part<T, width> part(columns, part_columns, parts);
    Accumulator<T> product = 0;
    for (int p = int(threadIdx.x); p < parts; p += long_threads) product += workspace[part.row * parts + p];
    write_backward(grad, out, grad_x, part, reduce_row<Sum>(product));
}

// -------------------------------------------------------------------------------------------------------- the launch

#ifndef __CUDACC_RTC__
// Where one way of computing gives way to another. A test sets them lower, to reach every way with small inputs.
//
// narrow: bytes of the longest row that one thread takes, unless it is made of whole 16 bytes.
// held: threads that hold a row, at most.
// few_rows: fewer longer rows are cut into parts: with a block each, many of a GPU's processors (132 on an H200) would
//     have no work.
struct Limits {
    long long narrow = 128, held = 1024, few_rows = 256, part_block = ::part_block;
};

struct Forward {
    template <class T>
    static constexpr auto narrow = narrow_forward<T>;
    template <class T, int width, int packs>
    static constexpr auto held = held_forward<T, width, packs>;
    template <class T, int width>
    static constexpr auto in_steps = long_forward<T, width>;
    template <class T, int width>
    static constexpr auto finish = finish_forward<T, width>;
};
struct Backward {
    template <class T>
    static constexpr auto narrow = narrow_backward<T>;
    template <class T, int width, int packs>
    static constexpr auto held = held_backward<T, width, packs>;
    template <class T, int width>
    static constexpr auto in_steps = long_backward<T, width>;
    template <class T, int width>
    static constexpr auto finish = finish_backward<T, width>;
};

// Threads for a row of so many packs: a power of two that leaves each at least half of what it can hold, up to a warp;
// then whole warps.
inline long long team(long long packs_of_row, int packs) {
    long long lanes = 1;
    while (lanes < lanes_of_a_warp && lanes * ((packs + 1) / 2) < packs_of_row) lanes *= 2;
    while (lanes * packs < packs_of_row) lanes += lanes_of_a_warp;
    return lanes;
}

// In rows of `width` times `packs_of_row` columns; pointers: what is read, then what is written.
template <class Kernels, class T, int width, int packs, class... Pointers>
cudaError_t launch_held(long long rows, long long packs_of_row, cudaStream_t stream, Pointers... pointers) {
    long long lanes = team(packs_of_row, packs), rows_a_block = lanes > lanes_of_a_warp ? 1 : held_threads / lanes;
    dim3 grid(unsigned((rows + rows_a_block - 1) / rows_a_block)), block{unsigned(lanes), unsigned(rows_a_block)};
    return launch_kernel(Kernels::template held<T, width, packs>, grid, block, 0, stream, pointers..., rows,
                         int(packs_of_row * width));
}

template <class Kernels, int width, class T, class... Pointers>
cudaError_t launch_width(Accumulator<T>* workspace, long long rows, long long columns, const Limits& limits,
                         cudaStream_t stream, Pointers... pointers) {
    constexpr int packs = held_packs<T, width>;
    long long packs_of_row = columns / width;
    if constexpr (width > 1)
        if (packs_of_row <= lanes_of_a_warp && packs_of_row <= limits.held)
            return launch_held<Kernels, T, width, 1>(rows, packs_of_row, stream, pointers...);
    if (packs_of_row <= packs * limits.held)
        return launch_held<Kernels, T, width, packs>(rows, packs_of_row, stream, pointers...);
    RowParts parts(rows, columns, limits.few_rows, limits.part_block);
    dim3 grid(unsigned(rows * parts.count));
    cudaError_t error = launch_kernel(Kernels::template in_steps<T, width>, grid, dim3(long_threads), 0, stream,
                                      pointers..., workspace, columns, parts.columns, int(parts.count));
    if (error != cudaSuccess || parts.count == 1) return error;
    return launch_kernel(Kernels::template finish<T, width>, grid, dim3(long_threads), 0, stream, pointers...,
                         workspace, columns, parts.columns, int(parts.count));
}

template <class Kernels, class T, class... Pointers>
cudaError_t launch_any(Accumulator<T>* workspace, long long rows, long long columns, const Limits& limits,
                       cudaStream_t stream, Pointers... pointers) {
    if (rows * columns == 0) return cudaSuccess;
    bool whole = columns % widest<T> == 0 && aligned(pointers...);
    bool pairs = columns % 2 == 0 && aligned(pointers...);  // 4 bytes at a time, of float 8
    if (!whole && columns * (long long)sizeof(T) <= limits.narrow) {
        size_t shared_bytes = (sizeof...(Pointers) - 1) * narrow_threads * size_t(columns) * sizeof(T);
        dim3 grid(unsigned((rows + narrow_threads - 1) / narrow_threads));
        return launch_kernel(Kernels::template narrow<T>, grid, dim3(narrow_threads), shared_bytes, stream, pointers...,
                             rows, int(columns), aligned(pointers...));
    }
    auto go = whole   ? launch_width<Kernels, widest<T>, T, Pointers...>
              : pairs ? launch_width<Kernels, 2, T, Pointers...>
                      : launch_width<Kernels, 1, T, Pointers...>;
    return go(workspace, rows, columns, limits, stream, pointers...);
}

// Elements of the workspace, Accumulator<T>, that both directions need, whether or not pointers are aligned.
template <class T>
long long workspace_size(long long rows, long long columns, const Limits& limits = {}) {
    if (rows == 0 || columns <= held_packs<T, 1> * limits.held) return 0;
    long long parts = RowParts(rows, columns, limits.few_rows, limits.part_block).count;
    return parts == 1 ? 0 : 2 * rows * parts;
}

// out may be x. An error is the launch's own: what the kernel does wrong shows later, as always in CUDA.
template <class T>
cudaError_t launch(const T* x, T* out, Accumulator<T>* workspace, long long rows, long long columns,
                   cudaStream_t stream, const Limits& limits = {}) {
    return launch_any<Forward, T>(workspace, rows, columns, limits, stream, x, out);
}

template <class T>
cudaError_t launch_backward(const T* grad, const T* out, T* grad_x, Accumulator<T>* workspace, long long rows,
                            long long columns, cudaStream_t stream, const Limits& limits = {}) {
    return launch_any<Backward, T>(workspace, rows, columns, limits, stream, grad, out, grad_x);
}
#endif

}  // namespace softmax
