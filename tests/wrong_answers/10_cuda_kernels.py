"""Wrong answers to the puzzles of 10_cuda_kernels.ipynb, and unusual right ones: see test_puzzles.py."""

# %% guard: the guard is off by one -> ^not yet: [\s\S]*(thread 7 of block 0 reads x\[7\], and x has 7[\s\S]*guard)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: no guard -> ^not yet: [\s\S]*(case 1×7: thread 7 of block 0 reads x\[7\][\s\S]*the guard)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: fmaxf eats NaN -> ^not yet: [\s\S]*(with NaN and Inf: .*expected nan, got 0[\s\S]*NaN and Inf)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = fmaxf(z, 0);
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: the other comparison eats NaN -> ^not yet: [\s\S]*(with NaN and Inf: .*expected nan, got 0)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = z > 0 ? z : 0;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: a block too few -> ^not yet: [\s\S]*(the launch fails: 0 blocks[\s\S]*the grid)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<n / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: a grid for the columns -> ^not yet: [\s\S]*(case 8×256: .*never written[\s\S]*the grid)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(columns + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: a block for each number -> ^not yet: [\s\S]*(524,288 threads for 2,048 numbers[\s\S]*the grid)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<n, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: too many threads a block -> ^not yet: [\s\S]*(1 blocks of 2048 threads: invalid[\s\S]*the grid)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 2047) / 2048, 2048>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: the block forgotten -> ^not yet: [\s\S]*(case 8×256: .*never written[\s\S]*blockIdx)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = threadIdx.x;
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

# %% guard: the bias by rows -> ^not yet: [\s\S]*(case 1×7: .*expected[\s\S]*column i % 7)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i / columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: nothing is stored -> ^not yet: [\s\S]*(7 elements were never written[\s\S]*nothing was stored)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];

    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: nothing is launched -> ^not yet: [\s\S]*(7 elements were never written[\s\S]*nothing was stored)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: the host computes -> ^not yet: [\s\S]*(launch\(\) itself touches x\[0\][\s\S]*runs on the CPU)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    for (int i = 0; i < n; ++i) out[i] = fmax(x[i] + bias[i % columns], 0.0f);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: one thread does all -> ^not yet: [\s\S]*(1 threads write 2,048 numbers[\s\S]*thousands of threads)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int i = 0; i < n; ++i) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<1, 1>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: x is written to -> ^not yet: [\s\S]*(x was changed[\s\S]*last pointer)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z; ((float*)x)[i] = 0;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: it does not compile -> ^not yet: guard: the compiler says: .*error
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    integer i = blockIdx.x * blockDim.x + threadIdx.x;
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

# %% guard: a place far away -> ^not yet: [\s\S]*(thread 0 of block 0 reads x\[1,000,000,000\][\s\S]*the guard)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    i += 1000000000; {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: a loop over the grid, and blocks of 64
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += gridDim.x * blockDim.x) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 127) / 128, 64>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% coalesced: 8 numbers in a row -> ^not yet: [\s\S]*(sectors of x[\s\S]*neighbours must take)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 16; ++k) {
        int i = blockIdx.x * 4096 + k / 8 * 2048 + threadIdx.x * 8 + k % 8;
        if (i >= n) continue;
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n); }
"""
solved = puzzles.attempt("coalesced", mine)

# %% coalesced: every other number first -> ^not yet: [\s\S]*(sectors of x[\s\S]*neighbours must take)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 16; ++k) {
        int i = blockIdx.x * 4096 + k / 2 * 512 + threadIdx.x * 2 + k % 2;
        if (i >= n) continue;
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n); }
"""
solved = puzzles.attempt("coalesced", mine)

# %% coalesced: blocks overlap -> ^not yet: [\s\S]*(case 8×1024: .*never written[\s\S]*blockIdx)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 16; ++k) {
        int i = blockIdx.x * 256 + k * 256 + threadIdx.x;
        if (i >= n) continue;
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n); }
"""
solved = puzzles.attempt("coalesced", mine)

# %% coalesced: turns overlap -> ^not yet: [\s\S]*(never written[\s\S]*blockIdx)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 16; ++k) {
        int i = blockIdx.x * 4096 + k * 32 + threadIdx.x;
        if (i >= n) continue;
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n); }
"""
solved = puzzles.attempt("coalesced", mine)

