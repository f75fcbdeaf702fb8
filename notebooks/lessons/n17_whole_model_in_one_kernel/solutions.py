"""Answers to the puzzles of 17_whole_model_in_one_kernel.ipynb, a section a puzzle."""

# %% whole_model
mine = """
template <int inputs, int outputs>
__device__ void linear(float (&y)[outputs], const float (&x)[inputs], const float* weight, const float* bias) {
    for (int n = 0; n < outputs; ++n) {
        y[n] = bias[n];
        for (int k = 0; k < inputs; ++k) y[n] += weight[n * inputs + k] * x[k];
    }
}
template <int count>
__device__ void relu(float (&y)[count]) {
    for (int n = 0; n < count; ++n) y[n] = y[n] < 0 ? 0 : y[n];
}
__global__ void forward(const float* dense, const long long* ids, Model m, float* out, long long batch) {
    long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= batch) return;
    float x[13], hidden[8], v[4][4], z[10], y[8], logit[1];
    for (int k = 0; k < 13; ++k) x[k] = dense[row * 13 + k];
    linear(hidden, x, m.weight[0], m.bias[0]);
    relu(hidden);
    linear(v[0], hidden, m.weight[1], m.bias[1]);
    relu(v[0]);
    for (int f = 0; f < 3; ++f) {
        long long id = ids[row * 3 + f];
        bool known = id >= 0 && id < m.height[f];
        for (int d = 0; d < 4; ++d) v[1 + f][d] = known ? m.table[f][id * 4 + d] : 0;
    }
    for (int d = 0; d < 4; ++d) z[d] = v[0][d];
    for (int i = 1; i < 4; ++i)
        for (int j = 0; j < i; ++j) {
            float sum = 0;
            for (int d = 0; d < 4; ++d) sum += v[i][d] * v[j][d];
            z[4 + i * (i - 1) / 2 + j] = sum;
        }
    linear(y, z, m.weight[2], m.bias[2]);
    relu(y);
    linear(logit, y, m.weight[3], m.bias[3]);
    out[row] = 1 / (1 + expf(-logit[0]));
}"""
solved = puzzles.attempt("whole_model", mine)
if solved:
    pictures.draw_touched(puzzles.touched(mine))

# %% staged
mine = """
template <int inputs, int outputs>
__device__ void linear(float (&y)[outputs], const float (&x)[inputs], const float* weight, const float* bias) {
    for (int n = 0; n < outputs; ++n) {
        y[n] = bias[n];
        for (int k = 0; k < inputs; ++k) y[n] += weight[n * inputs + k] * x[k];
    }
}
template <int count>
__device__ void relu(float (&y)[count]) {
    for (int n = 0; n < count; ++n) y[n] = y[n] < 0 ? 0 : y[n];
}
__global__ void forward(const float* dense, const long long* ids, Model m, float* out, long long batch) {
    __shared__ float tile[128 * 13];  // of up to 128 rows
    long long first = (long long)blockIdx.x * blockDim.x, row = first + threadIdx.x;
    for (int i = threadIdx.x; i < blockDim.x * 13; i += blockDim.x)
        if (first * 13 + i < batch * 13) tile[i] = dense[first * 13 + i];
    __syncthreads();
    if (row >= batch) return;
    float x[13], hidden[8], v[4][4], z[10], y[8], logit[1];
    for (int k = 0; k < 13; ++k) x[k] = tile[threadIdx.x * 13 + k];
    linear(hidden, x, m.weight[0], m.bias[0]);
    relu(hidden);
    linear(v[0], hidden, m.weight[1], m.bias[1]);
    relu(v[0]);
    for (int f = 0; f < 3; ++f) {
        long long id = ids[row * 3 + f];
        bool known = id >= 0 && id < m.height[f];
        for (int d = 0; d < 4; ++d) v[1 + f][d] = known ? m.table[f][id * 4 + d] : 0;
    }
    for (int d = 0; d < 4; ++d) z[d] = v[0][d];
    for (int i = 1; i < 4; ++i)
        for (int j = 0; j < i; ++j) {
            float sum = 0;
            for (int d = 0; d < 4; ++d) sum += v[i][d] * v[j][d];
            z[4 + i * (i - 1) / 2 + j] = sum;
        }
    linear(y, z, m.weight[2], m.bias[2]);
    relu(y);
    linear(logit, y, m.weight[3], m.bias[3]);
    out[row] = 1 / (1 + expf(-logit[0]));
}"""
solved = puzzles.attempt("staged", mine)
if solved:
    pictures.draw_touched(puzzles.touched(mine))
