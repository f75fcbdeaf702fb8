// The same results as kernel.cuh's forward, for tensor cores and few rows a tile: weights go from the L2 straight into the
// registers from which they are multiplied, and shared memory holds nothing but what is between the layers.
//
// The product is turned round, outᵀ = W xᵀ: 16 outputs of a layer are the rows of a matrix of mma.sync, 8 rows of x its
// columns. So every weight is an operand once a tile, of one warp, and there is nothing to share. What that warp reads of
// x comes from shared memory, 16 bytes a lane, and serves 32 outputs.
//
// In which order k is added up is free, as long as both operands have the same: lane t of four takes 16 bytes in a row,
// from both, where mma.sync wants numbers from t and t + 4 (tensor_core.cuh). Two steps of it take 64 bytes.
//
// Each warp has three slots of 128 bytes of k by 32 outputs, 4 KB, in its registers. A slot is filled again as soon as it
// is multiplied, with what comes next of this job (32 outputs of a layer) or the first of the next: over the ends of
// layers and tiles, since weights do not hang on what layers compute. Bytes on their way: 8 warps · 3 slots · 4 KB.
//
// The op launches kernel.cuh's; test_fused_mlp.cu times both.
#pragma once

#include "kernel.cuh"

namespace fused_mlp {

constexpr int direct_slots = 3, direct_outputs = 32, slot_bytes = 128, half_bytes = slot_bytes / 2;

// 16 bytes of weights, which nobody writes meanwhile. Where it stands the load begins: a plain one might be moved to where
// the weights are multiplied.
__device__ inline void begin_load(uint4& to, const void* from) {
#ifdef __CUDA_ARCH__
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                 : "l"(__cvta_generic_to_global(from)));
#else
    to = *static_cast<const uint4*>(from);
#endif
}

// A layer, and where in shared memory, in bytes, rows of what it reads and gives begin and how far apart they are.
template <class T>
struct DirectLayer {
    const T *weight, *bias;
    int inputs, outputs, stride;
    int from, from_row, to, to_row;
    int written;  // columns that it gives: zeros behind its outputs, as far as they are read
    Activation activation;
    bool gives_all_bits;  // what takes its outputs rounds them itself, or takes them as they are
};

template <class T>
struct DirectNetwork {
    DirectLayer<T> layers[most_layers];
    int count, cluster, clusters;
    const T* x;
    T* out;
    long long rows, x_columns;
    bool x_aligned;
};

template <class T, int n_tiles>
struct DirectBlock {
    static constexpr int rows = 8 * n_tiles, width = widest<T>;
    static constexpr int of_slot = slot_bytes / int(sizeof(T)), of_half = half_bytes / int(sizeof(T));

    // 32 outputs of a layer, all of k. slots: 0 if there is no job. second: whether the outputs' second 16 exist.
    struct Job {
        const T* from;  // of this lane: the first of its outputs, the first of its k
        int stride, slots, layer, pair;
        long long tile;
        bool second;
    };
    struct Slot {
        uint4 weights[2][4];  // [half of the slot's bytes][output g, g + 8, g + 16, g + 24]
    };

    const DirectNetwork<T>& net;
    const Cluster cluster;
    char* const memory;
    const int warp, g, t;  // lane = 4 g + t
    const long long tiles;
    Slot slots[direct_slots];
    Job job;  // the next one of this warp, whose first slots are filled or on their way

    __device__ explicit DirectBlock(const DirectNetwork<T>& net)
        : net(net), cluster(net.cluster), memory(dynamic_shared<char>()), warp(int(threadIdx.x) / 32),
          g(int(threadIdx.x) % 32 / 4), t(int(threadIdx.x) % 4), tiles((net.rows + rows - 1) / rows) {}

    __device__ char* input(int l, int row) const { return memory + net.layers[l].from + row * net.layers[l].from_row; }
    // Whether layer l, if there is one, has one output, which is added up plainly where others round.
    __device__ bool is_plain(int l) const { return sizeof(T) == 4 && l < net.count && net.layers[l].outputs == 1; }
    __device__ static T as_taken(T value, bool plain) { return plain ? value : as_input<T, true>(value); }
    __device__ int pairs(int l) const { return is_plain(l) ? 0 : (net.layers[l].outputs + direct_outputs - 1) / direct_outputs; }
    // A layer's pairs of 16 outputs go round the blocks of a cluster, then their warps.
    __device__ int first_pair() const { return warp * cluster.size + cluster.rank; }
    __device__ int step() const { return warps * cluster.size; }

