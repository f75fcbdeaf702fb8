// What the generated kernels of dlrm_forward are made of (source.py): DLRM's forward for small models, a row a lane.
//
//     v[0] = bottom(dense[row])        v[1 + f] = Σ tables[f][id] over the bag (row, f)
//     out[row] = top([v[0]; v[i] · v[j] for i = 1 … F, j = 0 … i - 1])
//
// A lane computes a row, with everything between input and output in its registers. So every size is a constant, and
// every loop over one is unrolled: an array that is indexed by what is not known would lie in memory. Blocks are of 32
// rows, one warp or several: the warps of a block share its rows, each adds up a part of the pairs.
//
// Bytes a row: dense, ids, F rows of the tables, out. The weights are read once a block into shared memory, where all
// lanes of a warp read the same number at once, which costs as much as if one did.
#pragma once

#include "device/async_copy.cuh"
#include "device/report.cuh"

namespace dlrm {

constexpr int rows_of_a_block = 32;
constexpr int bad_id = 5, bad_offset = 6;  // what a report says

// ------------------------------------------------------------------------------------------------------- activations
// To float32's last bits, where activations.cuh is fast: there is one of them for a layer's output, and a row.

struct Identity {
    __device__ static float of(float z) { return z; }
};
struct Relu {
    __device__ static float of(float z) { return z < 0.0f ? 0.0f : z; }  // not fmaxf, which gives 0 for NaN
};
struct LeakyRelu {
    __device__ static float of(float z) { return z > 0.0f ? z : 0.01f * z; }
};
struct Sigmoid {
    __device__ static float of(float z) { return 1.0f / (1.0f + expf(-z)); }
};
struct Tanh {
    __device__ static float of(float z) { return tanhf(z); }
};
struct Silu {
    __device__ static float of(float z) { return z * Sigmoid::of(z); }
};
struct Gelu {
    __device__ static float of(float z) { return 0.5f * z * (1.0f + erff(0.70710678f * z)); }
};
struct GeluTanh {
    __device__ static float of(float z) { return z * Sigmoid::of(0.0713548163f * z * (z * z + 22.36386f)); }
};

template <class Activation, int width>
__device__ inline void activate(float (&values)[width]) {
#pragma unroll
    for (int n = 0; n < width; ++n) values[n] = Activation::of(values[n]);
}

// ------------------------------------------------------------------------------------------------------------ layers
// In shared memory a layer is its weights [inputs][outputs], then its biases: what one input is multiplied by lies
// together, and four of them are one load.

template <int inputs, int outputs>
constexpr int size_of_layer = ((inputs + 1) * outputs + 3) / 4 * 4;

// weight: [outputs][inputs], as nn.Linear has it. `thread` of `threads` moves its part: no copy waits for another.
template <int inputs, int outputs, int threads>
__device__ inline void stage(AsyncCopies& copies, float* layer, const float* weight, const float* bias, int thread) {
#pragma unroll 8
    for (int begin = 0; begin < inputs * outputs; begin += threads)
        if (const int e = begin + thread; e < inputs * outputs)
            copies.copy(layer + e % inputs * outputs + e / inputs, weight + e);
#pragma unroll 8
    for (int begin = 0; begin < outputs; begin += threads)
        if (const int n = begin + thread; n < outputs) copies.copy(layer + inputs * outputs + n, bias + n);
}

// sums[n] += x · weights[n], of the layer's input `k`.
template <int outputs>
__device__ inline void add_input(float (&sums)[outputs], const float* layer, int k, float x) {
#pragma unroll
    for (int n = 0; n < outputs; ++n) sums[n] += x * layer[k * outputs + n];
}

// sums = biases + the layer's first `count` inputs, of `inputs`.
template <int inputs, int outputs, int count>
__device__ inline void linear(float (&sums)[outputs], const float* layer, const float (&x)[count]) {
#pragma unroll
    for (int n = 0; n < outputs; ++n) sums[n] = layer[inputs * outputs + n];
#pragma unroll
    for (int k = 0; k < count; ++k) add_input(sums, layer, k, x[k]);
}

// ------------------------------------------------------------------------------------------------------------- dense
// A block's rows of `dense` lie together, and are read so. In shared memory a row begins an odd number of floats after
// the one before it, so that 32 lanes that each read their own row meet in no bank.

template <int width>
constexpr int stride_of_dense = width | 1;

template <int width, int threads>
__device__ inline void stage_dense(AsyncCopies& copies, float* to, const float* dense, long long first, long long batch,
                                   int thread) {
    const long long left = batch - first;
    const int count = (left < rows_of_a_block ? int(left) : rows_of_a_block) * width;
    dense += first * width;
#pragma unroll 8
    for (int begin = 0; begin < rows_of_a_block * width; begin += threads)
        if (const int e = begin + thread; e < count)
            copies.copy(to + e / width * stride_of_dense<width> + e % width, dense + e);
}

// ---------------------------------------------------------------------------------------------------------- look-ups

// The first thing that is wrong with a thread's ids and offsets, which it reports when everything else is under way.
struct Wrong {
    int kind, feature;  // kind 0: nothing
    long long position, value;

