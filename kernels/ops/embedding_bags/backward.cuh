// grad_tables[r] = Σ factor · grad_out[bag] over the ids that name row r, in ascending order of their positions;
// grad_weights[p] = grad_out[bag] · tables[r]
//
// Two atomic additions may come in either order and then give other bits, so the ids come sorted by their rows, as
// embedding_bags_sort gives them: keys 2 · row + 1 (an even one names no row), and the positions, which ascend where keys
// are equal. Equal rows lie side by side, and a chunk of the sorted ids at a time is summed. A run of equal rows that
// crosses the ends of chunks leaves a part in each, which a second kernel adds in order.
//
// Bytes: grad_tables is written whole, R D, which outweighs everything else; the update of kernels that need no such
// gradient does not. grad_out is read once an id, keys and positions once for each column.
#pragma once

#include "kernel.cuh"

namespace embedding_bags {

constexpr int chunk = 64;  // sorted ids that one thread adds

// The ids in the order of their rows, and by position: the bag that each lies in, as a row of grad_out, if there are
// offsets, else null; of a mean how many ids of that bag count, else null.
struct Sorted {
    Integers keys;
    const int *positions, *bags, *lengths;
    long long count;

    __device__ static bool names_row(long long key) { return key & 1; }
    __device__ static long long row(long long key) { return key >> 1; }
    __device__ long long out(long long position) const { return bags ? bags[position] : position; }
};

// What the id at a position adds to its row.
template <class T>
struct Terms {
    const T* grad;            // [B F, columns]
    const T* weights;         // [N] or null
    const long long* winner;  // of a maximum, the position that it comes from, [B F, columns]; else null
    long long columns;

