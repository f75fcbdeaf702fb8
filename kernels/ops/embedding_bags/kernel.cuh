// out[b, f] = Σ (or mean, or maximum) of the rows of table f that bag (b, f) names      tables [R, D], out [B, F, D]
//
// Row `id` of table f is row first[f] + id of `tables`, if 0 <= id < first[f + 1] - first[f]; else zeros. One id a bag:
// indices [B, F]. Ragged: indices [N], and bag (b, f) is offsets[f B + b] … offsets[f B + b + 1].
//
// Bytes: the rows (one of 64 bytes is two sectors of 32, the least that memory is read by), the ids, the output. There is
// next to nothing to compute, so the time is the memory's, and it takes many rows on their way at once to fill it. On an
// H200 the writes alone of 65536 × 26 rows of 64 bytes take 24.5 µs, the reads alone 21.0, and both 46.6.
#pragma once

#include "device/integers.cuh"
#include "device/report.cuh"
#include "device/vector.cuh"

namespace embedding_bags {

constexpr int threads = 256, forward_threads = 128, lanes_of_a_warp = 32;
// Rows of one id a bag: how many units, of 16 bytes where they can be, a thread asks for before it stores the first; how
// many ids a warp takes, and from how many warps on it takes so many even of wide rows.
constexpr int many = 4, most_ids = 32;
constexpr long long enough_warps = 8192;
// Ragged bags: of how many ids a group of threads asks for the rows before it adds the first; and how many bags it takes
// where each could have a group of its own and there would be more threads than are enough to fill the GPU.
constexpr int ahead = 4, most_bags = 4;
constexpr long long enough_threads = 1LL << 18;

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

