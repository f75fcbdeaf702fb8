// The weights' and biases' gradients of whole MLPs in tf32: grad_Wl = g(l)ᵀ h(l-1), grad_bl = Σ of the rows of g(l).
//
// A block takes 64 × 64 numbers of one layer's weight and a part of the rows; all layers' tiles, of all MLPs, are in one
// grid, as one MLP's are in triton_backward.py, whose weights_kernel computes the same. There the transposed operand
// goes through registers and shared memory once more. Here a lane reads four outputs or inputs of a row at once, and what
// mma.sync wants next to each other are those of four matrices: which output is which row of a matrix is free, as long as
// the end knows it.
//
//     output 4 g + i is row g, and 32 + 4 g + i row g + 8, of matrix i;  input 4 g + j is column g of matrix j
//
// Rows of a stage come asynchronously, `stages - 1` stages ahead. Each pair of warps takes 8 of them at a time, the two of
// a pair the halves of the 64 inputs; in the end the pairs' sums are added up, one after the other: every run gives the
// same bits. g and h are rounded to tf32 as they are multiplied; a bias's gradient is the sum of g as it is.
//
// Bytes of a part: (tiles across · Σ g + tiles down · Σ h) from the L2; FLOPs: twice the products.
//
// weights_launch.py writes a kernel of it for the widths of the MLPs.
#pragma once

#include "device/async_copy.cuh"
#include "device/reduce.cuh"
#include "device/tensor_core.cuh"
#include "device/tf32.cuh"

namespace fused_mlp {

constexpr int weights_tile = 64;
constexpr int weights_pairs = 4, weights_threads = 64 * weights_pairs;
constexpr int weights_row = weights_tile + 8;  // numbers from a row to the next: four rows lie in different banks

// A layer: its MLP, where its g and h stand in their rows, its weight and bias in a part of the result, in elements, and
// its tiles in the grid. Widths are filled up as packing.py fills them: g, h and the result have them so. of_x: h is x,
// which is not.
struct WeightsLayer {
    int mlp, outputs, inputs, filled_outputs, filled_inputs, g, h, weight, bias, first_tile, across;
    bool of_x;
};

template <int stage_rows>
struct WeightsStage {
    float g[stage_rows * weights_row], h[stage_rows * weights_row];
};
// The pairs' sums, in the stages' place when these are done: [pair][half][number of a lane][lane], and of biases.
struct WeightsSums {
    float tiles[weights_pairs][2][64][32], biases[weights_pairs][weights_tile];
};

// Every member has eight bytes. What an MLP's gradients are made of: three matrices, and the columns of each.
struct WeightsOperands {
    const float *x, *hidden, *grads;
    long long x_columns, hidden_columns, grads_columns;
};
// part: rows of a part; target: [parts, elements].
struct WeightsTarget {
    float* target;
    long long elements, rows, part;
};
template <int mlps>
struct WeightsCall {
    WeightsTarget result;
    WeightsOperands operands[mlps];
};

// A stage is of stage_rows rows; the result's bits hang on neither number.
template <int stage_rows, int stages>
struct WeightsBlock {
    using Stage = WeightsStage<stage_rows>;
    static constexpr int shared =
        stages * int(sizeof(Stage)) > int(sizeof(WeightsSums)) ? stages * int(sizeof(Stage)) : int(sizeof(WeightsSums));

    const WeightsLayer& layer;
    const WeightsOperands& of;
    const WeightsTarget& result;
    const int warp, g, t, half, pair;  // lane = 4 g + t
    const int output, input;           // the tile's first
    const int rows;                    // of the part
    AsyncCopies copies;

    __device__ WeightsBlock(const WeightsLayer& layer, const WeightsOperands& of, const WeightsTarget& result)
        : layer(layer), of(of), result(result), warp(int(threadIdx.x) / 32), g(int(threadIdx.x) % 32 / 4),
          t(int(threadIdx.x) % 4), half(warp % 2), pair(warp / 2),
          output((int(blockIdx.x) - layer.first_tile) / layer.across * weights_tile),
          input((int(blockIdx.x) - layer.first_tile) % layer.across * weights_tile),
          rows(int(before() + result.part < result.rows ? result.part : result.rows - before())) {}

    __device__ long long before() const { return blockIdx.y * result.part; }  // rows of the parts before
    __device__ static Stage& stage(int i) { return dynamic_shared<Stage>()[i % stages]; }
    __device__ bool has_bias() const { return input == 0 && half == 0; }

    // 64 columns of `there` rows, with zeros for the other rows of a stage and beyond `columns`. step: 4, or 1 for rows
    // that do not begin at multiples of 16 bytes.
    template <int step>
    __device__ void ask(float* to, const float* from, long long stride, int columns, int there) {
        constexpr int steps = weights_tile / step, rows_at_once = weights_threads / steps;
        const int c = int(threadIdx.x) % steps * step;
        const float* source = from + int(threadIdx.x) / steps * stride + c;
        float* place = to + int(threadIdx.x) / steps * weights_row + c;
#pragma unroll
        for (int r = int(threadIdx.x) / steps; r < stage_rows; r += rows_at_once) {
            const bool is_there = r < there && c < columns;
            if constexpr (step == 4)
                copies.copy(place, static_cast<const void*>(source), is_there);
            else if (is_there)
                copies.copy(place, source);
            else
                *place = 0.0f;
            source += rows_at_once * stride, place += rows_at_once * weights_row;
        }
    }
    // The same of a matrix's rows of a stage, which are read to their end: what is beyond the layer's is not stored.
    __device__ void ask(float* to, const float* matrix, long long stride, int columns, int i) {
        const float* const from = matrix + (before() + i * stage_rows) * stride;
        const int there = rows - i * stage_rows;
        if ((reinterpret_cast<unsigned long long>(matrix) | stride * sizeof(float)) % 16 == 0)
            ask<4>(to, from, stride, columns, there);
        else
            ask<1>(to, from, stride, columns, there);
    }
    __device__ void ask(int i) {
        if (i * stage_rows < rows) {
            ask(stage(i).g, of.grads + layer.g + output, of.grads_columns, layer.filled_outputs - output, i);
            if (layer.of_x)
                ask(stage(i).h, of.x + input, of.x_columns, int(of.x_columns) - input, i);
            else
                ask(stage(i).h, of.hidden + layer.h + input, of.hidden_columns, layer.filled_inputs - input, i);
        }
        copies.commit();
    }

