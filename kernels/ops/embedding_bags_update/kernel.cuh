// The rows of embedding tables updated by their gradients          tables [R, D], grad [bags, D], keys and positions [N]
//
//     g[r] = Σ over the occurrences n of row r, as they are sorted, of weight[n] / length[n] · grad[bag of n]
//     sgd               tables[r] -= lr · g[r]
//     adagrad           state[r] += g[r]²                    tables[r] -= lr · g[r] / (√state[r] + eps)
//     rowwise adagrad   state[r] += mean over D of g[r]²     tables[r] -= lr · g[r] / (√state[r] + eps)
//
// for each row of a key 2 · row + 1 (what an even key is of names no row). Bytes: keys and positions in, the gradient in
// once an occurrence, each distinct row and its state in and out. No gradient of a table is ever in memory, and no sum
// is made by atomics: the order of every sum hangs on keys, N and D alone.
//
// The sorted occurrences are cut into chunks of equal size, and a group of lanes walks each (walk). A row belongs to
// the group in whose chunk it begins, which reads on into the next chunk to finish it. But if the next chunk is filled
// by the row to its end, each group sums the part of the row in its own chunk. Here are chunks of four occurrences:
//
//     chunk 0      chunk 1      chunk 2
//     … q r r   |  r s s t   |  t u u …      group 0 sums r, on into chunk 1; group 1 sums s, and t, on into chunk 2
//     … q r r   |  r r r r   |  r s s …      chunk 1 lies within r: groups 0, 1 and 2 sum a part of r each
//
// A chunk is *within* a row that began before the chunk and fills it. What the group of chunk c has to do with a row:
//
//     the row …                            in walk            sums what it has in c    writes
//     begins in c; c+1 is not within it                       group c                  group c, the row
//     begins in c; c+1 is within it        next_within        group c                  group c, part 2c+1
//     began before c; c is within it       within             group c                  group c, part 2c+1
//     c-1 is within it; c is not           previous_within    group c                  group c, part 2c
//     began in c-1; c is not within it                        group c-1                group c-1, the row
//
// Where the next chunk is within a row that begins in c, c is put on a list: finish adds up that row's parts, in order,
// and writes the row. So a row of 60,000 occurrences, which tables of three rows have, is the work of many groups.
#pragma once

#include "device/integers.cuh"
#include "device/reduce.cuh"
#include "device/scalar.cuh"

namespace embedding_bags_update {

constexpr int walk_threads = 256, finish_threads = 512, most_lanes = 1024;
constexpr int most_walking = 64;                                 // groups of a block, whose keys lie in shared memory
constexpr int held = 32;                                         // elements of a row that a lane holds, at most
constexpr long long most_columns = (long long)most_lanes * held;  // of a row
constexpr unsigned most_finish_blocks = 1056;                    // eight for each of an H200's processors

enum class Rule { sgd, adagrad, rowwise_adagrad };

// Which occurrence n of `count` is of what, and of how much: null where it does not apply.
template <class T>
struct Occurrences {
    Integers keys;
    const int *positions, *bags, *lengths;
    const T *weights, *grad;
    long long count;

    // Where the gradient of a position in the ids begins, and how much of it counts.
    __device__ const T* gradient(int position, long long columns) const {
        return grad + (long long)(bags ? bags[position] : position) * columns;
    }
    __device__ float share(int position) const {
        float share = weights ? widen(weights[position]) : 1;
        return lengths ? share / float(lengths[position]) : share;
    }
};

template <class T>
struct Target {
    T* tables;
    float* state;  // [R, D], [R], or nothing
    long long columns;
    Rule rule;
    Scalar learning_rate;
    float eps;
};

// A group's lanes side by side, and of a row what this lane holds: packs of `width`, `lanes` packs apart.
template <int width, int packs>
struct RowSum {
    float value[packs * width];

