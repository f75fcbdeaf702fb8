// out = [t_0, t_i · t_j for j < i, zeros]      t_0 = dense[b], t_f = Σ of the rows of table f that bag (b, f) names
//
// embedding_bags and dot_interaction in one kernel: the vectors, [B, F, D], are never in memory.
//
// Bytes: the rows that ids name, the ids, dense and out, once each. Two kernels write B F D elements besides, and read
// them again. FLOPs: a multiplication and an addition for each column of F (F + 1) / 2 pairs.
//
// A warp takes a row of the batch at a time. When its pairs are computed, the next row's vectors are asked for: they
// come while the pairs are written. With the other warps of its multiprocessor that fills the memory.
//
// µs on an H200 (torch 2.11) of rows with 26 tables, and of embedding_bags and dot_interaction. The gradients, which look
// vectors up again, stand beside dot_interaction's of vectors that were kept, of bfloat16 by its kernel in tiled.cuh:
//
//                               tf32            bfloat16        ieee
//     65536 × 16                57.8 / 118.6    39.0 / 65.8     92.0 / 118.7
//     65536 × 16, gradients     85.6 / 96.1     69.0 / 128.6    198 / 95.8
//     65536 × 128               416 / 601       159 / 295
//     65536 × 128, gradients    601 / 548       338 / 900
//     2048 × 16                 4.76 / 8.86
//     2048 × 16, gradients      4.91 / 8.25                     13.9 / 8.25
//
//     by tensor cores   vectors are both operands of T Tᵀ, 16 by 8 pairs a step; few of those above the diagonal are
//                       computed. What a lane holds of a vector may be any of its columns, the same ones of all
//                       vectors: 16 bytes that lie together, or 8 of a vector of 32 bytes.
//     by FFMA           a lane has 4 × 4 pairs: with G = (F + 1) / 4, rounded up, vectors a, a + G, … and b, b + G, …
#pragma once

#include "device/tensor_core.cuh"
#include "device/tf32.cuh"
#include "ops/lookup_interact/plain.cuh"

namespace lookup_interact {

// The pairs of a row's vectors by tensor cores: give(i, j, value) for j < i; also for some i beyond the last vector.
template <class Row, class Give>
__device__ inline void pairs_by_tensor_cores(const Row& row, Give give) {
    using T = typename Row::Element;
    constexpr int registers = Row::of_columns * sizeof(T) == 32 ? 2 : 4, of_lane = registers * 4 / int(sizeof(T));
    const int g = row.lane / 4, t = row.lane % 4;
    const bool is_long = row.features >= 16;
    float sums[2][4][4] = {};
#pragma unroll 1
    for (int start = 0; start < row.columns; start += 4 * of_lane) {
        const int column = start + t * of_lane;
        Pack<unsigned, registers> of[4];  // of vector 8 n + g
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            of[n] = {};
            if ((n < 2 || is_long) && (Row::of_columns || column < row.columns))
                of[n] = *reinterpret_cast<const Pack<unsigned, registers>*>(row.vector(8 * n + g) + column);
            if constexpr (sizeof(T) == 4)
#pragma unroll
                for (unsigned& bits : of[n].element) bits = __float_as_uint(rounded_to_tf32(__uint_as_float(bits)));
        }
#pragma unroll
        for (int k = 0; k < registers; k += 2)
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                if (m && !is_long) continue;
                const unsigned a[4] = {of[2 * m].element[k], of[2 * m + 1].element[k], of[2 * m].element[k + 1],
                                       of[2 * m + 1].element[k + 1]};
#pragma unroll
                for (int n = 0; n < 2 * m + 2; ++n)
                    multiply_step<T>(sums[m][n], a, of[n].element[k], of[n].element[k + 1]);
            }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        if (r >= 2 && !is_long) continue;
#pragma unroll
        for (int n = 0; n <= r; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (n < r || 2 * t + e < g) give(8 * r + g, 8 * n + 2 * t + e, sums[r / 2][n][2 * (r % 2) + e]);
    }
}

