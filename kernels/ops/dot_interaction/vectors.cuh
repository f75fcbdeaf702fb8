// How the interaction's kernels move a block's rows between memory and shared memory, where all numbers are float.
#pragma once

#include "tiles.cuh"

namespace dot_interaction {

struct Shape {
    long long rows;
    int features, columns, width;
    int block_rows;  // a power of two
    bool whole;      // vectors are made of whole 16 bytes, aligned
    bool whole_out;  // so are a block's rows of out, or of its gradient, together
    // By features + 1; by columns; by the whole 16 bytes of a row of out, if padding() is not 0.
    Columns<unsigned> vectors, columns_of, packs;

    __host__ __device__ int pairs() const { return features * (features + 1) / 2; }
};

// Elements between rows of out in shared memory, beyond its width. Threads beside each other write, or read, one column
// of rows beside each other: in one bank if a row's 16 bytes are an even number of them.
template <class T>
__host__ __device__ inline int padding(int width) {
    return width % (2 * widest<T>) == 0 ? widest<T> : 0;
}
// From one row of vectors in shared memory to the next. Rows are an odd number of 16 bytes apart, so 16 bytes at the
// same place of neighbouring rows lie in different banks.
template <int depth>
__host__ __device__ inline int row_stride(int features) {
    return (features + 1) * depth + 4;
}

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
        constexpr int batch = width > 4 ? 2 : 4, at_once = width < 4 ? width : 4;
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

}  // namespace dot_interaction
