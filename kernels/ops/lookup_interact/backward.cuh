// The gradients of lookup_interact's vectors, with G the strictly lower triangular matrix of the pairs' gradients:
//
//     grad_T = (G + Gᵀ) T, and the gradient of out's first columns is added to that of t_0
//
// T = [t_0; t_1; …] of a row is looked up again, as in the forward: nothing of it was kept. grad_dense [B, D] is that
// of t_0, grad_sparse [B, F, D] those of the looked-up vectors, which the tables' update reads: they are in memory.
//
// Bytes: out's gradient, the rows that ids name, the ids and dense in, both gradients out. FLOPs: twice the forward's.
//
//     by tensor cores   as dot_interaction's of halves, by its functions: ops/dot_interaction/gradients.cuh
//     by FFMA           a lane has 4 vectors × 4 columns.
#pragma once

#include "ops/dot_interaction/gradients.cuh"
#include "ops/lookup_interact/kernel.cuh"

namespace lookup_interact {

// give(i, column, values): four columns of the gradient of vector i. By FFMA.
template <class Row, class Give>
__device__ inline void gradients_by_ffma(const Row& row, Give give) {
    using T = typename Row::Element;
    const int parts = row.columns / 4, tasks = (row.features + 4) / 4 * parts;
    const T* const pairs = row.staged + row.columns;
    for (int task = row.lane; task < tasks; task += 32) {
        const int first = task / parts * 4, column = task % parts * 4;
        float sums[4][4] = {};
        for (int j = 0; j <= row.features; ++j) {
            const Pack<T, 4> values = load<4>(row.vector(j) + column);
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                const int i = first + m < row.features ? first + m : row.features;
                // A vector has no pair with itself; the zero makes NaN of its NaN, as eager does.
                const float weight = i == j ? 0.0f : pairs[j < i ? triangle(i) + j : triangle(j) + i];
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[m][e] += weight * values.element[e];
            }
        }
#pragma unroll
        for (int m = 0; m < 4; ++m)
            if (first + m <= row.features) give(first + m, column, sums[m]);
    }
}

// grad [batch, width]; a gradient that is not needed is null.
template <class T, bool tensor_cores, int fixed, bool has_bags>
__global__ void __launch_bounds__(threads, tensor_cores ? 4 : 7)
    backward_kernel(const __grid_constant__ Call<T> call, const __grid_constant__ Layout layout, const T* grad,
                    T* grad_dense, T* grad_sparse) {
    constexpr int width = widest<T>;
    let_successor_begin();
    wait_for_predecessor();
    Row<T, tensor_cores, fixed, has_bags> own(call, layout);
    T* const gradient = own.staged;
    const int lane = own.lane, columns = own.columns, wide = int(call.width);
    const long long step = (long long)gridDim.x * warps;
    auto begin = [&](long long row, long long id) {
        own.begin(row, id);
        if (row >= call.bags.batch) return;
        const T* const from = grad + row * wide;
        if (layout.whole) {
#pragma unroll 1
            for (int c = lane * width; c < wide; c += 32 * width) own.copies.copy(gradient + c, from + c, true);
        } else {
#pragma unroll 1
            for (int c = lane; c < wide; c += 32) gradient[c] = from[c];
        }
        own.copies.commit();
    };
    if (lane == 0) gradient[wide] = narrow<T>(0.0f);  // where Weights finds its zeros
    long long row = (long long)blockIdx.x * warps + threadIdx.x / 32;
    begin(row, own.id(row));
    long long next = own.id(row + step);
    auto give = [&](int i, int column, const float (&of_pairs)[4]) {
        T* const to = i ? grad_sparse : grad_dense;
        if (!to) return;
        float values[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) values[e] = of_pairs[e] + (i ? 0.0f : widen(gradient[column + e]));
        store<4>(to + (i ? row * own.features + i - 1 : row) * columns + column, values);
    };
    auto rows = [&](auto multiply_row) {
        for (; row < call.bags.batch; row += step) {
            own.wait();
            multiply_row();
            __syncwarp();  // the next row takes this one's place
            begin(row + step, next);
            next = own.id(row + 2 * step);
        }
    };
    if constexpr (tensor_cores) {
        const dot_interaction::Weights<T> weights(lane, own.features, columns, wide);
        rows([&] { dot_interaction::gradients_by_tensor_cores(own, weights, give); });
    } else {
        rows([&] { gradients_by_ffma(own, give); });
    }
}

// Written down, as plain.cuh does the forward.
template <class T>
__global__ void __launch_bounds__(plain_threads)
    plain_backward(const __grid_constant__ Call<T> call, const T* grad, T* grad_dense, T* grad_sparse) {
    const long long index = (long long)blockIdx.x * plain_threads + threadIdx.x, vectors = call.bags.features + 1;
    const long long vector = index / call.columns, row = vector / vectors, i = vector % vectors;
    const long long column = index % call.columns;
    T* const to = i ? grad_sparse : grad_dense;
    if (row >= call.bags.batch || !to) return;
    const T *const grads = grad + row * call.width, *const pairs = grads + call.columns;
    Accumulator<T> sum = i ? Accumulator<T>(0) : widen(grads[column]);
    for (long long j = 0; j < vectors; ++j) {
        Accumulator<T> weight = 0;
        if (j != i) weight = widen(pairs[j < i ? i * (i - 1) / 2 + j : j * (j - 1) / 2 + i]);
        sum += weight * element(call, row, j, column);
    }
    to[(i ? row * (vectors - 1) + i - 1 : row) * call.columns + column] = narrow<T>(sum);
}

#ifndef __CUDACC_RTC__
template <class T, bool tensor_cores>
cudaError_t launch_rows_of_gradients(const Call<T>& call, const T* grad, T* grad_dense, T* grad_sparse,
                                     const Device& device, const Limits& limits, cudaStream_t stream, bool& fits) {
    const Layout layout = layout_of(call, tensor_cores, call.width + 1, aligned(grad), device);
    if (!(fits = layout.elements > 0 && aligned(grad_dense, grad_sparse))) return cudaSuccess;
    auto kernel = call.bags.offsets    ? backward_kernel<T, tensor_cores, 0, true>
                  : call.columns == 16 ? backward_kernel<T, tensor_cores, 16, false>
                                       : backward_kernel<T, tensor_cores, 0, false>;
    return launch_rows(kernel, call, layout, device, limits, stream, grad, grad_dense, grad_sparse);
}

// grad [batch, width]; grad_dense [batch, columns], grad_sparse [batch, features, columns], of which one may be null.
template <class T>
cudaError_t launch_backward(const Call<T>& call, bool tf32, const T* grad, T* grad_dense, T* grad_sparse,
                            cudaStream_t stream, const Limits& limits = {}) {
    const long long elements = call.bags.batch * (call.bags.features + 1) * call.columns;
    if (elements == 0) return cudaSuccess;
    if constexpr (sizeof(T) < 8) {
        Device device;
        cudaError_t error = this_device(device);
        bool fits = error != cudaSuccess;
        auto go = [&](auto launch_on) {
            if (fits || limits.plain) return;
            error = launch_on(call, grad, grad_dense, grad_sparse, device, limits, stream, fits);
        };
        if (sizeof(T) == 2 || tf32) go(launch_rows_of_gradients<T, true>);
        if constexpr (sizeof(T) == 4) go(launch_rows_of_gradients<T, false>);
        if (fits) return error;
    }
    const dim3 grid = plain_grid(elements);
    return launch_kernel(plain_backward<T>, grid, dim3(plain_threads), 0, stream, call, grad, grad_dense, grad_sparse);
}
#endif

}  // namespace lookup_interact