    __device__ Accumulator<T> at(const Sorted& ids, long long position, long long column) const {
        using C = Accumulator<T>;
        long long place = ids.out(position) * columns + column;
        C value = widen(grad[place]);
        if (winner) return winner[place] == position ? value : C(0);
        if (ids.lengths) return value / C(ids.lengths[position]);
        return weights ? value * widen(weights[position]) : value;
    }
};

// Where the sums go: all tables in one tensor, null for none. Where tables lie apart, embedding_bags_apart says it.
template <class T>
struct Whole {
    T* rows;
    __device__ T* row(long long row, long long columns) const { return rows + row * columns; }
};

// Thread (chunk, column): the sums of the runs in the chunk. parts [chunks, 2, columns]: of the run that the chunk begins in
// the middle of, and of the one that goes on behind it; a run that does both is in the first.
template <class T, class To>
__global__ void __launch_bounds__(threads) sum_kernel(Terms<T> terms, Sorted ids, To grad_tables, Accumulator<T>* parts) {
    using C = Accumulator<T>;
    long long thread = (long long)blockIdx.x * threads + threadIdx.x, which = thread / terms.columns;
    long long column = thread - which * terms.columns, begin = which * chunk, count = ids.count;
    if (begin >= count) return;
    long long end = begin + chunk < count ? begin + chunk : count, key = ids.keys[begin];
    bool continued = begin > 0 && ids.keys[begin - 1] == key;
    C total = 0;
    for (long long s = begin; s < end; ++s) {
        long long next = s + 1 < count ? ids.keys[s + 1] : -1, row = ids.row(key);
        bool is_row = ids.names_row(key), goes_on = next == key;
        key = next;
        if (is_row) total += terms.at(ids, ids.positions[s], column);
        if (goes_on && s + 1 < end) continue;
        if (is_row) {
            if (continued) parts[2 * which * terms.columns + column] = total;
            else if (goes_on) parts[(2 * which + 1) * terms.columns + column] = total;
            else if (T* to = grad_tables.row(row, terms.columns)) to[column] = narrow<T>(total);
        }
        continued = false;
        total = 0;
    }
}

// Thread (chunk, column): the run that begins in the chunk and goes on behind it, from its parts.
template <class T, class To>
__global__ void __launch_bounds__(threads)
    finish_kernel(Sorted ids, const Accumulator<T>* parts, To grad_tables, long long columns) {
    long long thread = (long long)blockIdx.x * threads + threadIdx.x, which = thread / columns;
    long long column = thread - which * columns, begin = which * chunk, end = begin + chunk;
    if (end >= ids.count) return;
    long long key = ids.keys[end - 1];
    auto is_of_the_run = [&](long long s) { return s < ids.count && ids.keys[s] == key; };
    if (!ids.names_row(key) || !is_of_the_run(end) || (begin > 0 && is_of_the_run(begin - 1))) return;
    Accumulator<T> total = parts[(2 * which + 1) * columns + column];
    for (long long next = which + 1; is_of_the_run(next * chunk); ++next) total += parts[2 * next * columns + column];
    if (T* to = grad_tables.row(ids.row(key), columns)) to[column] = narrow<T>(total);
}

// A warp a sorted id, so that ids of one row read it side by side.
constexpr int lanes_of_an_id = 32;
template <class T>
__global__ void __launch_bounds__(threads)
    weights_kernel(const T* grad, const T* rows, Sorted ids, T* grad_weights, long long columns) {
    long long s = ((long long)blockIdx.x * threads + threadIdx.x) / lanes_of_an_id;
    int lane = int(threadIdx.x % lanes_of_an_id);
    if (s >= ids.count) return;  // a whole warp
    long long key = ids.keys[s], position = ids.positions[s], out = ids.out(position);
    Accumulator<T> total = 0;
    if (ids.names_row(key))
        for (long long column = lane; column < columns; column += lanes_of_an_id)
            total += widen(grad[out * columns + column]) * widen(rows[ids.row(key) * columns + column]);
    for (int distance = lanes_of_an_id / 2; distance; distance /= 2) total += __shfl_xor_sync(~0u, total, distance);
    if (lane == 0) grad_weights[position] = narrow<T>(total);
}

#ifndef __CUDACC_RTC__
inline long long chunks_of(long long ids) { return (ids + chunk - 1) / chunk; }

// The sums of all runs, in place of what is there. parts: a workspace, [chunks, 2, columns].
template <class T, class To>
cudaError_t launch_sums(const Terms<T>& terms, const Sorted& ids, To to, Accumulator<T>* parts, cudaStream_t stream) {
    if (!ids.count || !terms.columns) return cudaSuccess;
    dim3 grid = grid_of(chunks_of(ids.count) * terms.columns, threads);
    cudaError_t error = launch_kernel(sum_kernel<T, To>, grid, dim3(threads), 0, stream, terms, ids, to, parts);
    if (error != cudaSuccess) return error;
    return launch_kernel(finish_kernel<T, To>, grid, dim3(threads), 0, stream, ids, (const Accumulator<T>*)parts, to,
                         terms.columns);
}

// grad_tables [tables.rows, columns] and grad_weights [N]; either may be null. Workspaces: winner [B F, columns] of a
// maximum, and parts [chunks, 2, columns].
template <class T>
cudaError_t launch_backward(const T* grad, const Tables& tables, const T* rows, const Bags& bags, Mode mode,
                            const T* weights, const Sorted& ids, T* grad_tables, T* grad_weights, long long* winner,
                            Accumulator<T>* parts, long long columns, cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    if (long long elements = grad_tables ? tables.rows * columns : 0)
        error = clear_async(grad_tables, size_t(elements) * sizeof(T), stream);
    if (grad_weights && ids.count && error == cudaSuccess)
        error = launch_kernel(weights_kernel<T>, grid_of(ids.count * lanes_of_an_id, threads), dim3(threads), 0, stream, grad,
                              rows, ids, grad_weights, columns);
    if (!grad_tables || !ids.count || !columns || error != cudaSuccess) return error;
    if (mode == Mode::max) error = launch_bags<T>(tables, rows, bags, mode, nullptr, nullptr, winner, columns, stream);
    if (error != cudaSuccess) return error;
    Terms<T> terms{grad, weights, mode == Mode::max ? winner : nullptr, columns};
    return launch_sums(terms, ids, Whole<T>{grad_tables}, parts, stream);
}
#endif

}  // namespace embedding_bags
