// The same results as kernel.cuh's forward, for tensor cores and few rows a tile: weights go from the L2 straight into
// the registers from which they are multiplied, and shared memory holds nothing but what is between the layers.
//
// The product is turned round, outᵀ = W xᵀ: 16 outputs of a layer are the rows of a matrix of mma.sync, 8 rows of x its
// columns. So every weight is an operand once a tile, of one warp, and there is nothing to share. What that warp reads of
// x comes from shared memory, 16 bytes a lane.
//
// In which order k is added up is free, as long as both operands have the same: lane t of four takes 16 bytes in a row,
// from both, where mma.sync wants numbers from t and t + 4 (tensor_core.cuh). Two steps of it take 64 bytes.
//
// A launch before lays the weights out as fragments: what a warp takes for 16 outputs and 128 bytes of k, a slot, lies in
// 2 KB on end, padded with zeros and in tf32 rounded. So 32 lanes read 512 bytes in a row, and the registers that they read
// are those that a product takes.
//
// Each warp has three slots in its registers. One is filled again as soon as it is multiplied, with what comes next of
// this job (16 outputs of a layer) or the first of the next: over the ends of layers and tiles, since weights do not hang
// on what layers compute. Bytes on their way: 16 warps · 3 slots · 2 KB.
//
// A product's result comes many cycles after it began. Others begin meanwhile: a scheduler has four warps, and each of
// them has four sums that do not wait for one another.
//
// A row's 32-byte pieces are permuted (`placed`). So no two lanes meet in a bank: neither the eight that read 64 bytes of
// two rows at a time, nor the 32 that write 8 columns of four rows.
//
// fused_mlp launches kernel.cuh's; test_fused_mlp.cu times both. dlrm/tile.cuh is built on this one.
#pragma once

#include "ops/fused_mlp/kernel.cuh"

namespace fused_mlp {

constexpr int direct_warps = 16, direct_threads = 32 * direct_warps, direct_slots = 3, direct_outputs = 16;
constexpr int slot_bytes = 128, half_bytes = slot_bytes / 2, fragment_bytes = slot_bytes * direct_outputs;

// 16 bytes of weights. Where it stands the load begins: a plain one might be moved to where the weights are multiplied,
// and one of what is never written (.nc) over the wait for the launch that writes the fragments, or over a barrier.
__device__ inline void begin_load(uint4& to, const void* from) {
#ifdef __CUDA_ARCH__
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                 : "l"(__cvta_generic_to_global(from)));
#else
    to = *static_cast<const uint4*>(from);
#endif
}

// Where byte `byte` of a row lies in it.
__device__ inline int placed(int row, int byte) { return byte ^ (row << 4 & 0x60); }

// The layers of a network: of one MLP, or of several, one behind the other.
struct Chain {
    int count = 0, inputs[most_layers] = {}, outputs[most_layers] = {};

    constexpr Chain& append(const Widths& widths) {
        for (int l = 0; l < widths.count; ++l, ++count)
            inputs[count] = widths.width[l], outputs[count] = widths.width[l + 1];
        return *this;
    }
};

// Where a layer's fragments lie, in elements. A layer has `jobs` of 16 outputs, a job has `slots`, and a slot is
// [4 steps][lane 4 g + t][16 bytes]: 4 bytes of output g, of g + 8, the next 4 of g, of g + 8, which is the operand of the
// step's product. A layer without jobs has one output, which is added up plainly where others round: its weights lie
// there as they are. All layers' biases lie behind all fragments.
template <class T>
struct Fragments {
    static constexpr int of_slot = slot_bytes / int(sizeof(T)), elements = fragment_bytes / int(sizeof(T));
    int inputs = 0, outputs = 0, jobs = 0, slots = 0;
    long long weight = 0, weight_end = 0;
    int bias = 0, bias_end = 0;  // from the first layer's bias on

