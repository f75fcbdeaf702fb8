// Shuffles, votes and barriers of a warp; atomics.
#include "device/launch.cuh"

#include "cases.h"

constexpr unsigned everyone = 0xffffffffu;

// ------------------------------------------------------------------------------------------------------------ shuffles

constexpr int threads = 64, distances = 34, kinds = 4;

template <class T>
__global__ void shuffles(T* out, int width) {
    T value = T(3 * threadIdx.x + 1);
    for (int distance = 0; distance < distances; ++distance) {
        T* row = out + (threadIdx.x * distances + distance) * kinds;
        row[0] = __shfl_sync(everyone, value, distance, width);
        row[1] = __shfl_up_sync(everyone, value, distance, width);
        row[2] = __shfl_down_sync(everyone, value, distance, width);
        row[3] = __shfl_xor_sync(everyone, value, distance, width);
    }
}

template <class T>
int check_shuffles() {
    for (int width = 1; width <= 32; width *= 2) {
        Array<T> out(threads * distances * kinds);
        REQUIRE(launch_kernel(shuffles<T>, dim3(1), dim3(threads), 0, cudaStream_t{}, out.get(), width) == cudaSuccess);
        std::vector<T> got = out.read();
        for (int thread = 0; thread < threads; ++thread)
            for (int d = 0; d < distances; ++d) {
                int lane = thread % 32, first = lane / width * width, last = first + width - 1;
                int near = d % 32;  // of a distance the lowest 5 bits count
                int sources[kinds] = {first + near % width, lane - near >= first ? lane - near : lane,
                                      lane + near <= last ? lane + near : lane,
                                      (lane ^ near) <= last ? lane ^ near : lane};
                for (int kind = 0; kind < kinds; ++kind)
                    REQUIRE(got[(thread * distances + d) * kinds + kind] ==
                            T(3 * (thread / 32 * 32 + sources[kind]) + 1));
            }
    }
    return 0;
}
CASE(shuffles_of_ints) { return check_shuffles<int>(); }
CASE(shuffles_of_unsigneds) { return check_shuffles<unsigned>(); }
CASE(shuffles_of_long_longs) { return check_shuffles<long long>(); }
CASE(shuffles_of_unsigned_long_longs) { return check_shuffles<unsigned long long>(); }
CASE(shuffles_of_floats) { return check_shuffles<float>(); }
CASE(shuffles_of_doubles) { return check_shuffles<double>(); }

__global__ void halves(float* out) {
    out[threadIdx.x] = __half2float(__shfl_xor_sync(everyone, __float2half(float(threadIdx.x)), 1)) +
                       __bfloat162float(__shfl_xor_sync(everyone, __float2bfloat16(float(threadIdx.x)), 1));
}
CASE(shuffles_of_halves) {
    Array<float> out(32);
    REQUIRE(launch_kernel(halves, dim3(1), dim3(32), 0, cudaStream_t{}, out.get()) == cudaSuccess);
    for (int lane = 0; lane < 32; ++lane) REQUIRE(out.read()[lane] == 2 * (lane ^ 1));
    return 0;
}

#ifndef __CUDACC__
__global__ void from_beyond_the_block(float* out) { out[threadIdx.x] = __shfl_down_sync(everyone, 1.0f, 8); }
CASE(a_shuffle_from_a_lane_that_is_not_there_gives_nan) {
    Array<float> out(16);
    REQUIRE(launch_kernel(from_beyond_the_block, dim3(1), dim3(16), 0, cudaStream_t{}, out.get()) == cudaSuccess);
    for (int lane = 0; lane < 16; ++lane) REQUIRE(isnan(out.read()[lane]) == (lane >= 8));
    return 0;
}
#endif

// The launch fails, and the next one is as ever.
template <class Kernel>
int must_fail(Kernel kernel) {
    Array<int> out(64);
    Array<float> fine(32);
    if (launch_kernel(kernel, dim3(1), dim3(64), 0, cudaStream_t{}, out.get()) == cudaSuccess) return 0;
    return launch_kernel(halves, dim3(1), dim3(32), 0, cudaStream_t{}, fine.get()) == cudaSuccess ? 1 : 2;
}

__global__ void not_reached(int* out) {
    if (threadIdx.x != 37) out[threadIdx.x] = __shfl_xor_sync(everyone, int(threadIdx.x), 1);  // the wrong mask
    __syncthreads();
}
CASE(misuse_a_lane_does_not_reach_the_shuffle) { return must_fail(not_reached); }

__global__ void not_in_its_mask(int* out) { out[threadIdx.x] = __shfl_sync(0x0000ffffu, int(threadIdx.x), 0); }
CASE(misuse_a_lane_is_not_in_its_mask) { return must_fail(not_in_its_mask); }

