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
// The sorted occurrences are cut into chunks of equal size, and a group of lanes walks one (walk). What lies in a chunk:
//
//     chunk c-1        chunk c          chunk c+1                        a a a a | a b c c | c c d d     c: walked by chunk 1,
//     … a a a a a  |  a b b c d d  |  d d e …                            which began it, on into the next
//
// A row belongs to the group in whose chunk it begins, which goes on into the next chunk to finish it. But a chunk that
// lies within one row altogether is summed by its own group, and so is then the beginning of that row: these sums go to
// a workspace, the row to a list, and a block adds its sums up, in order (finish). So a row of 60,000 occurrences, which
// tables of three rows have, takes no longer than others.
#pragma once

#include "device/integers.cuh"
#include "device/reduce.cuh"
#include "device/scalar.cuh"

namespace embedding_bags_update {

constexpr int walk_threads = 256, finish_threads = 512, most_lanes = 1024;
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

    // Of position n in the ids: where its gradient begins, and how much of it counts.
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

// What will be read of a row, on its way to the L2 while other things are done.
template <class T, int width>
__device__ inline void prefetch([[maybe_unused]] const Target<T>& to, [[maybe_unused]] long long row) {
#ifdef __CUDA_ARCH__
    long long column = (long long)threadIdx.x * width;
    if (column >= to.columns) return;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(to.tables + row * to.columns + column));
    if (to.rule == Rule::adagrad)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(to.state + row * to.columns + column));
    else if (to.rule == Rule::rowwise_adagrad && threadIdx.x == 0)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(to.state + row));
#endif
}

// The rule for one row, of which g is the gradient. All lanes of the group call it.
template <class T, int width, int packs>
__device__ inline void update_row(const Target<T>& to, long long row, const RowSum<width, packs>& g) {
    float lr = to.learning_rate.template get<float>(), root = 0;
    if (to.rule == Rule::rowwise_adagrad) {
        float squares = 0;  // what a lane holds beyond the columns is zero
#pragma unroll
        for (int i = 0; i < packs * width; ++i) squares += g.value[i] * g.value[i];
        squares = sum_of_group(squares);
        // One lane reads and writes the state, and tells the others: x + 0 is x.
        float total = 0;
        if (threadIdx.x == 0) to.state[row] = total = to.state[row] + squares / float(to.columns);
        root = sqrtf(sum_of_group(total)) + to.eps;
    }
#pragma unroll
    for (int p = 0; p < packs; ++p) {
        long long column = RowSum<width, packs>::column(p);
        if (column >= to.columns) break;
        T* pointer = to.tables + row * to.columns + column;
        Pack<T, width> before = load<width>(pointer);
        float after[width];
        if (to.rule == Rule::adagrad) {
            float* states = to.state + row * to.columns + column;
            float total[width];
            load_floats<width>(total, states);
#pragma unroll
            for (int e = 0; e < width; ++e) {
                float own = g.value[p * width + e];
                total[e] += own * own;
                after[e] = widen(before.element[e]) - lr * (own / (sqrtf(total[e]) + to.eps));
            }
            store_floats<width>(states, total);
        } else {
#pragma unroll
            for (int e = 0; e < width; ++e) {
                float own = g.value[p * width + e];
                after[e] = widen(before.element[e]) - lr * (to.rule == Rule::sgd ? own : own / root);
            }
        }
        store<width>(pointer, after);
    }
}

