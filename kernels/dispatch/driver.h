// The launcher of kernels/cubin for the core: contexts and streams are torch's, and so are the errors.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "cubin/launcher.h"

namespace driver {

using cubin::Function;
using cubin::Kind;

// What `run` gives; its error as one of torch's.
template <class Run>
auto as_torch(Run run) {
    try {
        return run();
    } catch (const cubin::Error& error) {
        TORCH_CHECK(false, "fused_kernels: ", error.what());
    }
}

// A thread that has called nothing of CUDA's runtime yet has no context, and a launch from it would fail.
inline void ensure_context(c10::Device device) {
    void* context = nullptr;
    as_torch([&] {
        if (!device.is_cuda() || (cubin::driver().current_context(&context) == 0 && context)) return;
        cubin::use_device(device.index());
    });
}

// The kernel `name` of a cubin, loaded into the current device's context. `parameters`: how many it must take.
inline Function load(const std::string& path, const std::string& name, int64_t shared, int64_t parameters) {
    return as_torch([&] {
        auto program = std::make_unique<cubin::Program>(cubin::Program::from_files({path}));
        cubin::Kernel& kernel = (*program)[name];
        const size_t taken = kernel.parameter_sizes().size();
        if (int64_t(taken) != parameters)
            throw cubin::Error("the kernel " + name + " takes " + std::to_string(taken) + " parameters, and is given " +
                               std::to_string(parameters));
        const Function function = kernel.function(shared);
        program.release();  // plans name the function for as long as the process lives
        return function;
    });
}

inline void launch(Function function, const unsigned (&grid)[3], unsigned threads, unsigned shared, Kind kind,
                   void* stream, void** parameters) {
    as_torch([&] {
        const cubin::Shape shape{{grid[0], grid[1], grid[2]}, {threads, 1, 1}, {0, 0, 0}, shared, kind, stream};
        cubin::launch(function, shape, parameters);
    });
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