    // layers: a Chain, or what has its inputs and outputs.
    template <class Layers>
    __host__ __device__ constexpr Fragments(const Layers& layers, int l) {
        for (int i = 0; i <= l; ++i) {
            inputs = int(layers.inputs[i]), outputs = int(layers.outputs[i]);
            jobs = sizeof(T) == 4 && outputs == 1 ? 0 : (outputs + direct_outputs - 1) / direct_outputs;
            slots = (inputs + of_slot - 1) / of_slot;
            weight = weight_end, weight_end += 1LL * slots * (jobs ? jobs * elements : of_slot);
            bias = bias_end, bias_end += direct_outputs * (jobs ? jobs : 1);
        }
    }
};
// How many elements they are, with the biases.
template <class T>
constexpr long long fragments_size(const Chain& chain) {
    const Fragments<T> last(chain, chain.count - 1);
    return last.weight_end + last.bias_end;
}

// Layers' weights, in rows of `strides` numbers, zeros behind the inputs, and biases, which lie anywhere, and where the
// fragments of all go. Every member has eight bytes.
template <class T>
struct LayersToFragments {
    const T *weights[most_layers], *biases[most_layers];
    long long strides[most_layers], inputs[most_layers], outputs[most_layers], count;
    T* fragments;
};

// Piece i of a layer's fragments, 16 bytes, of weight(output, k).
template <class T, class Weight>
__device__ inline Pack<T, widest<T>> fragment_piece(int i, int slots, Weight weight) {
    constexpr int of_word = 4 / int(sizeof(T));
    const int lane = i % 32, number = i / 32 % 4, slot = i / 128 % slots;
    const int row = i / 128 / slots * direct_outputs + lane / 4;
    // In words of 4 bytes: lane t has four of each half of a slot, a step takes two of them.
    const int word = slot * (slot_bytes / 4) + number / 2 * (half_bytes / 4) + lane % 4 * 4 + number % 2 * 2;
    Pack<T, widest<T>> piece;
#pragma unroll
    for (int e = 0; e < widest<T>; ++e) {
        const int part = e / of_word, k = (word + part / 2) * of_word + e % of_word;  // outputs g, g + 8, g, g + 8
        piece.element[e] = as_input<T, true>(weight(row + part % 2 * 8, k));
    }
    return piece;
}

// blockIdx.y: the layer. A successor that begins early finds all that was there before this launch.
template <class T>
__device__ void write_fragments(const LayersToFragments<T>& all) {
    constexpr int width = widest<T>, of_slot = Fragments<T>::of_slot;
    const int l = int(blockIdx.y);
    const Fragments<T> own(all, l), last(all, int(all.count) - 1);
    const T *const weights = all.weights[l], *const bias = all.biases[l];
    T *const fragments = all.fragments + own.weight, *const biases = all.fragments + last.weight_end + own.bias;
    auto weight = [&](int row, int k) {
        bool there = row < own.outputs && k < own.inputs;
        return there ? weights[row * all.strides[l] + k] : narrow<T>(0.0f);
    };
    wait_for_predecessor();
    let_successor_begin();
    const int first = int(blockIdx.x * blockDim.x + threadIdx.x), step = int(gridDim.x * blockDim.x);
    const int pieces = own.slots * (own.jobs ? own.jobs * fragment_bytes / 16 : of_slot / width);
    for (int i = first; i < pieces; i += step) {
        Pack<T, width> piece;
        if (own.jobs) piece = fragment_piece<T>(i, own.slots, weight);
        else
#pragma unroll
            for (int e = 0; e < width; ++e) piece.element[e] = weight(0, i * width + e);
        reinterpret_cast<Pack<T, width>*>(fragments)[i] = piece;
    }
    for (int i = first; i < direct_outputs * (own.jobs ? own.jobs : 1); i += step)
        biases[i] = i < own.outputs ? bias[i] : narrow<T>(0.0f);
}
template <class T>
__global__ void fragments_of_layers(const __grid_constant__ LayersToFragments<T> all) {
    write_fragments(all);
}

// A layer, and where in shared memory, in bytes, rows of what it reads and gives begin and how far apart they are.
struct DirectLayer {
    long long weight;  // where its fragments begin, in elements
    int inputs, outputs, jobs, slots;
    int bias;  // where in shared memory, in bytes
    int from, from_row, to, to_row;
    int written;     // columns that it gives: zeros behind its outputs, as far as they are read
    bool to_vector;  // what it gives are not the rows that a layer reads: they lie in order
    Activation activation;
    bool gives_all_bits;  // what takes its outputs rounds them itself, or takes them as they are
};

