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

constexpr int narrow_threads = 128, held_threads = 128, most_threads = 1024, part_threads = 256;  // of a block

// A thread holds 16 elements in packs of `width`, of double 8: the backward holds as many of two tensors, and of 1024
// threads each has 64 registers.
template <class T, int width>
constexpr int held_packs = (sizeof(T) == 8 ? 8 : 16) / width;

template <class C>
constexpr C least = sizeof(C) == 8 ? C(-1.7976931348623157e308) : C(-3.4028234663852886e38);  // finite

// ------------------------------------------------------------------------------------------------ what a thread holds

// A thread's share of a row. Neighbouring threads hold neighbouring packs of `width` elements, and a thread's next pack
// lies blockDim.x packs further on. whole: the row begins at an aligned address and its packs leave no element over.
// Any other row has its packs between the first and the last aligned address in it. Before and after them up to width -
// 1 elements are left: each of the first threads holds one of those before and one of those after, in `end`.
template <class T, int width, int packs, bool whole>
struct Held {
    static constexpr int in_packs = packs * width, count = in_packs + (whole ? 0 : 2);
    Pack<T, width> pack[packs];
    T end[2];

    __device__ Accumulator<T> operator[](int i) const {
        return widen(i < in_packs ? pack[i / width].element[i % width] : end[i - in_packs]);
    }
    // Reads row[0, columns); `other` where the thread has no element.
    __device__ void load(const T* row, int columns, Accumulator<T> other) {
        int before = whole ? 0 : before_packs(row, columns), between = (columns - before) / width * width;
#pragma unroll
        for (int p = 0; p < packs; ++p) {
#pragma unroll
            for (int e = 0; e < width; ++e) pack[p].element[e] = narrow<T>(other);
            if (column_of(p) < between) pack[p] = ::load<width>(row + before + column_of(p));
        }
        if (whole) return;
        int thread = int(threadIdx.x), after = before + between + thread;
        end[0] = thread < before ? row[thread] : narrow<T>(other);
        end[1] = after < columns ? row[after] : narrow<T>(other);
    }
    // row[0, columns) = value(i), i as of operator[].
    template <class Value>
    __device__ static void store(T* row, int columns, Value value, bool streaming = false) {
        int before = whole ? 0 : before_packs(row, columns), between = (columns - before) / width * width;
#pragma unroll
        for (int p = 0; p < packs; ++p) {
            Accumulator<T> results[width];
#pragma unroll
            for (int e = 0; e < width; ++e) results[e] = value(p * width + e);
            if (column_of(p) < between) ::store<width>(row + before + column_of(p), results, streaming);
        }
        if (whole) return;
        int thread = int(threadIdx.x), after = before + between + thread;
        if (thread < before) row[thread] = narrow<T>(value(in_packs));
        if (after < columns) row[after] = narrow<T>(value(in_packs + 1));
    }

private:
    __device__ static int column_of(int p) { return (p * int(blockDim.x) + int(threadIdx.x)) * width; }
    __device__ static int before_packs(const T* row, int columns) {
        int before = int(-(reinterpret_cast<unsigned long long>(row) / sizeof(T)) % width);
        return before < columns ? before : columns;
    }
};

template <class Row>
__device__ inline auto maximum_of(const Row& row) {
    auto maximum = row[0];
#pragma unroll
    for (int i = 1; i < Row::count; ++i) maximum = Maximum::of(maximum, row[i]);
    return maximum;
}

template <class Row>
__device__ inline auto product_of(const Row& grads, const Row& outs) {
    auto product = grads[0] * outs[0];
#pragma unroll
    for (int i = 1; i < Row::count; ++i) product += grads[i] * outs[i];
    return product;
}

// ------------------------------------------------------------------------------------- rows that a thread team holds

// A row is held by the blockDim.x threads of one threadIdx.y.
template <class T, int width, int packs, bool whole>
__global__ void __launch_bounds__(most_threads) held_forward(const T* x, T* out, long long rows, int columns) {
    long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    int count = row < rows ? columns : 0;
    long long first = row < rows ? row * columns : 0;
    using C = Accumulator<T>;
    using Row = Held<T, width, packs, whole>;
    Row held;
    held.load(x + first, count, -infinity<C>());
    C maximum = reduce_row<Maximum>(maximum_of(held));
    C exponentials[Row::count], sum = 0;
#pragma unroll
    for (int i = 0; i < Row::count; ++i) sum += exponentials[i] = exponential(held[i] - maximum);
    C scale = reciprocal(reduce_row<Sum>(sum));
    Row::store(out + first, count, [&](int i) { return exponentials[i] * scale; });
}

