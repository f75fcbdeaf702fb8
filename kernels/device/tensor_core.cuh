// Products of small matrices by the threads of a warp, on tensor cores: mma.sync, and ldmatrix, which reads its operands
// from shared memory. On the host the lanes exchange their registers and do the same sums in the same places, so that
// what a lane holds, and which addresses it gives, is tested there.
//
// Every operand lies in shared memory with k contiguous, and a step takes 32 bytes of it: 16 numbers of half or bfloat16,
// 8 of tf32. Seen as 32-bit registers both are one layout (PTX ISA, "Matrix fragments for mma.m16n8k8" and "…k16"); with
// g = lane / 4 and t = lane % 4, and bytes counted from the step's first:
//
//     a[0]: row g, bytes 4t…       a[1]: row g + 8, bytes 4t…      a[2]: row g, bytes 16 + 4t…     a[3]: row g + 8, …
//     b[0]: column g, bytes 4t…    b[1]: column g, bytes 16 + 4t…
//     c[0], c[1]: row g, columns 2t and 2t + 1                     c[2], c[3]: row g + 8, the same columns
//
// They take the upper 19 bits of a float as tf32, cutting the others off: tf32.cuh rounds.
#pragma once

#include "device/vector.cuh"

constexpr int step_bytes = 32;

template <class T>
constexpr bool is_half = false;  // NVRTC has no std::is_same
template <>
constexpr bool is_half<__half> = true;

// Four matrices of 8 rows by 16 bytes. Lane 8i + r gives the address of row r of matrix i, a multiple of 16; each lane
// gets into registers[i] bytes 4t to 4t + 3 of row g of matrix i.
__device__ inline void load_matrices(unsigned (&registers)[4], const void* row) {
#ifdef __CUDA_ARCH__
    unsigned address = unsigned(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(address)
                 : "memory");
#elif !defined(__CUDACC__)
    cuda_on_host::with_lanes(row, [&](auto of) {
        int g = cuda_on_host::lane() / 4, t = cuda_on_host::lane() % 4;
        for (int i = 0; i < 4; ++i) {
            const char* other = static_cast<const char*>(of(8 * i + g));
            if (reinterpret_cast<uintptr_t>(other) % 16) {
                cuda_on_host::fail("ldmatrix: lane %d gives an address that is no multiple of 16", 8 * i + g);
                cuda_on_host::stop();
            }
            memcpy(&registers[i], other + 4 * t, 4);
        }
    });
#endif
}

#ifndef __CUDACC__
namespace cuda_on_host {
// Number i of the register; the tensor cores read the upper 19 bits of a float.
template <class T>
float number_of(unsigned bits, int i) {
    if constexpr (sizeof(T) == 4) {
        float value;
        memcpy(&value, &bits, 4);
        if (isnan(value)) return value;
        bits &= ~0x1fffu;
        memcpy(&value, &bits, 4);
        return value;
    } else {
        T value;
        value.bits = uint16_t(bits >> 16 * i);
        return widen(value);
    }
}
}  // namespace cuda_on_host
#endif

// c += a bᵀ, 16 rows by 8 columns; T: float (as tf32), __half or __nv_bfloat16.
template <class T>
__device__ inline void multiply_step(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define FUSED_MMA(shape)                                                                                        \
    asm("mma.sync.aligned." shape " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"   \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (sizeof(T) == 4) FUSED_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
    else if constexpr (is_half<T>) FUSED_MMA("m16n8k16.row.col.f32.f16.f16.f32");
    else FUSED_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
#undef FUSED_MMA
#elif defined(__CUDA_ARCH__)
    __trap();  // before sm_80 there is neither tf32 nor bfloat16: the launch refuses
#elif !defined(__CUDACC__)
    struct Given {
        unsigned a[4], b[2];
    } own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    cuda_on_host::with_lanes(&own, [&](auto of) {
        constexpr int numbers = 4 / sizeof(T);
        int g = cuda_on_host::lane() / 4, t = cuda_on_host::lane() % 4;
        for (int i = 0; i < 4; ++i)
            for (int half = 0; half < 2; ++half)
                for (int k = 0; k < 4; ++k)
                    for (int e = 0; e < numbers; ++e) {
                        unsigned row = static_cast<const Given*>(of(4 * g + k))->a[2 * half + i / 2];
                        unsigned column = static_cast<const Given*>(of(4 * (2 * t + i % 2) + k))->b[half];
                        c[i] += cuda_on_host::number_of<T>(row, e) * cuda_on_host::number_of<T>(column, e);
                    }
    });
#endif
}