// What hangs on the network alone, and not on the call.
struct DirectLayout {
    DirectLayer layers[most_layers] = {};
    int count = 0, cluster = 1;
    long long biases = 0;  // of all layers, where they begin, in elements; they go to the beginning of shared memory
    int bias_bytes = 0;
};

// And what does. Every member has eight bytes.
template <class T>
struct DirectCall {
    const T* x;
    T* out;
    const T* fragments;
    long long rows, x_columns, clusters;
};

template <class T, int n_tiles>
struct DirectBlock {
    static constexpr int rows = 8 * n_tiles, width = widest<T>;
    static constexpr int of_slot = slot_bytes / int(sizeof(T));

    // 16 outputs of a layer, all of k. slots: 0 if there is no job.
    struct Job {
        const char* from;  // what this lane takes of its first slot
        int slots, layer, number;
        bool of_next_tile;
    };
    struct Slot {
        uint4 weights[4];  // [step]
    };

    const DirectLayout& net;
    const DirectCall<T>& call;
    const Cluster cluster;
    char* const memory;
    const int warp, g, t;  // lane = 4 g + t
    const int tiles;  // as many as there are rows for, 2^31 tiles at most
    AsyncCopies copies;
    Slot slots[direct_slots];
    Job job;  // the next one of this warp, whose first slots are filled or on their way

    __device__ DirectBlock(const DirectLayout& net, const DirectCall<T>& call)
        : net(net), call(call), cluster(net.cluster), memory(dynamic_shared<char>()), warp(int(threadIdx.x) / 32),
          g(int(threadIdx.x) % 32 / 4), t(int(threadIdx.x) % 4), tiles(int((call.rows + rows - 1) / rows)) {}

    __device__ char* input(int l, int row) const { return memory + net.layers[l].from + row * net.layers[l].from_row; }
    __device__ T& input(int l, int row, int column) const {
        return *reinterpret_cast<T*>(input(l, row) + placed(row, column * int(sizeof(T))));
    }
    __device__ bool is_plain(int l) const { return l < net.count && !net.layers[l].jobs; }
    __device__ static T as_taken(T value, bool plain) { return plain ? value : as_input<T, true>(value); }
    // A layer's jobs go round the blocks of a cluster, then their warps.
    __device__ int first_job() const { return warp * cluster.size + cluster.rank; }
    __device__ int step() const { return direct_warps * cluster.size; }

    // ------------------------------------------------------------------------------------------------ the weights' way

    __device__ Job after(int layer, int number, int tile) const {
        Job job = {};
        for (number += step(); layer < 0 || number >= net.layers[layer].jobs; number = first_job())
            if (++layer == net.count) {
                // Without a job in a whole tile there is none in any.
                if (job.of_next_tile || tile + step_of_tiles() >= tiles) return job;
                layer = -1, job.of_next_tile = true;
            }
        const DirectLayer& own = net.layers[layer];
        job.slots = own.slots, job.layer = layer, job.number = number;
        job.from = reinterpret_cast<const char*>(call.fragments + own.weight) +
                   (long long)number * own.slots * fragment_bytes + 16 * lane();
        return job;
    }
    __device__ int step_of_tiles() const { return int(call.clusters); }
    __device__ int lane() const { return 4 * g + t; }
    __device__ static void fill(Slot& slot, const char* from) {
#pragma unroll
        for (int i = 0; i < 4; ++i) begin_load(slot.weights[i], from + i * (fragment_bytes / 4));
    }

    // ---------------------------------------------------------------------------------------------------- the products

    static constexpr int chains = n_tiles >= 4 ? 1 : 4 / n_tiles;  // sums of a part of k, added up at the end
    using Sums = float[chains][n_tiles][4];