// A group walks a chunk. Several occurrences are read at once, so that their gradients are on their way together.
template <class T, int width, int packs>
__global__ void __launch_bounds__(packs == 1 ? walk_threads : most_lanes)
    walk(Occurrences<T> all, Target<T> to, long long chunk, float* partials, int* list, int* listed) {
    constexpr int batch = packs == 1 ? 4 : 1;
    long long number = (long long)blockIdx.x * blockDim.y + threadIdx.y, first = number * chunk;
    if (first >= all.count) return;
    long long last = first + chunk < all.count ? first + chunk - 1 : all.count - 1;
    long long beyond = last + chunk < all.count ? last + chunk : all.count - 1;  // the next chunk's last
    long long before = first ? all.keys[first - 1] : -1, tail = all.keys[last];
    bool within = before == tail;                                   // this chunk lies within one row
    bool goes_on = beyond > last && all.keys[beyond] == tail;       // and so does the next, of the row that ends this one
    long long limit = within || goes_on ? last : beyond;
    RowSum<width, packs> g;
    for (long long n = first; n <= limit; n += batch) {
        long long key[batch + 1];
        bool mine[batch];
        Pack<T, width> packed[batch][packs];
        float share[batch];
#pragma unroll
        for (int u = 0; u <= batch; ++u) key[u] = n + u < all.count ? all.keys[n + u] : -1;
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            mine[u] = key[u] % 2 == 1 && n + u <= limit && (within || key[u] != before) &&
                      (n + u <= last || key[u] == tail);
            if (!mine[u]) continue;
            int position = all.positions[n + u];
            const T* grad = all.gradient(position, to.columns);
            share[u] = all.share(position);
#pragma unroll
            for (int p = 0; p < packs; ++p)
                if (g.column(p) < to.columns) packed[u][p] = load<width>(grad + g.column(p));
            if (batch > 1 && key[u + 1] != key[u] && !within) prefetch<T, width>(to, key[u] / 2);
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
            if (!mine[u]) continue;
#pragma unroll
            for (int p = 0; p < packs; ++p)
                if (g.column(p) < to.columns)
#pragma unroll
                    for (int e = 0; e < width; ++e)
                        g.value[p * width + e] += share[u] * widen(packed[u][p].element[e]);
            if (key[u + 1] != key[u] && !within) {
                update_row(to, key[u] / 2, g);
                g = {};
            }
        }
    }
    if (tail % 2 == 0 || !(within || goes_on)) return;
#pragma unroll
    for (int p = 0; p < packs; ++p)
        if (g.column(p) < to.columns)
            store_floats<width>(partials + number * to.columns + g.column(p), g.value + p * width);
    if (!within && threadIdx.x == 0) list[atomicAdd(listed, 1)] = int(number);
}

// A block adds up the sums of a row that fills chunks, and what the row has in the chunk behind them. Group y takes the
// sums y, y + groups, …; then the groups' sums are added, in order.
template <class T, int width, int packs>
__global__ void __launch_bounds__(packs == 1 ? finish_threads : most_lanes)
    finish(Occurrences<T> all, Target<T> to, long long chunk, const float* partials, const int* list, const int* listed) {
    constexpr int batch = packs == 1 ? 4 : 1, elements = packs * width;
    float* sums = dynamic_shared<float>();  // [elements, groups, lanes]
    int lanes = int(blockDim.x), groups = int(blockDim.y);
    for (int i = int(blockIdx.x), count = *listed; i < count; i += int(gridDim.x)) {
        long long number = list[i], key = all.keys[number * chunk + chunk - 1];
        RowSum<width, packs> g;
        // Whether chunk j from this one on lies within the row (the first one ends in it).
        auto holds = [&](long long j) {
            long long last = (number + j) * chunk + chunk - 1;
            if (last - chunk + 1 >= all.count) return false;
            return all.keys[last < all.count ? last : all.count - 1] == key;
        };
        for (long long j = threadIdx.y;; j += (long long)batch * groups) {
            bool held_here[batch];
            float part[batch][elements];
#pragma unroll
            for (int u = 0; u < batch; ++u) {
                held_here[u] = holds(j + (long long)u * groups);
                if (!held_here[u]) continue;
#pragma unroll
                for (int p = 0; p < packs; ++p)
                    if (g.column(p) < to.columns)
                        load_floats<width>(part[u] + p * width,
                                           partials + (number + j + (long long)u * groups) * to.columns + g.column(p));
            }
#pragma unroll
            for (int u = 0; u < batch; ++u)
                if (held_here[u])
#pragma unroll
                    for (int p = 0; p < packs; ++p)
                        if (g.column(p) < to.columns)
#pragma unroll
                            for (int e = 0; e < width; ++e) g.value[p * width + e] += part[u][p * width + e];
            if (held_here[batch - 1]) continue;
            int u = 0;
            while (held_here[u]) ++u;
            long long end = j + (long long)u * groups;  // of this group's; the row's if the chunk before it holds
            if (holds(end - 1))
                for (long long n = (number + end) * chunk; n < all.count && all.keys[n] == key; ++n) {
                    const T* grad = all.gradient(all.positions[n], to.columns);
                    float share = all.share(all.positions[n]);
#pragma unroll
                    for (int p = 0; p < packs; ++p)
                        if (g.column(p) < to.columns) {
                            Pack<T, width> pack = load<width>(grad + g.column(p));
#pragma unroll
                            for (int e = 0; e < width; ++e) g.value[p * width + e] += share * widen(pack.element[e]);
                        }
                }
            break;
        }
        if (groups > 1) {
            int own = int(threadIdx.y) * lanes + int(threadIdx.x);
#pragma unroll
            for (int e = 0; e < elements; ++e) sums[e * groups * lanes + own] = g.value[e];
            __syncthreads();
            if (threadIdx.y == 0)
                for (int other = 1; other < groups; ++other)
#pragma unroll
                    for (int e = 0; e < elements; ++e) g.value[e] += sums[(e * groups + other) * lanes + own];
        }
        if (threadIdx.y == 0) update_row(to, key / 2, g);
        __syncthreads();  // before the next row's sums
    }
}

