// out[b, f] = Σ (or mean) of the rows of table f that bag (b, f) names        tables F × [R_f, D], out [B, F, D]
//
// As embedding_bags, of tables that lie apart, each with ids of its own: bag (b, f) is ids_f[offsets_f[b]] …
// ids_f[offsets_f[b + 1] - 1], or, without offsets, ids_f[b] alone. Where everything lies comes with the launch, by value:
// no copy to the device, and a captured graph needs none.
//
// Bytes are embedding_bags'. A warp takes ids of one table, which lie side by side, so that its lanes read the same of the
// kernel's parameters at once; lanes that each ask for another table would wait for one another.
#pragma once

#include "ops/embedding_bags/backward.cuh"

namespace embedding_bags_apart {

using embedding_bags::Mode;
using embedding_bags::Place;

// What CUDA promises of parameters on every architecture is 4 KB: so many tables a launch.
constexpr int most_tables = 64;
constexpr int bad_id = 3, bad_offset = 4;  // what a report says

struct Tables {
    long long distances[most_tables];  // from where the lowest lies, in units of what is read
    long long heights[most_tables];
    unsigned long long* report;
    int first;  // of these tables, among all

    struct Range {
        long long begin, height;
    };
    __device__ Range of(long long table) const { return {distances[table], heights[table]}; }
    __device__ Place find(long long id, const Range& table) const { return {id, id >= 0 && id < table.height, false}; }
    __device__ static long long start(const Place& place, const Range& table, long long columns) {
        return table.begin + place.row * columns;
    }
    __device__ void tell(long long id, long long table, long long position) const {
        write_report(report, bad_id, first + table, position, id);
    }
};

// The bags of a launch's tables, table after table.
struct Bags {
    const void *indices[most_tables], *offsets[most_tables];
    long long counts[most_tables], strides[most_tables];  // of the indices
    bool wide_indices, wide_offsets, has_offsets, has_last;  // has_last: of the offsets the last says where the ids end
    long long batch;
    int features, first, all_features;  // those of this launch begin at `first` of all

    __host__ __device__ long long count() const { return batch * features; }
    __host__ __device__ long long divisor() const { return batch; }
    struct Bag {
        long long out, feature, begin, end;
    };
    __device__ Bag at(long long i, const Columns<unsigned>& by) const {
        long long f = count() < first_wide_size ? (long long)by.quotient(unsigned(i)) : i / batch, b = i - f * batch;
        Bag bag = {b * all_features + first + f, f, b, b + 1};
        if (!has_offsets) return bag;
        Integers own{offsets[f], wide_offsets};
        bag.begin = own[b];
        bag.end = b + 1 < batch || has_last ? own[b + 1] : counts[f];
        return bag;
    }
    __device__ long long id(long long feature, long long position) const {
        return Integers{indices[feature], wide_indices}[position * strides[feature]];
    }
    __device__ long long id(const Bag& bag, long long position) const { return id(bag.feature, position); }
    // Bad offsets are clamped to what can be read.
    __device__ void check(Bag& bag, long long i, unsigned long long* report, bool tells) const {
        if (!has_offsets) return;
        const long long ids = counts[bag.feature], b = i - bag.feature * batch;
        bool bad_begin = bag.begin < 0 || bag.begin > ids || (b == 0 && bag.begin != 0);
        bool bad_end = bag.end < bag.begin || bag.end > ids || (b == batch - 1 && bag.end != ids);
        if (!bad_begin && !bad_end) return;
        if (tells)
            write_report(report, bad_offset, first + bag.feature, bad_begin ? b : b + 1, bad_begin ? bag.begin : bag.end);
        bag.begin = bag.begin < 0 ? 0 : bag.begin > ids ? ids : bag.begin;
        bag.end = bag.end < bag.begin ? bag.begin : bag.end > ids ? ids : bag.end;
    }
};

// One id a bag, whatever the dtype: a row is `lanes` units. blockIdx.y is the table, and a warp takes `ids` of its ids.
template <class Unit>
__global__ void __launch_bounds__(embedding_bags::forward_threads)
    rows_kernel(Tables tables, const Unit* rows, Bags bags, Unit* out, int ids, Columns<unsigned> lanes) {
    let_successor_begin();
    wait_for_predecessor();
    constexpr int warp_size = embedding_bags::lanes_of_a_warp;
    const long long warp = ((long long)blockIdx.x * embedding_bags::forward_threads + threadIdx.x) / warp_size;
    const long long begin = warp * ids, feature = blockIdx.y;
    if (begin >= bags.batch) return;  // the whole warp
    const int here = bags.batch - begin < ids ? int(bags.batch - begin) : ids, lane = int(threadIdx.x % warp_size);
    const bool finds = lane < here;
    const long long id = finds ? bags.id(feature, begin + lane) : 0;
    const Tables::Range table = tables.of(feature);
    const Place place = tables.find(id, table);
    const long long start = finds && place.inside ? tables.start(place, table, lanes.divisor) : -1;
    out += (begin * bags.all_features + bags.first + feature) * lanes.divisor;
    const long long apart = (long long)(bags.all_features - 1) * lanes.divisor;  // between a row's end and the next one
    embedding_bags::copy_rows(rows, start, here, lanes, [&](const Columns<unsigned>& lanes, unsigned u) {
        return out + (u + lanes.quotient(u) * apart);
    });
    if (finds && !place.inside) tables.tell(id, feature, begin + lane);
}

// Where the gradients of a launch's tables lie; null for one that is not wanted. Rows are counted through all tables.
template <class T>
struct Gradients {
    T* tables[most_tables];
    long long first[most_tables + 1];
    int features;

