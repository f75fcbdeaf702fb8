// Numbers for cuda_on_host.h: a float's bits; half and bfloat16, storage and the conversions, rounded to the nearest, ties
// to even.
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>

struct __half {
    uint16_t bits;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }

inline float __bfloat162float(__nv_bfloat16 value) { return std::bit_cast<float>(uint32_t(value.bits) << 16); }

// To the nearest, ties to even: half of the last place is added, less one bit if the kept part is even.
inline __nv_bfloat16 __float2bfloat16(float value) {
    if (isnan(value)) return {0x7fff};
    uint32_t bits = std::bit_cast<uint32_t>(value);
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// Half has 10 bits of mantissa and an exponent biased by 15; float has 23 and 127.
inline float __half2float(__half value) {
    uint32_t sign = uint32_t(value.bits & 0x8000) << 16, exponent = value.bits >> 10 & 31, mantissa = value.bits & 1023;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) return copysignf(float(mantissa) * 0x1p-24f, sign ? -1.0f : 1.0f);
    return std::bit_cast<float>(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

inline __half __float2half(float value) {
    uint32_t bits = std::bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (isnan(value)) return {0x7fff};
    if (magnitude >= std::bit_cast<uint32_t>(65520.0f)) return {uint16_t(sign | 0x7c00)};
    if (magnitude < std::bit_cast<uint32_t>(0x1p-14f))  // subnormal: float addition rounds at the bit wanted, 2^-24
        return {uint16_t(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) & 0xffff))};
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return {uint16_t(sign | ((magnitude >> 13) - ((127 - 15) << 10)))};
}

inline __half2 __floats2half2_rn(float x, float y) { return {__float2half(x), __float2half(y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16(x), __float2bfloat16(y)}; }