    // inputs: 16 bytes of this lane's, of its first row, by half of the slot.
    __device__ static void multiply(Sums& sums, const Slot& slot, const char* const (&inputs)[2], int eight_rows, int at) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint4 b[n_tiles];
#pragma unroll
            for (int n = 0; n < n_tiles; ++n) b[n] = *reinterpret_cast<const uint4*>(inputs[half] + n * eight_rows + at);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint4& w = slot.weights[2 * half + i];
                const unsigned a[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                for (int n = 0; n < n_tiles; ++n)
                    multiply_step<T>(sums[(2 * half + i) % chains][n], a, i ? b[n].z : b[n].x, i ? b[n].w : b[n].y);
            }
        }
    }
    // Runs the job, and fills the slots of `next` as they come free.
    __device__ void run_job(const Job& next, long long first_row) {
        const DirectLayer& layer = net.layers[job.layer];
        Sums sums = {};
        const int eight_rows = 8 * layer.from_row;
        const char* const own_row = input(job.layer, g);
        const char* inputs[2] = {own_row + placed(g, 16 * t), own_row + placed(g, half_bytes + 16 * t)};
        const char* from = job.from;
#pragma unroll 1
        for (int left = job.slots; left > 0; left -= direct_slots) {
#pragma unroll
            for (int s = 0; s < direct_slots; ++s) {
                if (s < left)
                    multiply(sums, slots[s], inputs, eight_rows, s * slot_bytes);
                else if (left < job.slots)
                    continue;  // it is filled already, with the next job's
                if (s + direct_slots < left)
                    fill(slots[s], from + (s + direct_slots) * fragment_bytes);
                else if (s < next.slots)
                    fill(slots[s], next.from + s * fragment_bytes);
            }
            from += direct_slots * fragment_bytes;
            inputs[0] += direct_slots * slot_bytes, inputs[1] += direct_slots * slot_bytes;
        }
#pragma unroll
        for (int c = 1; c < chains; ++c)
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) sums[0][n][i] += sums[c][n][i];
        finish(sums[0], first_row);
    }
    // Where a layer's output of a row lies.
    __device__ char* output_place(const DirectLayer& layer, int row, int output) const {
        int byte = output * int(sizeof(T));
        return memory + layer.to + row * layer.to_row + (layer.to_vector ? byte : placed(row, byte));
    }
    // A layer's outputs: to chip, in all blocks of the cluster, or to `out`.
    __device__ void finish(float (&sums)[n_tiles][4], long long first_row) {
        const DirectLayer& layer = net.layers[job.layer];
        const T* const biases = reinterpret_cast<const T*>(memory + layer.bias) + job.number * direct_outputs + g;
        const float bias[2] = {widen(biases[0]), widen(biases[8])};
        // This lane's sums: which of its two outputs, and the row behind its first.
        auto each = [&](auto function) {
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) function(i / 2, 8 * n + i % 2, sums[n][i]);
        };
        switch (layer.activation) {
#define FUSED_MLP_ACTIVATION(name) \
    case Activation::name: each([&](int o, int, float& z) { z = activate<Activation::name>(z + bias[o]); }); break;
            FUSED_ACTIVATIONS(FUSED_MLP_ACTIVATION)
#undef FUSED_MLP_ACTIVATION
            default: __builtin_unreachable();
        }
        const int first = job.number * direct_outputs, there = layer.outputs - first;
        if (job.layer + 1 == net.count) {
            each([&](int o, int row, float z) {
                const long long own_row = first_row + 2 * t + row, output = g + 8 * o;
                if (output < there && own_row < call.rows) call.out[own_row * layer.outputs + first + output] = narrow<T>(z);
            });
            return;
        }
        const int row_bytes = layer.to_row;
        // All of this lane's rows are placed alike.
        char* const places[2] = {output_place(layer, 2 * t, first + g), output_place(layer, 2 * t, first + g + 8)};
        const bool inside[2] = {g < there, g + 8 < there};
        if constexpr (sizeof(T) == 4)
            if (!layer.gives_all_bits) each([&](int, int, float& z) { z = rounded_to_tf32(z); });
        if (layer.to_vector)
            each([&](int o, int row, float z) {
                if (inside[o]) *reinterpret_cast<T*>(places[o] + row * row_bytes) = narrow<T>(z);
            });
        else
            each([&](int o, int row, float z) {
                *reinterpret_cast<T*>(places[o] + row * row_bytes) = narrow<T>(inside[o] ? z : 0.0f);
            });
        const bool is_last = job.number + 1 == layer.jobs;  // which writes the zeros behind the layer's outputs
        const int columns = is_last ? layer.written - first : direct_outputs;
        for (int i = lane(); i < rows * (columns - direct_outputs); i += 32)
            *reinterpret_cast<T*>(output_place(layer, i % rows, first + direct_outputs + i / rows)) = narrow<T>(0.0f);
        if (cluster.size == 1) return;
        __syncwarp();
        const int pieces = columns / width;
        for (int i = lane(); i < rows * pieces; i += 32) give(output_place(layer, i / pieces, first + i % pieces * width));
    }
    // 16 bytes of shared memory, to the other blocks of the cluster.
    __device__ void give(void* own) const {
        auto* piece = static_cast<uint4*>(own);
        uint4 value = *piece;
        for (int distance = 1; distance < cluster.size; ++distance)
            cluster.store(piece, (cluster.rank + distance) % cluster.size, value);
    }
    // A layer of one output: every block of the cluster computes it for itself.
    __device__ void run_plain(int l, long long first_row) const {
        const DirectLayer& layer = net.layers[l];
        const bool last = l + 1 == net.count;
        const int lane = this->lane();
        constexpr int of_warp = (rows + direct_warps - 1) / direct_warps, at_once = 8;
        const T* const weight = call.fragments + layer.weight;
        float sums[of_warp] = {};
        for (int begin = lane; begin < layer.inputs; begin += 32 * at_once) {
            T weights[at_once];
#pragma unroll
            for (int i = 0; i < at_once; ++i)
                if (begin + 32 * i < layer.inputs) weights[i] = weight[begin + 32 * i];
#pragma unroll
            for (int r = 0; r < of_warp; ++r) {
                int row = warp + r * direct_warps;
                if (row >= rows) break;
#pragma unroll
                for (int i = 0; i < at_once; ++i)
                    if (begin + 32 * i < layer.inputs) sums[r] += widen(weights[i]) * widen(input(l, row, begin + 32 * i));
            }
        }
#pragma unroll
        for (int r = 0; r < of_warp; ++r) {
            int row = warp + r * direct_warps;
            if (row >= rows) break;
            float z = reduce_lanes<Sum>(sums[r], 32) + widen(*reinterpret_cast<const T*>(memory + layer.bias));
            switch (layer.activation) {
#define FUSED_MLP_ACTIVATION(name) \
    case Activation::name: z = activate<Activation::name>(z); break;
                FUSED_ACTIVATIONS(FUSED_MLP_ACTIVATION)
#undef FUSED_MLP_ACTIVATION
                default: __builtin_unreachable();
            }
            if (!last && lane < layer.written)
                *reinterpret_cast<T*>(output_place(layer, row, lane)) =
                    lane ? narrow<T>(0.0f) : as_taken(narrow<T>(z), layer.gives_all_bits);
            const bool writes = last && lane == 0 && cluster.rank == 0;
            if (writes && first_row + row < call.rows) call.out[first_row + row] = narrow<T>(z);
        }
    }

    // ------------------------------------------------------------------------------------------------------- a tile

    // x[first row …] to chip, `step` elements at a time, with zeros beyond its rows and columns.
    template <int step>
    __device__ void read_x(long long first_row) const {
        int columns = net.layers[0].inputs, steps = int(round_up(columns, of_slot)) / step;
        bool plain = is_plain(0);
        for (int i = int(threadIdx.x); i < rows * steps; i += direct_threads) {
            int row = i / steps, c = i % steps * step;
            Pack<T, step> pack = {};
            if (first_row + row < call.rows && c < columns) pack = load<step>(call.x + (first_row + row) * call.x_columns + c);
#pragma unroll
            for (int e = 0; e < step; ++e)
                pack.element[e] = c + e < columns ? as_taken(pack.element[e], plain) : narrow<T>(0.0f);
            *reinterpret_cast<Pack<T, step>*>(input(0, row) + placed(row, c * int(sizeof(T)))) = pack;
        }
    }
    __device__ void read_x(long long first_row) const {
        if ((reinterpret_cast<unsigned long long>(call.x) | call.x_columns * sizeof(T)) % 16 == 0)
            read_x<width>(first_row);
        else
            read_x<1>(first_row);
    }
    __device__ static long long first_row(int tile) { return (long long)tile * rows; }
    __device__ int first_tile() const { return Cluster::block() / cluster.size; }
    // The biases and the first tile's first weights are on their way after it; `copies` has a group for the biases. Until
    // then nothing is read of the fragments, and nothing written but on chip: the launch before may still write them.
    __device__ void begin(int tile) {
        wait_for_predecessor();
        let_successor_begin();
        const char* const from = reinterpret_cast<const char*>(call.fragments + net.biases);
        for (int i = 16 * int(threadIdx.x); i < net.bias_bytes; i += 16 * direct_threads)
            copies.copy(memory + i, from + i, true);
        copies.commit();
        job = after(-1, 0, tile);
#pragma unroll
        for (int s = 0; s < direct_slots; ++s)
            if (s < job.slots) fill(slots[s], job.from + s * fragment_bytes);
    }
    __device__ void run_layers(int first, int end, int tile) {
        for (int l = first; l < end; ++l) {
            cluster.barrier();  // what layer l reads is there; before the first tile: all blocks have begun
            if (is_plain(l)) run_plain(l, first_row(tile));
            while (job.slots && job.layer == l && !job.of_next_tile) {
                Job next = after(job.layer, job.number, tile);
                run_job(next, first_row(tile));
                job = next;
            }
        }
    }
    __device__ void end_tile() {
        cluster.barrier();  // all have read what the next tile's x and first layers write over
        job.of_next_tile = false;
    }
    __device__ void run() {
        for (int tile = first_tile(); tile < tiles; tile += step_of_tiles()) {
            read_x(first_row(tile));
            if (tile == first_tile()) begin(tile);
            copies.wait(0);
            run_layers(0, net.count, tile);
            end_tile();
        }
    }
};

