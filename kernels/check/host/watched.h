// What a kernel's text needs for g++ to build it: names, and a launch. The build instruments every load and store
// (-fsanitize=thread, without its library), and watch.cpp, which is built apart and once, looks at each of them.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdio.h>

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
// A section of its own, so that watch.cpp knows such an array by its address. There is one of it: blocks take turns.
#define __shared__ static __attribute__((section("shared_memory")))

namespace watch {
dim3 thread_index();
dim3 block_index();
dim3 block_size();
dim3 grid_size();
void barrier();
void launch(dim3 grid, dim3 block, void (*call)(void*), void* what);
}  // namespace watch

#define threadIdx (watch::thread_index())
#define blockIdx (watch::block_index())
#define blockDim (watch::block_size())
#define gridDim (watch::grid_size())
#define __syncthreads() (watch::barrier())

template <class T>
T __ldg(const T* pointer) {
    return *pointer;
}
inline float normcdff(float z) { return 0.5f * erfcf(-0.70710678f * z); }
inline float __expf(float z) { return expf(z); }
inline float __fdividef(float a, float b) { return a / b; }
template <class T>
T max(T a, T b) {
    return a > b ? a : b;
}
template <class T>
T min(T a, T b) {
    return a < b ? a : b;
}
// As on a GPU, where max and min of floats are fmaxf and fminf: of NaN and a number they give the number.
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }

// kernel<<<grid, block>>>(arguments) becomes launch_on_host(kernel, grid, block, arguments).
template <class... Parameters, class... Arguments>
__attribute__((no_sanitize("thread"))) void launch_on_host(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                                           Arguments... arguments) {
    auto call = [&]() __attribute__((no_sanitize("thread"))) { kernel(arguments...); };
    watch::launch(grid, block, [](void* what) __attribute__((no_sanitize("thread"))) { (*(decltype(call)*)what)(); },
                  &call);
}