# %% coalesced: only one turn -> ^not yet: [\s\S]*(case 8×1024: .*never written)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 1; ++k) {
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

# %% coalesced: no guard -> ^not yet: [\s\S]*(case 1×7: thread 0 of block 0 reads x\[256\][\s\S]*guard)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 16; ++k) {
        int i = blockIdx.x * 4096 + k * 256 + threadIdx.x;
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n); }
"""
solved = puzzles.attempt("coalesced", mine)

# %% coalesced: nothing is stored -> ^not yet: [\s\S]*(never written[\s\S]*nothing was stored)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 16; ++k) {
        int i = blockIdx.x * 4096 + k * 256 + threadIdx.x;
        if (i >= n) continue;
        float z = x[i] + bias[i % columns];

    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n); }
"""
solved = puzzles.attempt("coalesced", mine)

# %% coalesced: fmaxf eats NaN -> ^not yet: [\s\S]*(with NaN and Inf: .*expected nan, got 0)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 16; ++k) {
        int i = blockIdx.x * 4096 + k * 256 + threadIdx.x;
        if (i >= n) continue;
        float z = x[i] + bias[i % columns];
        out[i] = fmaxf(z, 0);
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n); }
"""
solved = puzzles.attempt("coalesced", mine)

# %% coalesced: a loop over the grid
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) {
        float z = x[i] + bias[i % columns];
        out[i] = z < 0 ? 0 : z;
    }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n); }
"""
solved = puzzles.attempt("coalesced", mine)

