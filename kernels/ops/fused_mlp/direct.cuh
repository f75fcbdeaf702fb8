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
// The op launches kernel.cuh's; test_fused_mlp.cu times both. dlrm/tile.cuh is built on this one.
#pragma once

#include "kernel.cuh"

namespace fused_mlp {

constexpr int direct_warps = 16, direct_threads = 32 * direct_warps, direct_slots = 3, direct_outputs = 16;
constexpr int slot_bytes = 128, half_bytes = slot_bytes / 2, fragment_bytes = slot_bytes * direct_outputs;

// 16 bytes of weights, which nobody writes meanwhile. Where it stands the load begins: a plain one might be moved to
// where the weights are multiplied.
__device__ inline void begin_load(uint4& to, const void* from) {
#ifdef __CUDA_ARCH__
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                 : "l"(__cvta_generic_to_global(from)));
#else
    to = *static_cast<const uint4*>(from);
#endif
}

// Where byte `byte` of a row lies in it.
__device__ inline int placed(int row, int byte) { return byte ^ (row << 4 & 0x60); }

// Where a layer's fragments lie, in elements. A layer has `jobs` of 16 outputs, a job has `slots`, and a slot is
// [4 steps][lane 4 g + t][16 bytes]: 4 bytes of output g, of g + 8, the next 4 of g, of g + 8, which is the operand of the
// step's product. A layer without jobs has one output, which is added up plainly where others round: its weights lie
// there as they are. All layers' biases lie behind all fragments.
template <class T>
struct Fragments {
    static constexpr int of_slot = slot_bytes / int(sizeof(T)), elements = fragment_bytes / int(sizeof(T));
    int inputs, outputs, jobs, slots;
    long long weight, weight_end;
    int bias, bias_end;  // from the first layer's bias on

    __host__ __device__ Fragments(const Widths& widths, int l) : weight_end(0), bias_end(0) {
        for (int i = 0; i <= l; ++i) {
            inputs = widths.width[i], outputs = widths.width[i + 1];
            jobs = sizeof(T) == 4 && outputs == 1 ? 0 : (outputs + direct_outputs - 1) / direct_outputs;
            slots = (inputs + of_slot - 1) / of_slot;
            weight = weight_end, weight_end += 1LL * slots * (jobs ? jobs * elements : of_slot);
            bias = bias_end, bias_end += direct_outputs * (jobs ? jobs : 1);
        }
    }
};
template <class T>
__host__ __device__ long long fragments_size(const Widths& widths) {
    const Fragments<T> last(widths, widths.count - 1);
    return last.weight_end + last.bias_end;
}

// A layer's weights, rows of `stride` numbers, and its bias, and where their fragments go.
template <class T>
struct LayerToFragments {
    const T *weight, *bias;
    T *fragments, *biases;
    int stride, inputs, outputs, jobs, slots;
};
template <class T>
struct LayersToFragments {
    LayerToFragments<T> layers[most_layers];
};

// blockIdx.y: the layer.
template <class T>
__global__ void write_fragments(const __grid_constant__ LayersToFragments<T> all) {
    constexpr int width = widest<T>, of_word = 4 / int(sizeof(T)), of_slot = Fragments<T>::of_slot;
    const LayerToFragments<T>& own = all.layers[blockIdx.y];
    auto weight = [&](int row, int k) {
        bool there = row < own.outputs && k < own.inputs;
        return there ? own.weight[(long long)row * own.stride + k] : narrow<T>(0.0f);
    };
    const int first = int(blockIdx.x * blockDim.x + threadIdx.x), step = int(gridDim.x * blockDim.x);
    const int pieces = own.slots * (own.jobs ? own.jobs * fragment_bytes / 16 : of_slot / width);
    for (int i = first; i < pieces; i += step) {
        const int lane = i % 32, number = i / 32 % 4, slot = i / 128 % own.slots;
        const int row = i / 128 / own.slots * direct_outputs + lane / 4;
        // In words of 4 bytes: lane t has four of each half of a slot, a step takes two of them.
        const int word = slot * (slot_bytes / 4) + number / 2 * (half_bytes / 4) + lane % 4 * 4 + number % 2 * 2;
        Pack<T, width> piece;
#pragma unroll
        for (int e = 0; e < width; ++e) {
            const int part = e / of_word, k = (word + part / 2) * of_word + e % of_word;  // outputs g, g + 8, g, g + 8
            piece.element[e] = own.jobs ? as_input<T, true>(weight(row + part % 2 * 8, k)) : weight(0, i * width + e);
        }
        reinterpret_cast<Pack<T, width>*>(own.fragments)[i] = piece;
    }
    for (int i = first; i < direct_outputs * (own.jobs ? own.jobs : 1); i += step)
        own.biases[i] = i < own.outputs ? own.bias[i] : narrow<T>(0.0f);
}