    using Tile = float[4][4][4];  // [i][j][outputs 4 g + i and 32 + 4 g + i, inputs 4 c + j with c = 2 t and 2 t + 1]

    __device__ static Pack<float, 4> four(const float* from) { return *reinterpret_cast<const Pack<float, 4>*>(from); }
    __device__ static unsigned bits(float x) { return __float_as_uint(rounded_to_tf32(x)); }
    __device__ void multiply(Tile& sums, float (&biases)[8], const Stage& stage) const {
#pragma unroll
        for (int part = 0; part < stage_rows / 8 / weights_pairs; ++part) {
            const int row = (part * weights_pairs + pair) * 8 + t;
            const float* const own_g = stage.g + row * weights_row + 4 * g;
            const float* const own_h = stage.h + row * weights_row + 4 * g + 32 * half;
            Pack<float, 4> a[2][2], b[2];  // [4 rows further][32 outputs further]
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                a[k][0] = four(own_g + 4 * k * weights_row), a[k][1] = four(own_g + 4 * k * weights_row + 32);
                b[k] = four(own_h + 4 * k * weights_row);
            }
            // In every tile, though the first ones across alone store them: with a branch here registers spill.
#pragma unroll
            for (int i = 0; i < 8; ++i) biases[i] += a[0][i / 4].element[i % 4] + a[1][i / 4].element[i % 4];
            unsigned of_h[4][2];
#pragma unroll
            for (int j = 0; j < 4; ++j) of_h[j][0] = bits(b[0].element[j]), of_h[j][1] = bits(b[1].element[j]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const unsigned of_g[4] = {bits(a[0][0].element[i]), bits(a[0][1].element[i]), bits(a[1][0].element[i]),
                                          bits(a[1][1].element[i])};
#pragma unroll
                for (int j = 0; j < 4; ++j) multiply_step<float>(sums[i][j], of_g, of_h[j][0], of_h[j][1]);
            }
        }
    }
    // Adds the pairs' sums up, and writes the tile: zeros where the widths are filled up.
    __device__ void store(const Tile& sums, const float (&biases)[8]) const {
        WeightsSums& sum_of = *dynamic_shared<WeightsSums>();
        const int lane = 4 * g + t;
        __syncthreads();  // the stages are done
#pragma unroll
        for (int i = 0; i < 64; ++i) sum_of.tiles[pair][half][i][lane] = sums[i / 16][i / 4 % 4][i % 4];
        if (has_bias())
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float sum = reduce_lanes<Sum>(biases[i], 4);
                if (t == 0) sum_of.biases[pair][i / 4 * 32 + 4 * g + i % 4] = sum;
            }
        __syncthreads();
        float* const target = result.target + blockIdx.y * result.elements;
        for (int i = int(threadIdx.x); i < weights_tile * weights_tile; i += weights_threads) {
            const int n = i / weights_tile, k = i % weights_tile;
            if (output + n >= layer.filled_outputs || input + k >= layer.filled_inputs) continue;
            const int c = k % 32 / 4, of_lane = n % 32 / 4 * 4 + c / 2;
            const int number = n % 4 * 16 + k % 4 * 4 + n / 32 * 2 + c % 2;
            float sum = 0.0f;
#pragma unroll
            for (int p = 0; p < weights_pairs; ++p) sum += sum_of.tiles[p][k / 32][number][of_lane];
            const bool exists = output + n < layer.outputs && input + k < layer.inputs;  // Inf · 0 would be NaN
            target[layer.weight + (output + n) * layer.filled_inputs + input + k] = exists ? sum : 0.0f;
        }
        const int n = int(threadIdx.x);
        if (input == 0 && n < weights_tile && output + n < layer.filled_outputs) {
            float sum = 0.0f;
#pragma unroll
            for (int p = 0; p < weights_pairs; ++p) sum += sum_of.biases[p][n];
            target[layer.bias + output + n] = output + n < layer.outputs ? sum : 0.0f;
        }
    }
    __device__ void run() {
        wait_for_predecessor();
        let_successor_begin();
        Tile sums = {};
        float biases[8] = {};
#pragma unroll
        for (int i = 0; i < stages - 1; ++i) ask(i);
        for (int i = 0; i * stage_rows < rows; ++i) {
            copies.wait(stages - 2);
            __syncthreads();  // the stage is there, and all have read the one before it
            ask(i + stages - 1);
            multiply(sums, biases, stage(i));
        }
        store(sums, biases);
    }
};

}  // namespace fused_mlp
