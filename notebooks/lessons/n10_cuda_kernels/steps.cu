// The lesson's kernels, for nvcc alone: add_relu step by step, and add_mul_activation with one thing changed at a time.
// counting.py counts each kernel's instructions; experiment.py builds this file once, and times them all.
#include "device/activations.cuh"
#include "device/vector.cuh"

// --------------------------------------------------------------------------------------------------- add_relu, by steps

// A number a thread.
__global__ void scalar(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}

// 16 numbers a thread, one after the other.
__global__ void strided(const float* x, const float* bias, float* out, int columns, int n) {
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * 16;
    for (int k = 0; k < 16; ++k) {
        int i = first + k;
        if (i < n) {
            float z = x[i] + bias[i % columns];
            out[i] = z < 0 ? 0 : z;
        }
    }
}

// 16 numbers a thread, a block's width apart.
__global__ void coalesced(const float* x, const float* bias, float* out, int columns, int n) {
    int first = blockIdx.x * blockDim.x * 16 + threadIdx.x;
    for (int k = 0; k < 16; ++k) {
        int i = first + k * blockDim.x;
        if (i < n) {
            float z = x[i] + bias[i % columns];
            out[i] = z < 0 ? 0 : z;
        }
    }
}

// 16 numbers a thread, four at a time: n and columns are multiples of 4, and all begins at multiples of 16 bytes.
__global__ void wide(const float* x, const float* bias, float* out, int columns, int n) {
    int first = blockIdx.x * blockDim.x * 16 + threadIdx.x * 4;
    for (int k = 0; k < 4; ++k) {
        int i = first + k * blockDim.x * 4;
        if (i < n) {
            float4 a = *(const float4*)(x + i), b = *(const float4*)(bias + i % columns);
            float4 z = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
            z = make_float4(z.x < 0 ? 0 : z.x, z.y < 0 ? 0 : z.y, z.z < 0 ? 0 : z.z, z.w < 0 ? 0 : z.w);
            *(float4*)(out + i) = z;
        }
    }
}

// ------------------------------------------------------------------------ sigmoid(x + multiplier · y + bias), one change

struct Multiplied {  // i % columns by a multiplication
    template <class Index>
    __device__ static Index of(Index i, Columns<unsigned> columns) {
        return columns.of(unsigned(i));
    }
};
struct Remainder {
    template <class Index>
    __device__ static Index of(Index i, Columns<unsigned> columns) {
        return i % Index(columns.divisor);
    }
};
struct Approximate {  // one instruction for 2^x, one for 1/x
    __device__ static float of(float z) { return activate<Activation::sigmoid>(z); }
};
struct Exact {
    __device__ static float of(float z) { return 1.0f / (1.0f + expf(-z)); }
};

// 16 bytes a thread. hint: stores tell the caches that nothing will be read again.
template <class T, class Index, class Column, class Sigmoid, bool hint>
__device__ void body(const T* x, const T* bias, const T* y, float multiplier, T* out, Columns<unsigned> columns, int n) {
    constexpr int width = widest<T>;
    Index first = (Index(blockIdx.x) * blockDim.x + threadIdx.x) * width;
    if (first >= n) return;
    Pack<T, width> xs = load<width>(x + first), ys = load<width>(y + first);
    Pack<T, width> biases = load<width>(bias + Column::of(first, columns));
    float results[width];
#pragma unroll
    for (int e = 0; e < width; ++e)
        results[e] = Sigmoid::of(widen(xs.element[e]) + multiplier * widen(ys.element[e]) + widen(biases.element[e]));
    store<width>(out + first, results, hint);
}

#define VARIANT(name, type, ...)                                                                                        \
    extern "C" __global__ void name(const type* x, const type* bias, const type* y, float multiplier, type* out,        \
                                    Columns<unsigned> columns, int n) {                                                 \
        body<type, __VA_ARGS__>(x, bias, y, multiplier, out, columns, n);                                               \
    }
#define VARIANTS(suffix, type)                                                     \
    VARIANT(base_##suffix, type, unsigned, Multiplied, Approximate, false)         \
    VARIANT(hint_##suffix, type, unsigned, Multiplied, Approximate, true)          \
    VARIANT(remainder_##suffix, type, unsigned, Remainder, Approximate, false)     \
    VARIANT(bits64_##suffix, type, long long, Multiplied, Approximate, false)      \
    VARIANT(expf_##suffix, type, unsigned, Multiplied, Exact, false)
VARIANTS(float32, float)
VARIANTS(bfloat16, __nv_bfloat16)

// ------------------------------------------------------------------------------------------------------------- launches

using Step = void (*)(const float*, const float*, float*, int, int);
template <class T>
using Variant = void (*)(const T*, const T*, const T*, float, T*, Columns<unsigned>, int);

static const Step steps[] = {scalar, strided, coalesced, wide};
static const Variant<float> in_float32[] = {base_float32, hint_float32, remainder_float32, bits64_float32, expf_float32};
static const Variant<__nv_bfloat16> in_bfloat16[] = {base_bfloat16, hint_bfloat16, remainder_bfloat16, bits64_bfloat16,
                                                     expf_bfloat16};

// number: of steps. each: numbers a thread. Returns the launch's error.
extern "C" int launch_step(int number, int each, const float* x, const float* bias, float* out, int columns, int n,
                           cudaStream_t stream) {
    steps[number]<<<(n + 256 * each - 1) / (256 * each), 256, 0, stream>>>(x, bias, out, columns, n);
    return int(cudaGetLastError());
}

// number: of the variants. half: bfloat16. threads: of a block.
extern "C" int launch_variant(int number, int half, int threads, const void* x, const void* bias, const void* y,
                              float multiplier, void* out, int columns, int n, cudaStream_t stream) {
    Columns<unsigned> known(columns);
    int a_block = threads * (half ? 8 : 4), blocks = (n + a_block - 1) / a_block;
    if (half)
        in_bfloat16[number]<<<blocks, threads, 0, stream>>>(
            (const __nv_bfloat16*)x, (const __nv_bfloat16*)bias, (const __nv_bfloat16*)y, multiplier, (__nv_bfloat16*)out,
            known, n);
    else
        in_float32[number]<<<blocks, threads, 0, stream>>>((const float*)x, (const float*)bias, (const float*)y, multiplier,
                                                           (float*)out, known, n);
    return int(cudaGetLastError());
}
