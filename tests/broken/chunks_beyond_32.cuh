// BROKEN ON PURPOSE: column sums leave out all chunks after the 32nd.
// Row: 560x40 float32 relu backward, chunks
// Caught by asan, gpu: grad_bias: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/add_relu/kernel.cuh"

namespace chunks_beyond_32 {
template <class T>
__global__ void add_chunks(const Accumulator<T>* workspace, T* result, long long chunks, long long columns) {
    __shared__ Accumulator<T> shared[32][33];
    int x = threadIdx.x % 32, y = threadIdx.x / 32;
    long long column = (long long)blockIdx.x * 32 + x;
    Accumulator<T> sum = 0;
    if (column < columns)
        if (y < chunks) sum += workspace[y * columns + column];  // the wrong line: no chunk y + 32, y + 64, …
    shared[y][x] = sum;
    __syncthreads();
    if (y == 0 && column < columns) {
        sum = 0;
        for (int r = 0; r < 32; ++r) sum += shared[r][x];
        result[column] = narrow<T>(sum);
    }
}

template <class T>
cudaError_t launch_backward(const T* grad, const T* out, T* grad_x, T* grad_bias, Accumulator<T>* workspace,
                            long long rows, long long columns, cudaStream_t stream, long long elements) {
    cudaError_t error =
        add_relu::launch_backward(grad, out, grad_x, grad_bias, workspace, rows, columns, stream, elements);
    long long count = RowChunks(rows, columns, elements).count;
    if (error != cudaSuccess || !grad_bias || columns == 0 || count == 1) return error;
    dim3 grid(unsigned((columns + 31) / 32));
    return launch_kernel(add_chunks<T>, grid, dim3(1024), 0, stream, workspace, grad_bias, count, columns);
}

static const testing::Broken<Kernels> broken("chunks_beyond_32", [](Kernels& kernels) {
    kernels.launch_backward = launch_backward<float>;
});
}  // namespace chunks_beyond_32
