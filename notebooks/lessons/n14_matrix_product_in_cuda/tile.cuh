extern "C" __global__ void product(const float* x, const float* weight, float* out, int M, int N, int K) {
    __shared__ float a[32][32], b[32][32 + PAD];
    int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    int other = blockIdx.x * 32 + threadIdx.y;  // the row of the weight that this thread fetches from
    float sum = 0;
    for (int first = 0; first < K; first += 32) {
        int k = first + threadIdx.x;
        a[threadIdx.y][threadIdx.x] = row < M && k < K ? x[row * K + k] : 0;
        b[threadIdx.y][threadIdx.x] = other < N && k < K ? weight[other * K + k] : 0;
        __syncthreads();  // now the tiles are complete
        for (int i = 0; i < 32; ++i) sum += a[threadIdx.y][i] * b[threadIdx.x][i];
        __syncthreads();  // now nobody reads them any more
    }
    if (row < M && column < N) out[row * N + column] = sum;
}
