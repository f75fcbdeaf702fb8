// out = final(… act(act(x W1ᵀ + b1) W2ᵀ + b2) … WLᵀ + bL)       x [B, K'], layers K → N1 → … → NL, K <= K', out [B, NL]
//
// A tile of rows goes through all layers on chip; what one layer gives is written to shared memory, where the next one
// reads it. A cluster of blocks shares the tile: each computes a slice of every layer's columns and writes it into the
// shared memory of all.
//
// Bytes of global memory: x and out once, x in each block of a cluster. Bytes from the L2: all weights once a tile, a
// 1/cluster of them in each block; between blocks: rows · columns · (cluster - 1) / cluster to each, a layer.
// FLOPs: 2 B Σ N(l-1) N(l).
//
// The weights do not hang on what the layers compute: they come through a ring of stages, whose copies run ahead of the
// products over the ends of layers and tiles, so that a block that waits for others reads meanwhile.
#pragma once

#include "plan.cuh"
#include "products.cuh"

#include "device/activations.cuh"
#include "device/async_copy.cuh"

namespace fused_mlp {

template <class T>
struct Layer {
    const T *weight, *bias;  // [outputs, stride], stride >= inputs and zeros from inputs on; [outputs]
    int inputs, outputs, stride;
    int covered, slice;  // columns computed: all, zeros beyond outputs; of a block
    // The columns of `hidden` from which on its output, and what the activation was taken of, are kept; -1: not.
    long long output_kept, input_kept;
    int kept_columns;  // outputs rounded up to 16
};

template <class T>
struct Network {
    Layer<T> layers[most_layers];
    int count, cluster, clusters, stages;
    Activation activation, last_activation;
    const T* x;
    T *out, *hidden;  // hidden: [rows, hidden_columns], aligned for pairs, or null
    long long rows, x_columns, hidden_columns;
    int row_bytes[2], buffer[2];  // of what a layer reads, l even and odd; where that starts
    bool in_place;                // both are one
    bool x_aligned, weights_aligned;
};

// --------------------------------------------------------------------------------------------------- what is on chip

// Those that the op has: no other reaches a kernel, for launch() refuses it.
#define FUSED_MLP_ACTIVATIONS(each) each(identity) each(relu) each(sigmoid) each(gelu)

template <class C>
__device__ inline C activate(Activation activation, C z) {
#define FUSED_MLP_ACTIVATION(name) \
    if (activation == Activation::name) return ::activate<Activation::name>(z);
    FUSED_MLP_ACTIVATIONS(FUSED_MLP_ACTIVATION)
#undef FUSED_MLP_ACTIVATION
    __builtin_unreachable();
}
constexpr bool has(Activation activation) {
#define FUSED_MLP_ACTIVATION(name) || activation == Activation::name
    return false FUSED_MLP_ACTIVATIONS(FUSED_MLP_ACTIVATION);
#undef FUSED_MLP_ACTIVATION
}

template <class T, bool tensor_cores, class S>
struct Block {
    using C = Accumulator<T>;
    static constexpr int width = widest<T>, chunk = S::chunk / int(sizeof(T));  // elements: of 16 bytes; of k in a stage

    const Network<T>& net;
    const Cluster cluster;
    char* const memory;
    AsyncCopies copies;

    __device__ explicit Block(const Network<T>& net)
        : net(net), cluster(net.cluster), memory(dynamic_shared<char>()) {}

    __device__ int slice_begin(const Layer<T>& layer) const {
        int begin = cluster.rank * layer.slice;
        return begin < layer.covered ? begin : layer.covered;
    }
    __device__ int slice_end(const Layer<T>& layer) const {
        int end = (cluster.rank + 1) * layer.slice;
        return end < layer.covered ? end : layer.covered;
    }
    __device__ static int warp_row() { return int(threadIdx.x) / 32 % S::row_warps * 16 * S::m_tiles; }
    __device__ static int warp_column() { return int(threadIdx.x) / 32 / S::row_warps * 8 * S::n_tiles; }
    // Row r, column c of what layer l reads.
    __device__ char* input(int l, int r, int c) const {
        return memory + net.buffer[l % 2] + r * net.row_bytes[l % 2] + c * int(sizeof(T));
    }
    __device__ char* stage(int number) const { return memory + number * S::stage_bytes; }

    // --------------------------------------------------------------------------------------- the ring of the weights

    // The weights that are copied next: P columns from `column` on, `chunk` of k, of a layer in a tile.
    struct Position {
        long long tile;
        int layer, column, k;
    } ahead;
    int free_stage = 0, next_stage = 0;
    long long tiles;

