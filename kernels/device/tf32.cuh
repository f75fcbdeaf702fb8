// float rounded to tf32, to the nearest number with 10 bits behind the leading one: for tensor cores, which take the upper
// 19 bits of a float as tf32 and cut the others off. tf32.py says what becomes of a sum of cut products.
#pragma once

#include "device/launch.cuh"

// x and half of tf32's last place, 2^(e - 11) where x = ± m 2^e: cut, that is x rounded, and NaN, Inf and what is larger
// than tf32's largest number come out as by cvt.rna.tf32.f32. What is smaller than 2^-126 is cut as it is.
__device__ inline float tf32_operand(float x) {
    float power = __uint_as_float(__float_as_uint(x) & 0xff800000u);  // ± 2^e
    return x + power * (1.0f / 2048);
}