    __device__ T* row(long long row, long long columns) const {
        if (row < first[0] || row >= first[features]) return nullptr;
        int low = 0, high = features;  // the last table that begins at or before the row
        while (high - low > 1) {
            int middle = (low + high) / 2;
            (first[middle] <= row ? low : high) = middle;
        }
        return tables[low] ? tables[low] + (row - first[low]) * columns : nullptr;
    }
};

// Zeros for all of them in one launch. blockIdx.y is the table.
constexpr int clearing_blocks = 1024;
template <class T>
__global__ void __launch_bounds__(embedding_bags::threads) clear_kernel(Gradients<T> to, long long columns) {
    T* values = to.tables[blockIdx.y];
    if (!values) return;
    const long long elements = (to.first[blockIdx.y + 1] - to.first[blockIdx.y]) * columns;
    const long long thread = (long long)blockIdx.x * embedding_bags::threads + threadIdx.x;
    const long long step = (long long)gridDim.x * embedding_bags::threads;
    const long long packs = reinterpret_cast<unsigned long long>(values) % 16 ? 0 : elements / widest<T>;
    for (long long p = thread; p < packs; p += step) reinterpret_cast<Pack<T, widest<T>>*>(values)[p] = {};
    for (long long i = packs * widest<T> + thread; i < elements; i += step) values[i] = T{};
}

// ---------------------------------------------------------------------------------------------------------- launches

#ifndef __CUDACC_RTC__
// The address from which the tables' distances are counted, and the largest power of two up to 16 that divides all.
struct Placed {
    const void* lowest;
    unsigned long long divides;
};
inline Placed place(const void* const* tables, int count) {
    Placed placed{nullptr, 16};
    for (int f = 0; f < count; ++f) {
        auto address = reinterpret_cast<unsigned long long>(tables[f]);
        while (address % placed.divides) placed.divides /= 2;
        if (tables[f] && (!placed.lowest || tables[f] < placed.lowest)) placed.lowest = tables[f];
    }
    return placed;
}
inline void set_distances(Tables& tables, const void* const* pointers, int count, const void* lowest, long long unit) {
    for (int f = 0; f < count; ++f)  // a table without rows has no address, and nothing of it is read
        tables.distances[f] =
            pointers[f] ? (static_cast<const char*>(pointers[f]) - static_cast<const char*>(lowest)) / unit : 0;
}

template <class Unit>
cudaError_t launch_rows(Tables tables, const void* const* pointers, const void* lowest, const Bags& bags, void* out,
                        long long row_bytes, cudaStream_t stream) {
    using namespace embedding_bags;
    long long lanes = row_bytes / (long long)sizeof(Unit);
    if (lanes >= first_wide_size / (2 * most_ids)) return cudaErrorInvalidValue;  // the units of a warp have 32 bits
    set_distances(tables, pointers, bags.features, lowest, sizeof(Unit));
    int ids = most_ids;
    while (ids > 1 && ids * lanes > many * lanes_of_a_warp && bags.count() < ids * enough_warps) ids /= 2;
    dim3 grid = grid_of(bags.batch, ids * (forward_threads / lanes_of_a_warp));
    grid.y = unsigned(bags.features);
    return launch_kernel_early(rows_kernel<Unit>, grid, dim3(forward_threads), 0, stream, tables,
                               static_cast<const Unit*>(lowest), bags, static_cast<Unit*>(out), ids, Columns<unsigned>(lanes));
}

// The tables that `bags` says, at these addresses. One id a bag is copied, bags are added up.
template <class T>
cudaError_t launch(Tables tables, const T* const* rows, const Bags& bags, Mode mode, T* out, long long columns,
                   cudaStream_t stream, long long enough = embedding_bags::enough_threads) {
    if (bags.count() == 0 || columns == 0) return cudaSuccess;
    auto pointers = reinterpret_cast<const void* const*>(rows);
    Placed placed = place(pointers, bags.features);
    if (!placed.lowest) placed.lowest = out;  // no table has a row, and none is read
    unsigned long long divides = placed.divides;
    if (!bags.has_offsets) {
        long long row_bytes = columns * (long long)sizeof(T);
        while ((reinterpret_cast<unsigned long long>(out) | (unsigned long long)row_bytes) % divides) divides /= 2;
        auto go = divides == 16  ? launch_rows<Pack<unsigned, 4>>
                  : divides == 8 ? launch_rows<unsigned long long>
                  : divides == 4 ? launch_rows<unsigned>
                                 : launch_rows<unsigned short>;
        return go(tables, pointers, placed.lowest, bags, out, row_bytes, stream);
    }
    set_distances(tables, pointers, bags.features, placed.lowest, sizeof(T));
    bool whole = columns % widest<T> == 0 && divides == 16 && aligned(out);
    auto go = whole ? embedding_bags::launch_width<T, widest<T>, Tables, Bags>
                    : embedding_bags::launch_width<T, 1, Tables, Bags>;
    return go(tables, static_cast<const T*>(placed.lowest), bags, mode, nullptr, out, nullptr, columns, stream, enough);
}

// The gradients of a launch's tables, from the ids of all tables in the order of their rows. parts: a workspace,
// [chunks, 2, columns].
template <class T>
cudaError_t launch_backward(const T* grad, const Gradients<T>& to, const embedding_bags::Sorted& ids,
                            Accumulator<T>* parts, long long columns, cudaStream_t stream) {
    long long most = 0;
    for (int f = 0; f < to.features; ++f)
        if (long long rows = to.first[f + 1] - to.first[f]; to.tables[f] && rows > most) most = rows;
    if (!most || !columns) return cudaSuccess;
    dim3 grid = embedding_bags::grid_of(most * columns, (long long)embedding_bags::threads * widest<T>);
    if (grid.x > clearing_blocks) grid.x = clearing_blocks;
    grid.y = unsigned(to.features);
    cudaError_t error = launch_kernel(clear_kernel<T>, grid, dim3(embedding_bags::threads), 0, stream, to, columns);
    if (error != cudaSuccess) return error;
    return embedding_bags::launch_sums(embedding_bags::Terms<T>{grad, nullptr, nullptr, columns}, ids, to, parts, stream);
}
#endif

}  // namespace embedding_bags_apart
