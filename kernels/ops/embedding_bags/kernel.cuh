// out[b, f] = Σ (or mean, or maximum) of the rows of table f that bag (b, f) names      tables [R, D], out [B, F, D]
//
// Row `id` of table f is row first[f] + id of `tables`, if 0 <= id < first[f + 1] - first[f]; else zeros. One id a bag:
// indices [B, F]. Ragged: indices [N], and bag (b, f) is offsets[f B + b] … offsets[f B + b + 1].
//
// Bytes: the rows (one of 64 bytes is two sectors of 32, the least that memory is read by), the ids, the output. There is
// next to nothing to compute, so the time is the memory's, and it takes many rows on their way at once to fill it: a thread
// asks for all its ids, then for all its rows, and then stores.
#pragma once

#include "device/integers.cuh"
#include "device/report.cuh"
#include "device/vector.cuh"

namespace embedding_bags {

constexpr int threads = 256;
// Rows of one id a bag: how many units of 16 bytes a thread takes. Few units in all would not fill the GPU with many each.
constexpr int many = 4, some = 2;
constexpr long long units_for_some = 1LL << 18, units_for_many = 1LL << 20;
// Ragged bags: of how many ids a thread asks for the rows before it adds the first.
constexpr int ahead = 4;

enum class Mode { sum, mean, max };
enum class Missing { error, zero, count };
constexpr int bad_id = 1, bad_offset = 2;  // what a report says

// Where a table lies among all rows.
struct Range {
    long long begin, height;
};
struct Place {
    long long row;
    bool inside, padded;
};

struct Tables {
    const long long* first;  // [features + 1]
    long long rows;
    long long padding;  // an id that stands for nothing; < 0: there is none
    Missing missing;
    unsigned long long* report;

    // Of numbers that may be anything the sum may overflow, which C++ allows of unsigned ones.
    __device__ static long long sum(long long a, unsigned long long b) { return (long long)((unsigned long long)a + b); }
    __device__ Range of(long long feature) const {
        long long begin = __ldg(first + feature);
        return {begin, sum(__ldg(first + feature + 1), -(unsigned long long)begin)};
    }
    // An id has 64 bits before anything is added to it, so that it cannot wrap round. What `first` says is not trusted.
    __device__ Place find(long long id, const Range& table) const {
        long long row = sum(table.begin, (unsigned long long)id);
        bool padded = padding >= 0 && id == padding;
        return {row, !padded && id >= 0 && id < table.height && row >= 0 && row < rows, padded};
    }
    // Of an id that is out of range, by one of the threads that look at it.
    __device__ void tell(long long id, long long feature, long long position) const {
        if (missing == Missing::error) write_report(report, bad_id, feature, position, id);
        if (missing == Missing::count) count_report(report);
    }
};

// --------------------------------------------------------------------------------------------------- one id a bag

template <class Unit>
__device__ inline void store_streaming(Unit* pointer, const Unit& unit) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof unit == sizeof(int4))
        return __stcs(reinterpret_cast<int4*>(pointer), reinterpret_cast<const int4&>(unit));
#endif
    *pointer = unit;
}

// A row is `lanes` units and is copied as it is, whatever its dtype. Unit u of the output is unit u % lanes of position
// u / lanes, so that neighbouring threads store to neighbouring addresses.
template <class Unit, class Id, int each, class Index>
__global__ void __launch_bounds__(threads)
    rows_kernel(Tables tables, const Unit* rows, const Id* indices, Unit* out, Index units, Columns<Index> lanes,
                Columns<Index> features) {
    Index first = Index(blockIdx.x) * (threads * each) + threadIdx.x;
    long long id[each];
#pragma unroll
    for (int k = 0; k < each; ++k) {
        Index u = first + Index(k * threads);
        id[k] = u < units ? (long long)indices[lanes.quotient(u)] : -1;
    }
    Unit unit[each];
    bool tells[each];  // after the loads: one that waited for an atomic operation would come late
#pragma unroll
    for (int k = 0; k < each; ++k) {
        Index u = first + Index(k * threads), position = lanes.quotient(u), lane = u - position * lanes.divisor;
        Place place = tables.find(id[k], tables.of((long long)features.of(position)));
        unit[k] = Unit{};
        if (place.inside) unit[k] = rows[place.row * (long long)lanes.divisor + (long long)lane];
        tells[k] = !place.inside && !place.padded && lane == 0;
    }
#pragma unroll
    for (int k = 0; k < each; ++k) {
        Index u = first + Index(k * threads);
        if (u >= units) break;
        store_streaming(out + u, unit[k]);
        if (tells[k]) tables.tell(id[k], (long long)features.of(lanes.quotient(u)), (long long)lanes.quotient(u));
    }
}