__global__ void two_masks(int* out) {
    out[threadIdx.x] = __ballot_sync(threadIdx.x % 32 < 16 ? everyone : 0xffff0000u, 1);
    __syncthreads();
}
CASE(misuse_lanes_give_different_masks) { return must_fail(two_masks); }

__global__ void width_of_5(int* out) { out[threadIdx.x] = __shfl_sync(everyone, int(threadIdx.x), 0, 5); }
CASE(misuse_a_width_that_is_no_power_of_two) { return must_fail(width_of_5); }

// --------------------------------------------------------------------------------------------------------------- votes

// The two halves vote at once, each for itself; then all; then those that are left.
__global__ void votes(unsigned* out) {
    int lane = threadIdx.x % 32;
    unsigned* row = out + threadIdx.x * 8;
    row[0] = lane % 2 ? __ballot_sync(0xaaaaaaaau, lane < 16) : __ballot_sync(0x55555555u, lane >= 16);
    row[1] = __any_sync(everyone, lane == 31);
    row[2] = __any_sync(everyone, 0);
    row[3] = __all_sync(everyone, lane < 32);
    row[4] = __all_sync(everyone, lane != 7);
    row[5] = __activemask() >> lane & 1;
    if (lane >= 20) return;
    row[6] = __ballot_sync(everyone, 4);
    row[7] = __all_sync(everyone, 4);
}
CASE(votes_of_a_warp) {
    Array<unsigned> out(threads * 8);
    REQUIRE(launch_kernel(votes, dim3(1), dim3(threads), 0, cudaStream_t{}, out.get()) == cudaSuccess);
    std::vector<unsigned> got = out.read();
    for (int thread = 0; thread < threads; ++thread) {
        const unsigned* row = &got[thread * 8];
        REQUIRE(row[0] == (thread % 2 ? 0x0000aaaau : 0x55550000u));
        REQUIRE(row[1] == 1 && row[2] == 0 && row[3] == 1 && row[4] == 0 && row[5] == 1);
        if (thread % 32 < 20) REQUIRE(row[6] == 0x000fffffu && row[7] == 1);
    }
    return 0;
}

__global__ void block_votes(int* out) {
    int* row = out + threadIdx.x * 5;
    row[0] = __syncthreads_count(threadIdx.x % 3 == 0);
    row[1] = __syncthreads_or(threadIdx.x == 77);
    row[2] = __syncthreads_or(0);
    row[3] = __syncthreads_and(5);
    row[4] = __syncthreads_and(threadIdx.x != 77);
}
CASE(votes_of_a_block) {
    Array<int> out(90 * 5);
    REQUIRE(launch_kernel(block_votes, dim3(1), dim3(90), 0, cudaStream_t{}, out.get()) == cudaSuccess);
    std::vector<int> got = out.read();
    for (int i = 0; i < 90; ++i) {
        const int* row = &got[i * 5];
        REQUIRE(row[0] == 30 && row[1] && !row[2] && row[3] && !row[4]);
    }
    return 0;
}

// ------------------------------------------------------------------------------------------------ a warp's own barrier

// Each lane writes its place and reads its neighbour's, in turns. 0: as it should be; 1: without the barrier between
// write and read; 2: a shuffle in its place; 3: without the barrier between read and the next turn's write.
template <int wrong>
__global__ void neighbours(int* out) {
    __shared__ int tile[64];
    int sum = 0;
    for (int turn = 0; turn < 3; ++turn) {
        tile[threadIdx.x] = int(threadIdx.x) * (turn + 1);
        if (wrong == 2)
            __shfl_sync(everyone, 0, 0);
        else if (wrong != 1)
            __syncwarp();
        sum += tile[threadIdx.x ^ 1];
        if (wrong != 3) __syncwarp();
    }
    out[threadIdx.x] = sum;
}
template <int wrong>
int run_neighbours() {
    Array<int> out(64);
    REQUIRE(launch_kernel(neighbours<wrong>, dim3(2), dim3(64), 0, cudaStream_t{}, out.get()) == cudaSuccess);
    for (int i = 0; i < 64; ++i) REQUIRE(wrong || out.read()[i] == (i ^ 1) * 6);
    return 0;
}
CASE(a_warp_barrier_orders) { return run_neighbours<0>(); }
CASE(misuse_a_warp_barrier_is_missing) { return run_neighbours<1>(); }
CASE(misuse_a_shuffle_orders_nothing) { return run_neighbours<2>(); }
CASE(misuse_the_second_warp_barrier_is_missing) { return run_neighbours<3>(); }

// ------------------------------------------------------------------------------------------------------------- atomics

