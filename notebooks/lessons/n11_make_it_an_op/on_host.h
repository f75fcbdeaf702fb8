// What a text takes of PyTorch's CUDA headers, for g++: the current stream, the guard of the device, the launch's error.
#pragma once

#include <cstdlib>
#include <type_traits>

#include "check/host/cuda_on_host.h"

namespace lecture {
inline cudaError_t last_error = cudaSuccess;

// The arguments are converted as a call's are: a void* is no float*. By the environment, a check asks for a launch that
// fails, or for one that is not run: it fails if it has too few threads for so many elements, or gets another number.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::type_identity_t<Parameters>... arguments) {
    if (std::getenv("LECTURE_LAUNCH_FAILS")) {
        last_error = cudaErrorInvalidConfiguration;
        return;
    }
    if (const char* elements = std::getenv("LECTURE_ELEMENTS")) {
        const long long n = std::atoll(elements), threads = (long long)grid.x * grid.y * grid.z * block.x;
        const bool enough = threads >= n && grid.x <= 0x7fffffffu;
        last_error = enough && (long long)(..., arguments) == n ? cudaSuccess : cudaErrorInvalidValue;
        return;
    }
    last_error = launch_kernel(kernel, grid, block, 0, nullptr, arguments...);
}
}  // namespace lecture

namespace c10::cuda {
struct CUDAStream {
    operator cudaStream_t() const { return nullptr; }
    cudaStream_t stream() const { return nullptr; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
struct CUDAGuard {
    template <class Device>
    explicit CUDAGuard(Device) {}
};
struct OptionalCUDAGuard : CUDAGuard {
    using CUDAGuard::CUDAGuard;
    OptionalCUDAGuard() : CUDAGuard(nullptr) {}
    template <class Device>
    void set_device(Device) {}
    void set_index(int) {}
};
}  // namespace c10::cuda

namespace at::cuda {
using namespace c10::cuda;
}  // namespace at::cuda

inline cudaError_t cudaGetLastError() {
    cudaError_t error = lecture::last_error;
    lecture::last_error = cudaSuccess;
    return error;
}
#define C10_CUDA_CHECK(call)                                                      \
    do {                                                                          \
        cudaError_t error = (call);                                               \
        TORCH_CHECK(error == cudaSuccess, "CUDA error: ", cudaGetErrorString(error)); \
    } while (0)
#define AT_CUDA_CHECK(call) C10_CUDA_CHECK(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
