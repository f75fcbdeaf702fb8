// CUDA's runtime as far as launching a kernel takes it, for g++ and without CUDA: what an op's launch() calls is here, on
// the driver (cubin/launcher.h). So the text that nvcc compiles for a GPU compiles for the host alone.
//
// Kernels have no bodies in such a build (host_side.py takes them out): a kernel's address stands for it, and its mangled
// name, which the dynamic loader knows, says which one it is. Its first launch asks for the code, which NVRTC compiles under
// the same name, by the function that fused_compile_by was given.
//
// Errors keep CUDA's numbers, which are the driver's. What NVRTC or a cubin has to say is in cudaGetErrorString's words.
#pragma once

#include <cxxabi.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "cubin/launcher.h"

// noipa: else two kernels whose bodies are gone could become one.
#define __global__ __attribute__((noipa, visibility("default")))
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __cluster_dims__(...)
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

#define CUDA_VECTOR(name, type)                                    \
    struct alignas(2 * sizeof(type)) name##2 { type x, y; };       \
    struct name##3 { type x, y, z; };                              \
    struct alignas(sizeof(type) < 8 ? 4 * sizeof(type) : 16) name##4 { type x, y, z, w; };
CUDA_VECTOR(char, signed char)
CUDA_VECTOR(uchar, unsigned char)
CUDA_VECTOR(short, short)
CUDA_VECTOR(ushort, unsigned short)
CUDA_VECTOR(int, int)
CUDA_VECTOR(uint, unsigned)
CUDA_VECTOR(longlong, long long)
CUDA_VECTOR(ulonglong, unsigned long long)
CUDA_VECTOR(float, float)
CUDA_VECTOR(double, double)
#undef CUDA_VECTOR
struct __half {
    unsigned short bits;
};
struct __nv_bfloat16 {
    unsigned short bits;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

using cudaStream_t = struct CUstream_st*;

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorCooperativeLaunchTooLarge = 720,
    cudaErrorUnknown = 999,
};
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributeNonPortableClusterSizeAllowed = 14,
};
struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    int ptxVersion, maxDynamicSharedSizeBytes;
};

enum cudaLaunchAttributeID {
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
};
union cudaLaunchAttributeValue {
    struct {
        unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
    char all[64];
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    alignas(8) cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned numAttrs;
};

namespace host_side {

namespace {  // a library's own: another op's has other kernels

// From Python: compiles the kernel of that name, mangled and not, for sm_<arch>, and writes to `answer` where its cubin is,
// or, if it returns something else than 0, what went wrong.
using Compile = int (*)(const char* symbol, const char* name, int arch, char* answer, size_t size);
Compile compile = nullptr;
constexpr int interrupted = 2;

// The last error of this thread that was more than a number.
struct Last {
    cudaError_t error = cudaSuccess;
    std::string words;
};
thread_local Last last;

// Runs what throws a cubin::Error, and gives that as an error of CUDA's.
template <class Run>
cudaError_t as_error(Run run) {
    try {
        run();
        return cudaSuccess;
    } catch (const cubin::Error& error) {
        last = {error.code ? cudaError_t(error.code) : cudaErrorUnknown, error.what()};
        return last.error;
    }
}

// What the driver has beside what a launch takes (cubin/libcuda.h).
struct More {
    cubin::Result (*memset_async)(unsigned long long, unsigned char, size_t, void*);
    cubin::Result (*most_clusters)(int*, cubin::Function, const cubin::Configuration*);