// A layer, and where in shared memory, in bytes, rows of what it reads and gives begin and how far apart they are.
template <class T>
struct DirectLayer {
    const T* weight;  // in fragments
    int inputs, outputs, jobs, slots;
    int bias;  // where in shared memory, in bytes
    int from, from_row, to, to_row;
    int written;     // columns that it gives: zeros behind its outputs, as far as they are read
    bool to_vector;  // what it gives are not the rows that a layer reads: they lie in order
    Activation activation;
    bool gives_all_bits;  // what takes its outputs rounds them itself, or takes them as they are
};

template <class T>
struct DirectNetwork {
    DirectLayer<T> layers[most_layers];
    int count, cluster, clusters;
    struct {
        const T* from;
        int to, bytes;
    } biases[2];  // of an MLP, to shared memory
    const T* x;
    T* out;
    long long rows, x_columns;
    bool x_aligned;
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

    const DirectNetwork<T>& net;
    const Cluster cluster;
    char* const memory;
    const int warp, g, t;  // lane = 4 g + t
    const long long tiles;
    AsyncCopies copies;
    Slot slots[direct_slots];
    Job job;  // the next one of this warp, whose first slots are filled or on their way

    __device__ explicit DirectBlock(const DirectNetwork<T>& net)
        : net(net), cluster(net.cluster), memory(dynamic_shared<char>()), warp(int(threadIdx.x) / 32),
          g(int(threadIdx.x) % 32 / 4), t(int(threadIdx.x) % 4), tiles((net.rows + rows - 1) / rows) {}

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

