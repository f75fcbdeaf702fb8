// SGD of embedding tables by atomics, in whatever order               tables [R, D] and grad [B, F, D], float32
//
//     tables[r] += -lr · weight[n] / length[n] · grad[bag of n]      for each id n of row r
//
// Bytes: ids and the gradient in once, in the order in which they lie, each distinct row in and out: nothing is sorted,
// and nothing read at random but the rows.
//
// Additions to one row take turns in the L2: 22,000 to each of three rows that 65,536 ids name. So a warp, which takes
// bags of one table only, keeps `slots` rows' sums on chip: the first id that comes to a slot has it to the end, and is
// added to its row once. All rows of a small table find slots, and of a large one those that are named most, as they
// come early. All other ids go to memory, by one instruction of 16 bytes a lane.
//
// Additions to memory flush numbers below the smallest normal one to zero.
#pragma once

#include "device/scalar.cuh"
#include "ops/embedding_bags/kernel.cuh"

namespace embedding_bags_add {

using embedding_bags::Bags;
using embedding_bags::lanes_of_a_warp;
using embedding_bags::Tables;

constexpr int threads = 256, warps = threads / lanes_of_a_warp;
constexpr int shared_floats = 48 * 1024 / 4 / warps;  // of a warp: what a block may have without asking
constexpr int ahead = 4;                              // steps whose gradients are on their way together
constexpr int resident_blocks = 4;                    // of a processor
constexpr long long most_warps = 132LL * resident_blocks * warps;  // that an H200 runs at once
constexpr long long most_columns = 1 << 24;                        // so that a column is an int
constexpr unsigned nobody = ~0u;                                   // who owns a slot that is free: no id that has one

// A warp takes `bags` bags, `ids` at once, whose ids its lanes find; then 2^shift lanes add a row, in steps.
struct Split {
    int shift, ids, slots;
    long long bags;
};

template <int width>
__device__ inline Pack<float, width> load_once(const float* pointer) {
#ifdef __CUDA_ARCH__
    if constexpr (width == 4) {
        float4 value = __ldcs(reinterpret_cast<const float4*>(pointer));
        return {value.x, value.y, value.z, value.w};
    }
#endif
    return load<width>(pointer);
}

template <int width>
__device__ inline void add_to_memory(float* pointer, const float* values, float factor) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (width == 4)
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "f"(factor * values[0]),
                     "f"(factor * values[1]), "f"(factor * values[2]), "f"(factor * values[3])
                     : "memory");
    else
#endif
        for (int e = 0; e < width; ++e) atomicAdd(pointer + e, factor * values[e]);
}

