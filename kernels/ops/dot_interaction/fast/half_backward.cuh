// The backward for half and bfloat16 on tensor cores, 1 to 31 features and columns in whole 16 bytes, 128 at most.
//
// A warp takes a row at a time. Its lanes copy the row's vectors and its row of out's gradient into shared memory, 16
// bytes each and without waiting, multiply the two (gradients.cuh), and store the results from registers, four columns
// of a vector at once. While a warp waits for its row, the other warps of its multiprocessor compute theirs.
//
// A row of out's gradient need not begin at 16 bytes: it is copied from the 16 bytes that it begins in to those that it
// ends in, and begins in shared memory as far behind 16 bytes as it does in memory.
#pragma once

#include "device/async_copy.cuh"
#include "device/bulk_copy.cuh"
#include "ops/dot_interaction/gradients.cuh"

namespace dot_interaction {

constexpr int row_warps = 4;    // of a block
constexpr int row_blocks = 16;  // of a multiprocessor: more than run at once, so that who is done takes another

struct RowShape {
    long long rows;
    int features, columns, width;
    int elements;             // on chip, a warp's
    Columns<unsigned> parts;  // divides by the 16 bytes of a vector
};

// Vectors that have a place on chip. Those that a row has not are zeros there.
__host__ __device__ inline int places_of(int features) { return features < 16 ? 16 : 32; }
// A warp reads 32 bytes of each of four vectors at once, every other one (gradients.cuh). Vectors begin an odd number
// of 16 bytes apart, and so every other one an odd number of 32: the four lie in different banks.
template <class T>
__host__ __device__ constexpr int vector_stride(int columns) {
    return columns + (columns / widest<T> % 2 ? 0 : widest<T>);
}

// fixed: a vector's columns, 0 if they are known at the launch only.
template <class T, int fixed>
struct RowOnChip {
    static constexpr int of_columns = fixed;

    int lane, features, columns, stride;
    const T *vectors, *staged;  // staged: the row of out's gradient

    __device__ const T* vector(int v) const { return vectors + v * stride; }
};

template <class T, int fixed>
__global__ void __launch_bounds__(32 * row_warps, 4)
    half_backward(const T* grad, const T* dense, const T* sparse, T* grad_dense, T* grad_sparse, RowShape s) {
    constexpr int width = widest<T>;
    let_successor_begin();
    wait_for_predecessor();
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, features = s.features;
    const int columns = fixed ? fixed : s.columns, stride = vector_stride<T>(columns), parts = columns / width;
    const long long step = (long long)gridDim.x * row_warps;
    long long row = (long long)blockIdx.x * row_warps + warp;
    if (row >= s.rows) return;
    T* const vectors = dynamic_shared<T>() + warp * s.elements;
    T* const gradients = vectors + places_of(features) * stride;
    AsyncCopies copies;
    // give(vector, column) for each 16 bytes of vectors first … last - 1.
    auto each_part = [&](int first, int last, auto give) {
        for (int part = first * parts + lane; part < last * parts; part += 32) {
            const int v = fixed ? part / parts : int(s.parts.quotient(unsigned(part)));
            give(v, (part - v * parts) * width);
        }
    };
    const long long whole = s.rows * s.width / width * width;  // elements of out's gradient in whole 16 bytes
    auto begin = [&](long long row) {
        if (row >= s.rows) return;
        const T *const of_dense = dense + row * columns, *const of_sparse = sparse + row * features * columns;
        each_part(0, features + 1, [&](int v, int column) {
            copies.copy(vectors + v * stride + column, v ? of_sparse + (v - 1) * columns + column : of_dense + column,
                        true);
        });
        const long long first = row * s.width / width * width, end = (row + 1) * s.width;
        const int count = int((end < whole ? end : whole) - first);
        for (int e = lane * width; e < count; e += 32 * width) copies.copy(gradients + e, grad + first + e, true);
        copies.commit();
        if (whole + lane < end) gradients[whole + lane - first] = grad[whole + lane];  // the last row's
    };
    each_part(features + 1, places_of(features),
              [&](int v, int column) { copies.copy(vectors + v * stride + column, dense, false); });
    begin(row);
    const Weights<T> weights(lane, features, columns, s.width);
    for (; row < s.rows; row += step) {
        copies.wait(0);
        __syncwarp();
        T* const gradient = gradients + int(row * s.width % width);
        if (lane == 0) gradient[s.width] = narrow<T>(0.0f);  // where Weights finds its zeros
        __syncwarp();
        const RowOnChip<T, fixed> own = {lane, features, columns, stride, vectors, gradient};
        gradients_by_tensor_cores(own, weights, [&](int i, int column, const float (&of_pairs)[4]) {
            T* const to = i ? grad_sparse : grad_dense;
            if (!to) return;
            float values[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) values[e] = of_pairs[e] + (i ? 0.0f : widen(gradient[column + e]));
            store<4>(to + (i ? row * features + i - 1 : row) * columns + column, values);
        });
        __syncwarp();  // the next row takes this one's place
        begin(row + step);
    }
}

#ifndef __CUDACC_RTC__
template <class T>
cudaError_t launch_half_backward(const T* grad, const T* dense, const T* sparse, T* grad_dense, T* grad_sparse,
                                 long long rows, int features, int columns, int width, cudaStream_t stream,
                                 int most_blocks, bool& fits) {
    fits = features > 0 && columns % widest<T> == 0 && aligned(grad, dense, sparse, grad_dense, grad_sparse);
    if (!fits) return cudaSuccess;
    // A row of out's gradient, its zero, and what its 16 bytes hold beside it.
    const int staged = (width + 2 * widest<T> - 1) / widest<T> * widest<T>;
    const RowShape s = {rows, features, columns, width, places_of(features) * vector_stride<T>(columns) + staged,
                        Columns<unsigned>(columns / widest<T>)};
    const long long shared = row_warps * s.elements * (long long)sizeof(T);
    auto launch = [&](auto kernel, const BulkDevice& device) {
        // A block's memory has four of a row, whose places therefore are numbers of 16 bits, as Weights keeps them.
        fits = device.multiprocessors && shared <= device.of_block;
        if (!fits) return cudaSuccess;
        const long long all = (rows + row_warps - 1) / row_warps;
        const long long most = most_blocks ? most_blocks : 1LL * row_blocks * device.multiprocessors;
        const dim3 grid(unsigned(all < most ? all : most)), block(32 * row_warps);
        return launch_kernel_early(kernel, grid, block, size_t(shared), stream, grad, dense, sparse, grad_dense,
                                   grad_sparse, s);
    };
    return columns == 16 ? launch(half_backward<T, 16>, bulk_device<half_backward<T, 16>, 80>())
                         : launch(half_backward<T, 0>, bulk_device<half_backward<T, 0>, 80>());
}
#endif

}  // namespace dot_interaction
