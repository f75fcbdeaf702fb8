// The ids of embedding bags in the order of the rows that they name           indices [B, F], or [N] in bags
//
//     key[n] = 2 · (row_offsets[f] + id) + 1, or 2 · row_offsets[f + 1] for an id that names no row of table f
//
// sorted, with the positions n, stably. Bytes: N · (ids + keys + positions), and what the sort moves. With one id a feature:
// blocks sort runs of a table's ids in shared memory (sort_runs), and runs are merged in pairs, 16 · N a round
// (merge_runs). For bags, and for very many tables: 16 · N for each 8 bits of the largest key (cub's radix sort, over the
// bits that the number of rows needs and no others).
//
// row_offsets rise from 0 to at most `rows`; nobody waits to see whether they do. Where they do not, keys ascend all the
// same and name rows that there are, so that whoever walks them meets each row once.
#pragma once

#include <utility>

#include "device/integers.cuh"
#include "device/launch.cuh"
#include "ops/embedding_bags_sort/tables.cuh"

#ifdef __CUDACC__
#include <cub/block/block_radix_sort.cuh>
#include <cub/device/device_radix_sort.cuh>
#else
#include <algorithm>
#include <numeric>
#include <vector>
#endif

namespace embedding_bags_sort {

constexpr int longest_run = 4096;  // that a block sorts: four for each of 1024 threads
// The most ids of a table that blocks sort by itself: 32 bits hold their positions. The most such tables: each block
// looks at all tables before its own.
constexpr long long most_table_keys = 1LL << 30, most_tables = 1024;

// The last of offsets[0 … bags] that is not above n, or -1. Whatever offsets hold, that is all it can be.
__device__ inline long long bag_of(const Integers& offsets, long long bags, long long n) {
    long long low = 0, high = bags + 1;
    while (low < high) {
        long long middle = (low + high) / 2;
        if (offsets[middle] <= n) low = middle + 1;
        else high = middle;
    }
    return low - 1;
}

// ------------------------------------------------------------------------------------------------------ keys, one by one

// length[bag] = the ids of each bag that are no padding.
__global__ void __launch_bounds__(256)
    count_bags(Integers indices, Integers offsets, long long count, long long bags, long long padding, int* length) {
    long long bag = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (bag >= bags) return;
    long long first = offsets[bag], end = offsets[bag + 1];
    first = first < 0 ? 0 : first;
    end = end > count ? count : end;
    int found = int(end > first ? end - first : 0);
    if (padding >= 0)
        for (long long n = first; n < end; ++n) found -= indices[n] == padding;
    length[bag] = found;
}

// For position n: its key, where its bag's output is (bags), and how long that bag is (lengths).
template <class Key>
__global__ void __launch_bounds__(256)
    make_keys(Integers indices, Integers offsets, Tables tables, long long count, long long batch, const int* length,
              Key* keys, int* positions, int* bags, int* lengths) {
    long long n = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= count) return;
    positions[n] = int(n);
    long long feature = 0;
    bool inside = true;
    if (!offsets) {
        feature = n % tables.features;
    } else {
        long long all = batch * tables.features, bag = bag_of(offsets, all, n);
        inside = bag >= 0 && bag < all;
        bag = inside ? bag : bag < 0 || !all ? 0 : all - 1;
        feature = batch ? bag / batch : 0;
        bags[n] = int((bag - feature * batch) * tables.features + feature);
        if (lengths) lengths[n] = all ? length[bag] : 0;
    }
    if (!inside) {
        keys[n] = Key(2 * tables.rows);
        return;
    }
    long long id = indices[n], first = tables.bound(feature), end = tables.bound(feature + 1);
    keys[n] = Key(has_row(tables, end - first, id) ? 2 * (first + id) + 1 : 2 * end);
}

// ------------------------------------------------------------------------------------------------------- a block a table