    __device__ void is(int kind, int feature, long long position, long long value) {
        if (this->kind == 0) *this = {kind, feature, position, value};
    }
    __device__ void tell(unsigned long long* report) const {
        if (kind) write_report(report, kind, feature, position, value);
    }
};

// The row of `table` that an id names, by loads of `together` floats; zeros for an id that the table does not have.
template <int width, int together>
__device__ inline void look_up(float (&row)[width], const float* table, long long height, long long id, int feature,
                               long long position, Wrong& wrong) {
    struct alignas(together * sizeof(float)) Pack {
        float element[together];
    };
    const bool is_there = id >= 0 && id < height;
#pragma unroll
    for (int d = 0; d < width; d += together) {
        Pack pack = {};
        if (is_there) pack = *reinterpret_cast<const Pack*>(table + id * width + d);
#pragma unroll
        for (int e = 0; e < together; ++e) row[d + e] = pack.element[e];
    }
    if (!is_there) wrong.is(bad_id, feature, position, id);
}

template <int width>
__device__ inline void add(float (&sums)[width], const float (&values)[width]) {
#pragma unroll
    for (int d = 0; d < width; ++d) sums[d] += values[d];
}

struct Bag {
    long long begin, end;
};

// The bag of row `row`, one of `batch`, among `ids` ids. has_end: whether its end stands behind its beginning; else it
// is the last one, and ends with the ids. Bad offsets are clamped to what can be read.
template <class Offset>
__device__ inline Bag bag_of(const Offset* offsets, long long row, long long batch, bool has_end, long long ids,
                             int feature, Wrong& wrong) {
    Bag bag = {offsets[row], has_end ? (long long)offsets[row + 1] : ids};
    const bool bad_begin = bag.begin < 0 || bag.begin > ids || (row == 0 && bag.begin != 0);
    const bool bad_end = bag.end < bag.begin || bag.end > ids || (row == batch - 1 && bag.end != ids);
    if (bad_begin || bad_end) {
        wrong.is(bad_offset, feature, bad_begin ? row : row + 1, bad_begin ? bag.begin : bag.end);
        bag.begin = bag.begin < 0 ? 0 : bag.begin > ids ? ids : bag.begin;
        bag.end = bag.end < bag.begin ? bag.begin : bag.end > ids ? ids : bag.end;
    }
    return bag;
}

// ------------------------------------------------------------------------------------------------------------- pairs

// sums += weights · (v[i] · v[j]) for the pairs `begin` to `end` of (1, 0), (2, 0), (2, 1), (3, 0), …, which are the
// layer's inputs from `width` on: only what lies below the diagonal is ever computed.
template <int begin, int end, int vectors, int width, int outputs>
__device__ inline void add_pairs(float (&sums)[outputs], const float* layer, const float (&v)[vectors][width]) {
#pragma unroll
    for (int i = 1; i < vectors; ++i) {
#pragma unroll
        for (int j = 0; j < i; ++j) {
            const int pair = i * (i - 1) / 2 + j;
            if (pair < begin || pair >= end) continue;
            float product = 0.0f;
#pragma unroll
            for (int d = 0; d < width; ++d) product += v[i][d] * v[j][d];
            add_input(sums, layer, width + pair, product);
        }
    }
}

// The warps of a block hand numbers to each other through shared memory, [which][row][width].
template <int width>
__device__ inline void put(float* shared, int which, int lane, const float (&values)[width]) {
#pragma unroll
    for (int d = 0; d < width; ++d) shared[(which * rows_of_a_block + lane) * width + d] = values[d];
}
template <int width>
__device__ inline void take(float (&values)[width], const float* shared, int which, int lane) {
#pragma unroll
    for (int d = 0; d < width; ++d) values[d] = shared[(which * rows_of_a_block + lane) * width + d];
}

}  // namespace dlrm