template <class T, int width, int packs, bool whole>
__global__ void __launch_bounds__(most_threads)
    held_backward(const T* grad, const T* out, T* grad_x, long long rows, int columns) {
    long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    int count = row < rows ? columns : 0;
    long long first = row < rows ? row * columns : 0;
    Held<T, width, packs, whole> grads, outs;
    grads.load(grad + first, count, 0);
    outs.load(out + first, count, 0);
    auto product = reduce_row<Sum>(product_of(grads, outs));
    grads.store(grad_x + first, count, [&](int i) { return outs[i] * (grads[i] - product); });
}

// ------------------------------------------------------------------------------------------------------- narrow rows

// A block's rows lie one after the other, so it moves them 16 bytes at a time, though none of them is made of whole 16
// bytes; a thread takes rows in shared memory, some of them if they are short, so that a block has enough to move.
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
    narrow_forward(const T* x, T* out, long long rows, int columns, int block_rows, bool whole) {
    using C = Accumulator<T>;
    T* tile = dynamic_shared<T>();  // [block_rows, columns]
    long long first = (long long)blockIdx.x * block_rows;
    int here = rows - first < block_rows ? int(rows - first) : block_rows;
    copy_rows(tile, x + first * columns, here * columns, whole);
    __syncthreads();
    for (int r = int(threadIdx.x); r < here; r += narrow_threads) {
        T* row = tile + r * columns;
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
    narrow_backward(const T* grad, const T* out, T* grad_x, long long rows, int columns, int block_rows, bool whole) {
    using C = Accumulator<T>;
    T *grads = dynamic_shared<T>(), *outs = grads + block_rows * columns;
    long long first = (long long)blockIdx.x * block_rows;
    int here = rows - first < block_rows ? int(rows - first) : block_rows;
    copy_rows(grads, grad + first * columns, here * columns, whole);
    copy_rows(outs, out + first * columns, here * columns, whole);
    __syncthreads();
    for (int r = int(threadIdx.x); r < here; r += narrow_threads) {
        T *own_grads = grads + r * columns, *own_outs = outs + r * columns;
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
template <class T, int width, bool whole>
struct Part {
    using Row = Held<T, width, held_packs<T, width>, whole>;
    long long row, first, count, step;  // first: of the matrix, not of the row

    __device__ Part(long long columns, long long part_columns, int parts) {
        row = blockIdx.x / unsigned(parts);
        long long column = blockIdx.x % unsigned(parts) * part_columns;
        first = row * columns + column;
        count = columns - column < part_columns ? columns - column : part_columns;
        step = (long long)blockDim.x * Row::in_packs;
    }
    __device__ int held(long long start) const { return int(count - start < step ? count - start : step); }
    __device__ long long last() const { return (count - 1) / step * step; }
};

// The second pass goes from the end to the start: what was read last is still in the cache, where no pack that is written
// takes its place (so 512 rows of 50257 bfloat16 take 36 µs of an H200, which without took 144).
template <class T, int width, bool whole>
__device__ inline void write_forward(const T* x, T* out, const Part<T, width, whole>& part, Accumulator<T> maximum,
                                     Accumulator<T> scale) {
    for (long long start = part.last(); start >= 0; start -= part.step) {
        typename Part<T, width, whole>::Row held;
        held.load(x + part.first + start, part.held(start), -infinity<Accumulator<T>>());
        held.store(out + part.first + start, part.held(start),
                   [&](int i) { return exponential(held[i] - maximum) * scale; }, true);
    }
}

// Both passes where a block takes a whole row; of parts the first alone, which leaves a maximum and a sum for each in
// `workspace`. Maximum and sum are kept while reading ("online": Milakov and Gimelshein 2018, arXiv:1805.02867).
// The maximum begins at a finite number, so that -Inf never meets -Inf.
template <class T, int width, bool whole>
__global__ void __launch_bounds__(most_threads)
    long_forward(const T* x, T* out, Accumulator<T>* workspace, long long columns, long long part_columns, int parts) {
    using C = Accumulator<T>;
    Part<T, width, whole> part(columns, part_columns, parts);
    C own_maximum = least<C>, sum = 0;
    for (long long start = 0; start < part.count; start += part.step) {
        typename Part<T, width, whole>::Row held;
        held.load(x + part.first + start, part.held(start), -infinity<C>());
        C larger = Maximum::of(own_maximum, maximum_of(held));
        sum *= exponential(own_maximum - larger);
#pragma unroll
        for (int i = 0; i < held.count; ++i) sum += exponential(held[i] - larger);
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
template <class T, int width, bool whole>
__global__ void __launch_bounds__(most_threads)
    finish_forward(const T* x, T* out, const Accumulator<T>* workspace, long long columns, long long part_columns,
                   int parts) {
    using C = Accumulator<T>;
    Part<T, width, whole> part(columns, part_columns, parts);
    const C* found = workspace + 2 * part.row * parts;
    C own_maximum = least<C>, sum = 0;
    for (int p = int(threadIdx.x); p < parts; p += int(blockDim.x)) own_maximum = Maximum::of(own_maximum, found[2 * p]);
    C maximum = reduce_row<Maximum>(own_maximum);
    for (int p = int(threadIdx.x); p < parts; p += int(blockDim.x))
        sum += found[2 * p + 1] * exponential(found[2 * p] - maximum);
    write_forward(x, out, part, maximum, reciprocal(reduce_row<Sum>(sum)));
}

template <class T, int width, bool whole>
__device__ inline void write_backward(const T* grad, const T* out, T* grad_x, const Part<T, width, whole>& part,
                                      Accumulator<T> product) {
    for (long long start = part.last(); start >= 0; start -= part.step) {
        typename Part<T, width, whole>::Row grads, outs;
        grads.load(grad + part.first + start, part.held(start), 0);
        outs.load(out + part.first + start, part.held(start), 0);
        grads.store(
            grad_x + part.first + start, part.held(start), [&](int i) { return outs[i] * (grads[i] - product); },
            true);
    }
}

// As long_forward; of a part the workspace gets one number, its Σ grad · out.
template <class T, int width, bool whole>
__global__ void __launch_bounds__(most_threads)
    long_backward(const T* grad, const T* out, T* grad_x, Accumulator<T>* workspace, long long columns,
                  long long part_columns, int parts) {
    Part<T, width, whole> part(columns, part_columns, parts);
    Accumulator<T> product = 0;
    for (long long start = 0; start < part.count; start += part.step) {
        typename Part<T, width, whole>::Row grads, outs;
        grads.load(grad + part.first + start, part.held(start), 0);
        outs.load(out + part.first + start, part.held(start), 0);
        product += product_of(grads, outs);
    }
    product = reduce_row<Sum>(product);
    if (parts == 1)
        write_backward(grad, out, grad_x, part, product);
    else if (threadIdx.x == 0)
        workspace[blockIdx.x] = product;
}

template <class T, int width, bool whole>
__global__ void __launch_bounds__(most_threads)
    finish_backward(const T* grad, const T* out, T* grad_x, const Accumulator<T>* workspace, long long columns,
                    long long part_columns, int parts) {
    Part<T, width, whole> part(columns, part_columns, parts);
    Accumulator<T> product = 0;
    for (int p = int(threadIdx.x); p < parts; p += int(blockDim.x)) product += workspace[part.row * parts + p];
    write_backward(grad, out, grad_x, part, reduce_row<Sum>(product));
}

// -------------------------------------------------------------------------------------------------------- the launch

#ifndef __CUDACC_RTC__
// Where one way of computing gives way to another. A test sets them lower, to reach every way with small inputs.
//
// narrow: bytes of the longest row that one thread takes, unless it is made of whole 16 bytes.
// held: threads that hold a row, or of a longer one what they read at a time, at most; whole warps.
// few_rows: fewer longer rows are cut into parts: with a block each, many of a GPU's processors (132 on an H200) would
//     have no work.
struct Limits {
    long long narrow = 128, held = 1024, few_rows = 256, part_block = ::part_block;
};

struct Forward {
    template <class T>
    static constexpr auto narrow = narrow_forward<T>;
    template <class T, int width, int packs, bool whole>
    static constexpr auto held = held_forward<T, width, packs, whole>;
    template <class T, int width, bool whole>
    static constexpr auto in_steps = long_forward<T, width, whole>;
    template <class T, int width, bool whole>
    static constexpr auto finish = finish_forward<T, width, whole>;
};
struct Backward {
    template <class T>
    static constexpr auto narrow = narrow_backward<T>;
    template <class T, int width, int packs, bool whole>
    static constexpr auto held = held_backward<T, width, packs, whole>;
    template <class T, int width, bool whole>
    static constexpr auto in_steps = long_backward<T, width, whole>;
    template <class T, int width, bool whole>
    static constexpr auto finish = finish_backward<T, width, whole>;
};

// Threads for a row of so many packs: up to a warp the power of two by which each gets half of what it can hold, or
// less; then as few whole warps as can hold it. At least `lanes`, a power of two.
inline long long team(long long packs_of_row, int packs, long long lanes) {
    while (lanes < lanes_of_a_warp && lanes * ((packs + 1) / 2) < packs_of_row) lanes *= 2;
    while (lanes * packs < packs_of_row) lanes += lanes_of_a_warp;
    return lanes;
}

// Pointers: what is read, then what is written.
template <class Kernels, class T, int width, int packs, bool whole, class... Pointers>
cudaError_t launch_held(long long rows, long long columns, cudaStream_t stream, Pointers... pointers) {
    long long lanes = team(columns / width, packs, whole ? 1 : width);  // a thread for each element before the packs
    long long rows_a_block = lanes > lanes_of_a_warp ? 1 : held_threads / lanes;
    dim3 grid(unsigned((rows + rows_a_block - 1) / rows_a_block)), block{unsigned(lanes), unsigned(rows_a_block)};
    return launch_kernel(Kernels::template held<T, width, packs, whole>, grid, block, 0, stream, pointers..., rows,
                         int(columns));
}

template <class Kernels, int width, bool whole, class T, class... Pointers>
cudaError_t launch_width(Accumulator<T>* workspace, long long rows, long long columns, const Limits& limits,
                         cudaStream_t stream, Pointers... pointers) {
    constexpr int packs = held_packs<T, width>;
    long long packs_of_row = columns / width;
    if constexpr (width > 1)
        if (packs_of_row <= lanes_of_a_warp && packs_of_row <= limits.held)
            return launch_held<Kernels, T, width, 1, whole>(rows, columns, stream, pointers...);
    if (packs_of_row <= packs * limits.held)
        return launch_held<Kernels, T, width, packs, whole>(rows, columns, stream, pointers...);
    RowParts parts(rows, columns, limits.few_rows, limits.part_block);
    // Equal steps: else the last one would leave most threads idle.
    long long most = parts.count > 1 && limits.held > part_threads ? part_threads : limits.held;
    long long packs_of_part = (parts.columns - 1) / width + 1, steps = (packs_of_part - 1) / (most * packs) + 1;
    long long lanes = team((packs_of_part - 1) / steps + 1, packs, lanes_of_a_warp);
    dim3 grid(unsigned(rows * parts.count)), block{unsigned(lanes)};
    cudaError_t error = launch_kernel(Kernels::template in_steps<T, width, whole>, grid, block, 0, stream, pointers...,
                                      workspace, columns, parts.columns, int(parts.count));
    if (error != cudaSuccess || parts.count == 1) return error;
    return launch_kernel(Kernels::template finish<T, width, whole>, grid, block, 0, stream, pointers..., workspace,
                         columns, parts.columns, int(parts.count));
}

template <class Kernels, class T, class... Pointers>
cudaError_t launch_any(Accumulator<T>* workspace, long long rows, long long columns, const Limits& limits,
                       cudaStream_t stream, Pointers... pointers) {
    if (rows * columns == 0) return cudaSuccess;
    bool whole = columns % widest<T> == 0 && aligned(pointers...);
    if (long long row_bytes = columns * (long long)sizeof(T); !whole && row_bytes <= limits.narrow) {
        long long block_rows = narrow_threads * (row_bytes < 32 ? 32 / row_bytes : 1);  // 2 KB or more for a block
        size_t shared_bytes = (sizeof...(Pointers) - 1) * size_t(block_rows * columns) * sizeof(T);
        dim3 grid(unsigned((rows + block_rows - 1) / block_rows));
        return launch_kernel(Kernels::template narrow<T>, grid, dim3(narrow_threads), shared_bytes, stream, pointers...,
                             rows, int(columns), int(block_rows), aligned(pointers...));
    }
    auto go = whole                        ? launch_width<Kernels, widest<T>, true, T, Pointers...>
              : aligned_alike(pointers...) ? launch_width<Kernels, widest<T>, false, T, Pointers...>
                                           : launch_width<Kernels, 1, true, T, Pointers...>;
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
