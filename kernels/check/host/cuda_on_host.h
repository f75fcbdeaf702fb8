// Enough of CUDA to run the kernels without a GPU, for g++ and C++20: launch.cuh includes it wherever nvcc is not the
// compiler. CUDA threads take turns on one core (cuda_on_host_blocks.h), so that every run is the same; the blocks of a
// launch run one after the other, those of a cooperative launch by turns, on a simulated device of 4 multiprocessors.
//
// What that finds: an access out of bounds or misaligned (-fsanitize=address,undefined); a missing __syncthreads() or
// __syncwarp(), and a plain access beside an atomic (-fsanitize=thread); threads or blocks that wait for one that never
// comes, and a launch beyond CUDA's limits (errors here too); a result that depends on the order of blocks or threads
// (cuda_on_host::backwards turns it round); and wrong arithmetic and indices.
//
// What it does not find: races between the blocks of one launch, unless it is a cooperative one; the rounding of the
// GPU's approximate functions; an endless loop of one thread that waits for another without a barrier; and a static
// __shared__ array read before it is written, which is zero or what the block before left (dynamic shared memory is
// NaN at first). One __shared__ array over 48 KB is an error of the compiler if it gets -Werror=larger-than=49152, as
// in CMakeLists.txt; the sum over a kernel's arrays only nvcc knows.
//
// A __shared__ array is a static one, so there is one of it in the program. Where several blocks are resident each
// needs its own: device/cooperative.cuh defines CUDA_ON_HOST_RESIDENT_BLOCKS, and then it is thread_local and a
// resident block has a thread of the operating system. The price: AddressSanitizer puts no zones around thread_local
// arrays, so an index beyond their ends is found where the compiler knows the array (UBSan), not through a pointer.
// Dynamic shared memory has its zones either way.
#pragma once

#define CUDA_ON_HOST

#include <math.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

#include "check/host/cuda_on_host_blocks.h"
#include "check/host/cuda_on_host_numbers.h"
#include "check/host/cuda_on_host_warps.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#ifdef CUDA_ON_HOST_RESIDENT_BLOCKS
#define __shared__ static thread_local
#else
#define __shared__ static
#endif

// ------------------------------------------------------------------------------------------------- the runtime's part

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorLaunchTimeout = 702,
    cudaErrorLaunchFailure = 719,
    cudaErrorCooperativeLaunchTooLarge = 720,
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
        case cudaErrorLaunchFailure: return "unspecified launch failure";
        case cudaErrorCooperativeLaunchTooLarge: return "too many blocks in cooperative launch";
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

// The simulated device's numbers: but for that of multiprocessors they are an H100's. ThreadSanitizer does not take as
// many threads as that.
#ifdef __SANITIZE_THREAD__
constexpr unsigned threads_of_a_multiprocessor = 1536;
#else
constexpr unsigned threads_of_a_multiprocessor = 2048;
#endif
constexpr unsigned multiprocessors = 4, blocks_of_a_multiprocessor = 32;
constexpr size_t shared_bytes_by_default = 48 * 1024, reserved_shared_bytes = 1024;
inline size_t shared_bytes_of_a_multiprocessor = 228 * 1024, shared_bytes_of_a_block = 227 * 1024;  // tests may lower it

// Launches of more blocks are not run and return cudaErrorLaunchTimeout; 0: no limit.
inline unsigned long long most_blocks = 0;

// Dynamic shared memory that a kernel has opted into.
inline std::map<const void*, size_t>& shared_memory_limits() {
    static std::map<const void*, size_t> limits;
    return limits;
}

inline cudaError_t check(const void* kernel, dim3 grid, dim3 block, size_t shared_bytes) {
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z) return cudaErrorInvalidConfiguration;
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return cudaErrorInvalidConfiguration;
    if (block.x > most_threads || block.y > most_threads || block.z > 64 ||
        1ULL * block.x * block.y * block.z > most_threads)
        return cudaErrorInvalidConfiguration;
    auto limit = shared_memory_limits().find(kernel);
    if (shared_bytes > shared_bytes_by_default &&
        (limit == shared_memory_limits().end() || shared_bytes > limit->second ||
         shared_bytes > shared_bytes_of_a_block))
        return cudaErrorInvalidValue;
    // One product more could overflow: 2^31 · 2^16 · 2^16.
    if (most_blocks && (1ULL * grid.x * grid.y > most_blocks || 1ULL * grid.x * grid.y * grid.z > most_blocks))
        return cudaErrorLaunchTimeout;
    return cudaSuccess;
}