#ifndef __CUDACC_RTC__
// Occurrences that a group walks: few where there are few, so that there are enough groups. By N alone, so that sums come
// out the same on every GPU.
inline long long chunk_of(long long count) {
    long long chunk = 8;
    while (chunk < 32 && count / chunk > 1 << 15) chunk *= 2;
    return chunk;
}
// Floats and integers that the workspace holds: a sum a chunk, and the list with its length before it.
inline long long partials_size(long long count, long long columns, long long chunk) {
    return (count + chunk - 1) / chunk * columns;
}
inline long long list_size(long long count, long long chunk) { return 1 + (count + chunk - 1) / chunk; }

template <class T, int width, int packs>
cudaError_t launch(const Occurrences<T>& all, const Target<T>& to, long long chunk, float* partials, int* list,
                   cudaStream_t stream) {
    long long needed = (to.columns + (long long)width * packs - 1) / (width * packs), chunks = (all.count + chunk - 1) / chunk;
    int lanes = packs == 1 ? 1 : lanes_of_a_warp;
    while (lanes < needed) lanes *= 2;
    auto groups = [&](int threads) { return lanes < threads ? threads / lanes : 1; };
    dim3 block(unsigned(lanes), unsigned(groups(walk_threads)));
    cudaError_t error = clear_async(list, sizeof(int), stream);
    if (error != cudaSuccess) return error;
    error = launch_kernel(walk<T, width, packs>, dim3(unsigned((chunks + block.y - 1) / block.y)), block, 0, stream, all,
                          to, chunk, partials, list + 1, list);
    if (error != cudaSuccess || chunks < 2) return error;
    unsigned blocks = chunks / 2 < most_finish_blocks ? unsigned(chunks / 2) : most_finish_blocks;
    int together = packs == 1 ? groups(finish_threads) : groups(walk_threads);
    size_t shared = together > 1 ? sizeof(float) * packs * width * lanes * together : 0;
    return launch_kernel(finish<T, width, packs>, dim3(blocks), dim3(unsigned(lanes), unsigned(together)), shared, stream,
                         all, to, chunk, partials, list + 1, list);
}

// tables and state are written. partials, list: partials_size and list_size of them.
template <class T>
cudaError_t launch(const Occurrences<T>& all, const Target<T>& to, long long chunk, float* partials, int* list,
                   cudaStream_t stream) {
    if (all.count == 0 || to.columns == 0) return cudaSuccess;
    if (to.columns > most_columns) return cudaErrorInvalidValue;
    bool whole = to.columns % widest<T> == 0 && aligned(to.tables, all.grad) &&
                 (to.rule != Rule::adagrad || aligned(to.state));
    constexpr int widest = ::widest<T>;
    if (whole && to.columns <= lanes_of_a_warp * widest) return launch<T, widest, 1>(all, to, chunk, partials, list, stream);
    if (whole) return launch<T, widest, held / widest>(all, to, chunk, partials, list, stream);
    if (to.columns <= lanes_of_a_warp) return launch<T, 1, 1>(all, to, chunk, partials, list, stream);
    return launch<T, 1, held>(all, to, chunk, partials, list, stream);
}
#endif

}  // namespace embedding_bags_update
