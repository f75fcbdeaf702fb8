// out = [t_0, t_i · t_j for j < i, zeros]          t_0: dense [rows, columns], t_1 …: sparse [rows, features, columns]
//
// The pairs go row by row through the strictly lower triangle of T Tᵀ, T = [dense; sparse]; out [rows, width]. The
// backward, with G the strictly lower triangular matrix of the pairs' gradients:
//
//     grad_T = (G + Gᵀ) T, and the gradient of out's first columns is added to that of t_0
//
// Bytes, V = features + 1: rows · (V · columns + width) · sizeof(T), and in the backward V · columns more. FLOPs: a
// multiplication and an addition for each column of V (V - 1) / 2 pairs, in the backward twice as many.
//
// COST_PARAGRAPH
#pragma once

#include "device/launch.cuh"
#include "device/vector.cuh"

namespace dot_interaction {

constexpr int tile = 9;            // vectors on each side of a thread's block of pairs
constexpr int slice = 8;           // columns of a thread's block in the backward
constexpr int most_threads = 128;  // of a block
constexpr int blocks = 3;          // of that size, which a multiprocessor's registers are to hold

struct Shape {
    long long rows;
    int features, columns, width;
    int block_rows;       // a power of two
    bool whole;           // vectors are made of whole 16 bytes, aligned
    bool whole_out;       // so are a block's rows of out, or of its gradient, together
    // By features + 1; by columns; by the whole 16 bytes of a row of out, if padding() is not 0.
    Columns<unsigned> vectors, columns_of, packs;

    __host__ __device__ int pairs() const { return features * (features + 1) / 2; }
};

__host__ __device__ inline int triangle(int i) { return i * (i - 1) / 2; }  // the place of pair (i, 0)
__host__ __device__ inline int sides(int features) { return features / tile + 1; }

// Elements between rows of out in shared memory, beyond its width. Threads beside each other write, or read, one column
// of rows beside each other: in one bank if a row's 16 bytes are an even number of them.
template <class T>
__host__ __device__ inline int padding(int width) {
    return width % (2 * widest<T>) == 0 ? widest<T> : 0;
}
// Of a row's vectors in shared memory: 16 bytes at one place of rows beside each other lie in different banks, since
// the rows are an odd number of 16 bytes apart.
template <int depth>
__host__ __device__ inline int row_stride(int features) {
    return (features + 1) * depth + 4;
}

// ---------------------------------------------------------------------------------------- between memory and chip

// 16 bytes to shared memory, without waiting and without registers; wait_for_copies() waits for all that a thread began.
__device__ inline void begin_copy(float* to, const float* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(from)
                 : "memory");
#else
    *reinterpret_cast<Pack<float, 4>*>(to) = load<4>(from);
#endif
}
__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// `width` elements at each of several places, widened to shared memory: float directly, the others in batches, so that a
// thread has several loads in flight. n goes from `first` up to `count` by `step`; from(n), to(n): the places.
template <int width, class T, class From, class To>
__device__ inline void load_all(unsigned first, unsigned count, unsigned step, From from, To to) {
    if constexpr (sizeof(T) == 4 && width == 4) {
#pragma unroll 4
        for (unsigned n = first; n < count; n += step) begin_copy(to(n), from(n));
    } else {
        constexpr int batch = 4, at_once = width < 4 ? width : 4;
        for (; first < count; first += batch * step) {
            Pack<T, width> packs[batch];
#pragma unroll
            for (int b = 0; b < batch; ++b)
                if (first + b * step < count) packs[b] = load<width>(from(first + b * step));
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                if (first + b * step >= count) continue;
                float* place = to(first + b * step);
#pragma unroll
                for (int e = 0; e < width; e += at_once) {
                    Pack<float, at_once> values;
#pragma unroll
                    for (int f = 0; f < at_once; ++f) values.element[f] = widen(packs[b].element[e + f]);
                    *reinterpret_cast<Pack<float, at_once>*>(place + e) = values;
                }
            }
        }
    }
}

// What a thread moves of the block's vectors, columns [start, start + depth): `width` columns, always the same, of every
// step-th vector. The number of threads is a multiple of 32, and so of depth / width.
template <int depth, int width>
struct Moved {
    static constexpr unsigned in_vector = depth / width;
    unsigned first, count, step, column, offset, columns;
    Columns<unsigned> vectors;
    bool exists;