    __device__ Job after(int layer, int number, long long tile) const {
        Job job = {};
        for (number += step(); layer < 0 || number >= net.layers[layer].jobs; number = first_job())
            if (++layer == net.count) {
                // Without a job in a whole tile there is none in any.
                if (job.of_next_tile || tile + net.clusters >= tiles) return job;
                layer = -1, job.of_next_tile = true;
            }
        const DirectLayer<T>& own = net.layers[layer];
        job.slots = own.slots, job.layer = layer, job.number = number;
        job.from = reinterpret_cast<const char*>(own.weight) + (long long)number * own.slots * fragment_bytes + 16 * lane();
        return job;
    }
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
        const DirectLayer<T>& layer = net.layers[job.layer];
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
    __device__ char* output_place(const DirectLayer<T>& layer, int row, int output) const {
        int byte = output * int(sizeof(T));
        return memory + layer.to + row * layer.to_row + (layer.to_vector ? byte : placed(row, byte));
    }
    // A layer's outputs: to chip, in all blocks of the cluster, or to `out`.
    __device__ void finish(float (&sums)[n_tiles][4], long long first_row) {
        const DirectLayer<T>& layer = net.layers[job.layer];
        const T* const biases = reinterpret_cast<const T*>(memory + layer.bias) + job.number * direct_outputs + g;
        const float bias[2] = {widen(biases[0]), widen(biases[8])};
        // Of this lane's sums: which of its two outputs, and the row behind its first.
        auto each = [&](auto function) {
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) function(i / 2, 8 * n + i % 2, sums[n][i]);
        };
        switch (layer.activation) {
#define FUSED_MLP_ACTIVATION(name) \
    case Activation::name: each([&](int o, int, float& z) { z = activate<Activation::name>(z + bias[o]); }); break;
            FUSED_MLP_ACTIVATIONS(FUSED_MLP_ACTIVATION)
#undef FUSED_MLP_ACTIVATION
            default: __builtin_unreachable();
        }
        const int first = job.number * direct_outputs, there = layer.outputs - first;
        if (job.layer + 1 == net.count) {
            each([&](int o, int row, float z) {
                const long long own_row = first_row + 2 * t + row, output = g + 8 * o;
                if (output < there && own_row < net.rows) net.out[own_row * layer.outputs + first + output] = narrow<T>(z);
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
        const DirectLayer<T>& layer = net.layers[l];
        const bool last = l + 1 == net.count;
        const int lane = this->lane();
        constexpr int of_warp = (rows + direct_warps - 1) / direct_warps, at_once = 8;
        float sums[of_warp] = {};
        for (int begin = lane; begin < layer.inputs; begin += 32 * at_once) {
            T weights[at_once];
#pragma unroll
            for (int i = 0; i < at_once; ++i)
                if (begin + 32 * i < layer.inputs) weights[i] = layer.weight[begin + 32 * i];
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
                FUSED_MLP_ACTIVATIONS(FUSED_MLP_ACTIVATION)
#undef FUSED_MLP_ACTIVATION
                default: __builtin_unreachable();
            }
            if (!last && lane < layer.written)
                *reinterpret_cast<T*>(output_place(layer, row, lane)) =
                    lane ? narrow<T>(0.0f) : as_taken(narrow<T>(z), layer.gives_all_bits);
            const bool writes = last && lane == 0 && cluster.rank == 0;
            if (writes && first_row + row < net.rows) net.out[first_row + row] = narrow<T>(z);
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
            if (first_row + row < net.rows && c < columns) pack = load<step>(net.x + (first_row + row) * net.x_columns + c);
#pragma unroll
            for (int e = 0; e < step; ++e)
                pack.element[e] = c + e < columns ? as_taken(pack.element[e], plain) : narrow<T>(0.0f);
            *reinterpret_cast<Pack<T, step>*>(input(0, row) + placed(row, c * int(sizeof(T)))) = pack;
        }
    }
    __device__ void read_x(long long first_row) const {
        if (net.x_aligned)
            read_x<width>(first_row);
        else
            read_x<1>(first_row);
    }
    // The biases and the first tile's first weights are on their way after it; `copies` has a group for the biases.
    __device__ long long begin() {
        for (const auto& own : net.biases) {
            const char* const from = reinterpret_cast<const char*>(own.from);
            for (int i = 16 * int(threadIdx.x); i < own.bytes; i += 16 * direct_threads)
                copies.copy(memory + own.to + i, from + i, true);
        }
        copies.commit();
        long long tile = Cluster::block() / cluster.size;
        job = after(-1, 0, tile);
#pragma unroll
        for (int s = 0; s < direct_slots; ++s)
            if (s < job.slots) fill(slots[s], job.from + s * fragment_bytes);
        return tile;
    }
    __device__ void run_layers(int first, int end, long long tile) {
        for (int l = first; l < end; ++l) {
            cluster.barrier();  // what layer l reads is there; before the first tile: all blocks have begun
            if (is_plain(l)) run_plain(l, tile * rows);
            while (job.slots && job.layer == l && !job.of_next_tile) {
                Job next = after(job.layer, job.number, tile);
                run_job(next, tile * rows);
                job = next;
            }
        }
    }
    __device__ void end_tile() {
        cluster.barrier();  // all have read what the next tile's x and first layers write over
        job.of_next_tile = false;
    }
    __device__ void run() {
        for (long long tile = begin(); tile < tiles; tile += net.clusters) {
            read_x(tile * rows);
            copies.wait(0);
            run_layers(0, net.count, tile);
            end_tile();
        }
    }
};

template <class T, int n_tiles>
__global__ void __launch_bounds__(direct_threads, 1) direct_forward(const __grid_constant__ DirectNetwork<T> net) {
    DirectBlock<T, n_tiles>(net).run();
}

#ifndef __CUDACC_RTC__
// The bytes that an MLP's biases take on chip.
template <class T>
int bias_bytes(const Widths& widths) {
    return int(sizeof(T)) * Fragments<T>(widths, widths.count - 1).bias_end;
}

// The layers of an MLP behind those that `net` has, of its fragments. In shared memory its biases lie from byte `bias` on;
// what is between the layers takes two places by turns, from `begin` on. Returns where these end, which may be more than
// there is.
template <class T>
long long append_layers(DirectNetwork<T>& net, const T* fragments, const Widths& widths, Activation between,
                        Activation last, int rows, int bias, long long begin) {
    constexpr int size = int(sizeof(T)), of_slot = slot_bytes / size;
    auto& biases = net.biases[net.count ? 1 : 0];
    biases.from = fragments + Fragments<T>(widths, widths.count - 1).weight_end;
    biases.to = bias, biases.bytes = bias_bytes<T>(widths);
    long long row[2] = {}, place[2];
    // 64 bytes beyond a multiple of 128: eight lanes read 64 bytes of each of two rows, which so lie in different banks.
    for (int l = 0; l < widths.count; ++l)
        row[l % 2] = std::max(row[l % 2], round_up(widths.width[l], of_slot) * size + half_bytes);
    place[0] = round_up(begin, slot_bytes), place[1] = place[0] + rows * row[0];
    for (int l = 0; l < widths.count; ++l) {
        DirectLayer<T>& layer = net.layers[net.count++];
        bool is_last = l + 1 == widths.count;
        const Fragments<T> own(widths, l);
        layer.inputs = own.inputs, layer.outputs = own.outputs, layer.jobs = own.jobs, layer.slots = own.slots;
        layer.weight = fragments + own.weight, layer.bias = bias + own.bias * size;
        layer.from = int(place[l % 2]), layer.from_row = int(row[l % 2]);
        layer.to = int(place[(l + 1) % 2]), layer.to_row = int(row[(l + 1) % 2]);
        layer.written = int(round_up(layer.outputs, of_slot));
        layer.activation = is_last ? last : between;
        layer.gives_all_bits = size == 4 && !is_last && widths.width[l + 2] == 1;
    }
    return place[1] + rows * row[1];
}

// `net` is the argument, or a part of it. cudaErrorInvalidConfiguration: a GPU without tensor cores, or clusters; more
// shared memory than there is.
template <class T, class Argument>
cudaError_t launch_direct_tiles(void (*kernel)(Argument), int rows, DirectNetwork<T>& net, const Argument& argument,
                                long long shared_bytes, int cluster, int clusters, const Device& device,
                                cudaStream_t stream) {
    long long tiles = (net.rows + rows - 1) / rows, resident = device.clusters(cluster);
    net.cluster = cluster, net.clusters = int(clusters ? clusters : std::min(tiles, resident));
    if (!device.tensor_cores || !resident || shared_bytes > device.shared_bytes) return cudaErrorInvalidConfiguration;
    cudaError_t error = set_shared_memory_limit(kernel, size_t(shared_bytes));
    if (error != cudaSuccess) return error;
    return launch_clusters(kernel, net.clusters, cluster, dim3(direct_threads), size_t(shared_bytes), stream, argument);
}

// packed, as packing.py lays it out, to fragments: fragments_size() elements on a multiple of 16 bytes. A layer has at
// most 2^31 bytes.
template <class T>
cudaError_t launch_fragments(const T* packed, const Widths& widths, T* fragments, cudaStream_t stream) {
    constexpr int block_threads = 512, of_block = 4 * 16 * block_threads / int(sizeof(T));
    T* const biases = fragments + Fragments<T>(widths, widths.count - 1).weight_end;
    LayersToFragments<T> all = {};
    long long blocks = 1;
    for (int l = 0; l < widths.count; ++l) {
        const Fragments<T> own(widths, l);
        const long long stride = round_up(own.inputs, 16), rows = round_up(own.outputs, 16), size = own.weight_end - own.weight;
        if (size * int(sizeof(T)) > 1LL << 31) return cudaErrorInvalidValue;
        all.layers[l] = {packed, packed + rows * stride, fragments + own.weight, biases + own.bias,
                         int(stride), own.inputs, own.outputs, own.jobs, own.slots};
        packed += rows * (stride + 1), blocks = std::max(blocks, (size + of_block - 1) / of_block);
    }
    return launch_kernel(write_fragments<T>, dim3(unsigned(blocks), unsigned(widths.count)), dim3(block_threads), 0, stream, all);
}

// With tiles of `wanted.rows` rows, 8, 16 or 32, in clusters of `wanted.cluster` blocks. cudaErrorInvalidConfiguration: as
// above; weights that are not aligned; a `hidden`.
template <class T>
cudaError_t launch_direct(const Call<T>& call, const T* fragments, cudaStream_t stream, const Plan& wanted) {
    if (!call.rows) return cudaSuccess;
    if (!aligned(fragments) || call.hidden || !has(call.activation) || !has(call.last_activation))
        return cudaErrorInvalidConfiguration;
    Device device;
    cudaError_t error = this_device(direct_forward<T, 2>, device);
    if (error != cudaSuccess) return error;
    DirectNetwork<T> net = {};
    net.x = call.x, net.out = call.out, net.rows = call.rows, net.x_columns = call.x_columns;
    net.x_aligned = aligned(call.x) && call.x_columns * int(sizeof(T)) % 16 == 0;
    long long bytes = append_layers(net, fragments, call.widths, call.activation, call.last_activation, wanted.rows, 0,
                                    bias_bytes<T>(call.widths));
    auto go = [&](auto* kernel) {
        return launch_direct_tiles(kernel, wanted.rows, net, net, bytes, wanted.cluster, wanted.clusters, device, stream);
    };
    if (wanted.rows == 8) return go(direct_forward<T, 1>);
    if (wanted.rows == 16) return go(direct_forward<T, 2>);
    if (wanted.rows == 32) return go(direct_forward<T, 4>);
    return cudaErrorInvalidConfiguration;
}
#endif

}  // namespace fused_mlp
