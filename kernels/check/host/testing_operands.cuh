// What tensor cores take a number for, in tests.
#pragma once

#include "check/host/testing.cuh"

namespace testing {

// Whether what lies halfway between two numbers of tf32 becomes the even one (device/tf32.cuh).
inline bool halves_to_even() {
    int major = 0;
#ifdef __CUDACC__
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
        return false;
#endif
    return major >= 9;
}

// What the tensor cores, or the chip's memory, make of a number between layers.
template <class T>
double as_operand(double value, bool tf32) {
    T narrowed = rounded<T>(value);
    if constexpr (std::is_same_v<T, float>)
        if (tf32) {
            static const bool even = halves_to_even();
            unsigned bits;
            std::memcpy(&bits, &narrowed, 4);
            if (std::isfinite(narrowed)) bits = (bits + 0x1000 - (even & ~(bits >> 13))) & ~0x1fffu;
            std::memcpy(&narrowed, &bits, 4);
        }
    return to_double(narrowed);
}

}  // namespace testing
