// Sums over rows without atomics, so that every run adds in the same order: the bias gradients.
//
// The rows are cut into chunks. A block sums one chunk of a tile of columns into workspace[chunk][column] (column_sum);
// a second kernel adds up the chunks (add_chunks). With one chunk the first writes the result itself. A chunk has at
// least 16 rows, so that the workspace stays small beside what was read.
#pragma once

#include "device/vector.cuh"

constexpr int tile_threads = 256;
constexpr int tile_lanes = 32;  // threads across the columns of a tile, at most; the rest go down the rows

constexpr long long chunk_elements = 1 << 14;  // of a chunk, if that makes neither too few rows nor too many chunks

// Chosen by the shape alone, so that the sums come out the same on every GPU. A test gives fewer elements a chunk, to
// have many chunks of a small input.
struct RowChunks {
    long long count, rows;  // chunks, and rows in each but the last

    RowChunks(long long total_rows, long long columns, long long elements = chunk_elements) {
        count = total_rows * columns / elements;
        if (count > total_rows / 16) count = total_rows / 16;
        if (count > 512) count = 512;
        if (count < 1) count = 1;
        rows = (total_rows + count - 1) / count;
    }
};

// Elements of Accumulator<T> that the workspace needs.
inline long long column_sum_workspace(long long rows, long long columns, long long elements = chunk_elements) {
    return RowChunks(rows, columns, elements).count * columns;
}

// Where a thread works: `width` columns from `column`, rows first_row, first_row + step, … below end_row.
struct Tile {
    int lane, lanes, row_lane, step;
    long long column, first_row, end_row;

    __device__ Tile(int lanes, int width, long long rows, long long chunk_rows)
        : lane(int(threadIdx.x) % lanes),
          lanes(lanes),
          row_lane(int(threadIdx.x) / lanes),
          step(tile_threads / lanes),
          column(((long long)blockIdx.x * lanes + lane) * width),
          first_row(blockIdx.y * chunk_rows + row_lane),
          end_row(blockIdx.y * chunk_rows + chunk_rows < rows ? blockIdx.y * chunk_rows + chunk_rows : rows) {}
};

// The sum over a block's row lanes of each thread's `sums`, written to result or workspace. Every thread of the block
// must call it, those outside the columns too.
template <class T, int width>
__device__ inline void column_sum(const Accumulator<T> (&sums)[width], const Tile& tile, T* result,
                                  Accumulator<T>* workspace, long long columns) {
    __shared__ Accumulator<T> shared[tile_threads * width];
#pragma unroll
    for (int e = 0; e < width; ++e) shared[(tile.row_lane * tile.lanes + tile.lane) * width + e] = sums[e];
    __syncthreads();
    long long first = (long long)blockIdx.x * tile.lanes * width;
    for (int c = threadIdx.x; c < tile.lanes * width && first + c < columns; c += tile_threads) {
        Accumulator<T> sum = 0;
        for (int r = 0; r < tile.step; ++r) sum += shared[r * tile.lanes * width + c];
        if (gridDim.y == 1)
            result[first + c] = narrow<T>(sum);
        else
            workspace[blockIdx.y * columns + first + c] = sum;
    }
}

// result[column] = Σ over chunks of workspace[chunk][column]. Block: 32 columns by 32 chunks at a time.
template <class T>
__global__ void __launch_bounds__(1024)
    add_chunks(const Accumulator<T>* workspace, T* result, long long chunks, long long columns) {
    __shared__ Accumulator<T> shared[32][33];  // a column of padding: no two threads of a warp in one bank
    int x = threadIdx.x % 32, y = threadIdx.x / 32;
    long long column = (long long)blockIdx.x * 32 + x;
    Accumulator<T> sum = 0;
    if (column < columns)
        for (long long chunk = y; chunk < chunks; chunk += 32) sum += workspace[chunk * columns + column];
    shared[y][x] = sum;
    __syncthreads();
    if (y == 0 && column < columns) {
        sum = 0;
        for (int r = 0; r < 32; ++r) sum += shared[r][x];
        result[column] = narrow<T>(sum);
    }
}

// How the tiles lie over [rows, columns]: a grid for tile_threads threads a block.
struct Tiling {
    RowChunks chunks;
    int lanes;
    dim3 grid;

    Tiling(long long rows, long long columns, int width, long long elements = chunk_elements)
        : chunks(rows, columns, elements), lanes(1) {
        while (lanes < tile_lanes && (long long)lanes * width < columns) lanes *= 2;
        long long tiles = (columns + (long long)lanes * width - 1) / ((long long)lanes * width);
        grid = dim3(unsigned(tiles), unsigned(chunks.count));
    }
};

#ifndef __CUDACC_RTC__
template <class T>
inline cudaError_t launch_add_chunks(const Accumulator<T>* workspace, T* result, const RowChunks& chunks,
                                     long long columns, cudaStream_t stream) {
    if (chunks.count == 1) return cudaSuccess;
    return launch_kernel(add_chunks<T>, dim3(unsigned((columns + 31) / 32)), dim3(1024), 0, stream, workspace, result,
                         chunks.count, columns);
}
#endif
