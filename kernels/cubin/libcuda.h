// The functions of the CUDA driver that a launch takes. They are declared here and found with dlopen: so a program builds
// without CUDA's headers and libraries, and a test puts a library of its own in the driver's place.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <list>
#include <memory>
#include <type_traits>

#include "image.h"

namespace cubin {

using Function = void*;  // CUfunction
using Result = int;      // CUresult; 0 is success

// CUlaunchAttribute and CUlaunchConfig.
struct Attribute {
    int id;
    alignas(8) unsigned char value[64];
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

// A context. Another one may come to lie where an ended one lay: then their ids differ.
struct Context {
    void* address = nullptr;
    unsigned long long id = 0;
    bool operator==(const Context& other) const { return address == other.address && id == other.id; }
};

struct Driver {
    Result (*init)(unsigned);
    Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
    Result (*launch_cooperative)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                                 void**);
    Result (*launch_with)(const Configuration*, Function, void**, void**);  // null before CUDA 11.8
    Result (*load_module)(void** module, const void* image);
    Result (*unload_module)(void* module);
    Result (*get_function)(Function*, void* module, const char* name);
    Result (*get_attribute)(int* value, int attribute, Function);
    Result (*set_attribute)(Function, int attribute, int value);
    Result (*parameter_info)(Function, size_t index, size_t* offset, size_t* bytes);  // null before CUDA 12.4
    Result (*error_name)(Result, const char**);
    Result (*current_context)(void**);
    Result (*context_id)(void*, unsigned long long*);  // null before CUDA 12.0
    Result (*primary_context)(void**, int device);
    Result (*set_context)(void*);
    Result (*push_context)(void*);
    Result (*pop_context)(void**);
    Result (*is_capturing)(void* stream, int* status);  // into a graph; 0: it is not
    Result (*current_device)(int*);
    Result (*device_attribute)(int* value, int attribute, int device);

    explicit Driver(const std::string& path) : path_(path), library_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        if (!library_) throw Error(std::string("the CUDA driver is not here: ") + dlerror());
        find(init, "cuInit");
        find(launch, "cuLaunchKernel");
        find(launch_cooperative, "cuLaunchCooperativeKernel");
        find(launch_with, "cuLaunchKernelEx", false);
        find(load_module, "cuModuleLoadData");
        find(unload_module, "cuModuleUnload");
        find(get_function, "cuModuleGetFunction");
        find(get_attribute, "cuFuncGetAttribute");
        find(set_attribute, "cuFuncSetAttribute");
        find(parameter_info, "cuFuncGetParamInfo", false);
        find(error_name, "cuGetErrorName");
        find(current_context, "cuCtxGetCurrent");
        find(context_id, "cuCtxGetId", false);
        find(primary_context, "cuDevicePrimaryCtxRetain");
        find(set_context, "cuCtxSetCurrent");
        find(push_context, "cuCtxPushCurrent_v2");
        find(pop_context, "cuCtxPopCurrent_v2");
        find(is_capturing, "cuStreamIsCapturing");
        find(current_device, "cuCtxGetDevice");
        find(device_attribute, "cuDeviceGetAttribute");
    }

    // Another function of the driver's, for a program that needs more than launches.
    template <class F>
    void find(F& function, const char* name, bool required = true) const {
        function = reinterpret_cast<std::decay_t<F>>(dlsym(library_, name));
        if (!function && required) throw Error(path_ + " has no " + name);
    }
    std::string name_of(Result result) const {
        const char* name = nullptr;
        if (error_name(result, &name) || !name) return "error " + std::to_string(result);
        return name;
    }
    // The context at this address; its id is 0 if it has ended, or the driver tells none.
    Context context_at(void* address) const {
        Context found{address};
        if (!context_id || context_id(address, &found.id)) found.id = 0;
        return found;
    }
    void check(Result result, const std::string& what) const {
        if (result) throw Error(what + ": " + name_of(result), result);
    }

   private:
    std::string path_;
    void* library_;  // for as long as the process lives: kernels that were loaded need it
};

inline std::atomic<const Driver*> loaded_driver{nullptr};

// Another library in the place of libcuda.so.1, from now on.
inline void use_driver(const std::string& path) {
    static auto* const kept = new std::list<Driver>;  // what was loaded with one is unloaded with it
    loaded_driver = &kept->emplace_back(path);
}

inline const Driver& driver() {
    if (!loaded_driver.load(std::memory_order_acquire)) {
        static const Driver& once = *new Driver("libcuda.so.1");  // a static Program that ends unloads with it
        const Driver* none = nullptr;
        loaded_driver.compare_exchange_strong(none, &once);
    }
    return *loaded_driver;
}

// Gives this thread the context that CUDA's runtime, and so PyTorch, uses on the device.
inline void use_device(int device) {
    const Driver& cuda = driver();
    void* context = nullptr;
    const std::string what = "no context on CUDA device " + std::to_string(device);
    cuda.check(cuda.init(0), what);
    cuda.check(cuda.primary_context(&context, device), what);
    cuda.check(cuda.set_context(context), what);
}

// A launch as the driver takes it; a cluster of 0: none is asked for.
struct Shape {
    unsigned grid[3], block[3] = {1, 1, 1}, cluster[3] = {0, 0, 0}, shared = 0;
    Kind kind = plain;
    void* stream = nullptr;
};

inline void launch(Function function, const Shape& shape, void** parameters) {
    const Driver& cuda = driver();
    const auto& [grid, block, cluster, shared, kind, stream] = shape;
    const bool is_clustered = cluster[0] != 0;
    Result result;
    if (cuda.launch_with && (is_clustered || kind == early)) {
        constexpr int cooperative_id = 2, cluster_id = 4, programmatic_stream_serialization_id = 6;
        Attribute attributes[2];
        unsigned count = 0;
        if (is_clustered) {
            attributes[count] = {cluster_id, {}};
            std::memcpy(attributes[count++].value, cluster, sizeof cluster);
        }
        if (kind != plain) attributes[count++] = {kind == early ? programmatic_stream_serialization_id : cooperative_id, {1}};
        Configuration all{{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared, stream, attributes, count};
        result = cuda.launch_with(&all, function, parameters, nullptr);
    } else if (is_clustered) {
        throw Error("a launch of clusters takes a driver of CUDA 11.8 or later");
    } else if (kind == cooperative) {
        result = cuda.launch_cooperative(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream,
                                         parameters);
    } else {  // an early one, too: without the attribute its predecessor has ended
        result = cuda.launch(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream, parameters,
                             nullptr);
    }
    if (result == 0) return;
    auto by = [](const unsigned(&size)[3]) {
        return std::to_string(size[0]) + "×" + std::to_string(size[1]) + "×" + std::to_string(size[2]);
    };
    const bool is_flat = block[1] == 1 && block[2] == 1;
    throw Error("launching a kernel of " + by(grid) + " blocks of " + (is_flat ? std::to_string(block[0]) : by(block)) +
                    " threads" + (is_clustered ? " in clusters of " + by(cluster) : "") + " with " +
                    std::to_string(shared) + " bytes of shared memory failed: " + cuda.name_of(result),
                result);
}

}  // namespace cubin