// Where a chain's fragments have the biases, and where these lie on chip: before all else.
template <class T>
constexpr DirectLayout layout_of(const Chain& chain, int cluster) {
    const Fragments<T> last(chain, chain.count - 1);
    DirectLayout net;
    net.cluster = cluster, net.biases = last.weight_end, net.bias_bytes = last.bias_end * int(sizeof(T));
    return net;
}

// The next layers of the chain, up to `end`, which are an MLP. What is between them takes two places of shared memory by
// turns, behind the biases. Returns where these end, which may be more than there is.
template <class T>
constexpr long long append_layers(DirectLayout& net, const Chain& chain, int end, Activation between, Activation last,
                                  int rows) {
    constexpr int size = int(sizeof(T)), of_slot = slot_bytes / size;
    const int first = net.count;
    long long row[2] = {}, place[2] = {};
    // 64 bytes beyond a multiple of 128: eight lanes read 64 bytes of each of two rows, which so lie in different banks.
    for (int l = first; l < end; ++l) {
        const long long own = round_up(chain.inputs[l], of_slot) * size + half_bytes;
        if (own > row[(l - first) % 2]) row[(l - first) % 2] = own;
    }
    place[0] = round_up(net.bias_bytes, slot_bytes), place[1] = place[0] + rows * row[0];
    for (int l = first; l < end; ++l) {
        DirectLayer& layer = net.layers[net.count++];
        const int from = (l - first) % 2, to = 1 - from;
        const bool is_last = l + 1 == end;
        const Fragments<T> own(chain, l);
        layer.inputs = own.inputs, layer.outputs = own.outputs, layer.jobs = own.jobs, layer.slots = own.slots;
        layer.weight = own.weight, layer.bias = own.bias * size;
        layer.from = int(place[from]), layer.from_row = int(row[from]);
        layer.to = int(place[to]), layer.to_row = int(row[to]);
        layer.written = int(round_up(layer.outputs, of_slot));
        layer.activation = is_last ? last : between;
        layer.gives_all_bits = size == 4 && !is_last && chain.outputs[l + 1] == 1;
    }
    return place[1] + rows * row[1];
}

