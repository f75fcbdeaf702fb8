// Kernels whose blocks wait for one another: all blocks of the launch are resident, and grid_barrier() is passed when
// every thread of the grid has come to it. Include this first: on the host it changes what __shared__ is.
#pragma once

#ifndef __CUDACC__
#if defined(__shared__) && !defined(CUDA_ON_HOST_RESIDENT_BLOCKS)
#error "include device/cooperative.cuh before any other header of device/"
#endif
#define CUDA_ON_HOST_RESIDENT_BLOCKS
#endif

#include "device/launch.cuh"

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <cooperative_groups.h>

// What was written before it, in any block, is seen after it by all.
__device__ inline void grid_barrier() { cooperative_groups::this_grid().sync(); }
#endif

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
// The largest grid that launch_cooperative_kernel takes, for blocks of so many threads.
template <class... Parameters>
cudaError_t most_resident_blocks(void (*kernel)(Parameters...), int threads, size_t shared_bytes, int* blocks) {
    int device = 0, multiprocessors = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared_bytes);
    *blocks *= multiprocessors;
    if (error != cudaSuccess) cudaGetLastError();  // or the next launch would return it
    return error;
}

// launch_kernel(…) with all blocks resident; a larger grid than fits is cudaErrorCooperativeLaunchTooLarge.
template <class... Parameters, class... Arguments>
cudaError_t launch_cooperative_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                                      cudaStream_t stream, Arguments... arguments) {
    // CUDA takes the arguments by address, and of the types that the kernel declares.
    return [&](Parameters... converted) {
        void* addresses[] = {&converted..., nullptr};
        cudaError_t error = cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), grid, block, addresses,
                                                        shared_bytes, stream);
        cudaGetLastError();
        return error;
    }(arguments...);
}
#endif
