// grad_tables[r] = Σ factor · grad_out[bag] over the ids that name row r, in ascending order of their positions;
// grad_weights[p] = grad_out[bag] · tables[r]
//
// Two atomic additions may come in either order and then give other bits, so the ids are sorted by their rows first: by
// (row, position), packed into one integer, which makes all keys distinct. The merge sort has no state: an element of one
// of two sorted runs finds its place in the merged one by counting, with a binary search, what precedes it in the other.
// Equal rows then lie side by side, and a chunk of the sorted ids at a time is summed. A run of equal rows that crosses the
// ends of chunks leaves a part in each, which a second kernel adds in order.
//
// Bytes: grad_tables is written whole, R D, which outweighs everything else; the update of kernels that need no such
// gradient does not. Sorting N keys moves 16 N bytes log2(N) times, grad_out is read once.
#pragma once

#include "kernel.cuh"

namespace embedding_bags {

constexpr int chunk = 64;  // sorted ids that one thread adds

// Of a key the upper bits are the row, the lower `shift` bits the position.
using Key = long long;

// keys[p]: the row of id p and p; `tables.rows` for a row if it has none, which sorts it to the end. outs[p]: the row of
// grad_out, of the bag it lies in.
__global__ void __launch_bounds__(threads) keys_kernel(Tables tables, Bags bags, int shift, Key* keys, long long* outs) {
    long long p = (long long)blockIdx.x * threads + threadIdx.x;
    if (p >= bags.ids) return;
    long long i = p;
    if (bags.offsets.data) {  // the last bag that begins at p or before: the ones behind it may be empty
        long long low = 0, high = bags.count();
        while (high - low > 1) {
            long long middle = (low + high) / 2;
            (bags.offsets[middle] <= p ? low : high) = middle;
        }
        i = low;
    }
    Bags::Bag bag = bags.at(i);
    bags.check(bag, i, nullptr, false);
    Place place = tables.find(bags.indices[p], tables.of(bag.feature));
    bool counts = place.inside && bag.begin <= p && p < bag.end;
    keys[p] = ((counts ? place.row : tables.rows) << shift) | p;
    outs[p] = bag.out;
}

// to = from with each two neighbouring sorted runs of `run` keys merged.
__global__ void __launch_bounds__(threads) merge_kernel(const Key* from, Key* to, long long count, long long run) {
    long long i = (long long)blockIdx.x * threads + threadIdx.x;
    if (i >= count) return;
    long long start = i / (2 * run) * (2 * run), middle = start + run;
    bool in_first = i < middle;
    long long low = in_first ? middle : start, high = in_first ? start + 2 * run : middle;
    low = low < count ? low : count, high = high < count ? high : count;
    long long other = low;
    Key key = from[i];
    while (low < high) {
        long long half = (low + high) / 2;
        if (from[half] < key) low = half + 1;
        else high = half;
    }
    to[start + (i - (in_first ? start : middle)) + (low - other)] = key;
}

template <class T>
__global__ void __launch_bounds__(threads) fill_kernel(T* values, long long count) {
    long long i = (long long)blockIdx.x * threads + threadIdx.x;
    if (i < count) values[i] = narrow<T>(0);
}

// What a sorted id adds to its row.
template <class T>
struct Terms {
    const T* grad;             // [B F, columns]
    const long long* outs;     // [N]
    const T* weights;          // [N] or null
    const long long* found;    // of a mean or a maximum what bags_kernel found, else null
    bool maximum;
    long long columns;

