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

    // The same in two steps, for who reads a number long before it is used: to widen it, or to choose between loads of
    // two sizes, is to wait for it. Both words are loads of 32 bits, of 32-bit numbers the same one twice.
    struct Words {
        unsigned low, high;
    };
    __device__ Words read(long long i) const {
        const unsigned* low = static_cast<const unsigned*>(data) + (i << int(wide));
        return {low[0], low[wide]};
    }
    __device__ long long number(const Words& words) const {
        return wide ? (long long)((unsigned long long)words.high << 32 | words.low) : (long long)int(words.low);
    }
};
