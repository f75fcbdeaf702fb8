// Threads, blocks, their barrier, shared memory, and CUDA's limits.
#include "device/launch.cuh"

#include "cases.h"

// Each thread writes its place and reads its neighbour's, over several blocks; some threads return before the barrier.
template <bool with_barrier>
__global__ void neighbour(int* out, int last) {
    __shared__ int tile[64];
    if (int(threadIdx.x) > last) return;
    tile[threadIdx.x] = int(threadIdx.x + 100 * blockIdx.x);
    if (with_barrier) __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] = tile[(threadIdx.x + 1) % (last + 1)];
}
CASE(a_barrier_lets_returned_threads_drop_out) {
    for (int last : {63, 40}) {
        Array<int> out(4 * 64);
        REQUIRE(launch_kernel(neighbour<true>, dim3(4), dim3(64), 0, cudaStream_t{}, out.get(), last) == cudaSuccess);
        std::vector<int> got = out.read();
        for (int block = 0; block < 4; ++block)
            for (int thread = 0; thread <= last; ++thread)
                REQUIRE(got[block * 64 + thread] == (thread + 1) % (last + 1) + 100 * block);
    }
    return 0;
}
CASE(misuse_a_barrier_is_missing) {
    Array<int> out(4 * 64);
    return launch_kernel(neighbour<false>, dim3(4), dim3(64), 0, cudaStream_t{}, out.get(), 63);
}

// Read, then overwritten for the next turn by a thread that did not wait for the readers.
template <bool with_barrier>
__global__ void turns(int* out) {
    __shared__ int tile[32];
    int sum = 0;
    for (int turn = 0; turn < 3; ++turn) {
        tile[threadIdx.x] = turn;
        __syncthreads();
        sum += tile[31 - threadIdx.x];
        if (with_barrier) __syncthreads();
    }
    out[threadIdx.x] = sum;
}
CASE(two_barriers_a_turn) {
    Array<int> out(32);
    REQUIRE(launch_kernel(turns<true>, dim3(1), dim3(32), 0, cudaStream_t{}, out.get()) == cudaSuccess);
    for (int sum : out.read()) REQUIRE(sum == 3);
    return 0;
}
CASE(misuse_the_second_barrier_is_missing) {
    Array<int> out(32);
    return launch_kernel(turns<false>, dim3(1), dim3(32), 0, cudaStream_t{}, out.get());
}

// ----------------------------------------------------------------------------------------------- dynamic shared memory

