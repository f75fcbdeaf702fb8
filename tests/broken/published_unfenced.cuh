// BROKEN ON PURPOSE: no fence stands between a slot and the tag that publishes it, nor between reading the two.
// Row: 3x100 int64 table claim
// Caught by tsan: ThreadSanitizer: data race
// The values are right on the host, where no two threads run at once.
#pragma once

#include "ops/id_table/kernel.cuh"

namespace published_unfenced {
using namespace id_table;

__device__ inline long long claim_slot(const Storage& storage, long long table, long long key, long long position) {
    for (Probe probe(storage, table, key); probe.left; probe.next()) {
        for (int place = 0; place < bucket_slots; ++place) {
            long long index = probe.bucket * bucket_slots + place;
            auto* word = reinterpret_cast<unsigned*>(storage.tags) + index / 4;
            unsigned old = load_now(word), shift = unsigned(8 * (place % 4));
            unsigned tag = old >> shift & 0xff;
            if (tag == empty && atomicCAS(word, old, old | unsigned(claimed) << shift) == old) {
                storage.slots[index] = {key, -1 - position};
                atomicAdd(word, (probe.tag - claimed) << shift);  // the wrong line: no __threadfence() before it
                return index;
            }
            if (tag != probe.tag || storage.slots[index].key != key) continue;
            atomicMax(&storage.slots[index].row, -1 - position);
            return index;
        }
    }
    return -1;
}

template <class Key, class TableId>
__global__ void claim_all(Storage storage, const Key* keys, const TableId* table_ids, long long* where,
                          long long count) {
    long long i = this_thread();
    if (i < count) where[i] = claim_slot(storage, table_ids[i], keys[i], i);
}

template <class Key, class TableId>
cudaError_t launch(Storage storage, const Key* keys, const TableId* table_ids, long long* where, long long count,
                   cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    return launch_kernel(claim_all<Key, TableId>, grid_of(count), dim3(threads), 0, stream, storage, keys, table_ids,
                         where, count);
}

static const testing::Broken<Kernels> broken("published_unfenced", [](Kernels& kernels) {
    kernels.claim = launch<long long, int>;
});
}  // namespace published_unfenced
