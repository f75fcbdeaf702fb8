// BROKEN ON PURPOSE: the keys 0 and -1 are taken for slots that are empty or erased.
// Row: 3x100 int64 table look up
// Caught by asan, gpu: found: 6 of [0-9]+ wrong; \[0\] is 0, expected 1
#pragma once

#include "ops/id_table/kernel.cuh"

namespace reserved_keys {
template <class Key, class TableId>
__global__ void look_up(id_table::Storage storage, const Key* keys, const TableId* table_ids, bool* found,
                        long long* rows, long long count) {
    long long i = id_table::this_thread();
    if (i >= count) return;
    rows[i] = 0;
    found[i] = keys[i] != 0 && keys[i] != -1 &&  // the wrong line
               id_table::look_up(storage, table_ids[i], keys[i], rows[i]);
}

template <class Key, class TableId>
cudaError_t launch(id_table::Storage storage, const Key* keys, const TableId* table_ids, bool* found, long long* rows,
                   long long count, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    return launch_kernel(look_up<Key, TableId>, id_table::grid_of(count), dim3(id_table::threads), 0, stream, storage,
                         keys, table_ids, found, rows, count);
}

static const testing::Broken<Kernels> broken("reserved_keys", [](Kernels& kernels) {
    kernels.look_up = launch<long long, int>;
});
}  // namespace reserved_keys