// Sorts `items` pairs a thread by the keys' lowest bits, stably; thread t has the pairs t · items … before, and
// t, t + threads, … after.
#ifdef __CUDACC__
template <int threads, int items>
__device__ inline void sort_block(unsigned (&keys)[items], int (&positions)[items], int bits) {
    using Sort = cub::BlockRadixSort<unsigned, threads, items, int>;
    __shared__ typename Sort::TempStorage storage;
    Sort(storage).SortBlockedToStriped(keys, positions, 0, bits);
}
#else
template <int threads, int items>
void sort_block(unsigned (&keys)[items], int (&positions)[items], int bits) {
    constexpr int count = threads * items;
    __shared__ unsigned all_keys[count];
    __shared__ int all_positions[count];
    int thread = int(threadIdx.x);
    for (int i = 0; i < items; ++i) {
        all_keys[thread * items + i] = keys[i];
        all_positions[thread * items + i] = positions[i];
    }
    __syncthreads();
    if (thread == 0) {
        std::vector<int> order(count);
        std::iota(order.begin(), order.end(), 0);
        unsigned mask = bits < 32 ? (1u << bits) - 1 : ~0u;
        std::stable_sort(order.begin(), order.end(),
                         [&](int a, int b) { return (all_keys[a] & mask) < (all_keys[b] & mask); });
        std::vector<unsigned> sorted_keys(count);
        std::vector<int> sorted_positions(count);
        for (int i = 0; i < count; ++i) {
            sorted_keys[i] = all_keys[order[i]];
            sorted_positions[i] = all_positions[order[i]];
        }
        std::copy(sorted_keys.begin(), sorted_keys.end(), all_keys);
        std::copy(sorted_positions.begin(), sorted_positions.end(), all_positions);
    }
    __syncthreads();
    for (int i = 0; i < items; ++i) {
        keys[i] = all_keys[thread + i * threads];
        positions[i] = all_positions[thread + i * threads];
    }
}
#endif

// Block (r, f) sorts run r of the ids of table f, of one id a feature: keys and positions [F, batch]. Within the table a key
// is 2 · id + 1 or 2 · height, so that a table of few rows takes few passes.
template <int threads, int items>
__global__ void __launch_bounds__(threads)
    sort_runs(Integers indices, Tables tables, int batch, unsigned* keys, int* positions) {
    // A row that an earlier table has is not this one's, so the tables' keys ascend from one table to the next.
    long long feature = blockIdx.y, first = tables.end_before(feature), end = tables.bound(feature + 1);
    long long height = end > first ? end - first : 0, fallen = first - tables.bound(feature);
    unsigned none = unsigned(2 * height);
    int bits = none ? 32 - __clz(int(none)) : 1, start = int(blockIdx.x) * threads * items;
    unsigned key[items];
    int position[items];
#pragma unroll
    for (int i = 0; i < items; ++i) {
        int b = start + int(threadIdx.x) * items + i;
        position[i] = 0;
        key[i] = ~0u;  // behind all others, which are even or less than `none`
        if (b < batch) {
            long long n = (long long)b * tables.features + feature, id = indices[n];
            position[i] = int(n);
            key[i] = has_row(tables, fallen + height, id) && id >= fallen ? unsigned(2 * (id - fallen) + 1) : none;
        }
    }
    sort_block<threads, items>(key, position, bits);
    unsigned base = unsigned(2 * first);
#pragma unroll
    for (int i = 0; i < items; ++i) {
        int b = start + int(threadIdx.x) + i * threads;
        if (b < batch) {
            keys[feature * batch + b] = base + key[i];
            positions[feature * batch + b] = position[i];
        }
    }
}

// In each table two neighbouring sorted runs of `run` pairs become one. A pair's place is its place in its own run plus
// the number of pairs of the other run that come before it. Where keys are equal, the first run's pairs come first.
__global__ void __launch_bounds__(256)
    merge_runs(const unsigned* keys, const int* positions, unsigned* merged_keys, int* merged_positions, int batch, int run) {
    int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= batch) return;
    long long table = (long long)blockIdx.y * batch;
    int own = i / run, other = (own ^ 1) * run, pair = (own & ~1) * run;
    int low = other < batch ? other : batch, high = low + run < batch ? low + run : batch, begin = low;
    unsigned key = keys[table + i];
    while (low < high) {
        int middle = (low + high) / 2;
        unsigned there = keys[table + middle];
        if (there < key || (own % 2 && there == key)) low = middle + 1;
        else high = middle;
    }
    long long place = table + pair + (i - own * run) + (low - begin);
    merged_keys[place] = key;
    merged_positions[place] = positions[table + i];
}

#ifndef __CUDACC_RTC__
// ------------------------------------------------------------------------------------------------------- the whole array

inline int bits_of(long long value) {
    int bits = 1;
    while (value >> bits) ++bits;
    return bits;
}

// Bytes of temporary storage that sort_pairs wants.
template <class Key>
cudaError_t sort_bytes([[maybe_unused]] long long count, [[maybe_unused]] int bits, size_t* bytes) {
    *bytes = 0;
#ifdef __CUDACC__
    const Key* keys = nullptr;
    const int* positions = nullptr;
    return cub::DeviceRadixSort::SortPairs(nullptr, *bytes, keys, const_cast<Key*>(keys), positions,
                                           const_cast<int*>(positions), int(count), 0, bits);
#else
    return cudaSuccess;
#endif
}
// The pairs by the keys' lowest bits, stably.
template <class Key>
cudaError_t sort_pairs([[maybe_unused]] void* storage, [[maybe_unused]] size_t bytes, const Key* keys, Key* sorted_keys,
                       const int* positions, int* sorted_positions, long long count, [[maybe_unused]] int bits,
                       [[maybe_unused]] cudaStream_t stream) {
#ifdef __CUDACC__
    return cub::DeviceRadixSort::SortPairs(storage, bytes, keys, sorted_keys, positions, sorted_positions, int(count), 0,
                                           bits, stream);
#else
    std::vector<long long> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0LL);
    std::stable_sort(order.begin(), order.end(), [&](long long a, long long b) { return keys[a] < keys[b]; });
    for (long long i = 0; i < count; ++i) {
        sorted_keys[i] = keys[order[size_t(i)]];
        sorted_positions[i] = positions[order[size_t(i)]];
    }
    return cudaSuccess;
