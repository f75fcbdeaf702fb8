// The interaction in tiles, for any width, any alignment and any GPU, in float32 and the half dtypes.
//
// A block copies the vectors of some rows into shared memory, widened to float, `depth` columns at a time. In the
// forward a thread then computes tile × tile pairs of one row, and in the backward `slice` columns of the gradients of
// `tile` vectors. It holds their sums in registers, so that a number read from shared memory is used several times. The
// results are staged in shared memory and written from there: neighbouring threads write neighbouring elements.
#pragma once

#include "vectors.cuh"

namespace dot_interaction {

constexpr int slice = 8;           // columns of a thread's block in the backward
constexpr int most_threads = 128;  // of a block
constexpr int blocks = 3;          // of that size, which a multiprocessor's registers are to hold

// --------------------------------------------------------------------------------------------------------- forward

// A thread computes tile × tile pairs of a row. Neighbouring threads take the same pairs of neighbouring rows.
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

// A thread computes `slice` columns of the gradients of `tile` vectors of a row. Each `depth` columns are a gradient for
// themselves: blockIdx.y takes those that it counts, and goes on with every gridDim.y'th.
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
    for (int start = int(blockIdx.y) * depth; start < s.columns; start += int(gridDim.y) * depth) {
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

// ---------------------------------------------------------------------------------------------------------- launch

#ifndef __CUDACC_RTC__
// How large a block is, which a test or a sweep may change.
struct TiledLimits {
    int threads = most_threads;    // of a block, at most; 0: no row fits, and the plain kernels run
    long long shared = 55 * 1024;  // bytes of a block, at most: four of them in a multiprocessor's 228 KB
    int depth = 0;                 // columns on chip at once: 16 or 32; 0: 16 if there are no more, else 32
    // Blocks of a backward, two for each of an H200's processors: fewer rows than fill so many are cut smaller.
    long long enough_blocks = 264;
};

struct Cut {
    int block_rows = 0, threads = 0;  // block_rows 0: it does not fit
    long long shared = 0;
};

// The most rows of a block, a power of two, with tasks_of_row threads for each; threads in whole warps.
template <class Bytes>
inline Cut cut(long long tasks_of_row, const TiledLimits& limits, Bytes bytes) {
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
            Columns<unsigned>(features + 1), Columns<unsigned>(columns ? columns : 1),
            Columns<unsigned>(packs ? packs : 1)};
}

// The cut of a backward: of few rows, blocks take fewer columns, then fewer rows, until there are enough blocks.
// slices: blocks for the columns of a row.
template <class Bytes>
inline Cut cut_few(long long rows, long long tasks_of_row, int most_slices, TiledLimits limits, Bytes bytes,
                   unsigned& slices) {
    auto blocks = [&](long long block_rows) { return (rows + block_rows - 1) / block_rows; };
    Cut c = cut(tasks_of_row, limits, bytes);
    slices = 1;
    if (!c.block_rows) return c;
    while (blocks(c.block_rows) * slices < limits.enough_blocks && 2 * int(slices) <= most_slices) slices *= 2;
    while (blocks(c.block_rows) * slices < limits.enough_blocks && c.block_rows > 1) {
        limits.threads = int(c.block_rows / 2 * tasks_of_row);
        c = cut(tasks_of_row, limits, bytes);
    }
    return c;
}

// Whether 32 bits are enough to count the elements of a row; a block has few rows, so they are enough for a block too.
inline bool narrow_rows(long long features, long long columns) {
    constexpr long long most = 1 << 20;
    return features < 1024 && columns < most && (features + 1) * columns < most;
}

template <class T, int depth>
cudaError_t launch_tiled(const T* dense, const T* sparse, T* out, long long rows, long long features, long long columns,
                         long long width, cudaStream_t stream, const TiledLimits& limits, bool& fits) {
    if (!(fits = narrow_rows(features, columns))) return cudaSuccess;
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
                                  cudaStream_t stream, const TiledLimits& limits, bool& fits) {
    if (!(fits = narrow_rows(features, columns))) return cudaSuccess;
    long long n = sides(int(features)), slack = triangle(int(n) * tile) - triangle(int(features) + 1) + tile;
    unsigned slices = 1;
    Cut c = cut_few(rows, n * (depth / slice), int((columns + depth - 1) / depth), limits, [&](long long r) {
        return (r * (row_stride<depth>(int(features)) + width + padding<float>(int(width))) + slack) * 4;
    }, slices);
    if (!(fits = c.block_rows > 0)) return cudaSuccess;
    auto kernel = tiled_backward<T, depth>;
    if (c.shared > 48 * 1024)
        if (cudaError_t error = set_shared_memory_limit(kernel, size_t(c.shared)); error != cudaSuccess) return error;
    bool whole = aligned(dense, sparse, grad_dense, grad_sparse);
    Shape s = shape_of<T>(rows, features, columns, width, c.block_rows, whole, aligned(grad));
    dim3 grid(unsigned((rows + c.block_rows - 1) / c.block_rows), slices);
    return launch_kernel(kernel, grid, dim3(unsigned(c.threads)), size_t(c.shared), stream, grad, dense, sparse,
                         grad_dense, grad_sparse, s);
}
#endif

}  // namespace dot_interaction
