// Enough of CUDA to run the kernels without a GPU, for g++ and C++20: launch.cuh includes it wherever nvcc is not the
// compiler. A CUDA thread is a fiber: the threads of a block take turns between barriers, in order, so that every run
// is the same; the blocks of a launch run one after the other.
//
// What that finds: an access out of bounds or misaligned (-fsanitize=address,undefined), a missing __syncthreads()
// (-fsanitize=thread), a launch beyond CUDA's limits (an error here too), and wrong arithmetic and indices. What it
// does not: races between blocks, the rounding of the GPU's approximate functions, and shared memory read before it is
// written, which is zero at first. One __shared__ array over 48 KB is an error of the compiler if it gets
// -Werror=larger-than=49152, as in CMakeLists.txt; the sum over a kernel's arrays only nvcc knows.
#pragma once

#include <math.h>
#include <ucontext.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline uint3 blockIdx{};
inline dim3 blockDim, gridDim;

// ------------------------------------------------------------------------------------------------- the runtime's part

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorLaunchTimeout = 702,
    cudaErrorNotSupported = 801,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
using cudaStream_t = struct CUstream_st*;

inline const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorLaunchTimeout: return "the launch timed out and was terminated";
        case cudaErrorNotSupported: return "operation not supported";
    }
    return "unrecognized error code";
}

template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, bytes)) return cudaErrorMemoryAllocation;
    *pointer = static_cast<T*>(memory);
    return cudaSuccess;
}
inline cudaError_t cudaFree(void* pointer) {
    free(pointer);
    return cudaSuccess;
}
inline cudaError_t cudaMemset(void* pointer, int byte, size_t bytes) {
    memset(pointer, byte, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    memcpy(to, from, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

// -------------------------------------------------------------------------------------------------------- the launch

namespace cuda_on_host {

// Launches of more blocks are not run and return cudaErrorLaunchTimeout; 0: no limit.
inline unsigned long long most_blocks = 0;

inline cudaError_t check(dim3 grid, dim3 block, size_t shared_bytes) {
    constexpr unsigned long long most_threads = 1024;
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return cudaErrorInvalidConfiguration;
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return cudaErrorInvalidConfiguration;
    if (block.x > most_threads || block.y > most_threads || block.z > 64 ||
        1ULL * block.x * block.y * block.z > most_threads)
        return cudaErrorInvalidConfiguration;
    if (shared_bytes) return cudaErrorNotSupported;  // there is no dynamic shared memory here
    // One product more could overflow: 2^31 · 2^16 · 2^16.
    if (most_blocks && (1ULL * grid.x * grid.y > most_blocks || 1ULL * grid.x * grid.y * grid.z > most_blocks))
        return cudaErrorLaunchTimeout;
    return cudaSuccess;
}

// A CUDA thread: a context with a stack of its own, which runs until it calls __syncthreads() or returns.
struct Fiber {
    uint3 index{};
    bool returned = true;
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    const void* stack_bottom = nullptr;
    size_t stack_bytes = 0;
    void* for_asan = nullptr;
    void* for_tsan = nullptr;  // to ThreadSanitizer each fiber is a thread
};

inline std::deque<Fiber> fibers;  // kept from launch to launch: making them costs more than running them
inline Fiber scheduler;           // the thread that launches
inline Fiber* current = &scheduler;
inline const std::function<void()>* kernel = nullptr;
inline unsigned round = 0;        // between two barriers every thread of a block runs once: a round
inline long long round_ended[2];  // of this round and of the one before; for ThreadSanitizer, only the addresses count

// ThreadSanitizer holds the fibers to be concurrent, and must not see how the scheduler changes `current` between them.
#define CUDA_ON_HOST_UNSEEN __attribute__((no_sanitize("thread"), noinline))

CUDA_ON_HOST_UNSEEN inline const uint3& thread_index() { return current->index; }

CUDA_ON_HOST_UNSEEN inline void switch_to(Fiber& to) {
    Fiber& from = *current;
    current = &to;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from.for_asan, to.stack_bottom, to.stack_bytes);
#endif
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(to.for_tsan, __tsan_switch_to_fiber_no_sync);
#endif
    swapcontext(&from.context, &to.context);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(from.for_asan, nullptr, nullptr);
#endif
}

// What happened before leave(), on any thread of the last round, happened before enter() in this one. Threads that run
// earlier in this round may have left it already: hence two addresses.
CUDA_ON_HOST_UNSEEN inline void enter() {
#ifdef __SANITIZE_THREAD__
    __tsan_acquire(&round_ended[(round + 1) % 2]);
#endif
}
CUDA_ON_HOST_UNSEEN inline void leave() {
#ifdef __SANITIZE_THREAD__
    __tsan_release(&round_ended[round % 2]);
#endif
}

CUDA_ON_HOST_UNSEEN inline void wait_for_block() {
    leave();
    switch_to(scheduler);
    enter();
}

CUDA_ON_HOST_UNSEEN inline void call_kernels() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack_bottom, &scheduler.stack_bytes);
#endif
    enter();
    for (;;) {
        (*kernel)();
        current->returned = true;
        wait_for_block();
    }
}

inline void make_fiber() {
    Fiber& fiber = fibers.emplace_back();
    fiber.stack_bytes = 64 * 1024;
    fiber.stack = std::make_unique_for_overwrite<char[]>(fiber.stack_bytes);
    fiber.stack_bottom = fiber.stack.get();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = fiber.stack_bytes;
    makecontext(&fiber.context, call_kernels, 0);
#ifdef __SANITIZE_THREAD__
    fiber.for_tsan = __tsan_create_fiber(0);
    scheduler.for_tsan = __tsan_get_current_fiber();
#endif
}

// The scheduler takes part in every round: what it set is seen by the threads, and what they did by it.
CUDA_ON_HOST_UNSEEN inline void next_round() {
    leave();
    ++round;
    enter();
}

// One block. A barrier is passed when every thread has come to it or returned: a thread that returns drops out.
CUDA_ON_HOST_UNSEEN inline void run_block(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i) {
        fibers[i].returned = false;
        fibers[i].index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    }
    for (unsigned running = threads; running > 0;) {
        next_round();
        for (unsigned i = 0; i < threads; ++i) {
            if (fibers[i].returned) continue;
            switch_to(fibers[i]);
            running -= fibers[i].returned;
        }
    }
    next_round();
}

