// BROKEN ON PURPOSE: an erased slot becomes empty in a full bucket too, and searches that went beyond it end there.
// Row: 2x320 int64 table erase, full
// Caught by asan, gpu: found: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/id_table/kernel.cuh"

namespace erased_is_empty {
template <class>
__global__ void erase(id_table::Storage storage, const long long* where, long long count) {
    long long i = id_table::this_thread();
    if (i < count && where[i] >= 0) storage.tags[where[i]] = id_table::empty;  // the wrong line
}

template <class Key, class TableId>
cudaError_t launch(id_table::Storage storage, const Key* keys, const TableId* table_ids, long long* where,
                   long long count, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    dim3 grid = id_table::grid_of(count), threads(id_table::threads);
    cudaError_t error = launch_kernel(id_table::find_kernel<Key, TableId>, grid, threads, 0, stream, storage, keys,
                                      table_ids, where, count);
    if (error != cudaSuccess) return error;
    return launch_kernel(erase<Key>, grid, threads, 0, stream, storage, where, count);
}

static const testing::Broken<Kernels> broken("erased_is_empty", [](Kernels& kernels) {
    kernels.erase = launch<long long, int>;
});
}  // namespace erased_is_empty