# %% index: an int -> ^not yet: [\s\S]*(case 2,147,484,648 numbers[\s\S]*64 bits)
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% index: the product in 32 bits, stored in 64 -> ^not yet: [\s\S]*(4,294,968,296 numbers: [\s\S]*the type)
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    long long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% index: unsigned -> ^not yet: [\s\S]*(case 4,294,968,296 numbers: [\s\S]*the type of a product)
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% index: widened after the product -> ^not yet: [\s\S]*(case 4,294,968,296 numbers: [\s\S]*the type of a product)
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    long long i = (long long)(blockIdx.x * blockDim.x) + threadIdx.x;
    if (i < n) out[i] = 2 * x[i];
}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% index: the guard is off by one -> ^not yet: [\s\S]*(thread 232 of block 3 reads x\[1,000\][\s\S]*guard)
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) out[i] = 2 * x[i];
}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% index: the guard in 32 bits -> ^not yet: [\s\S]*(never written[\s\S]*)
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < (int)n) out[i] = 2 * x[i];
}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% index: nothing is stored -> ^not yet: [\s\S]*(never written)
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;

}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% index: size_t
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < (size_t)n) out[i] = 2 * x[i];
}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% column_sum: no barrier -> ^not yet: [\s\S]*(shared number 32, which no thread has written[\s\S]*__syncthreads)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum;
    for (int other = 1; warp == 0 && other < 8; ++other) sum += part[other][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: a barrier for one warp alone -> ^not yet: [\s\S]*(thread 0 came to 1 [\s\S]*no condition)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum;
    if (warp == 0) __syncthreads();
    for (int other = 1; warp == 0 && other < 8; ++other) sum += part[other][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: the last warp forgotten -> ^not yet: [\s\S]*(case 8×32: .*expected[\s\S]*eight sums)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum;
    __syncthreads();
    for (int other = 1; warp == 0 && other < 7; ++other) sum += part[other][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: warp 0 counted twice -> ^not yet: [\s\S]*(case 8×32: .*expected[\s\S]*eight sums)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum;
    __syncthreads();
    for (int other = 0; warp == 0 && other < 8; ++other) sum += part[other][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: lane and warp confused -> ^not yet: [\s\S]*(shared number|expected)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum;
    __syncthreads();
    for (int other = 1; warp == 0 && other < 8; ++other) sum += part[lane / 4][other];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: a place for each column alone -> ^not yet: [\s\S]*(writes shared number 0 and thread 32 writes)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[0][lane] = sum;
    __syncthreads();
    for (int other = 1; warp == 0 && other < 8; ++other) sum += part[0][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: each warp adds to one place -> ^not yet: [\s\S]*(shared number 0, which no thread has written)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[0][lane] += sum;
    __syncthreads();
    for (int other = 1; warp == 0 && other < 8; ++other) sum += part[other][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: lanes beyond the last column -> ^not yet: [\s\S]*(13×5: [\s\S]*reads x\[65\][\s\S]*without a column)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum;
    __syncthreads();
    for (int other = 1; warp == 0 && other < 8; ++other) sum += part[other][lane];
    if (warp == 0) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: all rows, in each warp -> ^not yet: [\s\S]*(case 8×32: .*expected[\s\S]*eight sums)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = 0; row < rows && column < columns; ++row) sum += x[row * columns + column];
    part[warp][lane] = sum;
    __syncthreads();
    for (int other = 1; warp == 0 && other < 8; ++other) sum += part[other][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: nothing is stored -> ^not yet: [\s\S]*(never written)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum;
    __syncthreads();
    for (int other = 1; warp == 0 && other < 8; ++other) sum += part[other][lane];
    if (warp == 0 && column < columns) ;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: in halves, by three barriers
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum;
    for (int half = 4; half > 0; half /= 2) {
        __syncthreads();
        if (warp < half) part[warp][lane] = sum += part[warp + half][lane];
    }
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% guard: max with the number first eats NaN -> ^not yet: [\s\S]*(with NaN and Inf: .*expected nan, got 0)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float z = x[i] + bias[i % columns]; out[i] = max(0.0f, z); }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: a product with 0 -> ^not yet: [\s\S]*(with NaN and Inf: .*expected 0, got nan[\s\S]*0 · Inf)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float z = x[i] + bias[i % columns]; out[i] = z * (z > 0); }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: a remainder by 0 -> ^not yet: [\s\S]*(the program ended[\s\S]*division by 0)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float z = x[i] + bias[i % (columns / 512)]; out[i] = z < 0 ? 0 : z; }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: the bias by threadIdx -> ^not yet: [\s\S]*(case 3×1000: .*expected)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float z = x[i] + bias[threadIdx.x % columns]; out[i] = z < 0 ? 0 : z; }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: only the reads are guarded -> ^not yet: [\s\S]*(writes out\[7\][\s\S]*guard)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float z = 0; if (i < n) z = x[i] + bias[i % columns]; out[i] = z < 0 ? 0 : z;
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% guard: isnan, then fmaxf
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float z = x[i] + bias[i % columns]; out[i] = isnan(z) ? z : fmaxf(z, 0); }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 255) / 256, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("guard", mine)

# %% coalesced: two neighbours at a time -> ^not yet: [\s\S]*(4,096 sectors of x[\s\S]*neighbours must take)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 16; ++k) { int i = blockIdx.x * 4096 + threadIdx.x % 16 * 256 + threadIdx.x / 16 + k * 16;
    if (i >= n) continue; float z = x[i] + bias[i % columns]; out[i] = z < 0 ? 0 : z; }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("coalesced", mine)

# %% coalesced: lanes far apart, blocks side by side -> ^not yet: [\s\S]*(8,192 sectors of x[\s\S]*neighbours must take)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 16; ++k) { int i = (threadIdx.x * 16 + k) * gridDim.x + blockIdx.x; if (i >= n) continue;
    float z = x[i] + bias[i % columns]; out[i] = z < 0 ? 0 : z; }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("coalesced", mine)

# %% coalesced: a turn too few -> ^not yet: [\s\S]*(case 8×1024: .*never written)
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 0; k < 15; ++k) { int i = blockIdx.x * 4096 + threadIdx.x + k * 256; if (i >= n) continue;
    float z = x[i] + bias[i % columns]; out[i] = z < 0 ? 0 : z; }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("coalesced", mine)

