// How a kernel is launched, and finds its dynamic shared memory, by whoever compiles it: nvcc for a GPU, g++ for the
// host, NVRTC not at all (it compiles kernels only, so what launches is hidden from it).
#pragma once

#if defined(__CUDACC_RTC__)  // which has no headers of CUDA's: halves.cuh is for whoever takes halves
#elif defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include "check/host/cuda_on_host.h"
#endif

#ifdef __CUDACC__
// The dynamic shared memory of this block, `shared_bytes` of its launch, aligned for any type.
template <class T>
__device__ inline T* dynamic_shared() {
    extern __shared__ __align__(128) unsigned char dynamic_shared_memory[];
    return reinterpret_cast<T*>(dynamic_shared_memory);
}
#endif

// Programmatic dependent launch, from sm_90 on: a kernel that is launched early (launch_kernel_early) may begin while the
// one before it in the stream, its predecessor, still runs. So its blocks are in place, and have done what reads no
// memory, when the predecessor ends: in a row of short kernels the ramp of each launch then costs little.
//
// Every thread of such a kernel calls wait_for_predecessor before it reads or writes global memory: until then the
// predecessor may still write what it reads, and read what it writes. Launched as usual, the kernel does not wait there.
__device__ inline void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A successor that is launched early may begin once every block of this kernel has called this or has ended: where it
// is called first, as soon as the last blocks have their places. It says nothing of what this kernel has written.
__device__ inline void let_successor_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
// Enqueues kernel<<<grid, block, shared_bytes, stream>>>(arguments…) and returns the launch's error.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                          cudaStream_t stream, Arguments... arguments) {
    cudaLaunchConfig_t configuration = {};
    configuration.gridDim = grid;
    configuration.blockDim = block;
    configuration.dynamicSmemBytes = shared_bytes;
    configuration.stream = stream;
    cudaError_t error = cudaLaunchKernelEx(&configuration, kernel, arguments...);
    if (error != cudaSuccess) cudaGetLastError();  // else PyTorch would take it for the error of its next launch
    return error;
}

// The same for a kernel that waits for its predecessor, by code of sm_90 or later: it may begin before that has ended.
template <class... Parameters, class... Arguments>
cudaError_t launch_waiting_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                                  cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t configuration = {};
    configuration.gridDim = grid;
    configuration.blockDim = block;
    configuration.dynamicSmemBytes = shared_bytes;
    configuration.stream = stream;
    configuration.attrs = &attribute;
    configuration.numAttrs = 1;
    cudaError_t error = cudaLaunchKernelEx(&configuration, kernel, arguments...);
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

// The same for any kernel that calls wait_for_predecessor. Code for an older GPU does not wait, even if a newer one has
// compiled it from PTX, and is launched as usual.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                                cudaStream_t stream, Arguments... arguments) {
    cudaFuncAttributes compiled;
    cudaError_t error = cudaFuncGetAttributes(&compiled, reinterpret_cast<const void*>(kernel));
    if (error != cudaSuccess) {
        cudaGetLastError();
        return error;
    }
    return compiled.ptxVersion >= 90 ? launch_waiting_kernel(kernel, grid, block, shared_bytes, stream, arguments...)
                                     : launch_kernel(kernel, grid, block, shared_bytes, stream, arguments...);
}

// Enqueues zeros for `bytes` bytes.
inline cudaError_t clear_async(void* pointer, size_t bytes, cudaStream_t stream) {
    return cudaMemsetAsync(pointer, 0, bytes, stream);
}

// Allows launches of `kernel` with up to `bytes` of dynamic shared memory, on this device: above 48 KB, its static memory
// included, CUDA wants to be asked. More than the device has is an error, of this call and not of the next launch. All that
// the device has is asked for, and nothing ever taken back: another thread may be about to launch the kernel with more.
template <class... Parameters>
cudaError_t set_shared_memory_limit(void (*kernel)(Parameters...), size_t bytes) {
    auto function = reinterpret_cast<const void*>(kernel);
    cudaFuncAttributes own;
    int device = 0, most = 0;
    cudaError_t error = cudaFuncGetAttributes(&own, function);
    if (error == cudaSuccess && bytes <= size_t(own.maxDynamicSharedSizeBytes)) return cudaSuccess;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess && bytes + own.sharedSizeBytes > size_t(most)) return cudaErrorInvalidValue;
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     most - int(own.sharedSizeBytes));
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}
#endif