    // ------------------------------------------------------------------------------------------------ the weights' way

    __device__ Job after(int layer, int pair, long long tile) const {
        Job job = {};
        for (pair += step(); layer < 0 || pair >= pairs(layer); pair = first_pair())
            if (++layer == net.count) {
                layer = -1, tile += net.clusters;
                if (tile >= tiles) return job;
            }
        const DirectLayer<T>& own = net.layers[layer];
        int output = pair * direct_outputs;
        job.from = own.weight + (long long)(output + g) * own.stride + t * width;
        job.stride = own.stride, job.layer = layer, job.pair = pair, job.tile = tile;
        job.slots = (own.inputs + of_slot - 1) / of_slot;
        job.second = output + 16 < own.outputs;
        return job;
    }
    __device__ void fill(Slot& slot, const Job& job, int number) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int k = number * of_slot + half * of_half;
            bool there = k + t * width < job.stride;
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                uint4& weights = slot.weights[half][r] = uint4{};
                if (there && (r < 2 || job.second)) begin_load(weights, job.from + (long long)(8 * r) * job.stride + k);
            }
        }
    }

    // ---------------------------------------------------------------------------------------------------- the products

    __device__ static unsigned operand(unsigned weight) {
        if constexpr (sizeof(T) == 4) return __float_as_uint(rounded_to_tf32(__uint_as_float(weight)));
        else return weight;
    }
    // bytes: those of k that are left from the slot's first on, whole halves.
    __device__ void multiply(float (&sums)[2][n_tiles][4], const Slot& slot, const char* inputs, int input_row, int bytes) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half * half_bytes >= bytes) break;
            uint4 b[n_tiles];
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
                b[n] = *reinterpret_cast<const uint4*>(inputs + 8 * n * input_row + half * half_bytes);
            const uint4(&w)[4] = slot.weights[half];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                unsigned first[4] = {operand(w[2 * m].x), operand(w[2 * m + 1].x), operand(w[2 * m].y), operand(w[2 * m + 1].y)};
                unsigned second[4] = {operand(w[2 * m].z), operand(w[2 * m + 1].z), operand(w[2 * m].w), operand(w[2 * m + 1].w)};