template <class T>
struct DirectArguments {
    DirectLayout layout;
    DirectCall<T> call;
};
template <class T, int n_tiles>
__global__ void __launch_bounds__(direct_threads, 1) direct_forward(const __grid_constant__ DirectArguments<T> given) {
    DirectBlock<T, n_tiles>(given.layout, given.call).run();
}

#ifndef __CUDACC_RTC__
// `call` is a part of `argument`. cudaErrorInvalidConfiguration: a GPU without tensor cores, or clusters; more shared
// memory than there is.
template <class T, class Argument>
cudaError_t launch_direct_tiles(void (*kernel)(Argument), int rows, DirectCall<T>& call, const Argument& argument,
                                long long shared_bytes, int cluster, int clusters, const Device& device,
                                cudaStream_t stream) {
    long long tiles = (call.rows + rows - 1) / rows, resident = device.clusters(cluster);
    call.clusters = clusters ? clusters : std::min(tiles, resident);
    if (!device.tensor_cores || !resident || shared_bytes > device.shared_bytes) return cudaErrorInvalidConfiguration;
    cudaError_t error = set_shared_memory_limit(kernel, size_t(shared_bytes));
    if (error != cudaSuccess) return error;
    return launch_clusters(kernel, int(call.clusters), cluster, dim3(direct_threads), size_t(shared_bytes), stream, argument);
}

