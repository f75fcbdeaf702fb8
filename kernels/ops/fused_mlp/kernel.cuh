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
// In tf32 every operand is rounded (device/tf32.cuh): what a layer takes when it is written on chip, weights when a warp
// reads them from the ring. `hidden` has outputs as the next layer takes them, so that the backward need not round them
// whenever it reads them; but of sigmoid and tanh, whose derivatives are of every bit, as they are. A layer of one output
// is no product of matrices: in tf32, too, it takes all numbers as they are.
//
// The weights do not hang on what the layers compute: they come through a ring of stages, whose copies run ahead of the
// products over the ends of layers and tiles, so that a block that waits for others reads meanwhile.
#pragma once

#include "ops/fused_mlp/plan.cuh"
#include "ops/fused_mlp/products.cuh"

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
    int count, cluster, clusters;
    Activation activation, last_activation;
    const T* x;
    T *out, *hidden;  // hidden: [rows, hidden_columns], aligned for pairs, or null
    long long rows, x_columns, hidden_columns;
    int row_bytes[2], buffer[2];  // of what a layer reads, l even and odd; where that starts
    bool in_place;                // both are one
    bool x_aligned, weights_aligned;
};

// --------------------------------------------------------------------------------------------------- what is on chip

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
    // Whether layer l, if there is one, takes numbers as they are where others round them.
    __device__ bool is_plain(int l) const {
        return tensor_cores && sizeof(T) == 4 && l < net.count && net.layers[l].outputs == 1;
    }
    __device__ static T as_taken(T value, bool plain) { return plain ? value : as_input<T, tensor_cores>(value); }

    // --------------------------------------------------------------------------------------- the ring of the weights

    static constexpr int pieces = S::chunk / 16, columns_at_once = threads / pieces;  // a thread copies 16 bytes at a time
    static constexpr int copies_of_stage = S::columns / columns_at_once;

    // The weights that are copied next: of S::columns columns of a layer, from `column` on. All that a copy needs is
    // worked out once for these columns, since a stage has few products to hide it behind.
    struct Position {
        long long tile;
        int layer, column;
        int k, inputs, stride;  // where this thread's piece begins
        int copied, there;      // so many of this thread's columns are multiplied; have weights, and zeros behind them
        const T* from;          // the first of this thread's columns, at k
    } ahead;
    int free_stage = 0, next_stage = 0;
    long long tiles;

    __device__ static int own_column() { return int(threadIdx.x) / pieces; }
    __device__ void begin(long long first_tile, long long all_tiles) {
        tiles = all_tiles;
        ahead.tile = first_tile, ahead.layer = 0, ahead.column = slice_begin(net.layers[0]);
        find_columns();
        for (int i = 0; i < S::stages - 1; ++i) fetch();
    }
    // On to a layer of which this block has columns left.
    __device__ void find_columns() {
        while (ahead.tile < tiles && ahead.column >= slice_end(net.layers[ahead.layer])) {
            if (++ahead.layer == net.count) ahead.layer = 0, ahead.tile += net.clusters;
            ahead.column = slice_begin(net.layers[ahead.layer]);
        }
        const Layer<T>& layer = net.layers[ahead.layer];
        int column = ahead.column + own_column();
        auto columns_before = [&](int end) { return (end - column + columns_at_once - 1) / columns_at_once; };
        ahead.copied = columns_before(slice_end(layer)), ahead.there = columns_before(layer.outputs);
        ahead.k = int(threadIdx.x) % pieces * width, ahead.inputs = layer.inputs, ahead.stride = layer.stride;
        ahead.from = layer.weight + (long long)column * layer.stride + ahead.k;
    }
    __device__ void fetch() {
        if (ahead.tile < tiles) {
            char* to = stage(free_stage) + own_column() * S::ring_row + int(threadIdx.x) % pieces * 16;
            int there = ahead.k < ahead.stride ? ahead.there : 0;
            long long step = (long long)columns_at_once * ahead.stride;
            if (net.weights_aligned && ahead.copied >= copies_of_stage && there >= copies_of_stage)
#pragma unroll
                for (int i = 0; i < copies_of_stage; ++i)
                    copies.copy(to + i * columns_at_once * S::ring_row, ahead.from + i * step, true);
            else
#pragma unroll 1
                for (int i = 0; i < copies_of_stage && i < ahead.copied; ++i)
                    copy_piece(to + i * columns_at_once * S::ring_row, ahead.from + i * step, i < there);
            ahead.k += chunk, ahead.from += chunk;
            if (ahead.k - int(threadIdx.x) % pieces * width >= ahead.inputs) ahead.column += S::columns, find_columns();
        }
        if (++free_stage == S::stages) free_stage = 0;
        copies.commit();
    }
    __device__ void copy_piece(char* to, const T* from, bool there) {
        if (net.weights_aligned)
            copies.copy(to, from, there);
        else
            for (int e = 0; e < width; ++e) reinterpret_cast<T*>(to)[e] = there ? from[e] : narrow<T>(C(0));
    }

    // -------------------------------------------------------------------------------------------------- the tile's ends

    // x[first row …] to chip, `step` elements at a time; zeros beyond its rows and columns. A warp reads every 8th row.
    template <int step>
    __device__ void read_x(long long first_row) {
        constexpr int rows = S::rows / warps, places = rows < 8 ? 8 / rows : 1;
        int columns = net.layers[0].inputs, all = covered(columns, int(sizeof(T)));
        int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32 * step;
        bool plain = is_plain(0);
        for (int start = lane; start < all; start += places * 32 * step) {
            Pack<T, step> pack[places][rows];  // all are under way before the first is waited for
#pragma unroll
            for (int p = 0; p < places; ++p)
#pragma unroll
                for (int r = 0; r < rows; ++r) {
                    int c = start + p * 32 * step;
                    long long row = first_row + warp + r * warps;
#pragma unroll
                    for (int e = 0; e < step; ++e) pack[p][r].element[e] = narrow<T>(C(0));
                    if (row < net.rows && c < columns) pack[p][r] = load<step>(net.x + row * net.x_columns + c);
                }
#pragma unroll
            for (int p = 0; p < places; ++p) {
                int c = start + p * 32 * step;
                if (c >= all) break;
#pragma unroll
                for (int r = 0; r < rows; ++r) {
#pragma unroll
                    for (int e = 0; e < step; ++e) {
                        T& element = pack[p][r].element[e];
                        element = c + e < columns ? as_taken(element, plain) : narrow<T>(C(0));
                    }
                    *reinterpret_cast<Pack<T, step>*>(input(0, warp + r * warps, c)) = pack[p][r];
                }
            }
        }
    }

    // A layer's outputs of a tile, columns from `first_column` of the layer on: to chip, or to `out`, and to `hidden`.
    __device__ void write(int l, Products<T, tensor_cores, S>& products, const C (&bias)[S::n_tiles][2],
                          long long first_row, int first_column) {
        constexpr int run = Products<T, tensor_cores, S>::run;
        const Layer<T>& layer = net.layers[l];
        bool last = l + 1 == net.count, plain = is_plain(l + 1);
        bool keeps_rounded = !derivative_reads_every_bit(net.activation) && !plain;
        int end = slice_end(layer), own = first_column + warp_column();
        products.each([&](int, int n, int i, C& z) { z += bias[n][i % run]; });
        if (net.hidden && layer.input_kept >= 0) keep(layer, products, layer.input_kept, first_row, own, end, false);
        // Outside of the loops, so that the code of one activation alone is gone through.
        switch (last ? net.last_activation : net.activation) {
#define FUSED_MLP_ACTIVATION(name) \
    case Activation::name: products.each([&](int, int, int, C& z) { z = activate<Activation::name>(z); }); break;
            FUSED_ACTIVATIONS(FUSED_MLP_ACTIVATION)
#undef FUSED_MLP_ACTIVATION
            default: __builtin_unreachable();
        }
        if (net.hidden && layer.output_kept >= 0)
            keep(layer, products, layer.output_kept, first_row, own, end, keeps_rounded);
        products.each_run([&](int m, int n, int i) {
            int column = own + products.column(n, 0), r = warp_row() + products.row(m, i);
            if (column >= end) return;
            const C* values = products.value[m][n] + i;
            if (!last) {
                Pack<T, run> pack;
#pragma unroll
                for (int e = 0; e < run; ++e)
                    pack.element[e] = as_taken(narrow<T>(column + e < layer.outputs ? values[e] : C(0)), plain);
                *reinterpret_cast<Pack<T, run>*>(input(l + 1, r, column)) = pack;
            } else if (first_row + r < net.rows) {
#pragma unroll
                for (int e = 0; e < run; ++e)
                    if (column + e < layer.outputs)
                        net.out[(first_row + r) * layer.outputs + column + e] = narrow<T>(values[e]);
            }
        });
    }
    // To `hidden` from its column `kept` on, with zeros in the padding's columns, as hidden_parts has them. as_inputs: as
    // the next layer takes them.
    __device__ void keep(const Layer<T>& layer, const Products<T, tensor_cores, S>& products, long long kept,
                         long long first_row, int own, int end, bool as_inputs) {
        constexpr int run = Products<T, tensor_cores, S>::run;
        end = end < layer.kept_columns ? end : layer.kept_columns;
        products.each_run([&](int m, int n, int i) {
            int column = own + products.column(n, 0);
            long long row = first_row + warp_row() + products.row(m, i);
            if (column >= end || row >= net.rows) return;
            C values[run];
#pragma unroll
            for (int e = 0; e < run; ++e) {
                values[e] = column + e < layer.outputs ? products.value[m][n][i + e] : C(0);
                if constexpr (sizeof(T) == 4)
                    if (as_inputs) values[e] = as_input<T, tensor_cores>(values[e]);
            }
            store<run>(net.hidden + row * net.hidden_columns + kept + column, values);
        });
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
        bool idle = column + warp_column() >= slice_end(net.layers[l]), plain = is_plain(l);
        const char* inputs = input(l, warp_row(), 0);
        int input_row = net.row_bytes[l % 2];
        for (int bytes = net.layers[l].inputs * int(sizeof(T)); bytes > 0; bytes -= S::chunk) {
            copies.wait(S::stages - 2);
            __syncthreads();  // all have copied this stage, and are done with the one that is filled next
            fetch();
            const char* weights = stage(next_stage) + warp_column() * S::ring_row;
            if (!idle && plain) products.add_first_column(inputs, input_row, weights, bytes);
            if (!idle && !plain) products.add(inputs, input_row, weights, bytes);
            inputs += S::chunk;
            if (++next_stage == S::stages) next_stage = 0;
        }
        if (plain) products.sum_first_column();
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
                read_x<width>(tile * S::rows);
            else
                read_x<1>(tile * S::rows);
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
    net.count = call.widths.count, net.cluster = plan.cluster, net.clusters = plan.clusters;
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
        bool last = l + 1 == net.count, keeps_input = derivative_reads_input(last ? net.last_activation : net.activation);
        layer.kept_columns = int(outputs), layer.output_kept = layer.input_kept = -1;
        if (!last) layer.output_kept = outputs_kept, outputs_kept += outputs;
        if (keeps_input) layer.input_kept = inputs_kept, inputs_kept += outputs;
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
cudaError_t launch_shape(const Call<T>& call, Plan& plan, cudaStream_t stream) {
    auto kernel = forward<T, tensor_cores, S>;
    if (!plan.launched) {
        cudaError_t error = set_shared_memory_limit(kernel, size_t(plan.shared_bytes));
        if (error != cudaSuccess) return error;
        plan.launched = true;
    }
    return launch_clusters(kernel, plan.clusters, plan.cluster, dim3(threads), size_t(plan.shared_bytes), stream,
                           network_of(call, plan));
}

template <class T, bool tensor_cores>
cudaError_t launch_products(const Call<T>& call, const Plan& wanted, cudaStream_t stream) {
    constexpr int size = int(sizeof(T));
    Device device;
    cudaError_t error = this_device(forward<T, tensor_cores, Shape<1, 1, 1, 256, 4>>, device);
    if (error != cudaSuccess) return error;
    Plan own;
    if (wanted.decides()) own = choose(call.rows, call.widths, size, tensor_cores, device, wanted);
    Plan& plan = wanted.decides() ? own : remembered<T, tensor_cores>(call.rows, call.widths, device);
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

// `wanted`: what of the plan is not to be chosen here, for tests and sweeps.
template <class T>
cudaError_t launch(const Call<T>& call, cudaStream_t stream, const Plan& wanted = {}) {
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