#endif
}

inline dim3 grid_of(long long threads) { return dim3(unsigned((threads + 255) / 256)); }

// For bags of one id. The result lies in keys and positions after an even number of merges, so the first merge may
// begin elsewhere.
template <class Allocate>
cudaError_t launch_runs(Integers indices, const Tables& tables, int batch, unsigned* keys, int* positions,
                        Allocate allocate, cudaStream_t stream) {
    unsigned features = unsigned(tables.features);
    int run = batch <= 256 ? 256 : batch <= 2048 ? 2048 : longest_run, merges = 0;
    while ((long long)run << merges < batch) ++merges;
    unsigned* other_keys = keys;
    int* other_positions = positions;
    if (merges) {
        size_t count = size_t(batch) * features;
        other_keys = static_cast<unsigned*>(static_cast<void*>(allocate(count * (sizeof(unsigned) + sizeof(int)))));
        other_positions = reinterpret_cast<int*>(other_keys + count);
    }
    if (merges % 2) {
        std::swap(keys, other_keys);
        std::swap(positions, other_positions);
    }
    auto with = [&](auto kernel, int threads) {
        return launch_kernel(kernel, dim3(unsigned((batch + run - 1) / run), features), dim3(unsigned(threads)), 0, stream,
                             indices, tables, batch, keys, positions);
    };
    cudaError_t error = run == 256    ? with(sort_runs<128, 2>, 128)
                        : run == 2048 ? with(sort_runs<512, 4>, 512)
                                      : with(sort_runs<1024, 4>, 1024);
    for (int done = 0; done < merges && error == cudaSuccess; ++done) {
        error = launch_kernel(merge_runs, dim3(unsigned((batch + 255) / 256), features), dim3(256), 0, stream, keys,
                              positions, other_keys, other_positions, batch, run << done);
        std::swap(keys, other_keys);
        std::swap(positions, other_positions);
    }
    return error;
}

// keys, positions [N]; bags [N], with offsets; lengths [N], with offsets and for a mean, else null. allocate(bytes) gives
// memory for as long as the launch runs.
template <class Key, class Allocate>
cudaError_t launch(Integers indices, Integers offsets, const Tables& tables, long long count, long long batch,
                   Key* keys, int* positions, int* bags, int* lengths, long long table_keys, Allocate allocate,
                   cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    if constexpr (sizeof(Key) == 4)
        if (!offsets && batch <= table_keys && batch <= most_table_keys && tables.features <= most_tables)
            return launch_runs(indices, tables, int(batch), keys, positions, allocate, stream);
    int bits = bits_of(2 * tables.rows);
    size_t bytes = 0;
    cudaError_t error = sort_bytes<Key>(count, bits, &bytes);
    if (error != cudaSuccess) return error;
    auto aligned = [](size_t size) { return (size + 255) / 256 * 256; };
    size_t key_bytes = aligned(size_t(count) * sizeof(Key)), position_bytes = aligned(size_t(count) * sizeof(int));
    long long all = batch * tables.features;
    size_t length_bytes = lengths ? aligned(size_t(all) * sizeof(int)) : 0;
    char* memory = static_cast<char*>(allocate(key_bytes + position_bytes + length_bytes + bytes));
    Key* unsorted = reinterpret_cast<Key*>(memory);
    int* iota = reinterpret_cast<int*>(memory + key_bytes);
    int* length = reinterpret_cast<int*>(memory + key_bytes + position_bytes);
    if (lengths && all)
        error = launch_kernel(count_bags, grid_of(all), dim3(256), 0, stream, indices, offsets, count, all,
                              tables.padding, length);
    if (error == cudaSuccess)
        error = launch_kernel(make_keys<Key>, grid_of(count), dim3(256), 0, stream, indices, offsets, tables, count,
                              batch, length, unsorted, iota, bags, lengths);
    if (error != cudaSuccess) return error;
    return sort_pairs(memory + key_bytes + position_bytes + length_bytes, bytes, unsorted, keys, iota, positions, count,
                      bits, stream);
}
#endif

}  // namespace embedding_bags_sort
