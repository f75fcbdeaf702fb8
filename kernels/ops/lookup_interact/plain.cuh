// Look-ups and interaction written down: a thread computes one element, and looks up what it is made of. For what does
// not fit a warp's memory or its lanes, vectors that are no whole 16 bytes, and float64.
#pragma once

#include "ops/lookup_interact/look_up.cuh"

namespace lookup_interact {

constexpr int plain_threads = 256;

// Element `column` of vector v of a row, rounded to T, as embedding_bags gives it.
template <class T>
__device__ inline Accumulator<T> element(const Call<T>& call, long long row, long long v, long long column) {
    if (v == 0) return widen(call.dense[row * call.columns + column]);
    const Range table = call.tables.of(v - 1);
    const Bags::Bag bag = call.bag(row, v - 1, false);
    Accumulator<T> sum = 0;
    for (long long p = bag.begin; p < bag.end; ++p)
        if (const Place place = call.tables.find(call.bags.indices[p], table); place.inside)
            sum += widen(call.rows[place.row * call.columns + column]);
    return widen(narrow<T>(sum));
}

// Tells what is wrong with the ids of a row's feature.
template <class T>
__device__ inline void tell(const Call<T>& call, long long row, long long feature) {
    const Range table = call.tables.of(feature);
    const Bags::Bag bag = call.bag(row, feature, true);
    for (long long p = bag.begin; p < bag.end; ++p) {
        const long long id = call.bags.indices[p];
        if (!call.tables.find(id, table).inside) call.tables.tell(id, feature, p);
    }
}

template <class T>
__global__ void __launch_bounds__(plain_threads) plain_forward(const __grid_constant__ Call<T> call, T* out) {
    const long long index = (long long)blockIdx.x * plain_threads + threadIdx.x, row = index / call.width;
    if (row >= call.bags.batch) return;
    const long long place = index % call.width, features = call.bags.features;
    if (place < features) tell(call, row, place);  // a row of out has as many elements as features, or more
    const long long pair = place - call.columns;
    Accumulator<T> sum = 0;
    if (pair < 0) {
        sum = element(call, row, 0, place);
    } else if (pair < features * (features + 1) / 2) {
        long long i = (long long)((sqrt(8.0 * double(pair) + 1) + 1) / 2);
        while (i * (i - 1) / 2 > pair) --i;
        while (i * (i + 1) / 2 <= pair) ++i;
        const long long j = pair - i * (i - 1) / 2;
        for (long long k = 0; k < call.columns; ++k) sum += element(call, row, i, k) * element(call, row, j, k);
    }
    out[index] = narrow<T>(sum);
}

#ifndef __CUDACC_RTC__
inline dim3 plain_grid(long long elements) { return dim3(unsigned((elements + plain_threads - 1) / plain_threads)); }
#endif

}  // namespace lookup_interact
