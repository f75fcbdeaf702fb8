// The copy engine: what the host does in its place, a GPU must do too.
#include "device/bulk_copy.cuh"

#include <cmath>

#include "cases.h"

constexpr int floats = 64;  // of a copy

// Every block takes each gridDim-th of `count` pieces: while it doubles one, the next is copied into a second buffer.
__global__ void twice(const float* from, float* to, int count) {
    BulkLoads* loads = dynamic_shared<BulkLoads>();
    float *buffers = dynamic_shared<float>() + 32, *staged = buffers + 2 * floats;
    auto begin = [&](int piece, int stage) {
        if (piece >= count || threadIdx.x % 32) return;
        int half = floats / 2, own = int(threadIdx.x) / 32 * half;
        loads[stage].begin(half * 4);
        loads[stage].copy(buffers + stage * floats + own, from + piece * floats + own, half * 4);
    };
    if (threadIdx.x == 0)
        for (int stage = 0; stage < 2; ++stage) loads[stage].init(2);
    __syncthreads();
    begin(int(blockIdx.x), 0);
    __syncthreads();
    BulkStores stores;
    int turn = 0;
    for (int piece = int(blockIdx.x); piece < count; piece += int(gridDim.x), ++turn) {
        begin(piece + int(gridDim.x), (turn + 1) % 2);
        loads[turn % 2].wait(turn / 2 % 2);
        float value = 2 * buffers[turn % 2 * floats + floats - 1 - int(threadIdx.x)];
        if (threadIdx.x == 0) stores.wait();
        __syncthreads();
        staged[threadIdx.x] = value;
        order_before_bulk_copies();
        __syncthreads();
        if (threadIdx.x != 0) continue;
        stores.copy(to + piece * floats, staged, floats * 4);
        stores.commit();
    }
    if (threadIdx.x == 0) stores.wait();
}
CASE(pieces_go_there_and_back_while_others_are_computed) {
    if (!bulk_device<twice>().multiprocessors) return 0;
    constexpr int pieces = 23;
    std::vector<float> values(pieces * floats);
    for (size_t i = 0; i < values.size(); ++i) values[i] = float(i);
    Array<float> from(values), to(values.size());
    REQUIRE(launch_kernel(twice, dim3(3), dim3(floats), 1024, cudaStream_t{}, from.get(), to.get(), pieces) ==
            cudaSuccess);
    std::vector<float> got = to.read();
    for (int i = 0; i < pieces * floats; ++i)
        REQUIRE(got[i] == 2 * values[i / floats * floats + floats - 1 - i % floats]);
    return 0;
}

#ifndef __CUDACC__
// One round, which a misuse does wrong at one place.
enum class Wrong { nothing, size, place, bytes, no_begin, no_barrier };

__global__ void one_round(const float* from, float* early, float* out, Wrong wrong) {
    BulkLoads* loads = dynamic_shared<BulkLoads>();
    float* buffer = dynamic_shared<float>() + 32;
    buffer[threadIdx.x] = 1;
    if (threadIdx.x == 0) loads->init(1);
    if (wrong != Wrong::no_barrier) __syncthreads();
    if (threadIdx.x == 0 && wrong != Wrong::no_begin) {
        loads->begin(wrong == Wrong::bytes ? 32 : floats * 4);
        loads->copy(buffer + (wrong == Wrong::place), from, floats * 4 - (wrong == Wrong::size) * 8);
    }
    __syncthreads();
    early[threadIdx.x] = buffer[threadIdx.x];
    __syncthreads();
    loads->wait(0);
    out[threadIdx.x] = buffer[threadIdx.x];
}
static int run(Wrong wrong) {
    Array<float> from(std::vector<float>(floats, 3.0f)), early(floats), out(floats);
    if (launch_kernel(one_round, dim3(1), dim3(floats), 1024, nullptr, from.get(), early.get(), out.get(), wrong))
        return 1;
    for (float value : early.read()) REQUIRE(std::isnan(value));
    for (float value : out.read()) REQUIRE(value == 3);
    return 0;
}
CASE(a_load_is_nan_until_it_is_waited_for) { return run(Wrong::nothing); }
CASE(misuse_a_bulk_copy_of_an_odd_size) { return run(Wrong::size); }
CASE(misuse_a_bulk_copy_to_an_odd_place) { return run(Wrong::place); }
CASE(misuse_bulk_loads_of_other_bytes_than_promised) { return run(Wrong::bytes); }
CASE(misuse_a_wait_for_bulk_loads_that_none_began) { return run(Wrong::no_begin); }
CASE(misuse_a_bulk_load_over_what_is_still_written) { return run(Wrong::no_barrier); }

__global__ void overwritten(float* to, bool ordered) {
    float* staged = dynamic_shared<float>();
    BulkStores stores;
    staged[threadIdx.x] = 1;
    if (ordered || threadIdx.x) order_before_bulk_copies();
    __syncthreads();
    if (threadIdx.x == 0) {
        stores.copy(to, staged, floats * 4);
        stores.commit();
    }
    staged[threadIdx.x] = 2;  // the wrong line: it is not waited for
    if (threadIdx.x == 0) stores.wait();
}
CASE(misuse_a_bulk_store_of_what_is_overwritten) {
    Array<float> to(floats);
    return launch_kernel(overwritten, dim3(1), dim3(floats), 1024, nullptr, to.get(), true);
}
CASE(misuse_a_bulk_store_of_what_a_thread_has_not_ordered) {
    Array<float> to(floats);
    return launch_kernel(overwritten, dim3(1), dim3(floats), 1024, nullptr, to.get(), false);
}
#endif
