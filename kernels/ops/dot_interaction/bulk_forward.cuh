// The forward by the copy engine for float32, 16, 32, 64 or 128 columns and 9 to 26 features.
//
// A warp takes 9 × 9 pairs of a tile's rows, a thread 4 to 16 columns of them for one row: a row's columns are 2, 4 or
// 8 parts, a thread each, which add up their sums at the end. Neighbouring lanes take neighbouring rows. More parts are
// more instructions, but smaller tiles: the copies of several lie between the computing of one, and few rows are spread
// over more multiprocessors.
//
// The rows of out have two buffers of their own where the memory of half a multiprocessor has room for them. Else they
// take the vectors' place, and the next vectors wait until the copy engine has read them there.
#pragma once

#include "bulk.cuh"

namespace dot_interaction {

constexpr int bulk_threads = 192;  // for 27 vectors: six blocks of 9 × 9 pairs

// sums[m][n] += lefts[m] · rights[n] over `depth` columns. On the diagonal, where both are the same, only the pairs
// n < m.
template <bool diagonal, int columns, int depth>
__device__ inline void multiply(float (&sums)[tile][tile], const float* lefts, const float* rights) {
#pragma unroll 1
    for (int k = 0; k < depth; k += 4) {
        Pack<float, 4> a[tile];
#pragma unroll
        for (int m = 0; m < tile; ++m) a[m] = four(lefts + m * columns + k);
#pragma unroll
        for (int n = 0; n < tile; ++n) {
            Pack<float, 4> b = diagonal ? a[n] : four(rights + n * columns + k);
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int m = diagonal ? n + 1 : 0; m < tile; ++m) sums[m][n] += a[m].element[e] * b.element[e];
        }
    }
}

// Adds up the sums of a row's parts: of two lanes each keeps every other number and gives the rest, and so on. Then
// sums[m][j] is pair (m, j · parts + part) for j < 8 / parts, and the one after them is pair (m, 8), which all have.
template <int parts>
__device__ inline void add_parts(float (&sums)[tile][tile], int part) {
    int count = tile;
#pragma unroll
    for (int bit = 1; bit < parts; bit *= 2) {
        bool odd = part & bit;
        int distance = bit * (32 / parts);
#pragma unroll
        for (int m = 0; m < tile; ++m) {
#pragma unroll
            for (int j = 0; j < count / 2; ++j) {
                float kept = odd ? sums[m][2 * j + 1] : sums[m][2 * j];
                float given = odd ? sums[m][2 * j] : sums[m][2 * j + 1];
                sums[m][j] = kept + __shfl_xor_sync(0xffffffff, given, distance);
            }
            float last = sums[m][count - 1];
            sums[m][count / 2] = last + __shfl_xor_sync(0xffffffff, last, distance);
        }
        count = count / 2 + 1;
    }
}

template <int columns, int parts, bool in_place>
__global__ void __launch_bounds__(bulk_threads, 2)
    bulk_forward(const float* __restrict__ dense, const float* __restrict__ sparse, float* __restrict__ out,
                 BulkShape s) {
    constexpr int depth = columns / parts, tile_rows = 32 / parts, most_copied = (depth + 2) / 3;
    s.columns = columns;
    s.tile_rows = tile_rows;
    let_successor_begin();
    BulkLoads* loads = dynamic_shared<BulkLoads>();
    float* buffers = dynamic_shared<float>() + bulk_header / 4;
    Tiles<float> tiles = {s};
    int lane = int(threadIdx.x) % 32, row = lane % tile_rows, part = lane / tile_rows;
    int warp = int(threadIdx.x) / 32, warps = int(blockDim.x) / 32, left = 0, right = warp;
    while (right > left) right -= ++left;

    // The thread that stores knows when a place is free again. Vectors that no row of out replaces are free for all,
    // and the first lane of each warp moves some of the rows.
    int mover = in_place ? 0 : warp, movers = in_place ? 1 : warps;
    bool moves = in_place ? threadIdx.x == 0 : lane == 0;
    auto begin = [&](int stage, long long t) {
        if (!moves || t >= tiles.count()) return;
        loads[stage].begin(unsigned((tiles.rows(t) + movers - 1 - mover) / movers) * tiles.row_bytes());
        tiles.load(loads[stage], buffers + stage * s.buffer, dense, sparse, t, mover, movers);
    };
    BulkStores stores;
    if (threadIdx.x == 0)
        for (int stage = 0; stage < 2; ++stage) loads[stage].init(unsigned(movers));
    __syncthreads();
    wait_for_predecessor();
    begin(0, blockIdx.x);
    __syncthreads();
    begin(1, blockIdx.x + (long long)gridDim.x);
    int turn = 0;
    for (long long t = blockIdx.x; t < tiles.count(); t += gridDim.x, ++turn) {
        int stage = turn % 2;
        float *vectors = buffers + stage * s.buffer, *own = vectors + row * s.vector_stride + part * depth;
        loads[stage].wait(turn / 2 % 2);
        float sums[tile][tile] = {};
        if (left == right)
            multiply<true, columns, depth>(sums, own + left * tile * columns, nullptr);
        else
            multiply<false, columns, depth>(sums, own + left * tile * columns, own + right * tile * columns);
        // The first warp has half as much to multiply as others, and time for this.
        if (in_place && turn && threadIdx.x == 0) {
            stores.wait();
            begin(1 - stage, t + gridDim.x);
        }
        add_parts<parts>(sums, part);

        float copied[most_copied];
        int column = warp * parts + part, step = warps * parts;
#pragma unroll
        for (int i = 0; i < most_copied; ++i)
            if (column + i * step < columns) copied[i] = vectors[row * s.vector_stride + column + i * step];
        if (!in_place && threadIdx.x == 0) stores.wait<1>();  // for the rows of out before the last ones
        __syncthreads();
        if (!in_place) begin(stage, t + 2LL * gridDim.x);
        float* rows = in_place ? vectors : buffers + 2 * s.buffer + stage * tile_rows * s.out_stride;
        float* staged = rows + row * s.out_stride;
#pragma unroll
        for (int i = 0; i < most_copied; ++i)
            if (column + i * step < columns) staged[column + i * step] = copied[i];
        for (int c = columns + s.features * (s.features + 1) / 2 + column; c < s.width; c += step) staged[c] = 0;
        staged += columns + right * tile;
#pragma unroll
        for (int m = 0; m < tile; ++m) {
            int i = left * tile + m;
            if (i > s.features) break;
            float* to = staged + triangle(i);
#pragma unroll
            for (int j = 0; j < 8 / parts; ++j)
                if (left != right || j * parts + part < m) to[j * parts + part] = sums[m][j];
            if (left != right && part == 0) to[8] = sums[m][8 / parts];
        }
        order_before_bulk_copies();
        __syncthreads();
        if (threadIdx.x == 0) tiles.store(stores, out, rows, t);
        tiles.store_rest(out, rows, t);
    }
    if (threadIdx.x == 0) stores.wait();
}