    __device__ RowSum() : value{} {}
    __device__ static long long column(int pack) { return ((long long)pack * blockDim.x + threadIdx.x) * width; }
    template <class T>
    __device__ void add(const Pack<T, width> (&gradient)[packs], float share, long long columns) {
#pragma unroll
        for (int p = 0; p < packs; ++p)
            if (column(p) < columns)
#pragma unroll
                for (int e = 0; e < width; ++e) value[p * width + e] += share * widen(gradient[p].element[e]);
    }
};

template <int width>
__device__ inline void load_floats(float* values, const float* pointer) {
    constexpr int step = width < 4 ? width : 4;
#pragma unroll
    for (int k = 0; k < width; k += step) {
        Pack<float, step> pack = load<step>(pointer + k);
#pragma unroll
        for (int e = 0; e < step; ++e) values[k + e] = pack.element[e];
    }
}
template <int width>
__device__ inline void store_floats(float* pointer, const float* values) {
    constexpr int step = width < 4 ? width : 4;
#pragma unroll
    for (int k = 0; k < width; k += step) {
        Pack<float, step> pack;
#pragma unroll
        for (int e = 0; e < step; ++e) pack.element[e] = values[k + e];
        *reinterpret_cast<Pack<float, step>*>(pointer + k) = pack;
    }
}

// The sum over a group's lanes, for each of them; of more than a warp, the group is the block.
__device__ inline float sum_of_group(float value) {
    int lanes = int(blockDim.x);
    if (lanes > lanes_of_a_warp) return reduce_row<Sum>(value);
    int first = int(threadIdx.y * blockDim.x) % lanes_of_a_warp;  // other groups of the warp may be elsewhere
    unsigned mask = lanes == lanes_of_a_warp ? 0xffffffffu : ((1u << lanes) - 1) << first;
    return reduce_lanes<Sum>(value, lanes, mask);
}

// What a group does to a row, in two steps, so that what it reads is on its way while other rows are worked on.
template <class T, int width, int packs>
struct RowUpdate {
    Pack<T, width> before[packs];
    float state[packs * width];

