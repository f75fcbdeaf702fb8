"""Answers to the puzzles of 10_cuda_kernels.ipynb, a section a puzzle."""

# %% guard
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% coalesced
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 16; ++k) {
        int i = blockIdx.x * 4096 + k * 256 + threadIdx.x;
        if (i >= n) continue;
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n); }
"""
solved = puzzles.attempt("coalesced", mine)

# %% index
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% column_sum
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum;
    __syncthreads();
    for (int other = 1; warp == 0 && other < 8; ++other) sum += part[other][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)
