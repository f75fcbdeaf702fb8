// out = x weightᵀ in float32: x [M, K], weight [N, K], out [M, N]. A block of 32 · 32 threads computes a tile of 32 · 32.
// NVRTC compiles this text alone, so it includes nothing.
#ifndef PAD
#define PAD 1
#endif

extern "C" __global__ void tiled(const float* x, const float* weight, float* out, int M, int N, int K) {
    __shared__ float a[32][32], b[32][32 + PAD];
    int across = threadIdx.x, down = threadIdx.y;
    int row = blockIdx.y * 32 + down, column = blockIdx.x * 32 + across;
    int other = blockIdx.x * 32 + down;  // the row of the weight that this thread fetches from
    float sum = 0;
    for (int first = 0; first < K; first += 32) {
        int k = first + across;
        a[down][across] = row < M && k < K ? x[row * K + k] : 0;
        b[down][across] = other < N && k < K ? weight[other * K + k] : 0;
        __syncthreads();  // now the tiles are complete
        for (int i = 0; i < 32; ++i) sum += a[down][i] * b[across][i];
        __syncthreads();  // now nobody reads them any more
    }
    if (row < M && column < N) out[row * N + column] = sum;
}