    __device__ void read(const Target<T>& to, long long row) {
#pragma unroll
        for (int p = 0; p < packs; ++p) {
            long long column = RowSum<width, packs>::column(p);
            if (column >= to.columns) break;
            before[p] = load<width>(to.tables + row * to.columns + column);
            if (to.rule == Rule::adagrad) load_floats<width>(state + p * width, to.state + row * to.columns + column);
        }
        // One lane reads and writes it, and tells the others.
        if (to.rule == Rule::rowwise_adagrad) state[0] = threadIdx.x == 0 ? to.state[row] : 0;
    }
    // g is the gradient of the row. All lanes of the group call it.
    __device__ void write(const Target<T>& to, long long row, const RowSum<width, packs>& g) const {
        float lr = to.learning_rate.template get<float>(), root = 0;
        if (to.rule == Rule::rowwise_adagrad) {
            float squares = 0;  // what a lane holds beyond the columns is zero
#pragma unroll
            for (int i = 0; i < packs * width; ++i) squares += g.value[i] * g.value[i];
            float mean = sum_of_group(squares) / float(to.columns), total = threadIdx.x == 0 ? state[0] + mean : 0;
            if (threadIdx.x == 0) to.state[row] = total;
            root = sqrtf(sum_of_group(total)) + to.eps;  // x + 0 is x
        }
#pragma unroll
        for (int p = 0; p < packs; ++p) {
            long long column = RowSum<width, packs>::column(p);
            if (column >= to.columns) break;
            float after[width], total[width];
#pragma unroll
            for (int e = 0; e < width; ++e) {
                float own = g.value[p * width + e], step = own;
                if (to.rule == Rule::adagrad) {
                    total[e] = state[p * width + e] + own * own;
                    step = own / (sqrtf(total[e]) + to.eps);
                } else if (to.rule == Rule::rowwise_adagrad) {
                    step = own / root;
                }
                after[e] = widen(before[p].element[e]) - lr * step;
            }
            if (to.rule == Rule::adagrad) store_floats<width>(to.state + row * to.columns + column, total);
            store<width>(to.tables + row * to.columns + column, after);
        }
    }
};

// The parts of rows, two a chunk, by the table above; and two lists of the chunks in which such rows begin: those of
// rows of few parts, and those of rows of many.
struct Parts {
    float* sums;
    int* counts;  // of the two lists
    int *few, *many;
};
constexpr int few_parts = 16;

template <int width, int packs>
__device__ inline void store_part(float* pointer, long long columns, const RowSum<width, packs>& g) {
#pragma unroll
    for (int p = 0; p < packs; ++p)
        if (g.column(p) < columns) store_floats<width>(pointer + g.column(p), g.value + p * width);
}

// Occurrences read at once, so that their gradients are on their way together. More of them would cost registers, and so
// blocks of a processor, which hide more (measured on an H200).
template <int width, int packs>
constexpr int together = packs > 1 ? 1 : 2;
constexpr int walking_blocks = 4;  // of a processor, at the least

// A group walks a chunk. The block's keys and positions, and those of the chunk behind, lie in shared memory.
template <class T, int width, int packs>
__global__ void __launch_bounds__(packs == 1 ? walk_threads : most_lanes, packs == 1 ? walking_blocks : 1)
    walk(Occurrences<T> all, Target<T> to, int chunk, Parts parts) {
    constexpr int batch = together<width, packs>;
    int groups = int(blockDim.y), span = (groups + 1) * chunk;
    long long start = (long long)blockIdx.x * groups * chunk;
    long long* keys = dynamic_shared<long long>() + 1;  // [-1 … span], of occurrence start + i
    int* positions = reinterpret_cast<int*>(keys + span + 1);
    for (int i = int(threadIdx.y * blockDim.x + threadIdx.x) - 1; i <= span; i += int(blockDim.x * blockDim.y)) {
        bool there = start + i >= 0 && start + i < all.count;
        keys[i] = there ? all.keys[start + i] : -1;
        if (there && i >= 0 && i < span) positions[i] = all.positions[start + i];
    }
    __syncthreads();
    long long number = start / chunk + threadIdx.y, first = number * chunk;
    if (first >= all.count) return;
    const long long* key = keys + int(threadIdx.y) * chunk;
    const int* position = positions + int(threadIdx.y) * chunk;
    long long left = all.count - first;
    int size = left < chunk ? int(left) : chunk, next_last = (left < 2 * chunk ? int(left) : 2 * chunk) - 1;
    long long before = key[-1], tail = key[size - 1];
    bool within = before == tail;
    bool next_within = next_last >= size && key[next_last] == tail;
    bool previous_within = !within && first > chunk && before == all.keys[first - chunk - 1];
    int last_read = within || next_within ? size - 1 : next_last;
    RowSum<width, packs> g;
    for (int i = 0; i <= last_read; i += batch) {
        bool mine[batch], updates[batch];
        Pack<T, width> gradient[batch][packs];
        RowUpdate<T, width, packs> row[batch];
        float share[batch] = {};
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            int n = i + u;
            mine[u] = n <= last_read && key[n] % 2 == 1 && (within || previous_within || key[n] != before) &&
                      (n < size || key[n] == tail);
            updates[u] = mine[u] && !within && key[n] != before && key[n + 1] != key[n];
            if (!mine[u]) continue;
            const T* pointer = all.gradient(position[n], to.columns);
            share[u] = all.share(position[n]);
#pragma unroll
            for (int p = 0; p < packs; ++p)
                if (g.column(p) < to.columns) gradient[u][p] = load<width>(pointer + g.column(p));
            if (updates[u]) row[u].read(to, key[n] / 2);
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (!mine[u]) continue;
            g.add(gradient[u], share[u], to.columns);
            if (within || key[i + u + 1] == key[i + u]) continue;
            if (updates[u]) row[u].write(to, key[i + u] / 2, g);
            else store_part(parts.sums + 2 * number * to.columns, to.columns, g);
            g = {};
        }
    }
    if (tail % 2 == 0 || !(within || next_within)) return;
    store_part(parts.sums + (2 * number + 1) * to.columns, to.columns, g);
    if (within || threadIdx.x) return;
    long long far = first + (long long)few_parts * chunk + chunk - 1;
    bool is_long = far < all.count && all.keys[far] == tail;
    int place = atomicAdd(parts.counts + is_long, 1);
    (is_long ? parts.many : parts.few)[place] = int(number);
}