    __device__ Moved(int block_rows, int start, const Shape& s)
        : first(threadIdx.x / in_vector), count(unsigned(block_rows) * s.vectors.divisor),
          step(blockDim.x / in_vector), column(threadIdx.x % in_vector * width), offset(unsigned(start) + column),
          columns(unsigned(s.columns)), vectors(s.vectors), exists(offset < columns) {}
    __device__ unsigned place(unsigned vector) const {
        return vector * depth + vectors.quotient(vector) * 4 + column;
    }
    // In `dense` or in `sparse`, which begin at the block's first row.
    template <class T>
    __device__ T* of(unsigned vector, T* dense, T* sparse) const {
        unsigned row = vectors.quotient(vector);
        bool is_dense = vector == row * vectors.divisor;
        return (is_dense ? dense : sparse) + ((is_dense ? row : vector - row - 1) * columns + offset);
    }
    __device__ bool is_dense(unsigned vector) const {
        return vector == vectors.quotient(vector) * vectors.divisor;
    }
};

// The block's vectors; columns beyond the last are zeros.
template <int depth, int width, class T>
__device__ inline void load_vectors(float* vectors, const T* __restrict__ dense, const T* __restrict__ sparse,
                                    int block_rows, int start, const Shape& s) {
    Moved<depth, width> moved(block_rows, start, s);
    if (moved.exists) {
        load_all<width, T>(moved.first, moved.count, moved.step,
                           [&](unsigned vector) { return moved.of(vector, dense, sparse); },
                           [&](unsigned vector) { return vectors + moved.place(vector); });
    } else {
#pragma unroll 1
        for (unsigned vector = moved.first; vector < moved.count; vector += moved.step)
            for (int e = 0; e < width; ++e) vectors[moved.place(vector) + e] = 0;
    }
}

// The reverse, into gradients; a null pointer is of one that is not needed.
template <int depth, int width, class T>
__device__ inline void store_vectors(const float* vectors, T* dense, T* sparse, int block_rows, int start,
                                     const Shape& s) {
    Moved<depth, width> moved(block_rows, start, s);
    if (!moved.exists) return;
#pragma unroll 4
    for (unsigned vector = moved.first; vector < moved.count; vector += moved.step) {
        if (!(moved.is_dense(vector) ? dense : sparse)) continue;
        float values[width];
#pragma unroll
        for (int e = 0; e < width; ++e) values[e] = vectors[moved.place(vector) + e];
        store<width>(moved.of(vector, dense, sparse), values);
    }
}

// Four columns at a time of a vector in shared memory.
__device__ inline Pack<float, 4> four(const float* vector) { return load<4>(vector); }

// --------------------------------------------------------------------------------------------------------- forward

// A thread computes tile × tile pairs of a row. Threads beside each other take the same pairs of rows beside each other.
template <class T, int depth>
__global__ void __launch_bounds__(most_threads, blocks)
    tiled_forward(const T* __restrict__ dense, const T* __restrict__ sparse, T* __restrict__ out, Shape s) {
    float* vectors = dynamic_shared<float>();
    long long first = (long long)blockIdx.x * s.block_rows;
    int here = s.rows - first < s.block_rows ? int(s.rows - first) : s.block_rows;
    dense += first * s.columns;
    sparse += first * s.features * s.columns;
    out += first * s.width;

    // The threads of the last warp that are too many compute what others compute, and write nothing.
    int row = int(threadIdx.x) & (s.block_rows - 1), left = 0, right = int(threadIdx.x) / s.block_rows;
    while (right > left) right -= ++left;
    bool writes = row < here && left * tile <= s.features;
    if (!writes) left = right = 0;
    const float* lefts = vectors + row * row_stride<depth>(s.features) + left * tile * depth;
    const float* rights = vectors + row * row_stride<depth>(s.features) + right * tile * depth;

    float sums[tile][tile] = {};
    for (int start = 0; start < s.columns; start += depth) {
        if (start) __syncthreads();
        if (s.whole)
            load_vectors<depth, widest<T>>(vectors, dense, sparse, here, start, s);
        else
            load_vectors<depth, 1>(vectors, dense, sparse, here, start, s);
        wait_for_copies();
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < depth; k += 4) {
            Pack<float, 4> a[tile];
#pragma unroll
            for (int m = 0; m < tile; ++m) a[m] = four(lefts + m * depth + k);
#pragma unroll
            for (int n = 0; n < tile; ++n) {
                Pack<float, 4> b = four(rights + n * depth + k);
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int m = 0; m < tile; ++m) sums[m][n] += a[m].element[e] * b.element[e];
            }
        }
    }

    // The rows of out take the vectors' place: a block's are one piece of memory, whose sectors are written whole.
    __syncthreads();
    T* staged = reinterpret_cast<T*>(vectors);
    int stride = s.width + padding<T>(s.width);
    if (writes) {
#pragma unroll
        for (int m = 0; m < tile; ++m) {
            int i = left * tile + m;
            T* to = staged + row * stride + s.columns + triangle(i) + right * tile;
            if (i > s.features) continue;
#pragma unroll
            for (int n = 0; n < tile; ++n)
                if (n < m || left != right) to[n] = narrow<T>(sums[m][n]);
        }
    }