// The same by FFMA.
template <class Row, class Give>
__device__ inline void pairs_by_ffma(const Row& row, Give give) {
    using T = typename Row::Element;
    const int groups = (row.features + 4) / 4;
    int left = 0, right = row.lane;
    while (right > left) right -= ++left;
    if (left >= groups) return;
    float sums[4][4] = {};
#pragma unroll 4
    for (int k = 0; k < row.columns; k += 4) {
        Pack<T, 4> a[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) a[m] = load<4>(row.vector(left + m * groups) + k);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const Pack<T, 4> b = load<4>(row.vector(right + n * groups) + k);
#pragma unroll
            for (int e = 0; e < 4; ++e)
#pragma unroll
                for (int m = 0; m < 4; ++m) sums[m][n] += a[m].element[e] * b.element[e];
        }
    }
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int one = left + m * groups, other = right + n * groups, i = one > other ? one : other;
            // Where left is right, (one, other) and (other, one) are the same sum, of one lane.
            if (one != other) give(i, one + other - i, sums[m][n]);
        }
}

template <class T, bool tensor_cores, int fixed, bool has_bags>
__global__ void __launch_bounds__(threads, tensor_cores ? 8 : 6)
    forward_kernel(const __grid_constant__ Call<T> call, const __grid_constant__ Layout layout, T* out) {
    let_successor_begin();
    wait_for_predecessor();
    Row<T, tensor_cores, fixed, has_bags> own(call, layout);
    const int lane = own.lane, columns = own.columns, width = int(call.width);
    T* const pairs = own.staged + columns;
    const long long step = (long long)gridDim.x * warps;
    long long row = (long long)blockIdx.x * warps + threadIdx.x / 32;
    own.begin(row, own.id(row));
    long long next = own.id(row + step);
    for (; row < call.bags.batch; row += step) {
        own.wait();
        auto give = [&](int i, int j, float value) { pairs[triangle(i) + j] = narrow<T>(value); };
        if constexpr (tensor_cores)
            pairs_by_tensor_cores(own, give);
        else
            pairs_by_ffma(own, give);
#pragma unroll 1
        for (int c = lane; c < columns; c += 32) own.staged[c] = own.vector(0)[c];
        __syncwarp();
        own.begin(row + step, next);
        next = own.id(row + 2 * step);
        // What was given of vectors that are not there lies behind the pairs.
#pragma unroll 1
        for (int p = triangle(own.features + 1) + lane; p < width - columns; p += 32) pairs[p] = narrow<T>(0.0f);
        __syncwarp();
        T* const to = out + row * width;
        if (layout.whole) {
#pragma unroll 1
            for (int c = lane; c < width / widest<T>; c += 32)
                embedding_bags::store_streaming(reinterpret_cast<Pack<T, widest<T>>*>(to) + c,
                                                reinterpret_cast<const Pack<T, widest<T>>*>(own.staged)[c]);
        } else {
#pragma unroll 1
            for (int c = lane; c < width; c += 32) to[c] = own.staged[c];
        }  // the next row's pairs take this one's place behind its wait()
    }
}

#ifndef __CUDACC_RTC__
template <class T, bool tensor_cores>
cudaError_t launch_rows_of_pairs(const Call<T>& call, T* out, const Device& device, const Limits& limits,
                                 cudaStream_t stream, bool& fits) {
    const int places = places_of(int(call.bags.features) + 1);
    const long long given = call.columns + triangle(places), staged = given > call.width ? given : call.width;
    const Layout layout = layout_of(call, tensor_cores, staged, aligned(out), device);
    if (!(fits = layout.elements > 0)) return cudaSuccess;
    auto kernel = call.bags.offsets    ? forward_kernel<T, tensor_cores, 0, true>
                  : call.columns == 16 ? forward_kernel<T, tensor_cores, 16, false>
                                       : forward_kernel<T, tensor_cores, 0, false>;
    return launch_rows(kernel, call, layout, device, limits, stream, out);
}

// out [batch, width]. tf32: of float32 products by tensor cores; halves always go through them.
template <class T>
cudaError_t launch(const Call<T>& call, bool tf32, T* out, cudaStream_t stream, const Limits& limits = {}) {
    const long long elements = call.bags.batch * call.width;
    if (elements == 0) return cudaSuccess;
    if constexpr (sizeof(T) < 8) {
        Device device;
        cudaError_t error = this_device(device);
        bool fits = error != cudaSuccess;
        if (!fits && !limits.plain && (sizeof(T) == 2 || tf32))
            error = launch_rows_of_pairs<T, true>(call, out, device, limits, stream, fits);
        if constexpr (sizeof(T) == 4)
            if (!fits && !limits.plain) error = launch_rows_of_pairs<T, false>(call, out, device, limits, stream, fits);
        if (fits) return error;
    }
    return launch_kernel(plain_forward<T>, plain_grid(elements), dim3(plain_threads), 0, stream, call, out);
}
#endif

}  // namespace lookup_interact