    __device__ void begin(long long first_tile, long long all_tiles) {
        tiles = all_tiles;
        ahead = {first_tile, 0, slice_begin(net.layers[0]), 0};
        find_columns();
        for (int i = 0; i < net.stages - 1; ++i) fetch();
    }
    // On to a layer of which this block has columns left.
    __device__ void find_columns() {
        while (ahead.tile < tiles && ahead.column >= slice_end(net.layers[ahead.layer])) {
            if (++ahead.layer == net.count) ahead.layer = 0, ahead.tile += net.clusters;
            ahead.column = slice_begin(net.layers[ahead.layer]);
        }
    }
    __device__ void fetch() {
        if (ahead.tile < tiles) {
            const Layer<T>& layer = net.layers[ahead.layer];
            copy_weights(layer, stage(free_stage));
            ahead.k += chunk;
            if (ahead.k >= layer.inputs) {
                ahead.k = 0, ahead.column += S::columns;
                find_columns();
            }
        }
        if (++free_stage == net.stages) free_stage = 0;
        copies.commit();
    }
    __device__ void copy_weights(const Layer<T>& layer, char* to) {
        constexpr int pieces = S::chunk / 16, columns_at_once = threads / pieces;
        int lane_column = int(threadIdx.x) / pieces, k = ahead.k + int(threadIdx.x) % pieces * width;
        int end = slice_end(layer);
#pragma unroll
        for (int first = 0; first < S::columns; first += columns_at_once) {
            int c = first + lane_column, column = ahead.column + c;
            if (column >= end) continue;  // the products of these columns are thrown away
            bool there = column < layer.outputs && k < layer.stride;
            const T* from = there ? layer.weight + (long long)column * layer.stride + k : layer.weight;
            char* piece = to + c * S::ring_row + int(threadIdx.x) % pieces * 16;
            if (net.weights_aligned)
                copies.copy(piece, from, there);
            else
                for (int e = 0; e < width; ++e) reinterpret_cast<T*>(piece)[e] = there ? from[e] : narrow<T>(C(0));
        }
    }

    // -------------------------------------------------------------------------------------------------- the tile's ends

    // As it is multiplied: rounded to tf32 where that is what the tensor cores take.
    __device__ static T rounded(T value) {
        if constexpr (tensor_cores && sizeof(T) == 4) return round_to_tf32(value);
        return value;
    }

    // x[first row …] to chip, `step` elements at a time; zeros beyond its rows and columns.
    template <int step, int batch>
    __device__ void read_x(long long first_row) {
        int columns = net.layers[0].inputs, in_row = covered(columns, int(sizeof(T))) / step;
        for (int start = int(threadIdx.x); start < S::rows * in_row; start += batch * threads) {
            Pack<T, step> pack[batch];  // all are under way before the first is waited for
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                int i = start + b * threads, r = i / in_row, c = i % in_row * step;
#pragma unroll
                for (int e = 0; e < step; ++e) pack[b].element[e] = narrow<T>(C(0));
                if (r < S::rows && first_row + r < net.rows && c < columns)
                    pack[b] = load<step>(net.x + (first_row + r) * net.x_columns + c);
            }
#pragma unroll
            for (int b = 0; b < batch; ++b) {
                int i = start + b * threads, r = i / in_row, c = i % in_row * step;
                if (r >= S::rows) break;
#pragma unroll
                for (int e = 0; e < step; ++e)
                    pack[b].element[e] = c + e < columns ? rounded(pack[b].element[e]) : narrow<T>(C(0));
                *reinterpret_cast<Pack<T, step>*>(input(0, r, c)) = pack[b];
            }
        }
    }

