// Cooperative launches: all blocks resident, a barrier over the grid, shared memory of each block.
#include "device/cooperative.cuh"

#include "cases.h"

// Each block keeps its number in a static array, each thread of it in dynamic memory, over `turns` barriers, and adds
// up what all blocks have written.
__global__ void keep(int* places, int* sums, int turns) {
    __shared__ int mine[32];
    int* also = dynamic_shared<int>();
    mine[threadIdx.x] = int(blockIdx.x) * 100 + int(threadIdx.x);
    also[threadIdx.x] = -mine[threadIdx.x];
    for (int turn = 0; turn < turns; ++turn) {
        if (threadIdx.x == 0) places[blockIdx.x] = int(blockIdx.x) + turn;
        grid_barrier();
        int sum = 0;
        for (unsigned block = 0; block < gridDim.x; ++block) sum += places[block];
        grid_barrier();
        sums[(turn * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] =
            mine[31 - threadIdx.x] == int(blockIdx.x) * 100 + 31 - int(threadIdx.x) &&
                    also[threadIdx.x] == -mine[threadIdx.x]
                ? sum
                : -1;
    }
}
CASE(every_block_keeps_its_shared_memory_over_grid_barriers) {
    for (int blocks : {1, 2, 7}) {
        constexpr int turns = 3;
        Array<int> places(blocks), sums(turns * blocks * 32);
        REQUIRE(launch_cooperative_kernel(keep, dim3(blocks), dim3(32), 32 * sizeof(int), cudaStream_t{}, places.get(),
                                          sums.get(), turns) == cudaSuccess);
        std::vector<int> got = sums.read();
        for (int i = 0; i < turns * blocks * 32; ++i)
            REQUIRE(got[i] == blocks * (blocks - 1) / 2 + i / (blocks * 32) * blocks);
    }
    return 0;
}

__global__ void count(unsigned* counter, unsigned* seen) {
    if (threadIdx.x == 0) atomicAdd(counter, 1u);
    grid_barrier();
    if (threadIdx.x == 0) seen[blockIdx.x] = *counter;
}
CASE(the_largest_grid_is_launched_and_no_larger_one) {
    int most = 0;
    REQUIRE(most_resident_blocks(count, 1024, 0, &most) == cudaSuccess && most > 0);
    Array<unsigned> counter(1), seen(most);
    auto launch = [&](dim3 grid) {
        return launch_cooperative_kernel(count, grid, dim3(1024), 0, cudaStream_t{}, counter.get(), seen.get());
    };
    REQUIRE(launch(dim3(most + 1)) == cudaErrorCooperativeLaunchTooLarge);
    REQUIRE(launch(dim3(65535, 65535, 2)) == cudaErrorCooperativeLaunchTooLarge);
    REQUIRE(counter.read()[0] == 0);
    REQUIRE(launch(dim3(most)) == cudaSuccess);
    for (unsigned block : seen.read()) REQUIRE(block == unsigned(most));
    return 0;
}

#ifndef __CUDACC__
// The simulated device: 4 multiprocessors, each with 2048 threads (fewer under ThreadSanitizer), 32 blocks and 228 KB.
CASE(how_many_blocks_are_resident) {
    int blocks = 0;
    auto most = [&](int threads, size_t bytes) {
        return most_resident_blocks(count, threads, bytes, &blocks) == cudaSuccess ? blocks : -1;
    };
    constexpr int threads = cuda_on_host::threads_of_a_multiprocessor;
    REQUIRE(most(1024, 0) == 4 * (threads / 1024) && most(65, 0) == 4 * (threads / 96) && most(1, 0) == 4 * 32);
    REQUIRE(most(32, 100 * 1024) == 4 * 2 && most(32, 227 * 1024) == 4 * 1);
    return 0;
}

template <class Kernel>
int must_fail(Kernel kernel) {
    Array<int> out(4 * 32);
    if (launch_cooperative_kernel(kernel, dim3(4), dim3(32), 0, nullptr, out.get()) != cudaErrorLaunchFailure) return 0;
    // The next launch is as ever.
    Array<unsigned> counter(1), seen(4);
    if (launch_cooperative_kernel(count, dim3(4), dim3(32), 0, nullptr, counter.get(), seen.get())) return 2;
    return seen.read()[3] == 4 ? 1 : 3;
}

__global__ void a_block_returns(int* out) {
    if (blockIdx.x == 2) return;  // the wrong line
    grid_barrier();
    out[blockIdx.x] = 1;
}
CASE(misuse_a_block_does_not_reach_the_grid_barrier) { return must_fail(a_block_returns); }

__global__ void a_thread_returns(int* out) {
    if (threadIdx.x == 5) return;  // the wrong line
    grid_barrier();
    out[blockIdx.x] = 1;
}
CASE(misuse_a_thread_does_not_reach_the_grid_barrier) { return must_fail(a_thread_returns); }

__global__ void a_thread_waits_elsewhere(int* out) {
    if (blockIdx.x == 1 && threadIdx.x >= 16)
        __syncthreads();  // the wrong line
    else
        grid_barrier();
    out[blockIdx.x] = 1;
}
CASE(misuse_a_thread_waits_for_its_block_instead) { return must_fail(a_thread_waits_elsewhere); }

__global__ void barrier(int* out) {
    grid_barrier();
    *out = 1;
}
CASE(misuse_a_grid_barrier_in_a_plain_launch) {
    Array<int> out(1);
    return launch_kernel(barrier, dim3(1), dim3(1), 0, nullptr, out.get()) == cudaErrorLaunchFailure;
}

__global__ void no_barrier(int* places, int* out) {
    if (threadIdx.x == 0) places[blockIdx.x] = 1;
    __syncthreads();  // the wrong line: only a barrier over the grid orders what other blocks do
    if (threadIdx.x == 0) out[blockIdx.x] = places[(blockIdx.x + 1) % gridDim.x];
}
CASE(misuse_a_grid_barrier_is_missing) {
    Array<int> places(4), out(4);
    return launch_cooperative_kernel(no_barrier, dim3(4), dim3(32), 0, nullptr, places.get(), out.get());
}

__global__ void beyond(int*) { dynamic_shared<int>()[threadIdx.x] = 1; }
CASE(misuse_dynamic_shared_memory_out_of_bounds) {
    return launch_cooperative_kernel(beyond, dim3(2), dim3(32), 31 * sizeof(int), nullptr, (int*)nullptr);
}
#endif
