// What the pointwise kernels share: 16-byte accesses, the arithmetic type, and columns without a division.
#pragma once

#include "device/halves.cuh"
#include "device/launch.cuh"

// float for every dtype but double, which computes in itself.
template <class T>
struct AccumulatorOf {
    using type = float;
};
template <>
struct AccumulatorOf<double> {
    using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

__device__ inline float widen(float value) { return value; }
__device__ inline double widen(double value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ inline T narrow(Accumulator<T> value) {
    return value;
}
template <>
__device__ inline __half narrow<__half>(float value) {
    return __float2half(value);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
    return __float2bfloat16(value);
}

// `width` consecutive elements, aligned so that one instruction loads or stores them all.
template <class T, int width>
struct alignas(width * sizeof(T)) Pack {
    T element[width];
};

// 16 bytes are the most that one instruction moves on every architecture.
template <class T>
constexpr int widest = 16 / sizeof(T);

template <int width, class T>
__device__ inline Pack<T, width> load(const T* pointer) {
    return *reinterpret_cast<const Pack<T, width>*>(pointer);
}
// streaming: 16 bytes that the cache need not keep, as something else is still to be read from there.
template <int width, class T>
__device__ inline void store(T* pointer, const Accumulator<T> (&values)[width],
                             [[maybe_unused]] bool streaming = false) {
    Pack<T, width> pack;
#pragma unroll
    for (int e = 0; e < width; ++e) pack.element[e] = narrow<T>(values[e]);
#ifdef __CUDA_ARCH__
    if constexpr (sizeof pack == sizeof(int4))
        if (streaming) return __stcs(reinterpret_cast<int4*>(pointer), reinterpret_cast<const int4&>(pack));
#endif
    *reinterpret_cast<Pack<T, width>*>(pointer) = pack;
}

// Whether all these pointers allow 16-byte accesses (a null pointer does).
template <class... T>
inline bool aligned(const T*... pointers) {
    return ((reinterpret_cast<unsigned long long>(pointers) % 16 == 0) && ...);
}

// Whether elements of one index lie at the same place of their 16 bytes in all of them.
template <class First, class... T>
inline bool aligned_alike(const First* first, const T*... others) {
    auto place = [](const void* pointer) { return reinterpret_cast<unsigned long long>(pointer) % 16; };
    return ((place(others) == place(first)) && ...);
}

// From so many elements on, indices have 64 bits. A test gives fewer, to reach them with a small input.
constexpr long long first_wide_size = 1LL << 31;

// index % divisor. With unsigned, both below 2^31: a multiplication and a shift in place of some 20 instructions
// (Granlund and Montgomery 1994, "Division by invariant integers using multiplication").
template <class Index>
struct Columns;

template <>
struct Columns<unsigned> {
    unsigned divisor, multiplier, shift;

    explicit Columns(long long columns) : divisor(unsigned(columns)), shift(0) {
        while ((1LL << shift) < columns) ++shift;
        multiplier = unsigned(((1ULL << 32) * ((1ULL << shift) - columns)) / columns + 1);
    }
    __device__ unsigned quotient(unsigned index) const { return (__umulhi(index, multiplier) + index) >> shift; }
    __device__ unsigned of(unsigned index) const { return index - quotient(index) * divisor; }
};

template <>
struct Columns<long long> {
    long long divisor;

    explicit Columns(long long columns) : divisor(columns) {}
    __device__ long long quotient(long long index) const { return index / divisor; }
    __device__ long long of(long long index) const { return index % divisor; }
};

// vector[columns.of(first)] and the width - 1 after it, from the start again after the last column. `whole`: the number
// of columns is a multiple of width and the vector is aligned, so that one access does.
template <int width, class T, class Index>
__device__ inline Pack<T, width> load_columns(const T* vector, const Columns<Index>& columns, Index first, bool whole) {
    Index column = columns.of(first);
    if (whole) return load<width>(vector + column);
    Pack<T, width> pack;
#pragma unroll
    for (int e = 0; e < width; ++e) {
        pack.element[e] = vector[column];
        if (++column == columns.divisor) column = 0;
    }
    return pack;
}

// How a pointwise kernel covers `elements`: threads a block, and elements a thread. Up to 2^18 elements one each keeps
// more threads busy for a shorter time (measured on an H200); above, 16 bytes each, where alignment allows.
constexpr int pointwise_threads = 256;

template <class T, class... Pointers>
inline int pointwise_width(long long elements, Pointers... pointers) {
#ifdef CUDA_ON_HOST  // where inputs are small, and both are to be run: 64 elements are few there
    elements *= 1 << 12;
#endif
    return elements > 1LL << 18 && aligned(pointers...) ? widest<T> : 1;
}
inline dim3 pointwise_grid(long long elements, int width) {
    long long a_block = (long long)pointwise_threads * width;
    return dim3(unsigned((elements + a_block - 1) / a_block));
}
