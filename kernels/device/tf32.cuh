// float rounded to tf32, to the nearest number with 10 bits behind the leading one: for tensor cores, which take the upper
// 19 bits of a float as tf32 and cut the others off. tf32.py says what becomes of a sum of cut products, and of halves,
// NaN, Inf, and what is very small or large.
#pragma once

#include "device/launch.cuh"

// The upper 19 bits hold the result. On a GPU the others are anything. On the host they are zero: there the products of
// Triton's interpreter take what a kernel kept, and do not cut it. Before sm_90 half of tf32's last place is added, which
// is 2^(e - 11) where x = ± m 2^e.
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