    __device__ Accumulator<T> at(long long p, long long column) const {
        using C = Accumulator<T>;
        long long out = outs[p];
        C value = widen(grad[out * columns + column]);
        if (maximum) return found[out * columns + column] == p ? value : C(0);
        if (found) return value / C(found[out]);
        return weights ? value * widen(weights[p]) : value;
    }
};

// Thread (chunk, column): the sums of the runs in the chunk. parts [chunks, 2, columns]: of the run that the chunk begins in
// the middle of, and of the one that goes on behind it; a run that does both is in the first.
template <class T>
__global__ void __launch_bounds__(threads)
    sum_kernel(Terms<T> terms, const Key* keys, int shift, long long count, long long rows, T* grad_tables,
               Accumulator<T>* parts) {
    using C = Accumulator<T>;
    long long thread = (long long)blockIdx.x * threads + threadIdx.x, which = thread / terms.columns;
    long long column = thread - which * terms.columns, begin = which * chunk;
    if (begin >= count) return;
    long long end = begin + chunk < count ? begin + chunk : count, mask = (1LL << shift) - 1;
    bool continued = begin > 0 && keys[begin - 1] >> shift == keys[begin] >> shift;
    C total = 0;
    for (long long s = begin; s < end; ++s) {
        long long row = keys[s] >> shift;
        if (row >= rows) return;
        total += terms.at(keys[s] & mask, column);
        bool goes_on = s + 1 < count && keys[s + 1] >> shift == row;
        if (goes_on && s + 1 < end) continue;
        if (continued) parts[(2 * which) * terms.columns + column] = total;
        else if (goes_on) parts[(2 * which + 1) * terms.columns + column] = total;
        else grad_tables[row * terms.columns + column] = narrow<T>(total);
        continued = false;
        total = 0;
    }
}

// Thread (chunk, column): the run that begins in the chunk and goes on behind it, from its parts.
template <class T>
__global__ void __launch_bounds__(threads)
    finish_kernel(const Key* keys, int shift, long long count, long long rows, const Accumulator<T>* parts, T* grad_tables,
                  long long columns) {
    long long thread = (long long)blockIdx.x * threads + threadIdx.x, which = thread / columns;
    long long column = thread - which * columns, begin = which * chunk, end = begin + chunk;
    if (end >= count) return;
    long long row = keys[end - 1] >> shift;
    auto is_of_the_run = [&](long long s) { return s < count && keys[s] >> shift == row; };
    if (row >= rows || !is_of_the_run(end) || (begin > 0 && is_of_the_run(begin - 1))) return;
    Accumulator<T> total = parts[(2 * which + 1) * columns + column];
    for (long long next = which + 1; is_of_the_run(next * chunk); ++next) total += parts[2 * next * columns + column];
    grad_tables[row * columns + column] = narrow<T>(total);
}

// A warp an id.
constexpr int lanes_of_an_id = 32;
template <class T>
__global__ void __launch_bounds__(threads)
    weights_kernel(const T* grad, const T* rows, const Key* unsorted, int shift, const long long* outs, long long count,
                   long long height, T* grad_weights, long long columns) {
    long long p = ((long long)blockIdx.x * threads + threadIdx.x) / lanes_of_an_id;
    int lane = int(threadIdx.x % lanes_of_an_id);
    if (p >= count) return;  // a whole warp
    long long row = unsorted[p] >> shift, out = outs[p];
    Accumulator<T> total = 0;
    if (row < height)
        for (long long column = lane; column < columns; column += lanes_of_an_id)
            total += widen(grad[out * columns + column]) * widen(rows[row * columns + column]);
    for (int distance = lanes_of_an_id / 2; distance; distance /= 2) total += __shfl_xor_sync(~0u, total, distance);
    if (lane == 0) grad_weights[p] = narrow<T>(total);
}

#ifndef __CUDACC_RTC__
// Bits that positions take in a key; -1 if rows and positions do not fit into 63 bits together.
inline int key_shift(long long ids, long long rows) {
    int shift = 0, rows_bits = 0;
    while (ids > 1LL << shift) ++shift;
    while (rows >> rows_bits) ++rows_bits;
    return shift + rows_bits <= 63 ? shift : -1;
}
inline long long chunks_of(long long ids) { return (ids + chunk - 1) / chunk; }

// What the gradients are computed in: keys [2, N], outs [N], found as of bags_kernel (sum: none), parts [chunks, 2, columns].
template <class T>
struct Workspaces {
    Key* keys;
    long long *outs, *found;
    Accumulator<T>* parts;
};

// grad_tables [R, columns] and grad_weights [N]; either may be null.
template <class T>
cudaError_t launch_backward(const T* grad, const Tables& tables, const T* rows, const Bags& bags, Mode mode,
                            const T* weights, T* grad_tables, T* grad_weights, const Workspaces<T>& work, long long columns,
                            cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    auto go = [&](auto kernel, long long items, auto... arguments) {
        if (error == cudaSuccess && items)
            error = launch_kernel(kernel, grid_of(items, threads), dim3(threads), 0, stream, arguments...);
    };
    long long count = bags.count() ? bags.ids : 0;
    int shift = key_shift(count, tables.rows);
    if (shift < 0) return cudaErrorInvalidValue;
    if (grad_tables) go(fill_kernel<T>, tables.rows * columns, grad_tables, tables.rows * columns);
    go(keys_kernel, count, tables, bags, shift, work.keys, work.outs);
    if (grad_weights)
        go(weights_kernel<T>, count * lanes_of_an_id, grad, rows, (const Key*)work.keys, shift, (const long long*)work.outs,
           count, tables.rows, grad_weights, columns);
    if (!grad_tables || !count || !columns) return error;
    if (mode != Mode::sum && error == cudaSuccess)
        error = launch_bags<T>(tables, rows, bags, mode, nullptr, nullptr, work.found, columns, stream);
    Key *sorted = work.keys, *other = work.keys + count;
    for (long long run = 1; run < count; run *= 2) {
        go(merge_kernel, count, (const Key*)sorted, other, count, run);
        Key* merged = other;
        other = sorted, sorted = merged;
    }
    Terms<T> terms = {grad, work.outs, weights, mode == Mode::sum ? nullptr : work.found, mode == Mode::max, columns};
    long long items = chunks_of(count) * columns;
    go(sum_kernel<T>, items, terms, (const Key*)sorted, shift, count, tables.rows, grad_tables, work.parts);
    go(finish_kernel<T>, items, (const Key*)sorted, shift, count, tables.rows, (const Accumulator<T>*)work.parts,
       grad_tables, columns);
    return error;
}
#endif

}  // namespace embedding_bags
