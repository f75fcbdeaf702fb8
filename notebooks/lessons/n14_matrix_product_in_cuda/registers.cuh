extern "C" __global__ void product(const float* x, const float* weight, float* out, int M, int N, int K) {
    __shared__ float a[16][64 + 4], b[16][64 + 4];  // turned: a row of them is a step's column
    int row = blockIdx.y * 64, column = blockIdx.x * 64, thread = threadIdx.y * 16 + threadIdx.x;
    float sums[4][4] = {};
    for (int first = 0; first < K; first += 16) {
        for (int i = thread; i < 64 * 16; i += 256) {
            int down = i / 16, k = i % 16;
            a[k][down] = row + down < M && first + k < K ? x[(row + down) * K + first + k] : 0;
            b[k][down] = column + down < N && first + k < K ? weight[(column + down) * K + first + k] : 0;
        }
        __syncthreads();
        for (int k = 0; k < 16; ++k)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) sums[i][j] += a[k][4 * threadIdx.y + i] * b[k][4 * threadIdx.x + j];
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            int r = row + 4 * threadIdx.y + i, c = column + 4 * threadIdx.x + j;
            if (r < M && c < N) out[r * N + c] = sums[i][j];
        }
}
