// The lesson's kernels, which the notebook's cells show: add_relu step by step, and a sigmoid with indices of 32 and of
// 64 bits. counting.py counts each kernel's instructions; experiment.py builds this file once, and times them all.
// PyTorch builds with this switch, and the kernels below convert a bfloat16 as C++ does.
#undef __CUDA_NO_BFLOAT16_CONVERSIONS__
#include <cuda_bf16.h>

// Each thread computes one element.
__global__ void scalar(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}

// Each thread computes 16 consecutive elements.
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

// Each thread computes 16 elements, a block's width apart.
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

// The same elements, but with four loads before their stores.
__global__ void early(const float* x, const float* bias, float* out, int columns, int n) {
    int first = blockIdx.x * blockDim.x * 16 + threadIdx.x, step = blockDim.x;
    for (int k = 0; k < 16; k += 4) {
        float z[4], b[4];
        for (int j = 0, i = first + k * step; j < 4; ++j, i += step)
            if (i < n) z[j] = x[i], b[j] = bias[i % columns];
        for (int j = 0, i = first + k * step; j < 4; ++j, i += step)
            if (i < n) out[i] = z[j] + b[j] < 0 ? 0 : z[j] + b[j];
    }
}

// Each thread computes 16 elements, four at a time: n and columns are multiples of 4, pointers are 16-byte aligned.
__global__ void wide(const float* x, const float* bias, float* out, int columns, int n) {
    int first = blockIdx.x * blockDim.x * 16 + threadIdx.x * 4;
    for (int k = 0; k < 4; ++k) {
        int i = first + k * blockDim.x * 4;
        if (i < n) {
            float4 z = *(const float4*)(x + i), b = *(const float4*)(bias + i % columns);
            z.x += b.x, z.y += b.y, z.z += b.z, z.w += b.w;
            z = make_float4(z.x < 0 ? 0 : z.x, z.y < 0 ? 0 : z.y, z.z < 0 ? 0 : z.z, z.w < 0 ? 0 : z.w);
            *(float4*)(out + i) = z;
        }
    }
}

// sigmoid(x + m y + bias). Index is int or long long: the type of an index, and of all that it is computed from.
template <class T, class Index>
__global__ void by_index(const T* x, const T* bias, const T* y, float m, T* out, Index columns, Index n) {
    Index step = (Index)gridDim.x * blockDim.x;
    for (Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        out[i] = __fdividef(1, 1 + __expf(-((float)x[i] + m * (float)y[i] + (float)bias[i % columns])));
}

// A block takes whole rows. The start of a row has 64 bits, the column has 32, and no remainder is computed.
template <class T, class Index>
__global__ void by_row(const T* x, const T* bias, const T* y, float m, T* out, Index columns, Index n) {
    for (Index first = blockIdx.x * (Index)columns; first < n; first += gridDim.x * (Index)columns)
        for (int column = threadIdx.x; column < (int)columns; column += blockDim.x) {
            Index i = first + column;
            out[i] = __fdividef(1, 1 + __expf(-((float)x[i] + m * (float)y[i] + (float)bias[column])));
        }
}

// ------------------------------------------------------------------------------------------------------------- launches

using Step = void (*)(const float*, const float*, float*, int, int);
static const Step steps[] = {scalar, strided, coalesced, early, wide};

// number: an index into steps. each: elements that a thread computes. Returns the launch's error.
extern "C" int launch_step(int number, int each, const float* x, const float* bias, float* out, int columns, int n,
                           cudaStream_t stream) {
    steps[number]<<<(n + 256 * each - 1) / (256 * each), 256, 0, stream>>>(x, bias, out, columns, n);
    return int(cudaGetLastError());
}

template <class T>
static void launch(int way, int blocks, const void* x, const void* bias, const void* y, float m, void* out, int columns,
                   int n, cudaStream_t stream) {
    auto a = (const T*)x, b = (const T*)bias, c = (const T*)y;
    if (way == 0) by_index<T, int><<<blocks, 256, 0, stream>>>(a, b, c, m, (T*)out, columns, n);
    if (way == 1) by_index<T, long long><<<blocks, 256, 0, stream>>>(a, b, c, m, (T*)out, columns, n);
    if (way == 2) by_row<T, long long><<<blocks, 256, 0, stream>>>(a, b, c, m, (T*)out, columns, n);
}

// way: int, long long, or by rows. half: bfloat16.
extern "C" int launch_index(int way, int half, int blocks, const void* x, const void* bias, const void* y, float m,
                            void* out, int columns, int n, cudaStream_t stream) {
    (half ? launch<__nv_bfloat16> : launch<float>)(way, blocks, x, bias, y, m, out, columns, n, stream);
    return int(cudaGetLastError());
}
