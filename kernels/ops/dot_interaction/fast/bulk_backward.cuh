// The backward by the copy engine for float32, 16, 32, 64 or 128 columns and 9 to 26 features, both gradients.
//
// A warp takes nine vectors of a tile's rows, and half of the columns; a thread four columns of them for one row. The
// gradients take the vectors' place. The first lane of a warp moves some of the rows, there and back, so that it knows
// itself when a row's place is free.
#pragma once

#include "ops/dot_interaction/bulk.cuh"

namespace dot_interaction {

template <int parts>
__global__ void __launch_bounds__(192, 3)
    bulk_backward(const float* __restrict__ grad, const float* __restrict__ dense, const float* __restrict__ sparse,
                  float* __restrict__ grad_dense, float* __restrict__ grad_sparse, BulkShape s) {
    constexpr int columns = 16 * parts, tile_rows = 16 / parts, slice = 4;
    s.columns = columns;
    s.tile_rows = tile_rows;
    BulkLoads* loads = dynamic_shared<BulkLoads>();
    float* buffers = dynamic_shared<float>() + bulk_header / 4;
    Tiles<float> tiles = {s};
    int of_sparse = s.features * columns, warps = int(blockDim.x) / 32, warp = int(threadIdx.x) / 32;
    int lane = int(threadIdx.x) % 32, row = lane % tile_rows, group = lane / tile_rows;
    // Eight lanes read 16 bytes each at once. If they are of fewer rows, which lie 16 bytes apart in the banks, their
    // slices are so many times 16 bytes apart.
    constexpr int near = tile_rows < 8 ? 8 / tile_rows : 1, step = tile_rows < 8 ? tile_rows : 8;
    int column = slice * (warp % 2 * 2 * parts + group % near * step + group / near % step + group / (near * step) * 8);
    int first = warp / 2 * tile;

    // Rows of the gradient that lie together are copied in one piece, from the 16 bytes that the first begins in to
    // those that the last ends in; what the last of all leaves of 16 bytes is loaded by threads.
    bool together = s.out_stride == s.width;
    long long whole = s.rows * s.width / 4 * 4;
    auto begin = [&](int stage, long long t) {
        if (t >= tiles.count()) return;
        int here = tiles.rows(t), own = (here + warps - 1 - warp) / warps;
        long long begins = t * tile_rows * s.width, end = (begins + here * s.width + 3) / 4 * 4;
        if (end > whole) end = whole;
        unsigned in_one = together && warp == 0 ? unsigned(end - begins / 4 * 4) * 4 : 0;
        unsigned row_of_grad = unsigned(s.width) * 4;
        float *to = buffers + stage * s.buffer, *pairs = to + tile_rows * s.vector_stride;
        const float* from = grad + begins / 4 * 4;
        loads[stage].begin(unsigned(own) * (tiles.row_bytes() + (together ? 0 : row_of_grad)) + in_one);
        if (in_one) loads[stage].copy(pairs, from, in_one);
        for (int r = warp; r < here && !together; r += warps)
            loads[stage].copy(pairs + r * s.out_stride, from + r * s.width, row_of_grad);
        tiles.load(loads[stage], to, dense, sparse, t, warp, warps);
    };
    BulkStores stores;
    if (threadIdx.x == 0)
        for (int stage = 0; stage < 2; ++stage) loads[stage].init(unsigned(warps));
    __syncthreads();
    if (lane == 0)
        for (int stage = 0; stage < 2; ++stage) begin(stage, blockIdx.x + (long long)stage * gridDim.x);
    __syncthreads();
    int turn = 0;
    for (long long t = blockIdx.x; t < tiles.count(); t += gridDim.x, ++turn) {
        int stage = turn % 2, here = tiles.rows(t);
        long long begins = t * tile_rows * s.width, end = begins + here * s.width;
        float *vectors = buffers + stage * s.buffer, *gradients = vectors + tile_rows * s.vector_stride;
        if (together) gradients += begins % 4;
        const float* pairs = gradients + row * s.out_stride + columns;
        float* vector = vectors + row * s.vector_stride + column;
        loads[stage].wait(turn / 2 % 2);
        if (end > whole) {
            if (whole + threadIdx.x < end) gradients[whole - begins + threadIdx.x] = grad[whole + threadIdx.x];
            __syncthreads();
        }
        float sums[tile][slice] = {};
#pragma unroll 1
        for (int other = 0; other <= s.features; other += tile) {
            if (other == tile && turn && lane == 0) {
                stores.wait();
                begin(1 - stage, t + gridDim.x);
            }
            if (other < first) {
#pragma unroll 3
                for (int n = 0; n < tile; ++n)
                    add_product(sums, vector + (other + n) * columns,
                                [&](int m) { return pairs[triangle(first + m) + other + n]; });
            } else if (other > first) {
#pragma unroll 3
                for (int j = other; j < other + tile && j <= s.features; ++j)
                    add_product(sums, vector + j * columns, [&](int m) { return pairs[triangle(j) + first + m]; });
            } else {
                // A vector has no pair with itself; the zero makes NaN of its NaN, as eager does.
#pragma unroll
                for (int n = 0; n < tile; ++n)
                    if (first + n <= s.features)
                        add_product(sums, vector + (first + n) * columns, [&](int m) {
                            return m == n ? 0.0f : pairs[triangle(first + (m > n ? m : n)) + first + (m > n ? n : m)];
                        });
            }
        }
        if (first == 0)
#pragma unroll
            for (int e = 0; e < slice; ++e) sums[0][e] += (pairs - columns)[column + e];
        __syncthreads();
#pragma unroll
        for (int m = 0; m < tile; ++m)
            if (first + m <= s.features)
                *reinterpret_cast<Pack<float, 4>*>(vector + (first + m) * columns) =
                    *reinterpret_cast<Pack<float, 4>*>(sums[m]);
        order_before_bulk_copies();
        __syncthreads();
        if (lane == 0) {
            for (int r = warp; r < here; r += warps) {
                long long number = t * tile_rows + r;
                const float* from = vectors + r * s.vector_stride;
                stores.copy(grad_dense + number * columns, from, columns * 4);
                stores.copy(grad_sparse + number * of_sparse, from + columns, unsigned(of_sparse) * 4);
            }
            stores.commit();
        }
    }
    if (lane == 0) stores.wait();
}

#ifndef __CUDACC_RTC__
template <int parts>
cudaError_t launch_bulk_backward(const float* grad, const float* dense, const float* sparse, float* grad_dense,
                                 float* grad_sparse, long long rows, int features, int width, cudaStream_t stream,
                                 int most_blocks, bool& fits) {
    constexpr int columns = 16 * parts, tile_rows = 16 / parts;
    int n = sides(features), warps = 2 * n, out_stride = width + padding<float>(width);
    int slack = triangle(n * tile) - triangle(features + 1) + tile + 4;  // read beyond a buffer's last row of pairs
    int stride = row_stride<columns>(features), buffer = tile_rows * (stride + out_stride) + slack;
    buffer = (buffer + 3) / 4 * 4;
    BulkShape s = {rows, features, columns, width, tile_rows, stride, out_stride, buffer};
    long long shared = bulk_header + 8LL * buffer;
    fits = features >= tile && warps <= 6 && shared <= bulk_shared && grad_dense && grad_sparse &&
           aligned(grad, dense, sparse, grad_dense, grad_sparse);
    if (!fits) return cudaSuccess;
    return launch_bulk<bulk_backward<parts>>(s, shared, warps, 18, stream, most_blocks, fits, grad, dense, sparse,
                                             grad_dense, grad_sparse);
}
#endif

}  // namespace dot_interaction
