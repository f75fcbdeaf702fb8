// The interaction by the copy engine, where what is moved is aligned to 16 bytes. Blocks stay and take one tile of rows
// after another: while one is computed, the next one's vectors are copied into a second buffer, and the pairs of the
// one before out of shared memory. No thread moves what it does not compute with.
#pragma once

#include "device/bulk_copy.cuh"
#include "vectors.cuh"

namespace dot_interaction {

constexpr int bulk_header = 128;               // bytes of a block's shared memory for what it waits on
constexpr long long bulk_shared = 113 * 1024;  // of a block: two in a multiprocessor's 228 KB, 1 KB of each reserved

struct BulkShape {
    long long rows;
    int features, columns, width;
    int tile_rows;
    int vector_stride, out_stride, buffer;  // elements on chip: from row to row of each kind, and of one of two buffers
};

// What moves the tiles. One thread calls load() and store().
template <class T>
struct Tiles {
    const BulkShape& s;

    __device__ long long count() const { return (s.rows + s.tile_rows - 1) / s.tile_rows; }
    __device__ int rows(long long tile) const {
        long long there = s.rows - tile * s.tile_rows;
        return there < s.tile_rows ? int(there) : s.tile_rows;
    }
    __device__ unsigned row_bytes() const { return unsigned((s.features + 1) * s.columns * sizeof(T)); }
    // Rows first, first + step … of the tile, row by row, since neighbouring rows are to lie in different banks.
    __device__ void load(BulkLoads& loads, T* vectors, const T* dense, const T* sparse, long long tile, int first = 0,
                         int step = 1) const {
        int here = rows(tile), of_sparse = s.features * s.columns;
        dense += tile * s.tile_rows * s.columns;
        sparse += tile * s.tile_rows * of_sparse;
#pragma unroll 2
        for (int r = first; r < here; r += step) {
            T* to = vectors + r * s.vector_stride;
            loads.copy(to, dense + r * s.columns, unsigned(s.columns * sizeof(T)));
            loads.copy(to + s.columns, sparse + r * of_sparse, unsigned(of_sparse * sizeof(T)));
        }
    }
    // Rows of out that lie together go in one piece, but for what is left of 16 bytes: all threads call store_rest().
    __device__ void store(BulkStores& stores, T* out, const T* staged, long long tile) const {
        int here = rows(tile);
        out += tile * s.tile_rows * s.width;
        if (s.out_stride == s.width) {
            unsigned bytes = unsigned(here * s.width * sizeof(T)) / 16 * 16;
            if (bytes) stores.copy(out, staged, bytes);
        } else {
            for (int r = 0; r < here; ++r)
                stores.copy(out + r * s.width, staged + r * s.out_stride, unsigned(s.width * sizeof(T)));
        }
        stores.commit();
    }
    __device__ void store_rest(T* out, const T* staged, long long tile) const {
        int count = rows(tile) * s.width, e = count / widest<T> * widest<T> + int(threadIdx.x);
        if (s.out_stride == s.width && e < count) out[tile * s.tile_rows * s.width + e] = staged[e];
    }
};

#ifndef __CUDACC_RTC__
// Whether a row may be small enough for the kernels of the copy engine, whose sizes have 32 bits. Each of them has
// further conditions of its own.
inline bool may_be_bulk(long long features, long long columns, long long width) {
    return features < 32 && columns <= 128 && width <= bulk_shared;
}

enum class Begins { as_usual, early };  // early: the kernel calls wait_for_predecessor

// How many blocks of `warps` warps the GPU holds; the registers of a multiprocessor are for most_warps.
inline long long bulk_blocks(const BulkDevice& device, long long shared, int warps, int most_warps) {
    long long by_shared = device.of_multiprocessor / (shared + 1024), by_registers = most_warps / warps;
    return device.multiprocessors * (by_shared < by_registers ? by_shared : by_registers);
}

// Launches as many blocks as stay, if this launch is one for it, which `fits` says: the kernel was compiled for a copy
// engine, and a block gets its memory (a chip may have 99 KB). Or most_blocks blocks, if that is not 0.
template <auto kernel, Begins begins = Begins::as_usual, class... Arguments>
cudaError_t launch_bulk(const BulkShape& s, long long shared, int warps, int most_warps, cudaStream_t stream,
                        int most_blocks, bool& fits, Arguments... arguments) {
    long long tiles = (s.rows + s.tile_rows - 1) / s.tile_rows;
    BulkDevice device = bulk_device<kernel>();
    fits = device.multiprocessors && shared <= device.of_block;
    if (!fits) return cudaSuccess;
    long long blocks = most_blocks ? most_blocks : bulk_blocks(device, shared, warps, most_warps);
    dim3 grid(unsigned(tiles < blocks ? tiles : blocks)), block(unsigned(32 * warps));
    if (begins == Begins::early)
        return launch_waiting_kernel(kernel, grid, block, size_t(shared), stream, arguments..., s);
    return launch_kernel(kernel, grid, block, size_t(shared), stream, arguments..., s);
}
#endif

}  // namespace dot_interaction