// ------------------------------------------------------------------------------------------------------------- bags

// The bags of a batch: bag i's row of the output, its feature, and where its ids begin and end.
struct Bags {
    Integers indices, offsets;  // offsets.data null: one id a bag, in the output's order
    long long ids, batch, features;

    __host__ __device__ long long count() const { return batch * features; }
    struct Bag {
        long long out, feature, begin, end;
    };
    __device__ Bag at(long long i) const {
        if (!offsets.data) return {i, i % features, i, i + 1};
        long long feature = i / batch;
        return {(i - feature * batch) * features + feature, feature, offsets[i], offsets[i + 1]};
    }
    // Bad offsets are clamped to what can be read.
    __device__ void check(Bag& bag, long long i, unsigned long long* report, bool tells) const {
        if (!offsets.data) return;
        bool bad_begin = bag.begin < 0 || bag.begin > ids || (i == 0 && bag.begin != 0);
        bool bad_end = bag.end < bag.begin || bag.end > ids || (i == count() - 1 && bag.end != ids);
        if (!bad_begin && !bad_end) return;
        if (tells && report) write_report(report, bad_offset, 0, bad_begin ? i : i + 1, bad_begin ? bag.begin : bag.end);
        bag.begin = bag.begin < 0 ? 0 : bag.begin > ids ? ids : bag.begin;
        bag.end = bag.end < bag.begin ? bag.begin : bag.end > ids ? ids : bag.end;
    }
};

// Thread (i, lane): `width` columns of bag i. Consecutive bags of one feature lie side by side, and so do their ids.
// found: for the backward of a maximum, instead of `out`: the position of the id that it comes from, -1 if from none,
// [B F, D].
template <class T, int width, Mode mode>
__global__ void __launch_bounds__(threads)
    bags_kernel(Tables tables, const T* rows, Bags bags, const T* weights, T* out, long long* found, long long columns) {
    using C = Accumulator<T>;
    long long lanes = columns / width, thread = (long long)blockIdx.x * threads + threadIdx.x, i = thread / lanes;
    if (i >= bags.count()) return;
    long long column = (thread - i * lanes) * width;
    Bags::Bag bag = bags.at(i);
    bags.check(bag, i, tables.report, column == 0);
    Range table = tables.of(bag.feature);
    C total[width] = {};
    long long winner[width], counted = 0;
#pragma unroll
    for (int e = 0; e < width; ++e) winner[e] = -1;
    for (long long p = bag.begin; p < bag.end; p += ahead) {
        Place place[ahead];
        Pack<T, width> values[ahead];
#pragma unroll
        for (int k = 0; k < ahead; ++k) {
            place[k] = {0, false, true};
            if (p + k >= bag.end) continue;
            long long id = bags.indices[p + k];
            place[k] = tables.find(id, table);
            if (!place[k].inside && !place[k].padded && column == 0) tables.tell(id, bag.feature, p + k);
        }
#pragma unroll
        for (int k = 0; k < ahead; ++k) {
            values[k] = Pack<T, width>{};
            if (place[k].inside) values[k] = load<width>(rows + place[k].row * columns + column);
        }
#pragma unroll
        for (int k = 0; k < ahead; ++k) {
            if (place[k].padded) continue;
            C weight = weights && place[k].inside ? widen(weights[p + k]) : C(1);
#pragma unroll
            for (int e = 0; e < width; ++e) {
                C value = widen(values[k].element[e]);
                if constexpr (mode == Mode::max) {
                    if (counted == 0 || value > total[e]) {  // so a NaN stays only if it comes first, as in PyTorch
                        total[e] = value;
                        winner[e] = place[k].inside ? p + k : -1;
                    }
                } else {
                    total[e] += weight * value;
                }
            }
            ++counted;
        }
    }
    if (mode == Mode::max && found)
        for (int e = 0; e < width; ++e) found[bag.out * columns + column + e] = winner[e];
    if (!out) return;
    if constexpr (mode == Mode::mean)
#pragma unroll
        for (int e = 0; e < width; ++e) total[e] = counted ? total[e] / C(counted) : C(0);
    store<width>(out + bag.out * columns + column, total, true);
}

