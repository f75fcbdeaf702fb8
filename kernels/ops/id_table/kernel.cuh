// The id table's CUDA kernels, a thread a key: what a thread does stands in table.cuh, and what it costs.
#pragma once

#include "table.cuh"

namespace id_table {

constexpr int threads = 256;

__device__ inline long long this_thread() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }

// found[i], rows[i] = is keys[i] in table table_ids[i], and its row there.
template <class Key, class TableId>
__global__ void look_up_kernel(Storage storage, const Key* keys, const TableId* table_ids, bool* found, long long* rows,
                               long long count) {
    long long i = this_thread();
    if (i >= count) return;
    long long row;
    found[i] = look_up(storage, table_ids[i], keys[i], row);
    rows[i] = row;
}

// where[i] = the slot of keys[i]; every key gets one.
template <class Key, class TableId>
__global__ void claim_kernel(Storage storage, const Key* keys, const TableId* table_ids, long long* where,
                             long long count) {
    long long i = this_thread();
    if (i < count) where[i] = claim(storage, table_ids[i], keys[i], i);
}

// where[i] = the slot of keys[i], -1 for a key that is not there. Erasing is a kernel of its own behind it, so that of a
// key that is given twice both are found.
template <class Key, class TableId>
__global__ void find_kernel(Storage storage, const Key* keys, const TableId* table_ids, long long* where,
                            long long count) {
    long long i = this_thread();
    if (i >= count) return;
    Slot slot;
    where[i] = find(storage, table_ids[i], keys[i], slot);
}
template <class>
__global__ void erase_kernel(Storage storage, const long long* where, long long count) {
    long long i = this_thread();
    if (i < count && where[i] >= 0) erase(storage, where[i]);
}

template <class Offset>
__global__ void expand_kernel(Bags<Offset> bags, long long tables, int* table_ids, long long count) {
    long long i = this_thread();
    if (i < count) table_ids[i] = table_of(bags, tables, i);
}

template <class Offset>
__global__ void range_kernel(Bags<Offset> bags, long long tables, Offset* out) {
    long long t = this_thread();
    if (t <= tables) out[t] = table_begin(bags, tables, t);
}

#ifndef __CUDACC_RTC__
inline dim3 grid_of(long long count) { return dim3(unsigned((count + threads - 1) / threads)); }

template <class Key, class TableId>
cudaError_t launch_look_up(Storage storage, const Key* keys, const TableId* table_ids, bool* found, long long* rows,
                           long long count, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    return launch_kernel(look_up_kernel<Key, TableId>, grid_of(count), dim3(threads), 0, stream, storage, keys,
                         table_ids, found, rows, count);
}

template <class Key, class TableId>
cudaError_t launch_claim(Storage storage, const Key* keys, const TableId* table_ids, long long* where, long long count,
                         cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    return launch_kernel(claim_kernel<Key, TableId>, grid_of(count), dim3(threads), 0, stream, storage, keys,
                         table_ids, where, count);
}

template <class Key, class TableId>
cudaError_t launch_erase(Storage storage, const Key* keys, const TableId* table_ids, long long* where, long long count,
                         cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    cudaError_t error = launch_kernel(find_kernel<Key, TableId>, grid_of(count), dim3(threads), 0, stream, storage,
                                      keys, table_ids, where, count);
    if (error != cudaSuccess) return error;
    return launch_kernel(erase_kernel<Key>, grid_of(count), dim3(threads), 0, stream, storage, where, count);
}

template <class Offset>
cudaError_t launch_expand(Bags<Offset> bags, long long tables, int* table_ids, long long count, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    return launch_kernel(expand_kernel<Offset>, grid_of(count), dim3(threads), 0, stream, bags, tables, table_ids,
                         count);
}

template <class Offset>
cudaError_t launch_range(Bags<Offset> bags, long long tables, Offset* out, cudaStream_t stream) {
    return launch_kernel(range_kernel<Offset>, grid_of(tables + 1), dim3(threads), 0, stream, bags, tables, out);
}
#endif

}  // namespace id_table