template <class T>
__global__ void add(T* sums, T* extremes, T* swapped) {
    T value = T(blockIdx.x * blockDim.x + threadIdx.x + 1);
    atomicAdd(&sums[threadIdx.x % 2], value);
    if constexpr (T(0.5) == T(0)) {
        atomicMax(&extremes[0], value);
        atomicMin(&extremes[1], value);
        // The largest once more, by compare and swap.
        T seen = extremes[2 + threadIdx.x];
        while (seen < value) {
            T found = atomicCAS(&extremes[2 + threadIdx.x], seen, value);
            if (found == seen) break;
            seen = found;
        }
    }
    if constexpr (sizeof(T) == 4 || T(0.5) == T(0)) swapped[threadIdx.x] += atomicExch(&swapped[64], value);
}
template <class T>
int check_atomics() {
    Array<T> sums(2), extremes(std::vector<T>(66, T(10))), swapped(65);
    REQUIRE(launch_kernel(add<T>, dim3(1), dim3(64), 0, cudaStream_t{}, sums.get(), extremes.get(), swapped.get()) ==
            cudaSuccess);
    std::vector<T> sum = sums.read(), extreme = extremes.read(), swap = swapped.read();
    REQUIRE(sum[0] == T(32 * 32) && sum[1] == T(33 * 32));
    if (T(0.5) == T(0)) {
        REQUIRE(extreme[0] == T(64) && extreme[1] == T(1));
        for (int i = 0; i < 64; ++i) REQUIRE(extreme[2 + i] == T(i < 10 ? 10 : i + 1));
    }
    // Every value went in once, and all but the last came out.
    if (sizeof(T) == 4 || T(0.5) == T(0)) {
        T all = T(0);
        for (T value : swap) all = all + value;
        REQUIRE(all == T(65 * 32));
    }
    return 0;
}
CASE(atomics_of_unsigneds) { return check_atomics<unsigned>(); }
CASE(atomics_of_unsigned_long_longs) { return check_atomics<unsigned long long>(); }
CASE(atomics_of_ints) { return check_atomics<int>(); }

template <class T>
__global__ void add_only(T* sum) {
    atomicAdd(sum, T(threadIdx.x) + T(0.5));
}
template <class T>
int check_sum() {
    Array<T> sum(1);
    REQUIRE(launch_kernel(add_only<T>, dim3(3), dim3(64), 0, cudaStream_t{}, sum.get()) == cudaSuccess);
    REQUIRE(sum.read()[0] == T(3 * 64 * 32));
    return 0;
}
CASE(atomics_of_floats) { return check_sum<float>(); }
CASE(atomics_of_doubles) { return check_sum<double>(); }

__global__ void extremes_of_both_signs(int* out, long long* wide) {
    int value = int(threadIdx.x) - 20;
    atomicMax(&out[0], value);
    atomicMin(&out[1], value);
    atomicMax(&wide[0], (long long)value << 40);
    atomicMin(&wide[1], (long long)value << 40);
    atomicAdd(&out[2], value < 0 ? -1 : 0);
    if (atomicCAS(&out[3], 0, int(threadIdx.x) + 1) == 0) atomicAdd(&out[4], 1);  // one thread wins
}
CASE(atomics_of_signed_numbers) {
    Array<int> out(5);
    Array<long long> wide(2);
    REQUIRE(launch_kernel(extremes_of_both_signs, dim3(1), dim3(64), 0, cudaStream_t{}, out.get(), wide.get()) ==
            cudaSuccess);
    std::vector<int> got = out.read();
    REQUIRE(got[0] == 43 && got[1] == -20 && got[2] == -20 && got[3] > 0 && got[4] == 1);
    REQUIRE(wide.read()[0] == 43LL << 40 && wide.read()[1] == -(20LL << 40));
    return 0;
}

__global__ void read_beside_atomic(int* out) {
    atomicAdd(&out[0], 1);
    if (threadIdx.x == 0) out[1] = out[0];  // the wrong line: others may be adding
}
CASE(misuse_a_plain_read_beside_an_atomic) {
    Array<int> out(2);
    return launch_kernel(read_beside_atomic, dim3(1), dim3(64), 0, cudaStream_t{}, out.get());
}

// The last block adds up what the others left: no barrier over the grid, but a fence and a counter.
__global__ void last_block(int* parts, unsigned* done, int* out) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = int(blockIdx.x) + 1;
        __threadfence();
        last = atomicAdd(done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    atomicAdd(out, parts[threadIdx.x]);
}
CASE(the_last_block_adds_up) {
    Array<int> parts(16), out(1);
    Array<unsigned> done(1);
    REQUIRE(launch_kernel(last_block, dim3(16), dim3(16), 0, cudaStream_t{}, parts.get(), done.get(), out.get()) ==
            cudaSuccess);
    REQUIRE(out.read()[0] == 16 * 17 / 2);
    return 0;
}
