// Products of matrices by a warpgroup, four neighbouring warps, on tensor cores: wgmma, of sm_90a alone. Both operands
// lie in shared memory; the sums are in registers. On the host each thread adds up its own sums from the same places.
//
// An operand lies in panels: its rows, 128 bytes of k of each, one behind the other, from a multiple of 1,024 bytes on.
// A row's 16-byte pieces are permuted (`swizzled`: PTX ISA, "Shared Memory Matrix Layout", 128-byte swizzling), so that
// the eight rows that are read at a time meet in no bank. A step takes 32 bytes of k.
//
//     sums[4 n + i] of thread 32 w + 4 g + t: row 16 w + g + 8 (i / 2) of a, column 8 n + 2 t + i % 2
//
// Products read shared memory as the copy engine does: what threads wrote there is seen if each of them calls
// order_before_products() before the barrier that the product follows. What they wrote into another block's takes both:
// order_before_products(true) before the cluster's barrier, and the other one by those who multiply, after it.
#pragma once

#include "device/tensor_core.cuh"

constexpr int warpgroup_threads = 128, panel_row = 128, panel_alignment = 1024;
constexpr int product_rows = 64, product_columns = 32;

// Where byte `byte` of a panel's row lies in it.
__host__ __device__ constexpr int swizzled(int row, int byte) { return byte ^ row % 8 * 16; }

__device__ inline void order_before_products([[maybe_unused]] bool in_other_blocks = false) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (in_other_blocks) asm volatile("fence.proxy.async.shared::cluster;" ::: "memory");
    else asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // which waits for less
#endif
}

// All threads of a warpgroup. On the host all of a block: its warpgroups come equally often.
__device__ inline void warpgroup_barrier([[maybe_unused]] int warpgroup) {
#ifdef __CUDA_ARCH__
    asm volatile("bar.sync %0, %1;" ::"r"(warpgroup + 1), "n"(warpgroup_threads) : "memory");
#else
    __syncthreads();
#endif
}

// The dynamic shared memory of this block, for panels.
__device__ inline char* panel_memory() {
#ifdef __CUDACC__
    extern __shared__ __align__(panel_alignment) char dynamic_panel_memory[];
    return dynamic_panel_memory;
#else
    return dynamic_shared<char>();
#endif
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
namespace wgmma {
// Of a panel: eight rows begin 1,024 bytes behind the eight before.
__device__ inline unsigned long long descriptor(const void* panel) {
    const unsigned long long address = unsigned(__cvta_generic_to_shared(panel));
    return (address & 0x3ffff) >> 4 | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}
template <class T>
__device__ inline void step(float (&c)[16], unsigned long long a, unsigned long long b) {
#define FUSED_SUMS(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define FUSED_WGMMA(shape, transposed) \
    asm volatile( \
        "wgmma.mma_async.sync.aligned." shape \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1" transposed ";" \
        : FUSED_SUMS(0), FUSED_SUMS(4), FUSED_SUMS(8), FUSED_SUMS(12) \
        : "l"(a), "l"(b))
    if constexpr (sizeof(T) == 4) FUSED_WGMMA("m64n32k8.f32.tf32.tf32", "");
    else if constexpr (is_half<T>) FUSED_WGMMA("m64n32k16.f32.f16.f16", ", 0, 0");
    else FUSED_WGMMA("m64n32k16.f32.bf16.bf16", ", 0, 0");
#undef FUSED_WGMMA
#undef FUSED_SUMS
}
}  // namespace wgmma
#endif

// sums += a bᵀ, a panel of 64 rows by one of 32. All of the warpgroup's threads; when it returns, the panels have been
// read.
template <class T>
__device__ inline void multiply_panels(float (&sums)[16], const char* a, const char* b) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const unsigned long long rows = wgmma::descriptor(a), columns = wgmma::descriptor(b);
    // What is done to the sums in registers may not come between the fence and the products, nor before these are there.
    auto settle = [&] {
#pragma unroll
        for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
    };
    settle();
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < panel_row / step_bytes; ++k)
        wgmma::step<T>(sums, rows + k * step_bytes / 16, columns + k * step_bytes / 16);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    settle();
#elif defined(__CUDA_ARCH__)
    __trap();  // compiled for another architecture than sm_90a: it is not launched
#elif !defined(__CUDACC__)
    const int thread = int(threadIdx.x) % warpgroup_threads, g = thread % 32 / 4, t = thread % 4;
    for (int i = 0; i < 16; ++i) {
        const int row = thread / 32 * 16 + g + i % 4 / 2 * 8, column = i / 4 * 8 + 2 * t + i % 2;
        for (int byte = 0; byte < panel_row; byte += 4) {
            unsigned one, other;
            memcpy(&one, a + row * panel_row + swizzled(row, byte), 4);
            memcpy(&other, b + column * panel_row + swizzled(column, byte), 4);
            for (int e = 0; e < 4 / int(sizeof(T)); ++e)
                sums[i] += cuda_on_host::number_of<T>(one, e) * cuda_on_host::number_of<T>(other, e);
        }
    }
#endif
}
