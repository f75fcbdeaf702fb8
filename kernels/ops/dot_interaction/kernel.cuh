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
// Six files have kernels for this formula, from the simplest to the fastest. launch() and launch_backward() below try
// the fastest first, and take the first that the shape, the dtype and the GPU allow:
//
//     plain.cuh                a thread computes one element: any shape, and float64
//     tiled.cuh                vectors in shared memory, tiles of pairs in registers: any GPU, any width and alignment
//     bulk_forward.cuh         the copy engine moves the rows: sm_90 on, float32, the usual widths, forward
//     fast/bulk_backward.cuh   the same for the backward
//     fast/bulk_half.cuh       the forward of float16 and bfloat16, on tensor cores
//     fast/half_backward.cuh   the backward of these, on tensor cores: sm_80 on, a warp a row, without the copy engine
//
// fast/README.md says which shapes each of them takes, and what it buys.
//
// Why the copy engine: on an H200 (132 multiprocessors of four schedulers at 1.98 GHz, 4.275 TB/s), for V = 27 vectors
// of 16 columns of float32, a multiprocessor must finish a row every 195 cycles to be as fast as a copy, and every 301
// in the backward. What the kernels of the copy engine issue for one row:
//
//     forward     a thread has 9 × 9 pairs: for 4 columns 18 loads of 16 bytes and 324 multiply-adds, on the diagonal
//                 9 and 144, so that 6 tasks take 3 · 4 · (348 + 157) / 32 = 189 instructions of warps; two threads for
//                 each, which add up their sums, some 60; what is begun, staged and handed to the copy engine, some
//                 100. 350 / 4 schedulers: 88 cycles. Shared memory: 324 loads of 16 bytes are 41 cycles at 128 bytes
//                 each, and about as many for the rest.
//     backward    a thread has 9 vectors × 4 columns: for each other vector 9 numbers of the gradient, a load of 16
//                 bytes and 36 multiply-adds, 54 instructions: 12 · 27 · 54 / 32 = 547, and some 165. 712 / 4: 178
//                 cycles. Shared memory: 12 · 27 · 13 / 32 = 132 cycles, and some 50.
//
// So the bytes are the limit, if enough of them are in flight all the time. The kernels of the copy engine see to that:
// a tile is computed while the next one is loaded and the one before is stored. In tiled.cuh a block loads, computes
// and stores by turns, and its threads move the numbers, which costs half as many instructions again: in float32 it
// reached 60 to 70 % of a copy's bandwidth on an H200.
#pragma once

#include "bulk_forward.cuh"
#include "fast/bulk_backward.cuh"
#include "fast/bulk_half.cuh"
#include "fast/half_backward.cuh"
#include "plain.cuh"
#include "tiled.cuh"

#ifndef __CUDACC_RTC__
namespace dot_interaction {

// How a launch is cut, which a test or a sweep may change.
struct Limits : TiledLimits {
    // Blocks of the kernels of bulk_forward.cuh and fast/, at most. 0: as many as suit the GPU; -1: none of them.
    int bulk_blocks = 0;
};

// An error is the launch's own: what the kernel does wrong shows later, as always in CUDA.
template <class T>
cudaError_t launch(const T* dense, const T* sparse, T* out, long long rows, long long features, long long columns,
                   long long width, cudaStream_t stream, const Limits& limits = {}) {
    if (rows * width == 0) return cudaSuccess;
    [[maybe_unused]] bool bulk = limits.bulk_blocks >= 0 && may_be_bulk(features, columns, width);
    [[maybe_unused]] bool fits = false;
    if constexpr (sizeof(T) == 4) {
        auto go = columns == 16    ? launch_bulk_forward<16>
                  : columns == 32  ? launch_bulk_forward<32>
                  : columns == 64  ? launch_bulk_forward<64>
                  : columns == 128 ? launch_bulk_forward<128>
                                   : nullptr;
        if (bulk && go) {
            cudaError_t error = go(dense, sparse, out, rows, int(features), int(width), stream, limits.bulk_blocks,
                                   fits);
            if (fits) return error;
        }
    }
    if constexpr (sizeof(T) == 2)
        if (bulk) {
            cudaError_t error = launch_half_forward<T>(dense, sparse, out, rows, int(features), int(columns),
                                                       int(width), stream, limits.bulk_blocks, fits);
            if (fits) return error;
        }
    if constexpr (sizeof(T) < 8) {
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
    [[maybe_unused]] bool bulk = limits.bulk_blocks >= 0 && may_be_bulk(features, columns, width);
    [[maybe_unused]] bool fits = false;
    if constexpr (sizeof(T) == 4) {
        auto go = columns == 16    ? launch_bulk_backward<1>
                  : columns == 32  ? launch_bulk_backward<2>
                  : columns == 64  ? launch_bulk_backward<4>
                  : columns == 128 ? launch_bulk_backward<8>
                                   : nullptr;
        if (bulk && go) {
            cudaError_t error = go(grad, dense, sparse, grad_dense, grad_sparse, rows, int(features), int(width),
                                   stream, limits.bulk_blocks, fits);
            if (fits) return error;
        }
    }
    if constexpr (sizeof(T) == 2)
        if (bulk) {
            cudaError_t error = launch_half_backward(grad, dense, sparse, grad_dense, grad_sparse, rows, int(features),
                                                     int(columns), int(width), stream, limits.bulk_blocks, fits);
            if (fits) return error;
        }
    if constexpr (sizeof(T) < 8) {
        auto go = (limits.depth ? limits.depth : columns) > 16 ? launch_tiled_backward<T, 32>
                                                               : launch_tiled_backward<T, 16>;
        cudaError_t error = go(grad, dense, sparse, grad_dense, grad_sparse, rows, features, columns, width, stream,
                               limits, fits);
        if (fits) return error;
    }
    return launch_kernel(plain_backward<T>, plain_grid(elements), dim3(plain_threads), 0, stream, grad, dense, sparse,
                         grad_dense, grad_sparse, rows, features, columns, width);
}

}  // namespace dot_interaction
#endif
