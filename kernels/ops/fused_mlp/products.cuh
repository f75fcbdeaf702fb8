// What a warp of fused_mlp's kernel multiplies: a few rows of the inputs by a few columns of the weights, both in shared
// memory with k contiguous. On tensor cores, or plainly: every product in full float or double, added in the order of k.
#pragma once

#include "device/reduce.cuh"
#include "device/tensor_core.cuh"
#include "device/tf32.cuh"
#include "ops/fused_mlp/plan.cuh"

namespace fused_mlp {

// A number of what a layer takes, as it is written to shared memory: in tf32 it is rounded there, once for all warps that
// read it.
template <class T, bool tensor_cores>
__device__ inline T as_input(T value) {
    if constexpr (tensor_cores && sizeof(T) == 4) return rounded_to_tf32(value);
    else return value;
}

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
    // function(m, n, i, value) of each
    template <class Function>
    __device__ void each(Function function) {
#pragma unroll
        for (int m = 0; m < S::m_tiles; ++m)
#pragma unroll
            for (int n = 0; n < S::n_tiles; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) function(m, n, i, value[m][n][i]);
    }
    // function(m, n, i) of each run, which begins at value[m][n][i].
    template <class Function>
    __device__ static void each_run(Function function) {
#pragma unroll
        for (int n = 0; n < S::n_tiles; ++n)
#pragma unroll
            for (int m = 0; m < S::m_tiles; ++m)
#pragma unroll
                for (int i = 0; i < 4; i += run) function(m, n, i);
    }
    // += inputs · weightsᵀ over a stage's chunk of k, or the `bytes` that are left of it. Both start at this warp's first
    // row.
    __device__ void add(const char* inputs, int input_row, const char* weights, int bytes) {
        constexpr int all = S::chunk / group_bytes;
        int groups = bytes < S::chunk ? (bytes + group_bytes - 1) / group_bytes : all;
        if constexpr (tensor_cores) {
            const char* a = inputs + lane() % 16 * input_row + lane() / 16 * 16;
            const char* b = weights + lane() % 8 * S::ring_row + lane() / 8 * 16;
            if (groups == all)
                add_groups<all>(a, input_row, b);
            else
                for (; groups > 0; --groups, a += group_bytes, b += group_bytes) add_groups<1>(a, input_row, b);
        } else {
            for (; groups > 0; --groups, inputs += group_bytes, weights += group_bytes)
                add_plainly(inputs, input_row, weights);
        }
    }

    // The same for the weights' first column alone, plainly. The four lanes that share rows add up a quarter of k each.
    __device__ void add_first_column(const char* inputs, int input_row, const char* weights, int bytes) {
        constexpr int width = widest<T>;
        auto at = [](const char* place) { return load<width>(reinterpret_cast<const T*>(place)); };
        int end = bytes < S::chunk ? bytes : S::chunk;
        for (int k = lane() % 4 * 16; k < end; k += group_bytes) {
            Pack<T, width> b = at(weights + k);
#pragma unroll
            for (int m = 0; m < S::m_tiles; ++m)
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    Pack<T, width> a = at(inputs + row(m, i) * input_row + k);
#pragma unroll
                    for (int e = 0; e < width; ++e) value[m][0][i] += widen(a.element[e]) * widen(b.element[e]);
                }
        }
    }
    __device__ void sum_first_column() {
#pragma unroll
        for (int m = 0; m < S::m_tiles; ++m)
#pragma unroll
            for (int i = 0; i < 4; i += 2) value[m][0][i] = reduce_lanes<Sum>(value[m][0][i], 4);
    }

private:
    // The operands of two steps.
    struct Group {
        unsigned a[2][S::m_tiles][4], b[S::n_tiles][4];

        __device__ void load(const char* a_row, int input_row, const char* b_row) {
#pragma unroll
            for (int n = 0; n < S::n_tiles; ++n) {
                load_matrices(b[n], b_row + 8 * n * S::ring_row);
                if constexpr (sizeof(T) == 4)  // weights go from memory to memory on their way to the ring
#pragma unroll
                    for (unsigned& weight : b[n]) weight = __float_as_uint(rounded_to_tf32(__uint_as_float(weight)));
            }
#pragma unroll
            for (int m = 0; m < S::m_tiles; ++m)
#pragma unroll
                for (int step = 0; step < 2; ++step)
                    load_matrices(a[step][m], a_row + 16 * m * input_row + step * step_bytes);
        }
    };
    // The next group's operands are read before this one's are multiplied.
    template <int groups>
    __device__ void add_groups(const char* a, int input_row, const char* b) {
        Group group[2];
        group[0].load(a, input_row, b);
#pragma unroll
        for (int g = 0; g < groups; ++g) {
            if (g + 1 < groups) group[(g + 1) % 2].load(a + (g + 1) * group_bytes, input_row, b + (g + 1) * group_bytes);
            const Group& here = group[g % 2];
#pragma unroll
            for (int step = 0; step < 2; ++step)
#pragma unroll
                for (int m = 0; m < S::m_tiles; ++m)
#pragma unroll
                    for (int n = 0; n < S::n_tiles; ++n)
                        multiply_step<T>(value[m][n], here.a[step][m], here.b[n][2 * step], here.b[n][2 * step + 1]);
        }
    }
    // Eight terms of float are a sum of their own: many short sums err less than a long one.
    __device__ void add_plainly(const char* inputs, int input_row, const char* weights) {
        constexpr int width = widest<T>, pieces = 2;
        auto at = [](const char* row, int piece) { return load<width>(reinterpret_cast<const T*>(row + 16 * piece)); };
#pragma unroll
        for (int first = 0; first < group_bytes / 16; first += pieces) {
            Pack<T, width> b[S::n_tiles][pieces];
#pragma unroll
            for (int n = 0; n < S::n_tiles; ++n)
#pragma unroll
                for (int p = 0; p < pieces; ++p) b[n][p] = at(weights + column(n, 0) * S::ring_row, first + p);
#pragma unroll
            for (int m = 0; m < S::m_tiles; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    Pack<T, width> a[pieces];
#pragma unroll
                    for (int p = 0; p < pieces; ++p) a[p] = at(inputs + row(m, i) * input_row, first + p);
#pragma unroll
                    for (int n = 0; n < S::n_tiles; ++n) {
                        Accumulator<T> part = 0;
#pragma unroll
                        for (int p = 0; p < pieces; ++p)
#pragma unroll
                            for (int e = 0; e < width; ++e) part += widen(a[p].element[e]) * widen(b[n][p].element[e]);
                        value[m][n][i] += part;
                    }
                }
        }
    }
};

}  // namespace fused_mlp
