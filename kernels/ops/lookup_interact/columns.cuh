// The kinds of interaction in which columns do not meet: a number of out hangs on one column of its row's vectors,
// t_0 = dense[b], and t_f = Σ of the rows of table f that bag (b, f) names.
//
//     flat   [t_0, t_1, …, t_F, zeros]
//     fm     [t_0, Σ t_i ⊙ t_j for j < i, zeros], the pairs of a factorization machine, a column at a time:
//            ½ ((Σ t_i)² − Σ t_i²), but added up as t_i (t_0 + … + t_{i-1}), which loses nothing to a difference
//
// Bytes: the rows that ids name, the ids and dense in; out, (F + 1) D numbers of a row for flat, 2 D for fm. Two
// kernels write B F D numbers besides, and read them again. The gradients of fm's vectors, h ⊙ (Σ t_i − t_f) with h that of
// the pairs, take the vectors, which are looked up again. Those of flat's lie in out's gradient, and are copied.
//
// A warp takes a row of the batch at a time. Its lanes are groups of neighbours: a lane has 16 bytes of a vector, and
// the groups take the vectors by turns, straight into registers. As no vector meets all others there is nothing to keep
// on chip, and neither vectors nor columns have a limit.
#pragma once

#include "ops/lookup_interact/look_up.cuh"

#ifndef __CUDACC_RTC__
#include <type_traits>
#endif

namespace lookup_interact {

enum class Kind { fm, flat };

constexpr int vectors_at_once = 32;  // that a warp finds: a lane each
// That a lane asks for before it takes the first; of eight halves each, whose sums take as many registers, fewer.
template <int numbers>
constexpr int vectors_ahead = numbers > 4 ? 2 : 4;

// numbers: columns of a lane, which one access moves. shift: a group is 2^shift lanes.
template <class T, int numbers, bool has_bags>
struct Vectors {
    using C = Accumulator<T>;

    const Call<T>& call;
    const int lane, shift, count, columns;
    Pack<T, numbers> packs[vectors_ahead<numbers>];
    Range table;

    __device__ Vectors(const Call<T>& call, int shift)
        : call(call), lane(int(threadIdx.x) % 32), shift(shift), count(int(call.bags.features) + 1),
          columns(int(call.columns)), table(is_looked_up(lane) ? call.tables.of(lane - 1) : Range{}) {}

    __device__ bool is_looked_up(int v) const { return !has_bags && v > 0 && v < count; }
    __device__ int first_column() const { return (lane & ((1 << shift) - 1)) * numbers; }
    __device__ int columns_at_once() const { return numbers << shift; }
    __device__ bool is_first_group() const { return lane >> shift == 0; }

    // The lane's id of a row, which is asked for a row ahead: the loads wait for it.
    __device__ long long id(long long row, int v) const {
        return is_looked_up(v) && row < call.bags.batch ? call.bags.indices[row * (count - 1) + v - 1] : 0;
    }

    // take(v, pack) for each vector v of the lane's group: the lane's columns of it. All lanes of a warp come together.
    // first: the lane's id of the row. again: whether the last call was the same; tells: whether of bad ids is told.
    template <class Take>
    __device__ void each(long long row, long long first, int column, bool again, bool tells, Take take) {
        const int groups = 32 >> shift, own = lane >> shift, ahead = groups * vectors_ahead<numbers>;
        const bool is_column = column < columns;
        const bool is_kept = again && count <= (ahead < vectors_at_once ? ahead : vectors_at_once);
        for (int begin = 0; begin < count; begin += vectors_at_once) {
            const int left = count - begin, here = left < vectors_at_once ? left : vectors_at_once, its = begin + lane;
            // In dense, or in the tables; < 0: of no row. Of an address the compiler would not know what memory it is.
            long long start = its ? -1 : row * columns, id = 0;
            bool is_missing = false;
            if (is_looked_up(its) && !is_kept) {
                id = begin ? this->id(row, its) : first;
                const Place place = call.tables.find(id, begin ? call.tables.of(its - 1) : table);
                is_missing = !place.inside;
                if (place.inside) start = place.row * columns;
            }
            for (int some = 0; some < here; some += ahead) {
                if (!is_kept) {
#pragma unroll
                    for (int k = 0; k < vectors_ahead<numbers>; ++k) {
                        const int v = some + k * groups + own;
                        packs[k] = Pack<T, numbers>{};
                        if constexpr (has_bags) {
                            if (v < here && is_column) pool(packs[k], row, begin + v, column, tells);
                        } else {
                            const long long from = __shfl_sync(~0u, start, v % 32);
                            if (v < here && is_column && from >= 0)
                                packs[k] = load<numbers>((begin + v ? call.rows : call.dense) + from + column);
                        }
                    }
                }
#pragma unroll
                for (int k = 0; k < vectors_ahead<numbers>; ++k) {
                    const int v = some + k * groups + own;
                    if (v < here && is_column) take(begin + v, packs[k]);
                }
            }
            // After the loads, which would else wait for an atomic operation.
            if (is_missing && tells) call.tables.tell(id, its - 1, row * (count - 1) + its - 1);
        }
    }