    // A layer's outputs of a tile, columns from `first_column` of the layer on: to chip, or to `out`, and to `hidden`.
    __device__ void write(int l, const Products<T, tensor_cores, S>& products, const C (&bias)[S::n_tiles][2],
                          long long first_row, int first_column) {
        constexpr int run = Products<T, tensor_cores, S>::run;
        const Layer<T>& layer = net.layers[l];
        bool last = l + 1 == net.count;
        Activation activation = last ? net.last_activation : net.activation;
        int end = slice_end(layer);
#pragma unroll
        for (int n = 0; n < S::n_tiles; ++n) {
            int column = first_column + warp_column() + products.column(n, 0);
            if (column >= end) continue;
#pragma unroll
            for (int m = 0; m < S::m_tiles; ++m)
#pragma unroll
                for (int i = 0; i < 4; i += run) {
                    int r = warp_row() + products.row(m, i);
                    long long row = first_row + r;
                    C z[run], values[run];
#pragma unroll
                    for (int e = 0; e < run; ++e) {
                        bool there = column + e < layer.outputs;
                        z[e] = there ? products.value[m][n][i + e] + bias[n][e] : C(0);
                        values[e] = there ? activate(activation, z[e]) : C(0);  // as hidden_parts has the padding
                    }
                    if (net.hidden && row < net.rows && column < layer.kept_columns) {
                        T* kept = net.hidden + row * net.hidden_columns + column;
                        if (layer.output_kept >= 0) store<run>(kept + layer.output_kept, values);
                        if (layer.input_kept >= 0) store<run>(kept + layer.input_kept, z);
                    }
                    if (!last) {
                        Pack<T, run> pack;
#pragma unroll
                        for (int e = 0; e < run; ++e) pack.element[e] = rounded(narrow<T>(values[e]));
                        *reinterpret_cast<Pack<T, run>*>(input(l + 1, r, column)) = pack;
                    } else if (row < net.rows) {
#pragma unroll
                        for (int e = 0; e < run; ++e)
                            if (column + e < layer.outputs)
                                net.out[row * layer.outputs + column + e] = narrow<T>(values[e]);
                    }
                }
        }
    }
    // This block's slice of what layer l gave, to the other blocks.
    __device__ void share(int l) const {
        const Layer<T>& layer = net.layers[l];
        int begin = slice_begin(layer), pieces = (slice_end(layer) - begin) / width;
        for (int i = int(threadIdx.x); i < S::rows * pieces; i += threads) {
            auto* own = reinterpret_cast<uint4*>(input(l + 1, i / pieces, begin + i % pieces * width));
            uint4 value = *own;
            for (int distance = 1; distance < cluster.size; ++distance)
                cluster.store(own, (cluster.rank + distance) % cluster.size, value);
        }
    }

    // ------------------------------------------------------------------------------------------------- a layer, a tile

    __device__ void multiply(int l, int column, Products<T, tensor_cores, S>& products) {
        const Layer<T>& layer = net.layers[l];
        bool idle = column + warp_column() >= slice_end(layer);
        for (int k = 0; k < layer.inputs; k += chunk) {
            copies.wait(net.stages - 2);
            __syncthreads();  // all have copied this stage, and are done with the one that is filled next
            fetch();
            int bytes = (layer.inputs - k) * int(sizeof(T));
            int groups = (bytes < S::chunk ? bytes + group_bytes - 1 : S::chunk) / group_bytes;
            if (!idle)
                products.add(input(l, warp_row(), k), net.row_bytes[l % 2],
                             stage(next_stage) + warp_column() * S::ring_row, groups);
            if (++next_stage == net.stages) next_stage = 0;
        }
    }
    __device__ void run_layer(int l, long long first_row) {
        constexpr int run = Products<T, tensor_cores, S>::run;
        const Layer<T>& layer = net.layers[l];
        bool last = l + 1 == net.count;
        int column = slice_begin(layer), end = slice_end(layer);
        do {
            Products<T, tensor_cores, S> products;
            products.clear();
            C bias[S::n_tiles][2];
#pragma unroll
            for (int n = 0; n < S::n_tiles; ++n)
#pragma unroll
                for (int e = 0; e < run; ++e) {
                    int c = column + warp_column() + products.column(n, e);
                    bias[n][e] = c < layer.outputs ? widen(layer.bias[c]) : C(0);
                }
            if (column < end) multiply(l, column, products);
            if (net.in_place && !last) cluster.barrier();  // all have read what is written over now
            write(l, products, bias, first_row, column);
            column += S::columns;
        } while (column < end);
        if (last) return;
        if (cluster.size > 1) {
            __syncthreads();
            share(l);
        }
        cluster.barrier();
    }
    __device__ void run() {
        long long first = Cluster::block() / cluster.size;
        begin(first, (net.rows + S::rows - 1) / S::rows);
        for (long long tile = first; tile < tiles; tile += net.clusters) {
            if (net.x_aligned)
                read_x<width, 8>(tile * S::rows);
            else
                read_x<1, 16>(tile * S::rows);
            cluster.barrier();  // before the first tile: so that all blocks have begun, and may be written to
            for (int l = 0; l < net.count; ++l) run_layer(l, tile * S::rows);
            cluster.barrier();  // all have read what the next tile's first layers write over
        }
    }
};

template <class T, bool tensor_cores, class S>
__global__ void __launch_bounds__(threads, 1) forward(const __grid_constant__ Network<T> net) {
    Block<T, tensor_cores, S>(net).run();
}

// ------------------------------------------------------------------------------------------------------- the launch

#ifndef __CUDACC_RTC__
template <class T>
struct Call {
    const T *x, *packed;  // [rows, x_columns]; the weights and biases as packing.py lays them out
    T *out, *hidden;      // [rows, NL]; null, or what the backward reads (packing.py's hidden_parts), aligned for pairs
    long long rows, x_columns;
    Widths widths;
    Activation activation, last_activation;
    bool tf32;
};

