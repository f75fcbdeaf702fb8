// float rounded to tf32, to the nearest number with 10 bits behind the leading one: for tensor cores, which take the upper
// 19 bits of a float as tf32 and cut the others off. tf32.py says what becomes of a sum of cut products, and of halves,
// NaN, Inf, and what is very small or large.
#pragma once

#include "device/launch.cuh"

// In the upper 19 bits; on a GPU the others are anything, on the host they are zero, for the interpreter's products, which
// take what a kernel kept, do not cut. Before sm_90: x and half of tf32's last place, 2^(e - 11) where x = ± m 2^e, which
// cut is x rounded.
__device__ inline float rounded_to_tf32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    unsigned bits;
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
#else
    float power = __uint_as_float(__float_as_uint(x) & 0xff800000u);  // ± 2^e
    float raised = x + power * (1.0f / 2048);
#ifdef __CUDACC__
    return raised;
#else
    return __uint_as_float(__float_as_uint(raised) & ~0x1fffu);
#endif
#endif
}