// ---------------------------------------------------------------------------------------------------------- launches

#ifndef __CUDACC_RTC__
inline dim3 grid_of(long long items, long long a_block) { return dim3(unsigned((items + a_block - 1) / a_block)); }

template <class Unit, class Id, int each, class Index>
cudaError_t launch_rows(const Tables& tables, const void* rows, const Id* indices, void* out, long long positions,
                        long long features, long long lanes, cudaStream_t stream) {
    long long units = positions * lanes;
    return launch_kernel(rows_kernel<Unit, Id, each, Index>, grid_of(units, threads * each), dim3(threads), 0, stream,
                         tables, static_cast<const Unit*>(rows), indices, static_cast<Unit*>(out), Index(units),
                         Columns<Index>(lanes), Columns<Index>(features));
}

template <class Unit, class Id>
cudaError_t launch_units(const Tables& tables, const void* rows, const Id* indices, void* out, long long positions,
                         long long features, long long row_bytes, cudaStream_t stream, long long wide_size) {
    long long lanes = row_bytes / (long long)sizeof(Unit), units = positions * lanes;
    auto go = launch_rows<Unit, Id, many, long long>;
    if (units + threads * many < wide_size)
        go = units >= units_for_many   ? launch_rows<Unit, Id, many, unsigned>
             : units >= units_for_some ? launch_rows<Unit, Id, some, unsigned>
                                       : launch_rows<Unit, Id, 1, unsigned>;
    return go(tables, rows, indices, out, positions, features, lanes, stream);
}

// One id a bag: out[n] = row indices[n] of table n % features, for `positions` of them; a row has row_bytes.
template <class Id>
cudaError_t launch_one_id(const Tables& tables, const void* rows, const Id* indices, void* out, long long positions,
                          long long features, long long row_bytes, cudaStream_t stream,
                          long long wide_size = first_wide_size) {
    if (positions == 0 || row_bytes == 0) return cudaSuccess;
    auto places = reinterpret_cast<unsigned long long>(rows) | reinterpret_cast<unsigned long long>(out) |
                  (unsigned long long)row_bytes;
    auto go = places % 16 == 0  ? launch_units<Pack<unsigned, 4>, Id>
              : places % 8 == 0 ? launch_units<unsigned long long, Id>
              : places % 4 == 0 ? launch_units<unsigned, Id>
                                : launch_units<unsigned short, Id>;
    return go(tables, rows, indices, out, positions, features, row_bytes, stream, wide_size);
}

template <class T, int width>
cudaError_t launch_width(const Tables& tables, const T* rows, const Bags& bags, Mode mode, const T* weights, T* out,
                         long long* found, long long columns, cudaStream_t stream) {
    auto kernel = mode == Mode::sum    ? bags_kernel<T, width, Mode::sum>
                  : mode == Mode::mean ? bags_kernel<T, width, Mode::mean>
                                       : bags_kernel<T, width, Mode::max>;
    return launch_kernel(kernel, grid_of(bags.count() * (columns / width), threads), dim3(threads), 0, stream, tables, rows,
                         bags, weights, out, found, columns);
}

// Bags of any number of ids; out or found may be null.
template <class T>
cudaError_t launch_bags(const Tables& tables, const T* rows, const Bags& bags, Mode mode, const T* weights, T* out,
                        long long* found, long long columns, cudaStream_t stream) {
    if (bags.count() == 0 || columns == 0) return cudaSuccess;
    bool whole = columns % widest<T> == 0 && aligned(rows, out);
    auto go = whole ? launch_width<T, widest<T>> : launch_width<T, 1>;
    return go(tables, rows, bags, mode, weights, out, found, columns, stream);
}
#endif

}  // namespace embedding_bags