#pragma unroll 4
    for (unsigned e = threadIdx.x; e < unsigned(here * s.columns); e += blockDim.x) {
        unsigned of_row = s.columns_of.quotient(e);
        staged[of_row * unsigned(stride - s.columns) + e] = dense[e];
    }
    for (int r = int(threadIdx.x); r < here; r += int(blockDim.x))
        for (int c = s.columns + s.pairs(); c < s.width; ++c) staged[r * stride + c] = narrow<T>(0.0f);
    __syncthreads();
    unsigned count = unsigned(here * s.width), done = 0;
    if (s.whole_out) {
        constexpr unsigned width = widest<T>;
        bool padded = padding<T>(s.width) > 0;
        done = count / width;
#pragma unroll 4
        for (unsigned p = threadIdx.x; p < done; p += blockDim.x) {
            unsigned from = padded ? p + s.packs.quotient(p) : p;
            reinterpret_cast<Pack<T, width>*>(out)[p] = load<width>(staged + from * width);
        }
        done *= width;
        if (padded) return;  // then rows are made of whole 16 bytes
    }
    for (unsigned e = done + threadIdx.x; e < count; e += blockDim.x)
        out[e] = staged[e + e / unsigned(s.width) * unsigned(stride - s.width)];
}

// -------------------------------------------------------------------------------------------------------- backward

// The rows of out's gradient.
template <int width, class T>
__device__ inline void load_gradients(float* gradients, const T* __restrict__ grad, unsigned count, const Shape& s) {
    unsigned between = unsigned(padding<float>(s.width)), whole = count / width * width;
    load_all<width, T>(threadIdx.x, whole / width, blockDim.x, [&](unsigned pack) { return grad + pack * width; },
                       [&](unsigned pack) {
                           unsigned row = 0;
                           if (between) row = width > 1 ? s.packs.quotient(pack) : pack / unsigned(s.width);
                           return gradients + pack * width + row * between;
                       });
    for (unsigned e = whole + threadIdx.x; e < count; e += blockDim.x)
        gradients[e + e / unsigned(s.width) * between] = widen(grad[e]);
}

// sums[m][0, slice) += weight(m) · vector[0, slice)
template <class Weight>
__device__ inline void add_product(float (&sums)[tile][slice], const float* vector, Weight weight) {
    Pack<float, 4> parts[slice / 4];
#pragma unroll
    for (int p = 0; p < slice / 4; ++p) parts[p] = four(vector + 4 * p);
#pragma unroll
    for (int m = 0; m < tile; ++m) {
        float factor = weight(m);
#pragma unroll
        for (int e = 0; e < slice; ++e) sums[m][e] += factor * parts[e / 4].element[e % 4];
    }
}