// Warp w takes table w % features, so that neighbours read neighbouring ids and gradients.
template <int width, bool has_offsets>
__global__ void __launch_bounds__(threads, resident_blocks)
    add_kernel(Tables tables, float* rows, Bags bags, const float* weights, const float* grad, int columns, bool mean,
               Scalar learning_rate, Split split) {
    const int lane = int(threadIdx.x) % lanes_of_a_warp, warp = int(threadIdx.x) / lanes_of_a_warp;
    const int groups = lanes_of_a_warp >> split.shift, group = lane >> split.shift;
    const int steps = (split.ids + groups - 1) / groups;
    const int column_of_lane = (lane & ((1 << split.shift) - 1)) * width;
    const long long number = (long long)blockIdx.x * warps + warp, part = number / bags.features;
    const long long feature = number - part * bags.features, begin = part * split.bags;
    const long long end = begin + split.bags < bags.batch ? begin + split.bags : bags.batch;
    if (begin >= end) return;  // the whole warp
    const embedding_bags::Range table = tables.of(feature);
    const float rate = -learning_rate.get<float>();

    float* sums = dynamic_shared<float>() + warp * shared_floats;  // [slots, columns]
    unsigned* owners = reinterpret_cast<unsigned*>(sums + split.slots * columns);
    for (int i = lane; i < split.slots * columns; i += lanes_of_a_warp) sums[i] = 0;
    for (int i = lane; i < split.slots; i += lanes_of_a_warp) owners[i] = nobody;
    __syncwarp();

    auto id_of = [&](long long bag) {
        return lane < split.ids && bag < end ? bags.indices[bag * bags.features + feature] : 0;
    };
    long long next = has_offsets ? 0 : id_of(begin + lane);
    for (long long first = begin; first < end; first += split.ids) {
        // A lane finds where its bag's ids are, and what each of them counts.
        const int here = end - first < split.ids ? int(end - first) : split.ids;
        const long long bag = first + lane;
        const float* gradients = grad + (first * bags.features + feature) * columns;
        long long from = bag * bags.features + feature, to = from + 1, count = here;
        float share_of_bag = 1;
        if constexpr (has_offsets) {
            const long long i = feature * bags.batch + (lane < here ? bag : end - 1);
            Bags::Bag own = {from, feature, bags.offsets[i], bags.offsets[i + 1]};
            bags.check(own, i, nullptr, false);
            from = own.begin, to = own.end;
            if (mean) {
                long long length = to - from;
                if (tables.padding >= 0)
                    for (long long p = from; p < to; ++p) length -= bags.indices[p] == tables.padding;
                share_of_bag = 1 / float(length);
            }
            count = __shfl_sync(~0u, to, here - 1) - __shfl_sync(~0u, from, 0);
        }
        for (long long passed = 0; passed < count; passed += split.ids) {
            // A lane finds the row of an id: of which bag it is, and whether it has a slot.
            bool is_id = lane < split.ids && passed + lane < count;
            long long position = from, id = next;
            int which = lane;
            float share = 1;
            if constexpr (has_offsets) {
                position = __shfl_sync(~0u, from, 0) + passed + lane;
                which = 0;  // how many bags end before it
#pragma unroll
                for (int step = lanes_of_a_warp / 2; step; step /= 2)
                    if (__shfl_sync(~0u, to, which + step - 1) <= position) which += step;
                // Where offsets fall the bag that is found may be another.
                const long long its_begin = __shfl_sync(~0u, from, which), its_end = __shfl_sync(~0u, to, which);
                is_id = is_id && its_begin <= position && position < its_end;
                share = __shfl_sync(~0u, share_of_bag, which);
                id = is_id ? bags.indices[position] : 0;
            } else {
                next = id_of(bag + split.ids);
            }
            if (weights && is_id) share *= weights[position];
            const embedding_bags::Place place = tables.find(id, table);
            const long long start = is_id && place.inside ? place.row * columns : -1;
            int slot = -1;
            if (start >= 0 && split.slots && id < nobody) {
                const unsigned wanted = unsigned(id) % unsigned(split.slots);
                const unsigned owner = atomicCAS(owners + wanted, nobody, unsigned(id));
                if (owner == nobody || owner == unsigned(id)) slot = int(wanted);
            }
            int turn = 0;  // of the ids of a step that share a slot
            for (int distance = 1; distance < groups; ++distance) {
                const int other = __shfl_up_sync(~0u, slot, distance);
                turn += lane % groups >= distance && other == slot;
            }
            const int slot_and_turn = slot >= 0 ? slot * lanes_of_a_warp + turn : -1;

            const unsigned have_rows = __ballot_sync(~0u, start >= 0);
            for (int column = column_of_lane; column - column_of_lane < columns; column += width << split.shift) {
                const unsigned adds = column < columns ? have_rows : 0;
                for (int step = group; step < steps * groups; step += ahead * groups) {
                    Pack<float, width> values[ahead];
#pragma unroll
                    for (int u = 0; u < ahead; ++u) {
                        const int source = step + u * groups;
                        const int of = has_offsets ? __shfl_sync(~0u, which, source) : source;
                        if (source < lanes_of_a_warp && adds >> source & 1)
                            values[u] = load_once<width>(gradients + of * bags.features * columns + column);
                    }
#pragma unroll
                    for (int u = 0; u < ahead; ++u) {
                        const int source = step + u * groups;
                        const long long row = __shfl_sync(~0u, start, source);
                        const float factor = __shfl_sync(~0u, share, source);
                        const int place = __shfl_sync(~0u, slot_and_turn, source);
                        const bool mine = source < lanes_of_a_warp && adds >> source & 1;
                        const int own_turn = mine && place >= 0 ? place % lanes_of_a_warp : -1;
                        if (mine && place < 0)
                            add_to_memory<width>(rows + row + column, values[u].element, rate * factor);
                        for (int now = 0; __any_sync(~0u, own_turn >= now); ++now) {
                            if (own_turn == now) {
                                float* sum = sums + place / lanes_of_a_warp * columns + column;
                                Pack<float, width> total = load<width>(sum);
#pragma unroll
                                for (int e = 0; e < width; ++e) total.element[e] += factor * values[u].element[e];
                                store<width>(sum, total.element);
                            }
                            __syncwarp();
                        }
                    }
                }
            }
        }
    }
    __syncwarp();
    for (int slot = group; slot < split.slots; slot += groups) {
        if (owners[slot] == nobody) continue;
        float* row = rows + (table.begin + owners[slot]) * columns;
        for (int column = column_of_lane; column < columns; column += width << split.shift)
            add_to_memory<width>(row + column, sums + slot * columns + column, rate);
    }
}

