extern "C" __global__ void product(const float* x, const float* weight, float* out, int M, int N, int K) {
    __shared__ float a[8][128 + 4], b[8][128 + 4];  // turned: a row of them is a step's column
    int row = blockIdx.y * 128, column = blockIdx.x * 128, thread = threadIdx.y * 16 + threadIdx.x;
    int down = thread / 2, k4 = thread % 2 * 4;  // a thread fetches four neighbours of x, and four of the weight
    float sums[8][8] = {};
    for (int first = 0; first < K; first += 8) {
        float4 zero = {0, 0, 0, 0}, p = zero, q = zero;
        if (row + down < M && first + k4 < K) p = *(const float4*)&x[(row + down) * K + first + k4];
        if (column + down < N && first + k4 < K) q = *(const float4*)&weight[(column + down) * K + first + k4];
        a[k4][down] = p.x, a[k4 + 1][down] = p.y, a[k4 + 2][down] = p.z, a[k4 + 3][down] = p.w;
        b[k4][down] = q.x, b[k4 + 1][down] = q.y, b[k4 + 2][down] = q.z, b[k4 + 3][down] = q.w;
        __syncthreads();
        for (int k = 0; k < 8; ++k) {
            float left[8], right[8];  // rows 4 · threadIdx.y …, and as many 64 further down; columns likewise
            for (int i = 0; i < 8; ++i) left[i] = a[k][i / 4 * 64 + 4 * threadIdx.y + i % 4];
            for (int j = 0; j < 8; ++j) right[j] = b[k][j / 4 * 64 + 4 * threadIdx.x + j % 4];
            for (int i = 0; i < 8; ++i)
                for (int j = 0; j < 8; ++j) sums[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 8; ++j) {
            int r = row + i / 4 * 64 + 4 * threadIdx.y + i % 4, c = column + j / 4 * 64 + 4 * threadIdx.x + j % 4;
            if (r < M && c < N) out[r * N + c] = sums[i][j];
        }
}