    // The sums of all groups, in all lanes; and, if given, those of the products of each two vectors.
    __device__ void meet(C (&sums)[numbers], C* products = nullptr) const {
        for (int offset = 1 << shift; offset < 32; offset <<= 1)
#pragma unroll
            for (int e = 0; e < numbers; ++e) {
                const C sum = __shfl_xor_sync(~0u, sums[e], offset);
                if (products) products[e] = products[e] + __shfl_xor_sync(~0u, products[e], offset) + sums[e] * sum;
                sums[e] += sum;
            }
    }

private:
    __device__ void pool(Pack<T, numbers>& pack, long long row, int v, int column, bool tells) const {
        if (v == 0) {
            pack = load<numbers>(call.dense + row * columns + column);
            return;
        }
        const Bags::Bag bag = call.bag(row, v - 1, tells && column == 0);
        C sums[numbers] = {};
        add_bag<numbers>(call, sums, v - 1, column, columns, bag.begin, bag.end, tells);
        store<numbers>(pack.element, sums);
    }
};

template <class T, int numbers, Kind kind, bool has_bags>
__global__ void __launch_bounds__(threads, has_bags ? 4 : 8)
    columns_kernel(const __grid_constant__ Call<T> call, int shift, T* out) {
    using C = Accumulator<T>;
    let_successor_begin();
    wait_for_predecessor();
    Vectors<T, numbers, has_bags> own(call, shift);
    const int columns = own.columns;
    const long long step = (long long)gridDim.x * warps, used = (kind == Kind::flat ? own.count : 2LL) * columns;
    long long row = (long long)blockIdx.x * warps + threadIdx.x / 32, id = own.id(row, own.lane);
    for (; row < call.bags.batch; row += step) {
        const long long next = own.id(row + step, own.lane);
        T* const to = out + row * call.width;
        // All lanes of a warp go round as often.
        for (int column = own.first_column(), all = 0; all < columns;
             column += own.columns_at_once(), all += own.columns_at_once()) {
            const bool tells = all == 0;
            if constexpr (kind == Kind::flat) {
                own.each(row, id, column, false, tells, [&](int v, const Pack<T, numbers>& pack) {
                    embedding_bags::store_streaming(
                        reinterpret_cast<Pack<T, numbers>*>(to + (long long)v * columns + column), pack);
                });
            } else {
                C sums[numbers] = {}, products[numbers] = {};
                own.each(row, id, column, false, tells, [&](int v, const Pack<T, numbers>& pack) {
                    if (v == 0)
                        embedding_bags::store_streaming(reinterpret_cast<Pack<T, numbers>*>(to + column), pack);
#pragma unroll
                    for (int e = 0; e < numbers; ++e) {
                        const C value = widen(pack.element[e]);
                        products[e] += value * sums[e];
                        sums[e] += value;
                    }
                });
                own.meet(sums, products);
                // A sum that is not finite makes NaN of its column, as the difference of two infinite numbers does.
#pragma unroll
                for (int e = 0; e < numbers; ++e) products[e] += sums[e] - sums[e];
                if (own.is_first_group() && column < columns) store<numbers>(to + columns + column, products, true);
            }
        }
        for (long long c = used + own.lane; c < call.width; c += 32) to[c] = narrow<T>(0);
        id = next;
    }
}

// grad [batch, width]; a gradient that is not needed is null.
template <class T, int numbers, Kind kind, bool has_bags>
__global__ void __launch_bounds__(threads, kind == Kind::flat ? 8 : 4)
    columns_backward_kernel(const __grid_constant__ Call<T> call, int shift, const T* grad, T* grad_dense,
                            T* grad_sparse) {
    using C = Accumulator<T>;
    let_successor_begin();
    wait_for_predecessor();
    const long long step = (long long)gridDim.x * warps, features = call.bags.features;
    const int columns = int(call.columns);
    long long row = (long long)blockIdx.x * warps + threadIdx.x / 32;
    if constexpr (kind == Kind::flat) {
        for (; row < call.bags.batch; row += step)
            for (long long c = threadIdx.x % 32 * numbers; c < (features + 1) * columns; c += 32 * numbers) {
                T* const to = c < columns ? grad_dense : grad_sparse;
                const long long place = c < columns ? row * columns + c : (row * features - 1) * columns + c;
                if (to)
                    embedding_bags::store_streaming(reinterpret_cast<Pack<T, numbers>*>(to + place),
                                                    load<numbers>(grad + row * call.width + c));
            }
    } else {
        Vectors<T, numbers, has_bags> own(call, shift);
        long long id = own.id(row, own.lane);
        for (; row < call.bags.batch; row += step) {
            const long long next = own.id(row + step, own.lane);
            const T* const from = grad + row * call.width;
            for (int column = own.first_column(), all = 0; all < columns;
                 column += own.columns_at_once(), all += own.columns_at_once()) {
                C sums[numbers] = {};
                own.each(row, id, column, false, false, [&](int, const Pack<T, numbers>& pack) {
#pragma unroll
                    for (int e = 0; e < numbers; ++e) sums[e] += widen(pack.element[e]);
                });
                own.meet(sums);
                Pack<T, numbers> of_dense = {}, of_pairs = {};
                if (column < columns) {
                    of_dense = load<numbers>(from + column);
                    of_pairs = load<numbers>(from + columns + column);
                }
                own.each(row, id, column, true, false, [&](int v, const Pack<T, numbers>& pack) {
                    T* const to = v ? grad_sparse : grad_dense;
                    if (!to) return;
                    C values[numbers];
#pragma unroll
                    for (int e = 0; e < numbers; ++e)
                        values[e] = (v ? C(0) : widen(of_dense.element[e])) +
                                    widen(of_pairs.element[e]) * (sums[e] - widen(pack.element[e]));
                    store<numbers>(to + (v ? row * features + v - 1 : row) * columns + column, values, true);
                });
            }
            id = next;
        }
    }
}

#ifndef __CUDACC_RTC__
// Of a multiprocessor: whole rounds of the 8, 6 or 4 that run at once, by their registers.
constexpr int blocks_by_column = 24;

// go(numbers, shift) for as many columns of a lane as one access moves, and groups that have a vector between them.
template <class T, class Go>
cudaError_t with_numbers(const Call<T>& call, bool whole, Go go) {
    auto with = [&](auto numbers) {
        int shift = 0;
        while (shift < 5 && (numbers.value << shift) < call.columns) ++shift;
        return go(numbers, shift);
    };
    // float64 is for completeness.
    if constexpr (sizeof(T) < 8)
        if (whole && call.columns % widest<T> == 0 && call.width % widest<T> == 0)
            return with(std::integral_constant<int, widest<T>>{});
    return with(std::integral_constant<int, 1>{});
}

// out [batch, width]: (features + 1) · columns for flat, 2 · columns for fm, or wider. Limits::plain: a column a lane.
template <class T>
cudaError_t launch_columns(const Call<T>& call, Kind kind, T* out, cudaStream_t stream, const Limits& limits = {}) {
    if (call.bags.batch * call.width == 0) return cudaSuccess;
    Device device;
    if (cudaError_t error = this_device(device); error != cudaSuccess) return error;
    const bool whole = !limits.plain && aligned(call.rows, call.dense) && aligned(out);
    return with_numbers(call, whole, [&](auto n, int shift) {
        constexpr int numbers = n.value;
        const bool has_bags = bool(call.bags.offsets);
        auto kernel = kind == Kind::flat ? has_bags ? columns_kernel<T, numbers, Kind::flat, true>
                                                    : columns_kernel<T, numbers, Kind::flat, false>
                      : has_bags         ? columns_kernel<T, numbers, Kind::fm, true>
                                         : columns_kernel<T, numbers, Kind::fm, false>;
        const dim3 grid = grid_of_rows(call.bags.batch, blocks_by_column, device, limits);
        return launch_kernel_early(kernel, grid, dim3(threads), 0, stream, call, shift, out);
    });
}

// grad [batch, width]; grad_dense [batch, columns], grad_sparse [batch, features, columns], of which one may be null.
template <class T>
cudaError_t launch_columns_backward(const Call<T>& call, Kind kind, const T* grad, T* grad_dense, T* grad_sparse,
                                    cudaStream_t stream, const Limits& limits = {}) {
    if (call.bags.batch * call.columns == 0) return cudaSuccess;
    Device device;
    if (cudaError_t error = this_device(device); error != cudaSuccess) return error;
    const bool whole = !limits.plain && aligned(call.rows, call.dense, grad) && aligned(grad_dense, grad_sparse);
    return with_numbers(call, whole, [&](auto n, int shift) {
        constexpr int numbers = n.value;
        auto kernel = kind == Kind::flat  ? columns_backward_kernel<T, numbers, Kind::flat, false>
                      : call.bags.offsets ? columns_backward_kernel<T, numbers, Kind::fm, true>
                                          : columns_backward_kernel<T, numbers, Kind::fm, false>;
        const dim3 grid = grid_of_rows(call.bags.batch, blocks_by_column, device, limits);
        return launch_kernel_early(kernel, grid, dim3(threads), 0, stream, call, shift, grad, grad_dense, grad_sparse);
    });
}
#endif

}  // namespace lookup_interact