#ifndef __CUDACC_RTC__
// warps: so many at most, if each has 32 bags or more.
inline Split split_of(const Bags& bags, long long columns, int width, long long warps, int slots) {
    Split split{0, lanes_of_a_warp, slots, 0};
    while (split.shift < 5 && (1LL << split.shift) * width < columns) ++split.shift;
    // Of wide rows, and where bags are few, a warp takes fewer at once.
    while (split.ids > ahead && split.ids << split.shift > ahead * lanes_of_a_warp && bags.count() < split.ids * warps)
        split.ids /= 2;
    long long rounds = (bags.count() + split.ids * warps - 1) / (split.ids * warps);
    split.bags = rounds * split.ids;
    long long fit = shared_floats / (columns + 1);
    if (split.slots > fit) split.slots = int(fit);
    if (!bags.offsets && split.slots > split.bags) split.slots = int(split.bags);
    return split;
}

template <int width>
cudaError_t launch(const Tables& tables, float* rows, const Bags& bags, const float* weights, const float* grad,
                   long long columns, bool mean, const Scalar& learning_rate, cudaStream_t stream, const Split& split) {
    long long parts = (bags.batch + split.bags - 1) / split.bags;
    auto kernel = bags.offsets ? add_kernel<width, true> : add_kernel<width, false>;
    return launch_kernel(kernel, embedding_bags::grid_of(parts * bags.features, warps), dim3(threads),
                         sizeof(float) * shared_floats * warps, stream, tables, rows, bags, weights, grad,
                         int(columns), mean, learning_rate, split);
}

// rows: all tables'; they are written. mean: of bags that have offsets.
inline cudaError_t launch(const Tables& tables, float* rows, const Bags& bags, const float* weights, const float* grad,
                          long long columns, bool mean, const Scalar& learning_rate, cudaStream_t stream,
                          long long warps = most_warps, int slots = shared_floats) {
    if (bags.count() == 0 || columns == 0) return cudaSuccess;
    if (columns > most_columns) return cudaErrorInvalidValue;
    bool whole = columns % widest<float> == 0 && aligned(rows, grad);
    auto go = whole ? launch<widest<float>> : launch<1>;
    return go(tables, rows, bags, weights, grad, columns, mean, learning_rate, stream,
              split_of(bags, columns, whole ? widest<float> : 1, warps, slots));
}
#endif

}  // namespace embedding_bags_add
