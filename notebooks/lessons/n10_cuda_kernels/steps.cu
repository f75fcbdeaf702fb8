// The lesson's kernels, which the notebook's cells show: add_relu step by step. counting.py says in which order each
// loads and stores; experiment.py builds this file once, and times them all.

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

// ------------------------------------------------------------------------------------------------------------- launches

using Step = void (*)(const float*, const float*, float*, int, int);
static const Step steps[] = {scalar, strided, coalesced, early, wide};

// number: an index into steps. each: elements that a thread computes. Returns the launch's error.
extern "C" int launch_step(int number, int each, const float* x, const float* bias, float* out, int columns, int n,
                           cudaStream_t stream) {
    steps[number]<<<(n + 256 * each - 1) / (256 * each), 256, 0, stream>>>(x, bias, out, columns, n);
    return int(cudaGetLastError());
}