    // The numbers may be anything, so their sum may overflow: C++ allows that for unsigned ones.
    __device__ static long long sum(long long a, unsigned long long b) { return (long long)((unsigned long long)a + b); }
    __device__ Range of(long long feature) const {
        long long begin = first[feature];
        return {begin, sum(first[feature + 1], -(unsigned long long)begin)};
    }
    // An id has 64 bits before anything is added to it, so that it cannot wrap round. What `first` says is not trusted.
    __device__ Place find(long long id, const Range& table) const {
        long long row = sum(table.begin, (unsigned long long)id);
        bool padded = padding >= 0 && id == padding;
        return {row, !padded && id >= 0 && id < table.height && row >= 0 && row < rows, padded};
    }
    // Reports an id that is out of range; one of the threads that look at it calls this.
    __device__ static long long start(const Place& place, const Range&, long long columns) { return place.row * columns; }
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

// The copies of a warp: lane k of it has found where row k of the `count` begins, in units, < 0 where there is no row.
// Unit u of all rows, which is one of row u / lanes, goes to to(lanes, u). Neighbouring lanes copy neighbouring units.
template <class Unit, class To>
__device__ inline void copy_rows(const Unit* rows, long long start, int count, const Columns<unsigned>& lanes, To to) {
    const unsigned lane = threadIdx.x % lanes_of_a_warp, units = unsigned(count) * lanes.divisor;
    for (unsigned begin = lane; begin - lane < units; begin += many * lanes_of_a_warp) {
        Unit unit[many];
#pragma unroll
        for (int k = 0; k < many; ++k) {
            unsigned u = begin + k * lanes_of_a_warp, which = lanes.quotient(u);
            long long from = __shfl_sync(~0u, start, int(which % lanes_of_a_warp));
            unit[k] = Unit{};
            if (u < units && from >= 0) unit[k] = rows[from + (u - which * lanes.divisor)];
        }
#pragma unroll
        for (int k = 0; k < many; ++k)
            if (unsigned u = begin + k * lanes_of_a_warp; u < units) store_streaming(to(lanes, u), unit[k]);
    }
}

// A row is `lanes` units and is copied as it is, whatever its dtype. A warp takes `ids` positions: each of its lanes finds
// the row of one, and then neighbouring lanes copy neighbouring units, so that what an id takes is done once and not by
// every lane that copies of its row: 46.9 µs of 65536 × 26 rows of 64 bytes, and 52.2 where every lane does it; 1.4 more in
// blocks of 256 threads. The kernel may begin before its predecessor in the stream has ended: of 2048 × 26 rows that saves
// 0.4 µs of 3.6 (on an H200).
template <class Unit, class Id>
__global__ void __launch_bounds__(forward_threads)
    rows_kernel(Tables tables, const Unit* rows, const Id* indices, Unit* out, long long positions, int ids,
                Columns<unsigned> lanes, Columns<unsigned> features, bool wide) {
    let_successor_begin();
    wait_for_predecessor();
    const unsigned lane = threadIdx.x % lanes_of_a_warp;
    const long long warp = ((long long)blockIdx.x * forward_threads + threadIdx.x) / lanes_of_a_warp, first = warp * ids;
    if (first >= positions) return;  // the whole warp
    const int here = positions - first < ids ? int(positions - first) : ids;
    const bool finds = int(lane) < here;
    const long long position = first + lane, id = finds ? (long long)indices[position] : 0;
    const long long feature = wide ? position % features.divisor : (long long)features.of(unsigned(position));
    Place place = {-1, false, true};
    if (finds) place = tables.find(id, tables.of(feature));
    const long long start = place.inside ? place.row * lanes.divisor : -1;
    out += first * lanes.divisor;
    copy_rows(rows, start, here, lanes, [&](const Columns<unsigned>&, unsigned u) { return out + u; });
    // After the copies, which would else wait for an atomic operation.
    if (!place.inside && !place.padded) tables.tell(id, feature, position);
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
    // In the output's order a bag's feature is i % features, else i / batch.
    __host__ __device__ long long divisor() const { return offsets.data ? batch : features; }
    __device__ Bag at(long long i, const Columns<unsigned>& by) const {
        long long quotient = count() < first_wide_size ? (long long)by.quotient(unsigned(i)) : i / divisor();
        long long rest = i - quotient * divisor();
        if (!offsets.data) return {i, rest, i, i + 1};
        return {rest * features + quotient, quotient, offsets[i], offsets[i + 1]};
    }
    __device__ long long id(const Bag&, long long position) const { return indices[position]; }
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

// The look-up of bags written down: a thread takes a column of a bag and adds up that column of the rows that the bag
// names, one after the other. This kernel is for reading, and the tests hold it to the same results as bags_kernel
// below, which is what runs. What bags_kernel adds is speed. Here a thread waits for an id, then for that id's row, and
// only then asks for the next id; and each of a bag's threads looks up all of its ids. There a group of lanes looks up
// several ids at once, one a lane, tells its lanes by shuffles where the rows are, and loads the next ids meanwhile.
template <class T, Mode mode>
__global__ void __launch_bounds__(threads)
    bags_kernel_plain(Tables tables, const T* rows, Bags bags, const T* weights, T* out, long long columns,
                      Columns<unsigned> by) {
    using C = Accumulator<T>;
    const long long element = (long long)blockIdx.x * threads + threadIdx.x, i = element / columns;
    const long long column = element - i * columns;
    if (i >= bags.count()) return;
    Bags::Bag bag = bags.at(i, by);
    bags.check(bag, i, tables.report, column == 0);
    const Range table = tables.of(bag.feature);
    C total = 0;
    long long counted = 0;
    for (long long p = bag.begin; p < bag.end; ++p) {
        const long long id = bags.indices[p];
        const Place place = tables.find(id, table);
        if (place.padded) continue;
        if (!place.inside && column == 0) tables.tell(id, bag.feature, p);
        const C value = place.inside ? widen(rows[place.row * columns + column]) : C(0);  // a missing row is zeros
        if constexpr (mode == Mode::max) {
            if (counted == 0 || value > total) total = value;  // so a NaN stays only if it comes first, as in PyTorch
        } else {
            total += weights && place.inside ? widen(weights[p]) * value : value;
        }
        ++counted;
    }
    if (mode == Mode::mean && counted) total /= C(counted);
    out[bag.out * columns + column] = narrow<T>(total);
}

// How bags are spread over threads: a group of 2^shift lanes, `ahead` or more of them, takes `width` columns a lane of a
// bag, and then of the bag `groups` further on, `each` bags in all. `tiles` groups make up a row.
struct Spread {
    int shift, each;
    unsigned tiles;
    Columns<unsigned> by;  // divides by Bags::divisor()

    __host__ __device__ int bags_of_a_block() const { return (forward_threads >> shift) * each; }
};

// A step of the loop takes the next `ahead` ids of a bag. The first `ahead` lanes of the group find the row of one id
// each, and load the ids of the step after this one. Then the group loads the rows of this step, all of them before it
// adds the first; by the time that they are added, the next ids have arrived. For a bag of five ids, `ahead` = 4:
//
//     before the loop   load ids 0 to 3
//     step 1            find rows 0 to 3, load id 4, load rows 0 to 3, add them
//     step 2            find row 4, load ids 0 to 3 of the group's next bag, load row 4, add it, store the bag
//
// Bags differ in length, and a group that has done its bag goes on with its next without waiting for the other groups
// of its warp. Yet all lanes of a warp make every step together, because they meet in the shuffles: groups that went
// separate ways would run one after the other. A lane that has no id gives `counts_not` in place of a row.
// found: for the backward of a maximum, instead of `out`: the position of the id that it comes from, -1 if from none,
// [B F, D]. Where, Batch: Tables and Bags, or what says the same of tables that lie apart (embedding_bags_apart).
template <class T, int width, Mode mode, class Where, class Batch>
__global__ void __launch_bounds__(forward_threads)
    bags_kernel(Where tables, const T* rows, Batch bags, const T* weights, T* out, long long* found, long long columns,
                Spread spread) {
    using C = Accumulator<T>;
    // In place of where a row begins: of an id that has no row, which counts as zeros, and of no id, or the padding.
    constexpr long long is_miss = -1, counts_not = -2;
    const int group = 1 << spread.shift, lane = int(threadIdx.x) & (group - 1), step = forward_threads >> spread.shift;
    const unsigned block = blockIdx.x / spread.tiles, tile = blockIdx.x - block * spread.tiles;
    const long long column = ((long long)tile * group + lane) * width;
    long long i = (long long)block * spread.bags_of_a_block() + (threadIdx.x >> spread.shift);
    long long last = i + (spread.each - 1) * step;
    if (last >= bags.count()) last = bags.count() - 1;

    typename Batch::Bag bag = {};
    decltype(tables.of(0)) table = {};
    long long p = 0;
    bool more = i <= last;
    auto begin = [&] {
        bag = bags.at(i, spread.by);
        bags.check(bag, i, tables.report, tile == 0 && lane == 0);
        table = tables.of(bag.feature);
        p = bag.begin;
    };
    auto finds = [&] { return lane < ahead && p + lane < bag.end; };
    if (more) begin();
    long long id = finds() ? bags.id(bag, p + lane) : 0;
    C total[width] = {};
    long long winner[width], counted = 0;
#pragma unroll
    for (int e = 0; e < width; ++e) winner[e] = -1;
    while (__any_sync(~0u, more)) {
        const long long at = p, place = bag.out;
        long long start = counts_not;
        C weight = 1;
        if (finds()) {
            Place its = tables.find(id, table);
            start = its.inside ? tables.start(its, table, columns) : its.padded ? counts_not : is_miss;
            if (start == is_miss && tile == 0) tables.tell(id, bag.feature, p + lane);
            if (weights && its.inside) weight = widen(weights[p + lane]);
        }
        p += ahead;
        const bool ends = more && p >= bag.end;
        if (ends) {
            i += step;
            more = i <= last;
            bag.end = 0;
            if (more) begin();
        }
        id = finds() ? bags.id(bag, p + lane) : 0;

        Pack<T, width> values[ahead];
        long long from[ahead];
#pragma unroll
        for (int k = 0; k < ahead; ++k) {
            from[k] = __shfl_sync(~0u, start, k, group);
            values[k] = Pack<T, width>{};
            if (from[k] >= 0 && column < columns) values[k] = load<width>(rows + from[k] + column);
        }
#pragma unroll
        for (int k = 0; k < ahead; ++k) {
            C factor = weights ? __shfl_sync(~0u, weight, k, group) : C(1);
            if (mode != Mode::sum && from[k] == counts_not) continue;
#pragma unroll
            for (int e = 0; e < width; ++e) {
                C value = widen(values[k].element[e]);
                if constexpr (mode == Mode::max) {
                    if (counted == 0 || value > total[e]) {  // so a NaN stays only if it comes first, as in PyTorch
                        total[e] = value;
                        winner[e] = from[k] >= 0 ? at + k : -1;
                    }
                } else {
                    total[e] += factor * value;
                }
            }
            ++counted;
        }
        if (ends) {
            if (column < columns) {
                if (mode == Mode::max && found)
                    for (int e = 0; e < width; ++e) found[place * columns + column + e] = winner[e];
                if constexpr (mode == Mode::mean)
#pragma unroll
                    for (int e = 0; e < width; ++e) total[e] = counted ? total[e] / C(counted) : C(0);
                if (out) store<width>(out + place * columns + column, total, true);
            }
#pragma unroll
            for (int e = 0; e < width; ++e) total[e] = 0, winner[e] = -1;
            counted = 0;
        }
    }
}

// ---------------------------------------------------------------------------------------------------------- launches

#ifndef __CUDACC_RTC__
inline dim3 grid_of(long long items, long long a_block) { return dim3(unsigned((items + a_block - 1) / a_block)); }

template <class Unit, class Id>
cudaError_t launch_rows(const Tables& tables, const void* rows, const Id* indices, void* out, long long positions,
                        long long features, long long row_bytes, cudaStream_t stream, long long wide_size) {
    long long lanes = row_bytes / (long long)sizeof(Unit);
    if (lanes >= first_wide_size / (2 * most_ids)) return cudaErrorInvalidValue;  // the units of a warp have 32 bits
    int ids = most_ids;
    while (ids > 1 && ids * lanes > many * lanes_of_a_warp && positions < ids * enough_warps) ids /= 2;
    return launch_kernel_early(rows_kernel<Unit, Id>, grid_of(positions, ids * (forward_threads / lanes_of_a_warp)),
                               dim3(forward_threads), 0, stream, tables, static_cast<const Unit*>(rows), indices,
                               static_cast<Unit*>(out), positions, ids, Columns<unsigned>(lanes),
                               Columns<unsigned>(features), positions >= wide_size);
}

// One id a bag: out[n] = row indices[n] of table n % features, for `positions` of them; a row has row_bytes.
template <class Id>
cudaError_t launch_one_id(const Tables& tables, const void* rows, const Id* indices, void* out, long long positions,
                          long long features, long long row_bytes, cudaStream_t stream,
                          long long wide_size = first_wide_size) {
    if (positions == 0 || row_bytes == 0) return cudaSuccess;
    auto places = reinterpret_cast<unsigned long long>(rows) | reinterpret_cast<unsigned long long>(out) |
                  (unsigned long long)row_bytes;
    auto go = places % 16 == 0  ? launch_rows<Pack<unsigned, 4>, Id>
              : places % 8 == 0 ? launch_rows<unsigned long long, Id>
              : places % 4 == 0 ? launch_rows<unsigned, Id>
                                : launch_rows<unsigned short, Id>;
    return go(tables, rows, indices, out, positions, features, row_bytes, stream, wide_size);
}

template <class Batch>
Spread spread_of(const Batch& bags, long long packs, long long enough) {
    Spread spread{2, 1, 1, Columns<unsigned>(bags.count() < first_wide_size ? bags.divisor() : 1)};
    while ((1 << spread.shift) < packs && spread.shift < 5) ++spread.shift;
    long long tiles = (packs + (1 << spread.shift) - 1) >> spread.shift;
    long long each = (bags.count() * tiles << spread.shift) / enough;
    spread.tiles = unsigned(tiles);
    spread.each = each < 1 ? 1 : each < most_bags ? int(each) : most_bags;
    return spread;
}

template <class T, int width, class Where, class Batch>
cudaError_t launch_width(const Where& tables, const T* rows, const Batch& bags, Mode mode, const T* weights, T* out,
                         long long* found, long long columns, cudaStream_t stream, long long enough) {
    auto kernel = mode == Mode::sum    ? bags_kernel<T, width, Mode::sum, Where, Batch>
                  : mode == Mode::mean ? bags_kernel<T, width, Mode::mean, Where, Batch>
                                       : bags_kernel<T, width, Mode::max, Where, Batch>;
    Spread spread = spread_of(bags, columns / width, enough);
    dim3 grid = grid_of(bags.count(), spread.bags_of_a_block());
    grid.x *= spread.tiles;
    return launch_kernel(kernel, grid, dim3(forward_threads), 0, stream, tables, rows, bags, weights, out, found, columns,
                         spread);
}

// The look-up of bags by the plain kernel, which only tests call.
template <class T>
cudaError_t launch_bags_plain(const Tables& tables, const T* rows, const Bags& bags, Mode mode, const T* weights,
                              T* out, long long columns, cudaStream_t stream) {
    if (bags.count() == 0 || columns == 0) return cudaSuccess;
    auto kernel = mode == Mode::sum    ? bags_kernel_plain<T, Mode::sum>
                  : mode == Mode::mean ? bags_kernel_plain<T, Mode::mean>
                                       : bags_kernel_plain<T, Mode::max>;
    Columns<unsigned> by(bags.count() < first_wide_size ? bags.divisor() : 1);
    return launch_kernel(kernel, grid_of(bags.count() * columns, threads), dim3(threads), 0, stream, tables, rows, bags,
                         weights, out, columns, by);
}

// Bags of any number of ids; out or found may be null. enough: threads, from which on a group takes several bags.
template <class T>
cudaError_t launch_bags(const Tables& tables, const T* rows, const Bags& bags, Mode mode, const T* weights, T* out,
                        long long* found, long long columns, cudaStream_t stream, long long enough = enough_threads) {
    if (bags.count() == 0 || columns == 0) return cudaSuccess;
    bool whole = columns % widest<T> == 0 && aligned(rows, out);
    auto go = whole ? launch_width<T, widest<T>, Tables, Bags> : launch_width<T, 1, Tables, Bags>;
    return go(tables, rows, bags, mode, weights, out, found, columns, stream, enough);
}
#endif

}  // namespace embedding_bags
