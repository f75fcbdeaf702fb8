// The forward by the copy engine for half and bfloat16, 16, 32, 64, 96 or 128 columns and 1 to 31 features, on tensor
// cores.
//
// A warp takes a row at a time, whose vectors are both operands of T Tᵀ: 16 by 8 pairs a step of 16 columns, six such
// steps for 32 vectors. What a lane holds of a vector may be any of its columns, the same ones of all vectors, since it
// is only summed over; so it loads what lies together: 8 bytes of 16 columns, or 16 bytes of 32, which then do for two
// steps.
#pragma once

#include "ops/dot_interaction/bulk.cuh"
#include "device/tensor_core.cuh"

namespace dot_interaction {

constexpr int half_warps = 8;                 // of a block
constexpr long long half_shared = 56 * 1024;  // of a block, if it holds a row for each warp: four in a multiprocessor
constexpr int half_vectors = 32;

// sums[b][n]: pairs of vectors 16b to 16b + 15 with 8n to 8n + 7; those above the diagonal are not computed.
template <class T, int step_columns>
__device__ inline void multiply_row(float (&sums)[2][4][4], const T* row, int columns) {
    constexpr int registers = step_columns / 8;
    int g = int(threadIdx.x) % 32 / 4, t = int(threadIdx.x) % 4;
#pragma unroll 1
    for (int start = 0; start < columns; start += step_columns) {
        Pack<unsigned, registers> of[4];  // of vector 8n + g
#pragma unroll
        for (int n = 0; n < 4; ++n)
            of[n] = *reinterpret_cast<const Pack<unsigned, registers>*>(row + (8 * n + g) * columns + start +
                                                                        t * 2 * registers);
#pragma unroll
        for (int k = 0; k < registers; k += 2)
#pragma unroll
            for (int b = 0; b < 2; ++b) {
                unsigned a[4] = {of[2 * b].element[k], of[2 * b + 1].element[k], of[2 * b].element[k + 1],
                                 of[2 * b + 1].element[k + 1]};
#pragma unroll
                for (int n = 0; n < 2 * b + 2; ++n)
                    multiply_step<T>(sums[b][n], a, of[n].element[k], of[n].element[k + 1]);
            }
    }
}

template <class T, int step_columns>
__global__ void __launch_bounds__(32 * half_warps, step_columns == 16 ? 4 : 3)
    half_forward(const T* __restrict__ dense, const T* __restrict__ sparse, T* __restrict__ out, BulkShape s) {
    if constexpr (step_columns == 16) s.columns = 16;
    BulkLoads* loads = dynamic_shared<BulkLoads>();
    T* buffers = dynamic_shared<T>() + bulk_header / sizeof(T);
    int of_out = s.tile_rows * s.out_stride;
    Tiles<T> tiles = {s};
    int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    int warp = int(threadIdx.x) / 32, warps = int(blockDim.x) / 32;
    auto begin = [&](int stage, long long number) {  // the rows that this warp computes
        if (number >= tiles.count() || lane) return;
        loads[stage].begin(unsigned((tiles.rows(number) + warps - 1 - warp) / warps) * tiles.row_bytes());
        tiles.load(loads[stage], buffers + stage * s.buffer, dense, sparse, number, warp, warps);
    };
    BulkStores stores;
    if (threadIdx.x == 0)
        for (int stage = 0; stage < 2; ++stage) loads[stage].init(unsigned(warps));
    __syncthreads();
    for (int stage = 0; stage < 2; ++stage) begin(stage, blockIdx.x + (long long)stage * gridDim.x);
    __syncthreads();
    int turn = 0;
    for (long long number = blockIdx.x; number < tiles.count(); number += gridDim.x, ++turn) {
        int stage = turn % 2, here = tiles.rows(number);
        T *vectors = buffers + stage * s.buffer, *staged = buffers + 2 * s.buffer + stage * of_out;
        loads[stage].wait(turn / 2 % 2);
#pragma unroll 1
        for (int row = warp; row < here; row += warps) {
            const T* from = vectors + row * s.vector_stride;
            T* to = staged + row * s.out_stride;
            float sums[2][4][4] = {};
            multiply_row<T, step_columns>(sums, from, s.columns);
            for (int c = lane; c < s.columns; c += 32) to[c] = from[c];
            for (int c = s.columns + s.features * (s.features + 1) / 2 + lane; c < s.width; c += 32)
                to[c] = narrow<T>(0.0f);
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                int i = 8 * r + g;
                T* pairs = to + s.columns + triangle(i) + 2 * t;
                if (i > s.features) continue;
#pragma unroll
                for (int n = 0; n <= r; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (n < r || 2 * t + e < g) pairs[8 * n + e] = narrow<T>(sums[r / 2][n][2 * (r % 2) + e]);
            }
        }
        order_before_bulk_copies();
        if (threadIdx.x == 0) stores.wait();  // the next tile's pairs take the place of the one before
        __syncthreads();
        if (threadIdx.x == 0) tiles.store(stores, out, staged, number);
        begin(stage, number + 2LL * gridDim.x);
        tiles.store_rest(out, staged, number);
    }
    if (threadIdx.x == 0) stores.wait();
}

#ifndef __CUDACC_RTC__
template <class T>
cudaError_t launch_half_forward(const T* dense, const T* sparse, T* out, long long rows, int features, int columns,
                                int width, cudaStream_t stream, int most_blocks, bool& fits) {
    fits = features > 0 && features < half_vectors && columns <= 128 && columns % 16 == 0 && columns &&
           (columns == 16 || columns % 32 == 0) && aligned(dense, sparse, out);
    int stride = (features + 1) * columns, out_stride = width + padding<T>(width), tile_rows = 32;
    auto buffer = [&] { return tile_rows * stride + (half_vectors - features - 1) * columns; };
    auto shared = [&] { return bulk_header + 2LL * (buffer() + tile_rows * out_stride) * (long long)sizeof(T); };
    while (tile_rows > half_warps && shared() > half_shared) tile_rows /= 2;
    fits = fits && shared() <= 2 * bulk_shared;
    if (!fits) return cudaSuccess;
    BulkShape s = {rows, features, columns, width, tile_rows, stride, out_stride, buffer()};
    auto launch = columns == 16 ? launch_bulk<half_forward<T, 16>, Begins::as_usual, const T*, const T*, T*>
                                : launch_bulk<half_forward<T, 32>, Begins::as_usual, const T*, const T*, T*>;
    return launch(s, shared(), half_warps, (columns == 16 ? 4 : 3) * half_warps, stream, most_blocks, fits, dense, sparse,
                  out);
}
#endif

}  // namespace dot_interaction