// The parts of a row of key `key` that begins in chunk `number`.
template <class T, int width, int packs>
struct Row {
    const Occurrences<T>& all;
    const Target<T>& to;
    const float* sums;
    long long chunk, number, key;

    // Whether the row has a part in chunk number + j that ends with the chunk.
    __device__ bool holds(long long j) const {
        long long end = (number + j + 1) * chunk;
        if (end - chunk >= all.count) return false;
        return all.keys[(end < all.count ? end : all.count) - 1] == key;
    }
    __device__ void load_part(float* values, long long part) const {
#pragma unroll
        for (int p = 0; p < packs; ++p)
            if (RowSum<width, packs>::column(p) < to.columns)
                load_floats<width>(values + p * width, sums + part * to.columns + RowSum<width, packs>::column(p));
    }
    // Adds to g the parts of the chunks number + j, + j + step, …; whoever comes upon it adds the part that ends the row.
    __device__ void add(RowSum<width, packs>& g, long long j, long long step) const {
        constexpr int batch = together<width, packs>, elements = packs * width;
        for (;; j += batch * step) {
            bool held_here[batch];
            float part[batch][elements] = {};
#pragma unroll
            for (int u = 0; u < batch; ++u) {
                long long of = j + u * step;
                held_here[u] = holds(of);
                // The part is loaded before it is known whether the row has it: the load need not wait for the key that
                // tells, and what is no part of the row is not added below.
                if ((number + of) * chunk < all.count) load_part(part[u], 2 * (number + of) + 1);
            }
            for (int u = 0; u < batch; ++u) {
                if (held_here[u]) {
#pragma unroll
                    for (int e = 0; e < elements; ++e) g.value[e] += part[u][e];
                    continue;
                }
                long long end = j + u * step;
                if (!holds(end - 1) || (number + end) * chunk >= all.count || all.keys[(number + end) * chunk] != key) return;
                float last[elements] = {};
                load_part(last, 2 * (number + end));
#pragma unroll
                for (int e = 0; e < elements; ++e) g.value[e] += last[e];
                return;
            }
        }
    }
    __device__ void update(const RowSum<width, packs>& g) const {
        RowUpdate<T, width, packs> row;
        row.read(to, key / 2);
        row.write(to, key / 2, g);
    }
};

// Rows of which several chunks hold parts. One of many parts is a block's: group y takes the parts y, y + groups, …, and
// then the groups' sums are added, in order. One of few is a group's.
template <class T, int width, int packs>
__global__ void __launch_bounds__(packs == 1 ? finish_threads : most_lanes)
    finish(Occurrences<T> all, Target<T> to, int chunk, Parts parts) {
    constexpr int elements = packs * width;
    float* sums = dynamic_shared<float>();  // [elements, groups, lanes]
    int lanes = int(blockDim.x), groups = int(blockDim.y), own = int(threadIdx.y) * lanes + int(threadIdx.x);
    auto row_of = [&](long long number) {
        return Row<T, width, packs>{all, to, parts.sums, chunk, number, all.keys[number * chunk + chunk - 1]};
    };
    for (int i = int(blockIdx.x); i < parts.counts[1]; i += int(gridDim.x)) {
        auto row = row_of(parts.many[i]);
        RowSum<width, packs> g;
        row.add(g, threadIdx.y, groups);
        if (groups > 1) {
#pragma unroll
            for (int e = 0; e < elements; ++e) sums[e * groups * lanes + own] = g.value[e];
            __syncthreads();
            if (threadIdx.y == 0)
                for (int other = 1; other < groups; ++other)
#pragma unroll
                    for (int e = 0; e < elements; ++e) g.value[e] += sums[(e * groups + other) * lanes + own];
        }
        if (threadIdx.y == 0) row.update(g);
        __syncthreads();  // before the next row's sums
    }
    for (int i = int(blockIdx.x) * groups + int(threadIdx.y); i < parts.counts[0]; i += int(gridDim.x) * groups) {
        auto row = row_of(parts.few[i]);
        RowSum<width, packs> g;
        row.add(g, 0, 1);
        row.update(g);
    }
}

