// How a kernel is launched, by whoever compiles it: nvcc for a GPU, g++ for the host, NVRTC not at all (it compiles
// kernels only, so everything from launch_kernel on is hidden from it).
#pragma once

#if defined(__CUDACC_RTC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#elif defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include "check/cuda_on_host.h"
#endif

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
// Enqueues kernel<<<grid, block, shared_bytes, stream>>>(arguments…) and returns the launch's error.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                          cudaStream_t stream, Arguments... arguments) {
    kernel<<<grid, block, shared_bytes, stream>>>(arguments...);
    return cudaGetLastError();
}
#endif