#pragma unroll
                for (int n = 0; n < n_tiles; ++n) {
                    multiply_step<T>(sums[m][n], first, b[n].x, b[n].y);
                    multiply_step<T>(sums[m][n], second, b[n].z, b[n].w);
                }
            }
        }
    }
    // Runs the job, and fills the slots of `next` as they come free.
    __device__ void run_job(const Job& next, long long first_row) {
        const DirectLayer<T>& layer = net.layers[job.layer];
        float sums[2][n_tiles][4] = {}, bias[2][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int output = job.pair * direct_outputs + g + 8 * i;
            bias[i / 2][i % 2] = output < layer.outputs ? widen(layer.bias[output]) : 0.0f;
        }
        const char* inputs = input(job.layer, g) + 16 * t;
        int row_bytes = layer.from_row, bytes = int(round_up(layer.inputs * int(sizeof(T)), half_bytes));
#pragma unroll 1
        for (int pass = 0; pass < job.slots; pass += direct_slots) {
#pragma unroll
            for (int s = 0; s < direct_slots; ++s) {
                int number = pass + s;
                if (number < job.slots)
                    multiply(sums, slots[s], inputs + number * slot_bytes, row_bytes, bytes - number * slot_bytes);
                else if (pass)
                    continue;  // it is filled already, with the next job's
                if (number + direct_slots < job.slots)
                    fill(slots[s], job, number + direct_slots);
                else if (s < next.slots)
                    fill(slots[s], next, s);
            }
        }
        finish(sums, bias, first_row);
    }
    // A layer's outputs: to chip, in all blocks of the cluster, or to `out`.
    __device__ void finish(float (&sums)[2][n_tiles][4], const float (&bias)[2][2], long long first_row) {
        const DirectLayer<T>& layer = net.layers[job.layer];
        bool last = job.layer + 1 == net.count;
        auto each = [&](auto function) {
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        function(16 * m + g + 8 * (i / 2), 8 * n + 2 * t + i % 2, sums[m][n][i], bias[m][i / 2]);
        };
        switch (layer.activation) {
#define FUSED_MLP_ACTIVATION(name) \
    case Activation::name: each([&](int, int, float& z, float b) { z = activate<Activation::name>(z + b); }); break;
            FUSED_MLP_ACTIVATIONS(FUSED_MLP_ACTIVATION)
#undef FUSED_MLP_ACTIVATION
            default: __builtin_unreachable();
        }
        int first = job.pair * direct_outputs;
        if (last) {
            each([&](int output, int row, float z, float) {
                if (first + output < layer.outputs && first_row + row < net.rows)
                    net.out[(first_row + row) * layer.outputs + first + output] = narrow<T>(z);
            });
            return;
        }
        char* to = memory + layer.to + first * int(sizeof(T));
        int row_bytes = layer.to_row;
        each([&](int output, int row, float z, float) {
            if (first + output >= layer.written) return;
            T value = narrow<T>(first + output < layer.outputs ? z : 0.0f);
            reinterpret_cast<T*>(to + row * row_bytes)[output] = as_taken(value, layer.gives_all_bits);
        });
        if (cluster.size == 1) return;
        __syncwarp();
        constexpr int pieces = direct_outputs / width;
        for (int i = int(threadIdx.x) % 32; i < rows * pieces; i += 32)
            if (first + i % pieces * width < layer.written) give(to + i / pieces * row_bytes + i % pieces * 16);
    }
    // 16 bytes of shared memory, to the other blocks of the cluster.
    __device__ void give(char* own) const {
        auto* piece = reinterpret_cast<uint4*>(own);
        uint4 value = *piece;
        for (int distance = 1; distance < cluster.size; ++distance)
            cluster.store(piece, (cluster.rank + distance) % cluster.size, value);
    }
    // A layer of one output: every block of the cluster computes it for itself.
    __device__ void run_plain(int l, long long first_row) const {
        const DirectLayer<T>& layer = net.layers[l];
        bool last = l + 1 == net.count;
        int lane = int(threadIdx.x) % 32;
        constexpr int of_warp = (rows + warps - 1) / warps;
        float sums[of_warp] = {};
        for (int k = lane; k < layer.inputs; k += 32) {
            float weight = widen(layer.weight[k]);
#pragma unroll
            for (int r = 0; r < of_warp; ++r)
                if (warp + r * warps < rows) sums[r] += weight * widen(reinterpret_cast<const T*>(input(l, warp + r * warps))[k]);
        }
#pragma unroll
        for (int r = 0; r < of_warp; ++r) {
            int row = warp + r * warps;
            if (row >= rows) break;
            float z = reduce_lanes<Sum>(sums[r], 32) + widen(layer.bias[0]);
            switch (layer.activation) {
#define FUSED_MLP_ACTIVATION(name) \
    case Activation::name: z = activate<Activation::name>(z); break;
                FUSED_MLP_ACTIVATIONS(FUSED_MLP_ACTIVATION)
#undef FUSED_MLP_ACTIVATION
                default: __builtin_unreachable();
            }
            if (!last && lane < layer.written)
                reinterpret_cast<T*>(memory + layer.to + row * layer.to_row)[lane] =
                    lane ? narrow<T>(0.0f) : as_taken(narrow<T>(z), layer.gives_all_bits);
            if (last && lane == 0 && cluster.rank == 0 && first_row + row < net.rows) net.out[first_row + row] = narrow<T>(z);
        }
    }

    // ------------------------------------------------------------------------------------------------------- a tile

    // x[first row …] to chip, `step` elements at a time, with zeros beyond its rows and columns.
    template <int step>
    __device__ void read_x(long long first_row) const {
        int columns = net.layers[0].inputs, steps = int(round_up(columns, of_half)) / step;
        bool plain = is_plain(0);
        for (int i = int(threadIdx.x); i < rows * steps; i += threads) {
            int row = i / steps, c = i % steps * step;
            Pack<T, step> pack = {};
            if (first_row + row < net.rows && c < columns) pack = load<step>(net.x + (first_row + row) * net.x_columns + c);
#pragma unroll
            for (int e = 0; e < step; ++e)
                pack.element[e] = c + e < columns ? as_taken(pack.element[e], plain) : narrow<T>(0.0f);
            *reinterpret_cast<Pack<T, step>*>(input(0, row) + c * int(sizeof(T))) = pack;
        }
    }
    __device__ void read_x(long long first_row) const {
        if (net.x_aligned)
            read_x<width>(first_row);
        else
            read_x<1>(first_row);
    }
    // The first tile's first weights are on their way after it.
    __device__ long long begin() {
        long long tile = Cluster::block() / cluster.size;
        job = after(-1, 0, tile);
#pragma unroll
        for (int s = 0; s < direct_slots; ++s)
            if (s < job.slots) fill(slots[s], job, s);
        return tile;
    }
    __device__ void run_layers(int first, int end, long long tile) {
        for (int l = first; l < end; ++l) {
            cluster.barrier();  // what layer l reads is there; before the first tile: all blocks have begun
            if (is_plain(l)) run_plain(l, tile * rows);
            while (job.slots && job.layer == l && job.tile == tile) {
                Job next = after(job.layer, job.pair, job.tile);
                run_job(next, tile * rows);
                job = next;
            }
        }
    }
    __device__ void run() {
        for (long long tile = begin(); tile < tiles; tile += net.clusters) {
            read_x(tile * rows);
            run_layers(0, net.count, tile);
            cluster.barrier();  // all have read what the next tile's x and first layers write over
        }
    }
};

