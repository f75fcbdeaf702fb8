extern "C" __global__ void product(const float* x, const float* weight, float* out, int M, int N, int K) {
    int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (row < M && column < N) {
        for (int k = 0; k < K; ++k) sum += x[row * K + k] * weight[column * K + k];
        out[row * N + column] = sum;
    }
}
