// Ids, offsets, keys: integers of 32 or 64 bits, known at the launch, read as 64, so that what is added to one
// cannot wrap. One kernel serves both.
#pragma once

#include "device/launch.cuh"

struct Integers {
    const void* data;
    bool wide;

    __host__ __device__ explicit operator bool() const { return data != nullptr; }
    __device__ long long operator[](long long i) const {
        return wide ? static_cast<const long long*>(data)[i] : static_cast<const int*>(data)[i];
    }
};