    explicit More(const cubin::Driver& driver) {
        driver.find(memset_async, "cuMemsetD8Async", false);
        driver.find(most_clusters, "cuOccupancyMaxActiveClusters", false);  // null before CUDA 11.8
    }
};
const More& more() {
    static const More once(cubin::driver());
    return once;
}

int device_attribute(int attribute) {
    int device = 0, value = 0;
    const cubin::Driver& driver = cubin::driver();
    driver.check(driver.current_device(&device), "cuCtxGetDevice");
    driver.check(driver.device_attribute(&value, attribute, device), "cuDeviceGetAttribute");
    return value;
}

// 90 for sm_90: of the current device, whose like the others need not be.
int architecture() {
    static std::atomic<int> of_device[64];  // 0: not asked yet
    int device = 0;
    cubin::driver().check(cubin::driver().current_device(&device), "cuCtxGetDevice");
    int arch = device < 64 ? of_device[device].load(std::memory_order_relaxed) : 0;
    if (arch) return arch;
    arch = 10 * device_attribute(cudaDevAttrComputeCapabilityMajor) + device_attribute(cudaDevAttrComputeCapabilityMinor);
    if (device < 64) of_device[device] = arch;
    return arch;
}

// The kernels of this library that have been launched, each for every architecture that it was launched on.
class Kernels {
   public:
    cubin::Kernel& operator[](const void* stub) {
        const int arch = architecture();
        cubin::Kernel* kernel = known({stub, arch});
        return kernel ? *kernel : compiled(stub, arch);
    }

   private:
    using Key = std::pair<const void*, int>;
    cubin::Kernel* known(Key key) {
        std::shared_lock lock(mutex_);
        auto place = kernels_.find(key);
        return place == kernels_.end() ? nullptr : place->second;
    }

    // Without the lock: whoever compiles takes Python's own, which another thread may hold that waits for ours.
    cubin::Kernel& compiled(const void* stub, int arch) {
        Dl_info symbol{};
        if (!dladdr(stub, &symbol) || symbol.dli_saddr != stub || !symbol.dli_sname)
            throw cubin::Error("a kernel that is static, in an unnamed namespace or a template of a local type has no name "
                               "by which NVRTC could compile it: give it external linkage");
        if (!compile) throw cubin::Error(std::string("nobody compiles ") + symbol.dli_sname);
        const std::unique_ptr<char, void (*)(void*)> name(
            abi::__cxa_demangle(symbol.dli_sname, nullptr, nullptr, nullptr), std::free);
        std::vector<char> answer(1 << 16);
        const bool is_c = std::strncmp(symbol.dli_sname, "_Z", 2) != 0;  // and "f" would be demangled to "float"
        const int failed = compile(symbol.dli_sname, is_c ? symbol.dli_sname : name.get(), arch, answer.data(), answer.size());
        if (failed == interrupted) std::raise(SIGINT);  // again: Python, which raised it in there, takes it behind this call
        if (failed) throw cubin::Error(answer.data());
        auto program = std::make_unique<cubin::Program>(cubin::Program::from_files({answer.data()}));
        cubin::Kernel* kernel = &(*program)[symbol.dli_sname];
        std::unique_lock lock(mutex_);
        auto [place, is_first] = kernels_.emplace(Key{stub, arch}, kernel);
        if (is_first) program.release();  // for as long as the process lives
        return *place->second;
    }

