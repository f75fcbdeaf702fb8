// BROKEN ON PURPOSE: no barrier stands between writing the sums of a block to shared memory and adding them up.
// Row: 33x8 float32 relu backward
// Caught by tsan: ThreadSanitizer: data race|grad_bias: [0-9]+ of [0-9]+ wrong
// g++ 12's ThreadSanitizer reports the race. g++ 13's did not; that of Clang does not either when an earlier launch had
// 256 threads too, and does in a first launch. The sums are wrong by all of them: the host runs threads one after
// another until a barrier stops them.
#pragma once

#include "ops/add_relu/kernel.cuh"

namespace barrier {
// A block sums 8 columns by 32 lanes of rows.
template <class T>
__global__ void sum(const T* grad, const T* out, T* grad_bias, long long rows, long long columns) {
    __shared__ Accumulator<T> shared[32][8];
    int lane = threadIdx.x % 8, row_lane = threadIdx.x / 8;
    long long column = (long long)blockIdx.x * 8 + lane;
    Accumulator<T> sum = 0;
    for (long long i = row_lane * columns + column; i < rows * columns && column < columns; i += 32 * columns)
        sum += input_gradient<Activation::relu>(widen(grad[i]), widen(out[i]));
    shared[row_lane][lane] = sum;
    // The wrong line is missing: __syncthreads();
    if (row_lane > 0 || column >= columns) return;
    sum = 0;
    for (int r = 0; r < 32; ++r) sum += shared[r][lane];
    grad_bias[column] = narrow<T>(sum);
}

template <class T>
cudaError_t launch_backward(const T* grad, const T* out, T* grad_x, T* grad_bias, Accumulator<T>* workspace,
                            long long rows, long long columns, cudaStream_t stream, long long elements) {
    cudaError_t error =
        add_relu::launch_backward(grad, out, grad_x, grad_bias, workspace, rows, columns, stream, elements);
    if (error != cudaSuccess || !grad_bias || columns == 0) return error;
    dim3 grid(unsigned((columns + 7) / 8));
    return launch_kernel(sum<T>, grid, dim3(256), 0, stream, grad, out, grad_bias, rows, columns);
}

static const testing::Broken<Kernels> broken("barrier", [](Kernels& kernels) {
    kernels.launch_backward = launch_backward<float>;
});
}  // namespace barrier