#ifndef __CUDACC_RTC__
// Occurrences that a group walks: few where there are few, so that there are enough groups, and where rows are short. By N
// and D alone, so that sums come out the same on every GPU.
inline long long chunk_of(long long count, long long columns) {
    long long chunk = 4, enough = columns < 64 ? 1 << 17 : 1 << 16;
    while (chunk < 32 && count / chunk > enough) chunk *= 2;
    return chunk;
}
// Floats and integers that the workspace holds: two sums a chunk, and the lists with their lengths before them.
inline long long sums_size(long long count, long long columns, long long chunk) {
    return 2 * ((count + chunk - 1) / chunk) * columns;
}
inline long long lists_size(long long count, long long chunk) { return 2 + 2 * ((count + chunk - 1) / chunk); }

template <class T, int width, int packs>
cudaError_t launch(const Occurrences<T>& all, const Target<T>& to, long long chunk, float* sums, int* lists,
                   cudaStream_t stream, unsigned most_blocks) {
    long long needed = (to.columns + (long long)width * packs - 1) / (width * packs), chunks = (all.count + chunk - 1) / chunk;
    int lanes = packs == 1 ? 1 : lanes_of_a_warp;
    while (lanes < needed) lanes *= 2;
    // A group of more than a warp is the whole block: its lanes meet at barriers.
    auto groups = [&](int threads) { return lanes <= lanes_of_a_warp ? threads / lanes : 1; };
    int walking = groups(walk_threads) < most_walking ? groups(walk_threads) : most_walking;
    dim3 block{unsigned(lanes), unsigned(walking)};
    size_t span = size_t(walking + 1) * size_t(chunk), staged = (span + 2) * sizeof(long long) + span * sizeof(int);
    Parts parts{sums, lists, lists + 2, lists + 2 + chunks};
    cudaError_t error = clear_async(lists, 2 * sizeof(int), stream);
    if (error == cudaSuccess) error = set_shared_memory_limit(walk<T, width, packs>, staged);
    if (error != cudaSuccess) return error;
    error = launch_kernel(walk<T, width, packs>, dim3(unsigned((chunks + walking - 1) / walking)), block, staged, stream,
                          all, to, int(chunk), parts);
    if (error != cudaSuccess || chunks < 2) return error;
    unsigned blocks = chunks / 2 < most_blocks ? unsigned(chunks / 2) : most_blocks;
    int finishing = packs == 1 ? groups(finish_threads) : groups(walk_threads);
    size_t shared = finishing > 1 ? sizeof(float) * packs * width * lanes * finishing : 0;
    return launch_kernel(finish<T, width, packs>, dim3(blocks), dim3(unsigned(lanes), unsigned(finishing)), shared, stream,
                         all, to, int(chunk), parts);
}

// tables and state are written. sums, lists: sums_size and lists_size of them.
template <class T>
cudaError_t launch(const Occurrences<T>& all, const Target<T>& to, long long chunk, float* sums, int* lists,
                   cudaStream_t stream, unsigned most_blocks = most_finish_blocks) {
    if (all.count == 0 || to.columns == 0) return cudaSuccess;
    if (to.columns > most_columns) return cudaErrorInvalidValue;
    bool whole = to.columns % widest<T> == 0 && aligned(to.tables, all.grad) &&
                 (to.rule != Rule::adagrad || aligned(to.state));
    constexpr int widest = ::widest<T>;
    auto go = launch<T, 1, held>;
    if (to.columns <= lanes_of_a_warp) go = launch<T, 1, 1>;
    if (whole) go = to.columns <= lanes_of_a_warp * widest ? launch<T, widest, 1> : launch<T, widest, held / widest>;
    return go(all, to, chunk, sums, lists, stream, most_blocks);
}
#endif

}  // namespace embedding_bags_update