    std::shared_mutex mutex_;
    std::map<Key, cubin::Kernel*> kernels_;
};
cubin::Kernel& kernel_of(const void* stub) {
    static Kernels& kernels = *new Kernels;
    return kernels[stub];
}
cubin::Function function_of(const void* stub) { return kernel_of(stub).function(); }

constexpr unsigned most_attributes = 4;

cubin::Configuration driver_configuration(const cudaLaunchConfig_t& from, cubin::Attribute* attributes) {
    for (unsigned i = 0; i < from.numAttrs; ++i) {
        if (i == most_attributes) throw cubin::Error("a launch with more than 4 attributes");
        attributes[i].id = from.attrs[i].id;
        std::memcpy(attributes[i].value, &from.attrs[i].val, sizeof attributes[i].value);
    }
    return {{from.gridDim.x, from.gridDim.y, from.gridDim.z},
            {from.blockDim.x, from.blockDim.y, from.blockDim.z},
            unsigned(from.dynamicSmemBytes), from.stream, attributes, from.numAttrs};
}

cudaError_t launch(const void* kernel, const cudaLaunchConfig_t& configuration, void** arguments, const size_t* sizes,
                   size_t count_of_arguments) {
    return as_error([&] {
        cubin::Attribute attributes[most_attributes];
        const cubin::Configuration all = driver_configuration(configuration, attributes);
        const auto function = kernel_of(kernel).function(sizes, count_of_arguments);
        const cubin::Driver& driver = cubin::driver();
        const auto& [grid, block, shared, stream, attribute, count] = all;
        const cubin::Result result =
            count ? driver.launch_with(&all, function, arguments, nullptr)
                  : driver.launch(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream,
                                  arguments, nullptr);
        if (result)
            driver.check(result, "a launch of " + std::to_string(grid[0]) + " blocks of " + std::to_string(block[0]) +
                                     " threads with " + std::to_string(shared) + " bytes of shared memory");
    });
}

int most_resident_clusters(const void* kernel, const cudaLaunchConfig_t& configuration) {
    cubin::Attribute attributes[most_attributes];
    const cubin::Configuration all = driver_configuration(configuration, attributes);
    const auto function = function_of(kernel);
    if (!more().most_clusters) throw cubin::Error("clusters take a driver of CUDA 11.8 or later");
    int clusters = 0;
    cubin::driver().check(more().most_clusters(&clusters, function, &all), "cuOccupancyMaxActiveClusters");
    return clusters;
}

}  // namespace
}  // namespace host_side

extern "C" __attribute__((visibility("default"))) void fused_compile_by(host_side::Compile compile) {
    host_side::compile = compile;
}

static const char* cudaGetErrorString(cudaError_t error) {
    thread_local std::string told;
    const host_side::Last last = std::exchange(host_side::last, {});  // once: the next error may have none
    if (error && last.error == error) return (told = last.words).c_str();
    switch (error) {
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorCooperativeLaunchTooLarge: return "too many blocks in cooperative launch";
        default: return "unknown error";
    }
}
// An error is returned once, by the call that has it.
static cudaError_t cudaGetLastError() { return cudaSuccess; }

static cudaError_t cudaGetDevice(int* device) {
    return host_side::as_error([&] {
        const cubin::Driver& driver = cubin::driver();
        driver.check(driver.current_device(device), "cuCtxGetDevice");
    });
}
static cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    return host_side::as_error([&] {
        const cubin::Driver& driver = cubin::driver();
        driver.check(driver.device_attribute(value, attribute, device), "cuDeviceGetAttribute");
    });
}
static cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
    return host_side::as_error([&] {
        constexpr int shared_size_bytes = 1, ptx_version = 5;
        const cubin::Driver& driver = cubin::driver();
        cubin::Function function = host_side::function_of(kernel);
        auto ask = [&](int attribute) {
            int value = 0;
            driver.check(driver.get_attribute(&value, attribute, function), "cuFuncGetAttribute");
            return value;
        };
        *attributes = {size_t(ask(shared_size_bytes)), ask(ptx_version),
                       ask(cudaFuncAttributeMaxDynamicSharedMemorySize)};
    });
}
static cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
    return host_side::as_error([&] {
        const cubin::Driver& driver = cubin::driver();
        driver.check(driver.set_attribute(host_side::function_of(kernel), attribute, value), "cuFuncSetAttribute");
    });
}
template <class... Parameters>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*kernel)(Parameters...),
                                           const cudaLaunchConfig_t* configuration) {
    auto stub = reinterpret_cast<const void*>(kernel);
    return host_side::as_error([&] { *clusters = host_side::most_resident_clusters(stub, *configuration); });
}
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* configuration, void (*kernel)(Parameters...),
                               Arguments... arguments) {
    // The driver takes the arguments by address, and of the types that the kernel declares.
    return [&](Parameters... converted) {
        void* addresses[] = {&converted..., nullptr};
        const size_t sizes[] = {sizeof(Parameters)..., 0};
        return host_side::launch(reinterpret_cast<const void*>(kernel), *configuration, addresses, sizes,
                                 sizeof...(Parameters));
    }(arguments...);
}
static cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
    return host_side::as_error([&] {
        auto address = reinterpret_cast<unsigned long long>(pointer);
        if (!host_side::more().memset_async) throw cubin::Error("the driver has no cuMemsetD8Async");
        cubin::driver().check(host_side::more().memset_async(address, static_cast<unsigned char>(value), bytes, stream),
                              "cuMemsetD8Async");
    });
}
