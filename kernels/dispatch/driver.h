// The few functions of the CUDA driver that launching a cubin takes. They are declared here and found with dlopen, so
// that the core builds without CUDA's headers and tests can put a library of their own in the driver's place.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace driver {

using Function = void*;  // CUfunction
using Result = int;      // CUresult; 0 is success

// CUlaunchAttribute and CUlaunchConfig.
struct Attribute {
    int id;
    alignas(8) char value[64];
};
struct Configuration {
    unsigned grid[3], block[3], shared;
    void* stream;
    Attribute* attributes;
    unsigned count;
};

// How a launch stands to the others: its blocks all resident at once; or begun before its predecessor in the stream has
// ended, which a kernel must wait for itself (griddepcontrol.wait).
enum Kind : int64_t { plain, cooperative, early };

struct Api {
    Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
    Result (*launch_cooperative)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                                 void**);
    Result (*launch_with)(const Configuration*, Function, void**, void**);  // null before CUDA 11.8
    Result (*load_module)(void** module, const void* image);
    Result (*get_function)(Function*, void* module, const char* name);
    Result (*set_attribute)(Function, int attribute, int value);
    Result (*parameter_info)(Function, size_t index, size_t* offset, size_t* bytes);  // null before CUDA 12.4
    Result (*error_name)(Result, const char**);
    Result (*current_context)(void**);
    Result (*primary_context)(void**, int device);
    Result (*set_context)(void*);

    explicit Api(const char* path) {
        void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        TORCH_CHECK(library, "fused_kernels: the CUDA driver is not here: ", dlerror());
        auto find = [&](auto& function, const char* name, bool required = true) {
            function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
            TORCH_CHECK(function || !required, "fused_kernels: ", path, " has no ", name);
        };
        find(launch, "cuLaunchKernel");
        find(launch_cooperative, "cuLaunchCooperativeKernel");
        find(launch_with, "cuLaunchKernelEx", false);
        find(load_module, "cuModuleLoadData");
        find(get_function, "cuModuleGetFunction");
        find(set_attribute, "cuFuncSetAttribute");
        find(parameter_info, "cuFuncGetParamInfo", false);
        find(error_name, "cuGetErrorName");
        find(current_context, "cuCtxGetCurrent");
        find(primary_context, "cuDevicePrimaryCtxRetain");
        find(set_context, "cuCtxSetCurrent");
    }
};

inline std::atomic<const Api*> loaded{nullptr};

// The driver's functions are kept for as long as the process lives: kernels that were loaded need them.
inline void use(const char* path) { loaded = new Api(path); }

inline const Api& api() {
    if (!loaded.load(std::memory_order_acquire)) {
        static const Api once("libcuda.so.1");
        const Api* none = nullptr;
        loaded.compare_exchange_strong(none, &once);
    }
    return *loaded;
}

inline std::string name_of(Result result) {
    const char* name = nullptr;
    if (api().error_name(result, &name) || !name) return "error " + std::to_string(result);
    return name;
}

// A thread that has called nothing of CUDA's runtime yet has no context, and a launch from it would fail.
inline void ensure_context(c10::Device device) {
    void* context = nullptr;
    if (!device.is_cuda() || (api().current_context(&context) == 0 && context)) return;
    Result result = api().primary_context(&context, device.index());
    if (result == 0) result = api().set_context(context);
    TORCH_CHECK(result == 0, "fused_kernels: no context on ", device, ": ", name_of(result));
}

// The kernel `name` of a cubin, loaded into the current device's context. `parameters`: how many it must take.
inline Function load(const std::string& path, const std::string& name, int64_t shared, int64_t parameters) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> image((std::istreambuf_iterator<char>(file)), {});
    TORCH_CHECK(!image.empty(), "fused_kernels: ", path, " is missing or empty: remove it, and it is compiled again");
    void* module = nullptr;
    Function function = nullptr;
    Result result = api().load_module(&module, image.data());
    TORCH_CHECK(result != 209, "fused_kernels: ", path, " was compiled for another architecture than this GPU's (",
                name_of(result), ")");
    TORCH_CHECK(result == 0, "fused_kernels: the driver does not load ", path, " (", name_of(result),
                "): it may be damaged; remove it, and it is compiled again");
    result = api().get_function(&function, module, name.c_str());
    TORCH_CHECK(result == 0, "fused_kernels: ", path, " has no kernel ", name, " (", name_of(result), ")");
    if (api().parameter_info) {
        size_t offset, bytes;
        int64_t taken = 0;
        while (api().parameter_info(function, size_t(taken), &offset, &bytes) == 0) ++taken;
        TORCH_CHECK(taken == parameters, "fused_kernels: the kernel ", name, " takes ", taken, " parameters, and is given ",
                    parameters);
    }
    if (shared > 48 * 1024) {  // more has to be asked for
        constexpr int max_dynamic_shared_size_bytes = 8;
        result = api().set_attribute(function, max_dynamic_shared_size_bytes, int(shared));
        TORCH_CHECK(result == 0, "fused_kernels: the kernel ", name, " needs ", shared,
                    " bytes of shared memory a block, more than this GPU has (", name_of(result), ")");
    }
    return function;
}

inline void launch(Function function, const unsigned (&grid)[3], unsigned threads, unsigned shared, Kind kind,
                   void* stream, void** parameters) {
    Result result;
    if (kind == early && api().launch_with) {
        constexpr int programmatic_stream_serialization = 6;
        Attribute attribute{programmatic_stream_serialization, {1}};
        Configuration configuration{{grid[0], grid[1], grid[2]}, {threads, 1, 1}, shared, stream, &attribute, 1};
        result = api().launch_with(&configuration, function, parameters, nullptr);
    } else if (kind == cooperative) {
        result = api().launch_cooperative(function, grid[0], grid[1], grid[2], threads, 1, 1, shared, stream, parameters);
    } else {
        result = api().launch(function, grid[0], grid[1], grid[2], threads, 1, 1, shared, stream, parameters, nullptr);
    }
    TORCH_CHECK(result == 0, "fused_kernels: launching a kernel of ", grid[0], "×", grid[1], "×", grid[2], " blocks of ",
                threads, " threads with ", shared, " bytes of shared memory failed: ", name_of(result));
}

// The device's current stream as CUDA knows it; null for the CPU. libtorch's C interface, which is stable, is looked up,
// so that one build of the core serves a torch with CUDA and one without.
inline void* current_stream(c10::Device device) {
    if (!device.is_cuda()) return nullptr;
    using Current = int (*)(int32_t, void**);
    static const Current current = [] {
        void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
        return reinterpret_cast<Current>(library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr);
    }();
    void* stream = nullptr;
    TORCH_CHECK(current && current(device.index(), &stream) == 0, "fused_kernels: torch names no current CUDA stream");
    return stream;
}

}  // namespace driver