#ifndef __CUDACC_RTC__
// at_once: only if each tile gets a block at once.
template <int columns, int parts, bool in_place>
cudaError_t launch_bulk_parts(const float* dense, const float* sparse, float* out, long long rows, int features,
                              int width, cudaStream_t stream, int most_blocks, bool at_once, bool& fits) {
    constexpr int tile_rows = 32 / parts;
    constexpr auto kernel = bulk_forward<columns, parts, in_place>;
    int n = sides(features), warps = n * (n + 1) / 2, out_stride = width + padding<float>(width);
    int slack = (n * tile - features - 1) * columns;  // read beyond a buffer's last row
    int stride = row_stride<columns>(features);
    int of_vectors = tile_rows * stride + slack, of_out = tile_rows * out_stride;  // whole 16 bytes both
    int buffer = of_vectors > of_out || !in_place ? of_vectors : of_out;
    BulkShape s = {rows, features, columns, width, tile_rows, stride, out_stride, buffer};
    long long shared = bulk_header + 8LL * (buffer + (in_place ? 0 : of_out));
    fits = features >= tile && 32 * warps <= bulk_threads && shared <= bulk_shared && aligned(dense, sparse, out);
    if (!fits) return cudaSuccess;
    constexpr int most_warps = 2 * bulk_threads / 32;
    fits = !at_once || (rows + tile_rows - 1) / tile_rows <= bulk_blocks(bulk_device<kernel>(), shared, warps, most_warps);
    if (!fits) return cudaSuccess;
    // Begun early, a launch of at most 8192 rows is 0.2 to 0.7 µs shorter on an H200, one of many rows is not.
    return launch_bulk<kernel, Begins::early>(s, shared, warps, most_warps, stream, most_blocks, fits, dense, sparse, out);
}

// In an H200's µs for 65536 and 2048 rows of 26 features: 16 columns 58.2 and 5.7 in two parts, 71.5 and 4.8 in four
// (64 rows 3.5 and 2.7; the kernels without the copy engine 5.1); 32 columns 89.3 and 7.7 in two, 97.9 and 6.6 in four.
// (What is in four parts had three to six buffers of vectors.)
// 64 columns in eight parts are slower than in four for few rows too, 10.0 and 9.5. With all memory for vectors, whose
// place the rows of out take, 16 columns are 59.7. Blocks of equally many tiles end between 51 and 59 µs.
template <int columns>
cudaError_t launch_bulk_forward(const float* dense, const float* sparse, float* out, long long rows, int features,
                                int width, cudaStream_t stream, int most_blocks, bool& fits) {
    auto go = [&](auto launch, bool at_once) {
        return launch(dense, sparse, out, rows, features, width, stream, most_blocks, at_once, fits);
    };
    if constexpr (columns <= 32) {
        cudaError_t error = go(launch_bulk_parts<columns, 4, false>, true);
        if (fits) return error;
    }
    return go(launch_bulk_parts<columns, columns == 16 ? 2 : columns / 16, columns != 16>, false);
}
#endif

}  // namespace dot_interaction