template <class T, int n_tiles>
__global__ void __launch_bounds__(threads, 1) direct_forward(const __grid_constant__ DirectNetwork<T> net) {
    DirectBlock<T, n_tiles>(net).run();
}

#ifndef __CUDACC_RTC__
// The layers of an MLP behind those that `net` has, packed as packing.py lays them out. What lies between them takes two
// places by turns, from `begin` bytes of shared memory on. Returns where these end, which may be more than there is.
template <class T>
long long append_layers(DirectNetwork<T>& net, const T* packed, const Widths& widths, Activation between,
                        Activation last, int rows, long long begin) {
    constexpr int size = int(sizeof(T)), of_half = half_bytes / size;
    long long row[2] = {}, place[2] = {begin, begin};
    // 64 bytes beyond a multiple of 128: eight lanes read 64 bytes of each of two rows, which so lie in different banks.
    for (int l = 0; l < widths.count; ++l)
        row[l % 2] = std::max(row[l % 2], round_up(round_up(widths.width[l], of_half) * size, slot_bytes) + half_bytes);
    place[1] += rows * row[0];
    for (int l = 0; l < widths.count; ++l) {
        DirectLayer<T>& layer = net.layers[net.count++];
        bool is_last = l + 1 == widths.count;
        layer.inputs = widths.width[l], layer.outputs = widths.width[l + 1], layer.stride = int(round_up(layer.inputs, 16));
        layer.weight = packed, layer.bias = packed + round_up(layer.outputs, 16) * layer.stride;
        packed = layer.bias + round_up(layer.outputs, 16);
        layer.from = int(place[l % 2]), layer.from_row = int(row[l % 2]);
        layer.to = int(place[(l + 1) % 2]), layer.to_row = int(row[(l + 1) % 2]);
        layer.written = int(round_up(layer.outputs, of_half));
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
    return launch_clusters(kernel, net.clusters, cluster, dim3(threads), size_t(shared_bytes), stream, argument);
}

// With tiles of `wanted.rows` rows, 8, 16 or 32, in clusters of `wanted.cluster` blocks. cudaErrorInvalidConfiguration: as
// above; weights that are not aligned; a `hidden`.
template <class T>
cudaError_t launch_direct(const Call<T>& call, cudaStream_t stream, const Plan& wanted) {
    if (!call.rows) return cudaSuccess;
    if (!aligned(call.packed) || call.hidden || !has(call.activation) || !has(call.last_activation))
        return cudaErrorInvalidConfiguration;
    Device device;
    cudaError_t error = this_device(direct_forward<T, 2>, device);
    if (error != cudaSuccess) return error;
    DirectNetwork<T> net = {};
    net.x = call.x, net.out = call.out, net.rows = call.rows, net.x_columns = call.x_columns;
    net.x_aligned = aligned(call.x) && call.x_columns * int(sizeof(T)) % 16 == 0;
    long long bytes = append_layers(net, call.packed, call.widths, call.activation, call.last_activation, wanted.rows, 0);
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