# %% coalesced: backwards
mine = """
__global__ void add_relu(const float* x, const float* bias, float* out, int columns, int n) {
    for (int k = 15; k >= 0; --k) { int i = blockIdx.x * 4096 + 255 - threadIdx.x + k * 256; if (i < n) {
    float z = x[i] + bias[i % columns]; out[i] = z < 0 ? 0 : z; } }
}
void launch(const float* x, const float* bias, float* out, int columns, int n) {
    add_relu<<<(n + 4095) / 4096, 256>>>(x, bias, out, columns, n);
}
"""
solved = puzzles.attempt("coalesced", mine)

# %% index: a float as index -> ^not yet: [\s\S]*(case 2,147,484,648 numbers: .*never written)
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    long long i = blockIdx.x * 256.0f + threadIdx.x;if (i < n) out[i] = 2 * x[i];
}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% index: the grid in 32 bits -> ^not yet: [\s\S]*(the launch fails[\s\S]*the grid)
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;if (i < n) out[i] = 2 * x[i];
}
void launch(const float* x, float* out, long long n) {
    twice<<<((int)n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% index: a loop over a smaller grid -> ^not yet: [\s\S]*(only the first and the last 4,096 are in this test)
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x)
        out[i] = 2 * x[i];
}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256 < 1024 ? (n + 255) / 256 : 1024, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% index: a pointer for each block
mine = """
__global__ void twice(const float* x, float* out, long long n) {
    const float* mine = x + blockIdx.x * 256LL; float* there = out + blockIdx.x * 256LL;
    if (blockIdx.x * 256LL + threadIdx.x < n) there[threadIdx.x] = mine[threadIdx.x] + mine[threadIdx.x];
}
void launch(const float* x, float* out, long long n) {
    twice<<<(n + 255) / 256, 256>>>(x, out, n);
}
"""
solved = puzzles.attempt("index", mine)

# %% column_sum: indices exchanged -> ^not yet: [\s\S]*(writes shared number 256, and there[\s\S]*below its size)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[lane][warp] = sum; __syncthreads(); for (int o = 1; warp == 0 && o < 8; ++o) sum += part[lane][o];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: a ninth warp -> ^not yet: [\s\S]*(reads shared number 256[\s\S]*below its size)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum; __syncthreads(); for (int o = 1; warp == 0 && o <= 8; ++o) sum += part[o][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: lanes without a column leave early -> ^not yet: [\s\S]*(thread 5 to 0[\s\S]*no condition)
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    if (column >= columns) return; part[warp][lane] = sum; __syncthreads();
    for (int o = 1; warp == 0 && o < 8; ++o) sum += part[o][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: a barrier of the warp -> ^not yet: column_sum: the compiler says[\s\S]*neither atomics nor warps
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum; __syncwarp(); for (int o = 1; warp == 0 && o < 8; ++o) sum += part[o][lane];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: atomics -> ^not yet: column_sum: the compiler says[\s\S]*neither atomics nor warps
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    if (warp == 0) part[lane] = 0;
    __syncthreads();
    atomicAdd(&part[lane], sum);
    __syncthreads();
    if (warp == 0 && column < columns) out[column] = part[lane];
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: each warp adds them up, backwards
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[warp][lane] = sum; __syncthreads(); float s = 0; for (int o = 7; o >= 0; --o) s += part[o][lane];
    if (column < columns) out[column] = s;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)

# %% column_sum: a place more in each row
mine = """
__global__ void column_sum(const float* x, float* out, int rows, int columns) {
    __shared__ float part[32][9];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    float sum = 0;
    for (int row = warp; row < rows && column < columns; row += 8) sum += x[row * columns + column];
    part[lane][warp] = sum; __syncthreads(); for (int o = 1; warp == 0 && o < 8; ++o) sum += part[lane][o];
    if (warp == 0 && column < columns) out[column] = sum;
}
void launch(const float* x, float* out, int rows, int columns) {
    column_sum<<<(columns + 31) / 32, 256>>>(x, out, rows, columns); }
"""
solved = puzzles.attempt("column_sum", mine)