// A thread computes `slice` columns of the gradients of `tile` vectors of a row.
template <class T, int depth>
__global__ void __launch_bounds__(most_threads, blocks)
    tiled_backward(const T* __restrict__ grad, const T* __restrict__ dense, const T* __restrict__ sparse,
                   T* __restrict__ grad_dense, T* __restrict__ grad_sparse, Shape s) {
    int vector_stride = row_stride<depth>(s.features), grad_stride = s.width + padding<float>(s.width);
    float* vectors = dynamic_shared<float>();
    float* gradients = vectors + s.block_rows * vector_stride;
    long long first = (long long)blockIdx.x * s.block_rows, first_sparse = first * s.features * s.columns;
    int here = s.rows - first < s.block_rows ? int(s.rows - first) : s.block_rows;
    grad += first * s.width;
    dense += first * s.columns;
    sparse += first_sparse;
    if (grad_dense) grad_dense += first * s.columns;
    if (grad_sparse) grad_sparse += first_sparse;

    constexpr int slices = depth / slice;
    int row = int(threadIdx.x) & (s.block_rows - 1), task = int(threadIdx.x) / s.block_rows;
    int begin = task / slices * tile, column = task % slices * slice;
    const float* pairs = gradients + row * grad_stride + s.columns;
    float* vector = vectors + row * vector_stride + column;

    unsigned count = unsigned(here * s.width);
    if (s.whole_out)
        load_gradients<widest<T>>(gradients, grad, count, s);
    else
        load_gradients<1>(gradients, grad, count, s);
    for (int start = 0; start < s.columns; start += depth) {
        if (s.whole)
            load_vectors<depth, widest<T>>(vectors, dense, sparse, here, start, s);
        else
            load_vectors<depth, 1>(vectors, dense, sparse, here, start, s);
        wait_for_copies();
        __syncthreads();
        float sums[tile][slice] = {};
        if (begin <= s.features && (begin == 0 || grad_sparse)) {
            for (int other = 0; other < begin; other += tile)
#pragma unroll 3
                for (int n = 0; n < tile; ++n)
                    add_product(sums, vector + (other + n) * depth,
                                [&](int m) { return pairs[triangle(begin + m) + other + n]; });
            // A vector has no pair with itself; the zero makes NaN of its NaN, as eager does.
#pragma unroll
            for (int n = 0; n < tile; ++n)
                if (begin + n <= s.features)
                    add_product(sums, vector + (begin + n) * depth, [&](int m) {
                        return m == n ? 0.0f : pairs[triangle(begin + (m > n ? m : n)) + begin + (m > n ? n : m)];
                    });
            for (int j = begin + tile; j <= s.features; ++j)
                add_product(sums, vector + j * depth, [&](int m) { return pairs[triangle(j) + begin + m]; });
        }
        __syncthreads();
        // The gradients take the vectors' place, to be written together.
        if (row < here) {
            if (begin == 0)
#pragma unroll
                for (int e = 0; e < slice; ++e)
                    if (start + column + e < s.columns) sums[0][e] += gradients[row * grad_stride + start + column + e];
#pragma unroll
            for (int m = 0; m < tile; ++m)
                if (begin + m <= s.features)
#pragma unroll
                    for (int e = 0; e < slice; e += 4)
                        *reinterpret_cast<Pack<float, 4>*>(vector + (begin + m) * depth + e) =
                            *reinterpret_cast<Pack<float, 4>*>(sums[m] + e);
        }
        __syncthreads();
        if (s.whole)
            store_vectors<depth, widest<T>>(vectors, grad_dense, grad_sparse, here, start, s);
        else
            store_vectors<depth, 1>(vectors, grad_dense, grad_sparse, here, start, s);
        __syncthreads();
    }
}

// ------------------------------------------------------------------------------------------ what does not fit on chip

// An element for each thread: for float64, and for rows of vectors or pairs too long to be held. Operands come from the
// caches.
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

// ---------------------------------------------------------------------------------------------------------- launch

#ifndef __CUDACC_RTC__
// How a launch is cut, which a test or a sweep may change.
struct Limits {
    int threads = most_threads;      // of a block, at most; 0: nothing is held on chip
    long long shared = 55 * 1024;    // bytes of a block, at most: four of them in a multiprocessor's 228 KB
    int depth = 0;                   // columns on chip at once: 16 or 32; 0: 16 if there are no more, else 32
};

struct Cut {
    int block_rows = 0, threads = 0;  // block_rows 0: it does not fit
    long long shared = 0;
};

// The most rows of a block, a power of two, with tasks_of_row threads for each; threads in whole warps.
template <class Bytes>
inline Cut cut(long long tasks_of_row, const Limits& limits, Bytes bytes) {
    for (int rows = most_threads; rows; rows /= 2)
        if (rows * tasks_of_row <= limits.threads && bytes(rows) <= limits.shared)
            return {rows, int(rows * tasks_of_row + 31) / 32 * 32, bytes(rows)};
    return {};
}


template <class T>
inline Shape shape_of(long long rows, long long features, long long columns, long long width, int block_rows,
                      bool whole, bool aligned_out) {
    bool whole_out = aligned_out && block_rows * width % widest<T> == 0;
    long long packs = width / widest<T>;
    return {rows, int(features), int(columns), int(width), block_rows, whole && columns % widest<T> == 0, whole_out,
            Columns<unsigned>(features + 1), Columns<unsigned>(columns ? columns : 1), Columns<unsigned>(packs ? packs : 1)};
}

// Whether the tiled kernels' 32-bit numbers do for one row; blocks are cut so that all of its rows are few times that.
inline bool narrow_rows(long long features, long long columns) {
    constexpr long long most = 1 << 20;
    return features < 1024 && columns < most && (features + 1) * columns < most;
}