template <class T>
Network<T> network_of(const Call<T>& call, const Plan& plan) {
    constexpr int size = int(sizeof(T));
    Network<T> net = {};
    net.count = call.widths.count, net.cluster = plan.cluster, net.clusters = plan.clusters, net.stages = plan.stages;
    net.activation = call.activation, net.last_activation = call.last_activation;
    net.x = call.x, net.out = call.out, net.hidden = call.hidden;
    net.rows = call.rows, net.x_columns = call.x_columns;
    const T* next = call.packed;
    long long outputs_kept = 0, inputs_kept = 0;
    for (int l = 0; l < net.count; ++l) {
        Layer<T>& layer = net.layers[l];
        layer.inputs = call.widths.width[l], layer.outputs = call.widths.width[l + 1];
        layer.stride = int(round_up(layer.inputs, 16));
        long long outputs = round_up(layer.outputs, 16);
        layer.weight = next, layer.bias = next + outputs * layer.stride;
        next = layer.bias + outputs;
        layer.covered = covered(layer.outputs, size), layer.slice = slice_of(layer.covered, plan.cluster);
        bool last = l + 1 == net.count, gelu = (last ? net.last_activation : net.activation) == Activation::gelu;
        layer.kept_columns = int(outputs), layer.output_kept = layer.input_kept = -1;
        if (!last) layer.output_kept = outputs_kept, outputs_kept += outputs;
        if (gelu) layer.input_kept = inputs_kept, inputs_kept += outputs;
    }
    for (int l = 0; l < net.count; ++l)
        if (net.layers[l].input_kept >= 0) net.layers[l].input_kept += outputs_kept;
    net.hidden_columns = outputs_kept + inputs_kept;
    net.in_place = plan.buffers == 1;
    for (int parity = 0; parity < 2; ++parity) {
        net.row_bytes[parity] = int(plan.row_bytes[parity]);
        net.buffer[parity] = int(plan.ring_bytes + (net.in_place ? 0 : parity * plan.rows * plan.row_bytes[0]));
    }
    net.x_aligned = aligned(call.x) && call.x_columns * size % 16 == 0;
    net.weights_aligned = aligned(call.packed);
    return net;
}

template <class T, bool tensor_cores, class S>
cudaError_t launch_shape(const Call<T>& call, const Plan& plan, cudaStream_t stream) {
    auto kernel = forward<T, tensor_cores, S>;
    cudaError_t error = set_shared_memory_limit(kernel, size_t(plan.shared_bytes));
    if (error != cudaSuccess) return error;
    return launch_clusters(kernel, plan.clusters, plan.cluster, dim3(threads), size_t(plan.shared_bytes), stream,
                           network_of(call, plan));
}

template <class T, bool tensor_cores>
cudaError_t launch_products(const Call<T>& call, const Plan& wanted, cudaStream_t stream) {
    constexpr int size = int(sizeof(T));
    Device device;
    cudaError_t error = this_device(forward<T, tensor_cores, Shape<1, 1, 1, 256>>, device);
    if (error != cudaSuccess) return error;
    Plan plan = choose(call.rows, call.widths, size, tensor_cores, device, wanted);
    if (tensor_cores && !device.tensor_cores) return cudaErrorInvalidConfiguration;
    if (!plan.rows || !possible(plan, call.widths, size, device)) return cudaErrorInvalidConfiguration;
#define FUSED_MLP_LAUNCH(...)                                                       \
    if constexpr (has_registers<__VA_ARGS__>(size))                                 \
        if (plan.rows == __VA_ARGS__::rows && plan.columns == __VA_ARGS__::columns) \
            return launch_shape<T, tensor_cores, __VA_ARGS__>(call, plan, stream);
    FUSED_MLP_SHAPES(FUSED_MLP_LAUNCH)
#undef FUSED_MLP_LAUNCH
    return cudaErrorInvalidConfiguration;
}

// `wanted`: what of the plan is not to be chosen here, for tests and sweeps. cudaErrorInvalidValue: an activation that
// this op does not have.
template <class T>
cudaError_t launch(const Call<T>& call, cudaStream_t stream, const Plan& wanted = {}) {
    if (!has(call.activation) || !has(call.last_activation)) return cudaErrorInvalidValue;
    if (!call.rows) return cudaSuccess;
    if constexpr (sizeof(T) == 2) {
        return launch_products<T, true>(call, wanted, stream);
    } else {
        if constexpr (sizeof(T) == 4)
            if (call.tf32) return launch_products<T, true>(call, wanted, stream);
        return launch_products<T, false>(call, wanted, stream);
    }
}
#endif

}  // namespace fused_mlp
