// The gradients of a row's vectors by the tensor cores of a warp, with G the strictly lower triangular matrix of the
// pairs' gradients and T = [dense; sparse] of the row, at most 32 vectors:
//
//     grad_T = (G + Gᵀ) T, and the gradient of out's first columns is for the caller to add to that of t_0
//
// G + Gᵀ are the rows of a product, 16 vectors, whose places among the pairs a lane knows. T's columns are its columns,
// 16 at a time, in an order by which a lane gets four that lie together. T: half, bfloat16, or float, rounded to tf32.
#pragma once

#include "device/tensor_core.cuh"
#include "device/tf32.cuh"
#include "tiles.cuh"

namespace dot_interaction {

// 16 or 32 bits of a number that tensor cores read.
__device__ inline unsigned bits_of(float value) { return __float_as_uint(rounded_to_tf32(value)); }
template <class T>
__device__ inline unsigned bits_of(T value) {
    return reinterpret_cast<const unsigned short&>(value);
}

// (G + Gᵀ) as the left operand of a warp's products: vectors 16 m + g and 16 m + 8 + g against all 32.
template <class T>
struct Weights {
    static constexpr int numbers = 4 / int(sizeof(T)), steps = 4 / numbers, all = 2 * steps * 4 * numbers;

    unsigned places[all / 2];  // of the operand's numbers among a row of out's gradient, two a register

    // zero: a place that holds 0, for a vector with itself, and for vectors that are not there.
    __device__ Weights(int lane, int features, int columns, int zero) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int n = 0; n < all; n += 2) {
            unsigned two[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int x = (n + half) % numbers, r = (n + half) / numbers % 4, s = (n + half) / numbers / 4 % steps;
                const int i = (n + half) / numbers / 4 / steps * 16 + r % 2 * 8 + g;
                const int j = numbers * (8 * s + t + r / 2 * 4) + x, larger = i > j ? i : j;
                two[half] = unsigned(i == j || larger > features ? zero : columns + triangle(larger) + i + j - larger);
            }
            places[n / 2] = two[0] | two[1] << 16;
        }
    }
    __device__ void read(unsigned (&a)[2][steps][4], const T* gradient) const {
#pragma unroll
        for (int n = 0; n < all; n += numbers) {
            unsigned bits = 0;
#pragma unroll
            for (int x = 0; x < numbers; ++x)
                bits |= bits_of(gradient[places[(n + x) / 2] >> (n + x) % 2 * 16 & 0xffff]) << 16 * x;
            a[n / numbers / 4 / steps][n / numbers / 4 % steps][n / numbers % 4] = bits;
        }
    }
};

// give(i, column, values): four columns of the gradient of vector i.
template <class Row, class T, class Give>
__device__ inline void gradients_by_tensor_cores(const Row& row, const Weights<T>& weights, Give give) {
    constexpr int numbers = Weights<T>::numbers, steps = Weights<T>::steps;
    const int g = row.lane / 4, t = row.lane % 4;
    const bool is_long = row.features >= 16;
    unsigned a[2][steps][4];
    weights.read(a, row.staged);
#pragma unroll 1
    for (int start = 0; start < row.columns; start += 16) {
        float sums[2][2][4] = {};
#pragma unroll
        for (int s = 0; s < steps; ++s) {
            if (s >= steps / 2 && !is_long) continue;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int column = start + g / 2 * 4 + 2 * e + g % 2;
                unsigned b[2] = {};
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int x = 0; x < numbers; ++x) {
                        const int v = numbers * (8 * s + t + 4 * half) + x;
                        if (Row::of_columns || column < row.columns)
                            b[half] |= bits_of(row.vector(v)[column]) << 16 * x;
                    }
#pragma unroll
                for (int m = 0; m < 2; ++m)
                    if (m == 0 || is_long) multiply_step<T>(sums[m][e], a[m][s], b[0], b[1]);
            }
        }
        const int column = start + 4 * t;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            if (r >= 2 && !is_long) continue;
            const int i = 8 * r + g, m = r / 2, c = r % 2 * 2;
            const float values[4] = {sums[m][0][c], sums[m][0][c + 1], sums[m][1][c], sums[m][1][c + 1]};
            if (i <= row.features && column < row.columns) give(i, column, values);
        }
    }
}

}  // namespace dot_interaction