// Calls the kernel once for each CUDA thread, with the built-in variables set.
inline void run(dim3 grid, dim3 block, const std::function<void()>& kernel_call) {
    unsigned threads = block.x * block.y * block.z;
    while (fibers.size() < threads) make_fiber();
    kernel = &kernel_call;
    gridDim = grid;
    blockDim = block;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) {
                blockIdx = {x, y, z};
                run_block(threads);
            }
}

}  // namespace cuda_on_host

#define threadIdx (cuda_on_host::thread_index())

inline void __syncthreads() { cuda_on_host::wait_for_block(); }

// Runs the kernel to its end before it returns; the stream is ignored.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t,
                          Arguments... arguments) {
    cudaError_t error = cuda_on_host::check(grid, block, shared_bytes);
    if (error == cudaSuccess) cuda_on_host::run(grid, block, [&] { kernel(arguments...); });
    return error;
}

// ---------------------------------------------------------------------------------------------- half and bfloat16

struct __half {
    uint16_t bits;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 value) { return std::bit_cast<float>(uint32_t(value.bits) << 16); }

// To the nearest, ties to even: half of the last place is added, less one bit if the kept part is even.
inline __nv_bfloat16 __float2bfloat16(float value) {
    if (isnan(value)) return {0x7fff};
    uint32_t bits = std::bit_cast<uint32_t>(value);
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// Half has 10 bits of mantissa and an exponent biased by 15; float has 23 and 127.
inline float __half2float(__half value) {
    uint32_t sign = uint32_t(value.bits & 0x8000) << 16, exponent = value.bits >> 10 & 31, mantissa = value.bits & 1023;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) return copysignf(float(mantissa) * 0x1p-24f, sign ? -1.0f : 1.0f);
    return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

inline __half __float2half(float value) {
    uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (isnan(value)) return {0x7fff};
    if (magnitude >= std::bit_cast<uint32_t>(65520.0f)) return {uint16_t(sign | 0x7c00)};
    if (magnitude < std::bit_cast<uint32_t>(0x1p-14f))  // subnormal: float addition rounds at the bit wanted, 2^-24
        return {uint16_t(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) & 0xffff))};
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return {uint16_t(sign | ((magnitude >> 13) - ((127 - 15) << 10)))};
}

inline __half2 __floats2half2_rn(float x, float y) { return {__float2half(x), __float2half(y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16(x), __float2bfloat16(y)}; }

// ---------------------------------------------------------------------------------------------------- device functions

inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
