// Reductions over the rows of a matrix, in an order that the shape alone sets, so that every run gives the same bits.
#pragma once

#include "device/vector.cuh"

constexpr int lanes_of_a_warp = 32;

// NVRTC has neither INFINITY nor this builtin, and 1 / 0 would be a division at run time.
template <class C>
__device__ inline C infinity() {
#ifdef __CUDACC_RTC__
    return C(__longlong_as_double(0x7ff0000000000000));
#else
    return C(__builtin_huge_val());
#endif
}

struct Sum {
    template <class C>
    __device__ static C neutral() {
        return C(0);
    }
    __device__ static float of(float a, float b) { return a + b; }
    __device__ static double of(double a, double b) { return a + b; }
};
// fmax returns the number where the other argument is NaN. A caller that must keep NaN looks for it separately.
struct Maximum {
    template <class C>
    __device__ static C neutral() {
        return -infinity<C>();
    }
    __device__ static float of(float a, float b) { return fmaxf(a, b); }
    __device__ static double of(double a, double b) { return fmax(a, b); }
};

// The values of `lanes` neighbours of a warp combined, a power of two of them. For a whole warp the loop is unrolled:
// in a softmax of bfloat16 its counting would take a third of all instructions. mask: the lanes that call it, where
// others of the warp do not.
template <class Operation, class C>
__device__ inline C reduce_lanes(C value, int lanes, unsigned mask = 0xffffffff) {
    if (lanes >= lanes_of_a_warp) {
#pragma unroll
        for (int distance = lanes_of_a_warp / 2; distance > 0; distance /= 2)
            value = Operation::of(value, __shfl_xor_sync(mask, value, distance));
        return value;
    }
#pragma unroll 1
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        value = Operation::of(value, __shfl_xor_sync(mask, value, distance));
    return value;
}

// The values of a row's threads combined, for each of them. A row's threads are those of one threadIdx.y: up to 32, a
// power of two, by shuffles, or a whole block of whole warps, by shared memory too. Every thread of the block calls it.
template <class Operation, class C>
__device__ inline C reduce_row(C value) {
    int lanes = int(blockDim.x);
    value = reduce_lanes<Operation>(value, lanes);
    if (lanes <= lanes_of_a_warp) return value;

    __shared__ C of_warps[lanes_of_a_warp];
    int warp = int(threadIdx.x) / lanes_of_a_warp, lane = int(threadIdx.x) % lanes_of_a_warp;
    __syncthreads();  // a call before this one has been read
    if (lane == 0) of_warps[warp] = value;
    __syncthreads();
    value = lane < lanes / lanes_of_a_warp ? of_warps[lane] : Operation::template neutral<C>();
    return reduce_lanes<Operation>(value, lanes_of_a_warp);
}

#ifndef __CUDACC_RTC__
// Rows too few to fill a GPU are cut into parts, a block each. As row_parts in reduce.py.
constexpr long long most_parts = 512;   // of all rows together
constexpr long long part_block = 4096;  // columns that a part is a multiple of: 16 for each of 256 threads

struct RowParts {
    long long count, columns;  // parts of a row, and columns in each but the last

    __host__ RowParts(long long rows, long long total_columns, long long few_rows, long long block)
        : count(1), columns(total_columns) {
        if (rows >= few_rows) return;
        long long blocks = (total_columns + block - 1) / block, at_most = most_parts / rows;
        if (at_most < 1) at_most = 1;
        columns = (blocks + at_most - 1) / at_most * block;
        count = (total_columns + columns - 1) / columns;
    }
};
#endif