// packed: of each MLP, as packing.py lays it out. To fragments: fragments_size() elements on a multiple of 16 bytes. A
// layer has at most 2^31 bytes.
template <class T>
struct Packed {
    const T* packed;
    Widths widths;
};
template <class T>
LayersToFragments<T> layers_of(std::initializer_list<Packed<T>> mlps, T* fragments) {
    LayersToFragments<T> all = {};
    all.fragments = fragments;
    for (const Packed<T>& mlp : mlps) {
        const T* next = mlp.packed;
        for (int l = 0; l < mlp.widths.count; ++l) {
            const int own = int(all.count++), inputs = mlp.widths.width[l], outputs = mlp.widths.width[l + 1];
            const long long stride = round_up(inputs, 16), rows = round_up(outputs, 16);
            all.weights[own] = next, all.biases[own] = next + rows * stride, next += rows * (stride + 1);
            all.strides[own] = stride, all.inputs[own] = inputs, all.outputs[own] = outputs;
        }
    }
    return all;
}
template <class T>
cudaError_t launch_fragments(std::initializer_list<Packed<T>> mlps, T* fragments, cudaStream_t stream) {
    constexpr int block_threads = 512, of_block = 4 * 16 * block_threads / int(sizeof(T));
    const LayersToFragments<T> all = layers_of(mlps, fragments);
    long long blocks = 1;
    for (int l = 0; l < all.count; ++l) {
        const long long elements = round_up(all.outputs[l], 16) * all.strides[l];
        if (elements * int(sizeof(T)) > 1LL << 31) return cudaErrorInvalidValue;
        blocks = std::max(blocks, elements / of_block);
    }
    return launch_kernel(fragments_of_layers<T>, dim3(unsigned(blocks), unsigned(all.count)), dim3(block_threads), 0, stream, all);
}

// With tiles of `wanted.rows` rows, 8, 16 or 32, in clusters of `wanted.cluster` blocks. cudaErrorInvalidConfiguration: as
// above; weights that are not aligned; a `hidden`.
template <class T>
cudaError_t launch_direct(const Call<T>& call, const T* fragments, cudaStream_t stream, const Plan& wanted) {
    if (!call.rows) return cudaSuccess;
    if (!aligned(fragments) || call.hidden) return cudaErrorInvalidConfiguration;
    Device device;
    cudaError_t error = this_device(direct_forward<T, 2>, device);
    if (error != cudaSuccess) return error;
    const Chain chain = Chain().append(call.widths);
    DirectArguments<T> given = {layout_of<T>(chain, wanted.cluster), {call.x, call.out, fragments, call.rows, call.x_columns}};
    long long bytes = append_layers<T>(given.layout, chain, chain.count, call.activation, call.last_activation, wanted.rows);
    auto go = [&](auto* kernel) {
        return launch_direct_tiles(kernel, wanted.rows, given.call, given, bytes, wanted.cluster, wanted.clusters, device, stream);
    };
    if (wanted.rows == 8) return go(direct_forward<T, 1>);
    if (wanted.rows == 16) return go(direct_forward<T, 2>);
    if (wanted.rows == 32) return go(direct_forward<T, 4>);
    return cudaErrorInvalidConfiguration;
}
#endif

}  // namespace fused_mlp
