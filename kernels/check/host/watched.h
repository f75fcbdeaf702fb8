// What a kernel's text needs for g++ to build it: names, and a launch. The build instruments every load and store
// (-fsanitize=thread, without its library), and watch.cpp, which is built apart and once, looks at each of them.
#pragma once

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "vectors.h"

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __inline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __restrict__
#define __align__(bytes) __attribute__((aligned(bytes)))  // as CUDA has it: behind __shared__ too
// A section of its own, so that watch.cpp knows such an array by its address. There is one of it: blocks take turns.
#define __shared__ static __attribute__((section("shared_memory")))

namespace watch {
dim3 thread_index();
dim3 block_index();
dim3 block_size();
dim3 grid_size();
void barrier();
void launch(dim3 grid, dim3 block, void (*call)(void*), void* what);
[[noreturn]] void stop(const char* status, const char* text);

// The grid, of a launch that has no dynamic shared memory.
inline dim3 without_shared(size_t bytes, dim3 grid) {
    if (bytes) stop("launch", "here the shared bytes in <<<…>>> are 0, and an array has its own __shared__");
    return grid;
}
}  // namespace watch

#define threadIdx (watch::thread_index())
#define blockIdx (watch::block_index())
#define blockDim (watch::block_size())
#define gridDim (watch::grid_size())
#define __syncthreads() (watch::barrier())

constexpr int warpSize = 32;

// Device functions. The fast ones are exact here, and those that round in a direction round to the nearest.
#define LOADS(name)             \
    template <class T>          \
    T name(const T* pointer) {  \
        return *pointer;        \
    }
LOADS(__ldg) LOADS(__ldca) LOADS(__ldcg) LOADS(__ldcs) LOADS(__ldcv) LOADS(__ldlu)
#undef LOADS
#define STORES(name)                      \
    template <class T>                    \
    void name(T* pointer, T value) {      \
        *pointer = value;                 \
    }
STORES(__stcg) STORES(__stcs) STORES(__stwb) STORES(__stwt)
#undef STORES
#define ROUNDED(name, parameters, value)               \
    inline float name##_rn parameters { return value; } \
    inline float name##_rz parameters { return value; } \
    inline float name##_ru parameters { return value; } \
    inline float name##_rd parameters { return value; }
ROUNDED(__frcp, (float a), 1 / a)
ROUNDED(__fsqrt, (float a), sqrtf(a))
ROUNDED(__fadd, (float a, float b), a + b)
ROUNDED(__fsub, (float a, float b), a - b)
ROUNDED(__fmul, (float a, float b), a * b)
ROUNDED(__fdiv, (float a, float b), a / b)
ROUNDED(__fmaf, (float a, float b, float c), fmaf(a, b, c))
ROUNDED(__int2float, (int a), float(a))
ROUNDED(__uint2float, (unsigned a), float(a))
ROUNDED(__ll2float, (long long a), float(a))
ROUNDED(__double2float, (double a), float(a))
#undef ROUNDED
inline float __frsqrt_rn(float a) { return 1 / sqrtf(a); }
inline float __expf(float a) { return expf(a); }
inline float __exp10f(float a) { return powf(10, a); }
inline float __logf(float a) { return logf(a); }
inline float __log2f(float a) { return log2f(a); }
inline float __log10f(float a) { return log10f(a); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float a) { return sinf(a); }
inline float __cosf(float a) { return cosf(a); }
inline float __tanf(float a) { return tanf(a); }
inline float __tanhf(float a) { return tanhf(a); }
inline void __sincosf(float a, float* sine, float* cosine) { *sine = sinf(a), *cosine = cosf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __saturatef(float a) { return a > 0 ? a < 1 ? a : 1 : 0; }  // of NaN it is 0
inline float rsqrtf(float a) { return 1 / sqrtf(a); }
inline double rsqrt(double a) { return 1 / sqrt(a); }
inline float rcbrtf(float a) { return 1 / cbrtf(a); }
inline float normcdff(float z) { return 0.5f * erfcf(-0.70710678f * z); }
inline double normcdf(double z) { return 0.5 * erfc(-0.70710678118654752 * z); }
inline float sinpif(float a) { return float(sin(M_PI * a)); }
inline float cospif(float a) { return float(cos(M_PI * a)); }
inline int __float2int_rz(float a) { return int(a); }
inline int __float2int_rn(float a) { return int(rintf(a)); }
inline int __float2int_ru(float a) { return int(ceilf(a)); }
inline int __float2int_rd(float a) { return int(floorf(a)); }
template <class To, class From>
To same_bits(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline int __float_as_int(float a) { return same_bits<int>(a); }
inline unsigned __float_as_uint(float a) { return same_bits<unsigned>(a); }
inline float __int_as_float(int a) { return same_bits<float>(a); }
inline float __uint_as_float(unsigned a) { return same_bits<float>(a); }
inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __clz(int a) { return a ? __builtin_clz(unsigned(a)) : 32; }

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
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }

// kernel<<<grid, block>>>(arguments) becomes launch_on_host(kernel, grid, block, arguments).
template <class... Parameters, class... Arguments>
__attribute__((no_sanitize("thread"))) void launch_on_host(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                                           Arguments... arguments) {
    auto call = [&]() __attribute__((no_sanitize("thread"))) { kernel(arguments...); };
    watch::launch(grid, block, [](void* what) __attribute__((no_sanitize("thread"))) { (*(decltype(call)*)what)(); },
                  &call);
}
