// bench.py's launches from C++: bench LAUNCHES REPEATS prints microseconds a launch, a line a repeat.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "bench_images.h"

int main(int, char** words) try {
    const int launches = std::atoi(words[1]), repeats = std::atoi(words[2]);
    cubin::use_device(0);
    const cubin::Driver& cuda = cubin::driver();
    cubin::Result (*allocate)(void**, size_t), (*wait)();
    cuda.find(allocate, "cuMemAlloc_v2"), cuda.find(wait, "cuCtxSynchronize");
    void* x = nullptr;
    cuda.check(allocate(&x, 4096), "cuMemAlloc");
    cubin::Program program(bench_images::images);
    cubin::Kernel& add_one = program["add_one"];
    const cubin::Launch how({1});
    for (int repeat = -1; repeat < repeats; ++repeat) {  // the first one warms up
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < launches; ++i) add_one(how, x, 1024);
        const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - start;
        cuda.check(wait(), "cuCtxSynchronize");
        if (repeat >= 0) std::printf("%.4f\n", passed.count() / launches);
    }
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
