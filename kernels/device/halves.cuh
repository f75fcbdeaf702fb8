// half and bfloat16 for NVRTC, which has no headers of CUDA's: what vector.cuh takes of them, rounded to the nearest, ties
// to even, as there.
#pragma once

#ifdef __CUDACC_RTC__
struct __half {
    unsigned short bits;
};
struct __nv_bfloat16 {
    unsigned short bits;
};

__device__ inline float __half2float(__half value) {
    float widened;
    asm("cvt.f32.f16 %0, %1;" : "=f"(widened) : "h"(value.bits));
    return widened;
}
__device__ inline __half __float2half(float value) {
    __half narrowed;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrowed.bits) : "f"(value));
    return narrowed;
}
__device__ inline float __bfloat162float(__nv_bfloat16 value) { return __uint_as_float(unsigned(value.bits) << 16); }
__device__ inline __nv_bfloat16 __float2bfloat16(float value) {
    __nv_bfloat16 narrowed;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrowed.bits) : "f"(value));
#else  // no such instruction
    unsigned bits = __float_as_uint(value);
    bits += 0x7fff + (bits >> 16 & 1);
    narrowed.bits = value == value ? bits >> 16 : 0x7fff;
#endif
    return narrowed;
}
#endif