// A block reverses its numbers through dynamic shared memory; its first word is what was there before.
__global__ void reverse(const double* in, double* out) {
    double* tile = dynamic_shared<double>();
    tile[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
CASE(numbers_go_through_dynamic_shared_memory) {
    std::vector<double> numbers;
    for (int i = 0; i < 3 * 50; ++i) numbers.push_back(i * 0.5);
    Array<double> in(numbers), out(numbers.size());
    REQUIRE(launch_kernel(reverse, dim3(3), dim3(50), 50 * sizeof(double), cudaStream_t{}, in.get(), out.get()) ==
            cudaSuccess);
    for (int i = 0; i < 3 * 50; ++i) REQUIRE(out.read()[i] == (i / 50 * 50 + 49 - i % 50) * 0.5);
    return 0;
}

__global__ void last_byte(int* out, int bytes) {
    char* memory = dynamic_shared<char>();
    memory[bytes - 1] = 7;
    *out = memory[bytes - 1];
}
// No other case launches this kernel: what a kernel has opted into stays.
CASE(more_than_48_kb_of_shared_memory_is_asked_for) {
    Array<int> out(1);
    auto launch = [&](int bytes) {
        return launch_kernel(last_byte, dim3(1), dim3(1), size_t(bytes), cudaStream_t{}, out.get(), bytes);
    };
    REQUIRE(launch(48 * 1024) == cudaSuccess);
    REQUIRE(launch(48 * 1024 + 1) == cudaErrorInvalidValue);
    REQUIRE(set_shared_memory_limit(last_byte, 60 * 1024) == cudaSuccess);
    REQUIRE(launch(60 * 1024) == cudaSuccess && out.read()[0] == 7);
    REQUIRE(set_shared_memory_limit(last_byte, 50 * 1024) == cudaSuccess);  // takes nothing back
    REQUIRE(launch(60 * 1024) == cudaSuccess);
    REQUIRE(set_shared_memory_limit(last_byte, 300 * 1024) == cudaErrorInvalidValue);
    REQUIRE(launch(60 * 1024) == cudaSuccess);  // which the refusal is no error of
#ifndef __CUDACC__
    REQUIRE(set_shared_memory_limit(last_byte, 227 * 1024) == cudaSuccess);
    REQUIRE(set_shared_memory_limit(last_byte, 227 * 1024 + 1) == cudaErrorInvalidValue);
#endif
    return 0;
}

CASE(misuse_dynamic_shared_memory_out_of_bounds) {
    Array<double> in(50), out(50);
    return launch_kernel(reverse, dim3(1), dim3(50), 49 * sizeof(double), cudaStream_t{}, in.get(), out.get());
}

#ifndef __CUDACC__
__global__ void read_before_written(float* out) { *out = dynamic_shared<float>()[0]; }
CASE(dynamic_shared_memory_is_nan_at_first) {
    Array<float> out(1);
    REQUIRE(launch_kernel(read_before_written, dim3(2), dim3(1), sizeof(float), nullptr, out.get()) == cudaSuccess);
    REQUIRE(isnan(out.read()[0]));
    return 0;
}
#endif

// --------------------------------------------------------------------------------------------------- bounds and limits

__global__ void ones(float* out) { out[threadIdx.x] = 1; }
CASE(misuse_a_write_out_of_bounds) {
    Array<float> out(31);
    return launch_kernel(ones, dim3(1), dim3(32), 0, cudaStream_t{}, out.get());
}

__global__ void beyond_the_tile(int* out) {
    __shared__ int tile[8];
    tile[threadIdx.x] = 1;
    __syncthreads();
    *out = tile[0];
}
CASE(misuse_shared_memory_out_of_bounds) {
    Array<int> out(1);
    return launch_kernel(beyond_the_tile, dim3(1), dim3(9), 0, cudaStream_t{}, out.get());
}
__global__ void beyond_the_tile_by_pointer(int* out, int index) {
    __shared__ int tile[8];
    int* volatile pointer = tile;  // so that the compiler does not know the bounds
    pointer[index] = 1;
    *out = tile[0];
}
CASE(misuse_shared_memory_out_of_bounds_by_pointer) {
    Array<int> out(1);
    return launch_kernel(beyond_the_tile_by_pointer, dim3(1), dim3(1), 0, cudaStream_t{}, out.get(), 8);
}

struct alignas(16) Four {
    float element[4];
};
__global__ void store_four(float* out) { *reinterpret_cast<Four*>(out) = Four{}; }
CASE(aligned_packs) {
    Array<float> out(8);
    REQUIRE(launch_kernel(store_four, dim3(1), dim3(1), 0, cudaStream_t{}, out.get() + 4) == cudaSuccess);
    return 0;
}
CASE(misuse_a_misaligned_pack) {
    Array<float> out(8);
    return launch_kernel(store_four, dim3(1), dim3(1), 0, cudaStream_t{}, out.get() + 1);
}

__global__ void hit(int* hits) {
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    ++hits[block * blockDim.x * blockDim.y * blockDim.z + thread];
}
// Whether `error` is one that refuses these dimensions. On a GPU the driver's answer may come through as
// cudaErrorInvalidValue: which of the two it is, CUDA's documentation does not settle, and it is not compared there.
bool refused(cudaError_t error, dim3 grid, dim3 block) {
    bool as_expected = error == cudaErrorInvalidConfiguration;
#ifdef __CUDACC__
    as_expected |= error == cudaErrorInvalidValue;
#endif
    if (!as_expected)
        std::printf("grid (%u, %u, %u) of blocks (%u, %u, %u): %s\n", grid.x, grid.y, grid.z, block.x, block.y, block.z,
                    cudaGetErrorString(error));
    return as_expected;
}
CASE(limits_are_launch_errors_and_indices_cover_three_dimensions) {
    Array<int> hits(2 * 3 * 4 * 5 * 6 * 7);
    auto launch = [&](dim3 grid, dim3 block) { return launch_kernel(hit, grid, block, 0, cudaStream_t{}, hits.get()); };
    REQUIRE(launch({2, 3, 4}, {5, 6, 7}) == cudaSuccess);
    for (int count : hits.read()) REQUIRE(count == 1);
    for (dim3 grid : {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(1, 65536), dim3(1, 1, 65536), dim3(0x80000000u)})
        REQUIRE(refused(launch(grid, {1}), grid, {1}));
    for (dim3 block :
         {dim3(0), dim3(1, 0), dim3(1, 1, 0), dim3(1025), dim3(32, 33), dim3(1, 1, 65), dim3(65536, 65536)})
        REQUIRE(refused(launch({1}, block), {1}, block));
    REQUIRE(launch({1}, {1}) == cudaSuccess);
    REQUIRE(std::string(cudaGetErrorString(cudaErrorInvalidConfiguration)) == "invalid configuration argument");
    return 0;
}

// --------------------------------------------------------------------------------------------------------------- order

#ifndef __CUDACC__
__global__ void in_order(int* next, int* order) {
    order[atomicAdd(next, 1)] = int(blockIdx.x * blockDim.x + threadIdx.x);
}
CASE(backwards_turns_the_order_round) {
    for (bool backwards : {false, true}) {
        Array<int> next(1), order(3 * 70);
        cuda_on_host::backwards = backwards;
        REQUIRE(launch_kernel(in_order, dim3(3), dim3(70), 0, nullptr, next.get(), order.get()) == cudaSuccess);
        cuda_on_host::backwards = false;
        for (int i = 0; i < 3 * 70; ++i) REQUIRE(order.read()[i] == (backwards ? 3 * 70 - 1 - i : i));
    }
    return 0;
}

// Every value there and back; and between two neighbours, the middle and the floats on either side of it.
template <class T, class To, class From>
int round_trips(unsigned infinity, To to, From from) {
    for (unsigned sign : {0u, 0x8000u})
        for (unsigned bits = 0; bits <= 0x7fff; ++bits) {
            float value = to(T{uint16_t(sign | bits)});
            REQUIRE(isnan(value) == (bits > infinity));
            if (isnan(value)) {
                REQUIRE(isnan(to(from(value))));
                continue;
            }
            REQUIRE(from(value).bits == (sign | bits));
            if (bits >= infinity) continue;
            // Beyond the largest number the neighbour is what would follow it, and stands for Inf.
            double next = bits + 1 < infinity ? to(T{uint16_t(sign | (bits + 1))})
                                              : 2.0 * value - to(T{uint16_t(sign | (bits - 1))});
            float middle = float((double(value) + next) / 2), zero = 0 * value;
            REQUIRE(from(middle).bits == (sign | (bits + (bits & 1))));
            REQUIRE(from(nextafterf(middle, zero)).bits == (sign | bits));
            REQUIRE(from(nextafterf(middle, 2 * value + copysignf(1, value))).bits == (sign | (bits + 1)));
        }
    return 0;
}
CASE(half_rounds_to_nearest_even) {
    return round_trips<__half>(0x7c00, __half2float, [](float f) { return __float2half(f); });
}
CASE(bfloat16_rounds_to_nearest_even) {
    return round_trips<__nv_bfloat16>(0x7f80, __bfloat162float, [](float f) { return __float2bfloat16(f); });
}
CASE(pairs_and_high_products) {
    __half2 halves = __floats2half2_rn(1, -2);
    __nv_bfloat162 bfloat16s = __floats2bfloat162_rn(1, -2);
    REQUIRE(halves.x.bits == 0x3c00 && halves.y.bits == 0xc000);
    REQUIRE(bfloat16s.x.bits == 0x3f80 && bfloat16s.y.bits == 0xc000);
    REQUIRE(__umulhi(0xffffffffu, 0xfffffff0u) == 0xffffffefu);
    return 0;
}
#endif