template <class T, int depth>
cudaError_t launch_tiled(const T* dense, const T* sparse, T* out, long long rows, long long features, long long columns,
                         long long width, cudaStream_t stream, const Limits& limits, bool& fits) {
    long long n = sides(int(features)), slack = (n * tile - features - 1) * depth;  // read beyond a block's last row
    Cut c = cut(n * (n + 1) / 2, limits, [&](long long r) {
        long long held = (r * row_stride<depth>(int(features)) + slack) * 4;
        long long staged = r * (width + padding<T>(int(width))) * (long long)sizeof(T);
        return held > staged ? held : staged;
    });
    if (!(fits = c.block_rows > 0)) return cudaSuccess;
    auto kernel = tiled_forward<T, depth>;
    if (c.shared > 48 * 1024)
        if (cudaError_t error = set_shared_memory_limit(kernel, size_t(c.shared)); error != cudaSuccess) return error;
    Shape s = shape_of<T>(rows, features, columns, width, c.block_rows, aligned(dense, sparse), aligned(out));
    dim3 grid(unsigned((rows + c.block_rows - 1) / c.block_rows));
    return launch_kernel(kernel, grid, dim3(unsigned(c.threads)), size_t(c.shared), stream, dense, sparse, out, s);
}

template <class T, int depth>
cudaError_t launch_tiled_backward(const T* grad, const T* dense, const T* sparse, T* grad_dense, T* grad_sparse,
                                  long long rows, long long features, long long columns, long long width,
                                  cudaStream_t stream, const Limits& limits, bool& fits) {
    long long n = sides(int(features)), slack = triangle(int(n) * tile) - triangle(int(features) + 1) + tile;
    Cut c = cut(n * (depth / slice), limits, [&](long long r) {
        return (r * (row_stride<depth>(int(features)) + width + padding<float>(int(width))) + slack) * 4;
    });
    if (!(fits = c.block_rows > 0)) return cudaSuccess;
    auto kernel = tiled_backward<T, depth>;
    if (c.shared > 48 * 1024)
        if (cudaError_t error = set_shared_memory_limit(kernel, size_t(c.shared)); error != cudaSuccess) return error;
    bool whole = aligned(dense, sparse, grad_dense, grad_sparse);
    Shape s = shape_of<T>(rows, features, columns, width, c.block_rows, whole, aligned(grad));
    dim3 grid(unsigned((rows + c.block_rows - 1) / c.block_rows));
    return launch_kernel(kernel, grid, dim3(unsigned(c.threads)), size_t(c.shared), stream, grad, dense, sparse,
                         grad_dense, grad_sparse, s);
}

inline dim3 plain_grid(long long elements) { return dim3(unsigned((elements + plain_threads - 1) / plain_threads)); }

// An error is the launch's own: what the kernel does wrong shows later, as always in CUDA.
template <class T>
cudaError_t launch(const T* dense, const T* sparse, T* out, long long rows, long long features, long long columns,
                   long long width, cudaStream_t stream, const Limits& limits = {}) {
    if (rows * width == 0) return cudaSuccess;
    if constexpr (sizeof(T) < 8)
        if (narrow_rows(features, columns)) {
            bool fits = false;
            auto go = (limits.depth ? limits.depth : columns) > 16 ? launch_tiled<T, 32> : launch_tiled<T, 16>;
            cudaError_t error = go(dense, sparse, out, rows, features, columns, width, stream, limits, fits);
            if (fits) return error;
        }
    return launch_kernel(plain_forward<T>, plain_grid(rows * width), dim3(plain_threads), 0, stream, dense, sparse, out,
                         rows, features, columns, width);
}

// A gradient that is not needed is null.
template <class T>
cudaError_t launch_backward(const T* grad, const T* dense, const T* sparse, T* grad_dense, T* grad_sparse,
                            long long rows, long long features, long long columns, long long width,
                            cudaStream_t stream, const Limits& limits = {}) {
    long long elements = rows * (features + 1) * columns;
    if (elements == 0) return cudaSuccess;
    if constexpr (sizeof(T) < 8)
        if (narrow_rows(features, columns)) {
            bool fits = false;
            auto go = (limits.depth ? limits.depth : columns) > 16 ? launch_tiled_backward<T, 32>
                                                                   : launch_tiled_backward<T, 16>;
            cudaError_t error = go(grad, dense, sparse, grad_dense, grad_sparse, rows, features, columns, width, stream,
                                   limits, fits);
            if (fits) return error;
        }
    return launch_kernel(plain_backward<T>, plain_grid(elements), dim3(plain_threads), 0, stream, grad, dense, sparse,
                         grad_dense, grad_sparse, rows, features, columns, width);
}
#endif

}  // namespace dot_interaction
