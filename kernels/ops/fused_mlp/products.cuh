// What a warp of fused_mlp's kernel multiplies: a few rows of the inputs by a few columns of the weights, both in shared
// memory with k contiguous. On tensor cores, or plainly: every product in full float or double, added in the order of k.
#pragma once

#include "device/tensor_core.cuh"
#include "plan.cuh"

namespace fused_mlp {

// The 16 m_tiles by 8 n_tiles results of a warp; value[m][n][i] is of row `row(m, i)`, column `column(n, i)`. A lane's
// results come in runs of neighbouring columns.
template <class T, bool tensor_cores, class S>
struct Products {
    static constexpr int run = tensor_cores ? 2 : 1;
    Accumulator<T> value[S::m_tiles][S::n_tiles][4];

    __device__ static int lane() { return int(threadIdx.x) % 32; }
    __device__ static int row(int m, int i) {
        return 16 * m + (tensor_cores ? lane() / 4 + 8 * (i / 2) : lane() / 8 + 4 * i);
    }
    __device__ static int column(int n, int i) { return 8 * n + (tensor_cores ? lane() % 4 * 2 + i % 2 : lane() % 8); }

    __device__ void clear() {
#pragma unroll
        for (auto& row : value)
#pragma unroll
            for (auto& tile : row)
#pragma unroll
                for (auto& element : tile) element = 0;
    }
    // += inputs · weightsᵀ over `groups` times 64 bytes of k. Both start at this warp's first row.
    __device__ void add(const char* inputs, int input_row, const char* weights, int groups) {
        for (int group = 0; group < groups; ++group) {
            if constexpr (tensor_cores)
                add_on_tensor_cores(inputs + group * group_bytes, input_row, weights + group * group_bytes);
            else
                add_plainly(inputs + group * group_bytes, input_row, weights + group * group_bytes);
        }
    }

private:
    __device__ void add_on_tensor_cores(const char* inputs, int input_row, const char* weights) {
        const char* a_row = inputs + lane() % 16 * input_row + lane() / 16 * 16;
        const char* b_row = weights + lane() % 8 * S::ring_row + lane() / 8 * 16;
        unsigned b[S::n_tiles][4];  // two steps of 32 bytes
#pragma unroll
        for (int n = 0; n < S::n_tiles; ++n) {
            load_matrices(b[n], b_row + 8 * n * S::ring_row);
            if constexpr (sizeof(T) == 4)
#pragma unroll
                for (unsigned& bits : b[n]) bits = round_bits_to_tf32(bits);
        }
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
            for (int m = 0; m < S::m_tiles; ++m) {
                unsigned a[4];
                load_matrices(a, a_row + 16 * m * input_row + step * step_bytes);
#pragma unroll
                for (int n = 0; n < S::n_tiles; ++n)
                    multiply_step<T>(value[m][n], a, b[n][2 * step], b[n][2 * step + 1]);
            }
    }
    __device__ void add_plainly(const char* inputs, int input_row, const char* weights) {
        constexpr int width = widest<T>;
#pragma unroll
        for (int piece = 0; piece < group_bytes / 16; ++piece) {
            Pack<T, width> b[S::n_tiles];
#pragma unroll
            for (int n = 0; n < S::n_tiles; ++n)
                b[n] = load<width>(reinterpret_cast<const T*>(weights + column(n, 0) * S::ring_row + 16 * piece));
#pragma unroll
            for (int m = 0; m < S::m_tiles; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    auto a = load<width>(reinterpret_cast<const T*>(inputs + row(m, i) * input_row + 16 * piece));
#pragma unroll
                    for (int n = 0; n < S::n_tiles; ++n)
#pragma unroll
                        for (int e = 0; e < width; ++e)
                            value[m][n][i] += widen(a.element[e]) * widen(b[n].element[e]);
                }
        }
    }
};

}  // namespace fused_mlp