// How many blocks of so many threads the device holds at once.
inline unsigned most_resident_blocks(unsigned threads, size_t shared_bytes) {
    unsigned whole_warps = (threads + lanes_of_a_warp - 1) / lanes_of_a_warp * lanes_of_a_warp;
    unsigned blocks = threads_of_a_multiprocessor / whole_warps;
    if (blocks > blocks_of_a_multiprocessor) blocks = blocks_of_a_multiprocessor;
    size_t fit = shared_bytes_of_a_multiprocessor / (shared_bytes + reserved_shared_bytes);
    return multiprocessors * unsigned(blocks < fit ? blocks : fit);
}

}  // namespace cuda_on_host

inline cudaError_t clear_async(void* pointer, size_t bytes, cudaStream_t) { return cudaMemset(pointer, 0, bytes); }

template <class... Parameters>
cudaError_t set_shared_memory_limit(void (*kernel)(Parameters...), size_t bytes) {
    if (bytes > cuda_on_host::shared_bytes_of_a_block) return cudaErrorInvalidValue;
    if (bytes > cuda_on_host::shared_bytes_by_default)
        cuda_on_host::shared_memory_limits()[reinterpret_cast<const void*>(kernel)] = cuda_on_host::shared_bytes_of_a_block;
    return cudaSuccess;
}

// Runs the kernel to its end before it returns; the stream is ignored. What goes wrong in the kernel is the launch's
// error here, and said on stderr.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t,
                          Arguments... arguments) {
    cudaError_t error = cuda_on_host::check(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes);
    if (error != cudaSuccess) return error;
    bool ran = cuda_on_host::run(grid, block, shared_bytes, [&] { kernel(arguments...); });
    return ran ? cudaSuccess : cudaErrorLaunchFailure;
}

// A launch here never begins before the one before it has ended.
template <class... Parameters, class... Arguments>
cudaError_t launch_waiting_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                                  cudaStream_t stream, Arguments... arguments) {
    return launch_kernel(kernel, grid, block, shared_bytes, stream, arguments...);
}
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                                cudaStream_t stream, Arguments... arguments) {
    return launch_kernel(kernel, grid, block, shared_bytes, stream, arguments...);
}

#ifdef CUDA_ON_HOST_RESIDENT_BLOCKS
template <class... Parameters>
cudaError_t most_resident_blocks(void (*)(Parameters...), int threads, size_t shared_bytes, int* blocks) {
    *blocks = int(cuda_on_host::most_resident_blocks(unsigned(threads), shared_bytes));
    return cudaSuccess;
}

template <class... Parameters, class... Arguments>
cudaError_t launch_cooperative_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                                      cudaStream_t, Arguments... arguments) {
    cudaError_t error = cuda_on_host::check(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes);
    if (error != cudaSuccess) return error;
    unsigned most = cuda_on_host::most_resident_blocks(block.x * block.y * block.z, shared_bytes);
    if (1ULL * grid.x * grid.y > most || 1ULL * grid.x * grid.y * grid.z > most)
        return cudaErrorCooperativeLaunchTooLarge;
    bool ran = cuda_on_host::run_resident(grid, block, shared_bytes, [&] { kernel(arguments...); });
    return ran ? cudaSuccess : cudaErrorLaunchFailure;
}

inline void grid_barrier() { cuda_on_host::wait_for_grid(); }
#endif

// ---------------------------------------------------------------------------------------------------- device functions

#define threadIdx (cuda_on_host::thread_index())
#define blockIdx (cuda_on_host::block_index())

inline void __syncthreads() { cuda_on_host::wait_for_block("__syncthreads"); }
inline int __syncthreads_count(int predicate) {
    cuda_on_host::wait_for_block("__syncthreads_count", predicate);
    return int(cuda_on_host::agreed());
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
inline int __syncthreads_and(int predicate) { return __syncthreads_count(!predicate) == 0; }

template <class T>
T* dynamic_shared() {
    return reinterpret_cast<T*>(cuda_on_host::dynamic_shared_memory());
}

inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(unsigned(bits)) : 32; }
template <class T>
T __ldg(const T* pointer) {
    return *pointer;
}
