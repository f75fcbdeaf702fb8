// What a thread computes of a row: its tile of pairs, or a slice of columns of a tile of vectors' gradients.
#pragma once

#include "device/launch.cuh"
#include "device/vector.cuh"

namespace dot_interaction {

constexpr int tile = 9;  // vectors on each side of a thread's block of pairs
__host__ __device__ inline int sides(int features) { return features / tile + 1; }
__host__ __device__ inline int triangle(int i) { return i * (i - 1) / 2; }  // the place of pair (i, 0)

// Four columns at a time of a vector in shared memory.
__device__ inline Pack<float, 4> four(const float* vector) { return load<4>(vector); }

// sums[m][0, slice) += weight(m) · vector[0, slice)
template <int slice, class Weight>
__device__ inline void add_product(float (&sums)[tile][slice], const float* vector, Weight weight) {
    Pack<float, 4> parts[slice / 4];
#pragma unroll
    for (int p = 0; p < slice / 4; ++p) parts[p] = four(vector + 4 * p);
#pragma unroll
    for (int m = 0; m < tile; ++m) {
        float factor = weight(m);
#pragma unroll
        for (int e = 0; e < slice; ++e) sums[m][e] += factor * parts[e / 4].element[e % 4];
    }
}

}  // namespace dot_interaction
