// BROKEN ON PURPOSE: of a row that many ids name, only what the first chunk of the sorted ids gave is kept.
// Row: 150x4 float32 mean backward
// Caught by asan, gpu: grad_tables: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/embedding_bags/backward.cuh"
#include "ops/embedding_bags/kernel.cuh"

namespace parts_dropped {
using namespace embedding_bags;

__global__ void keep_the_first(Sorted ids, const float* parts, float* grad_tables, long long columns) {
    long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x, which = thread / columns;
    long long column = thread - which * columns, begin = which * chunk, end = begin + chunk;
    if (end >= ids.count) return;
    long long key = ids.keys[end - 1];
    if (!ids.names_row(key) || ids.keys[end] != key || (begin > 0 && ids.keys[begin - 1] == key)) return;
    grad_tables[ids.row(key) * columns + column] = parts[(2 * which + 1) * columns + column];  // the wrong line
}

template <class T>
cudaError_t launch_backward(const T* grad, const Tables& tables, const T* rows, const Bags& bags, Mode mode,
                            const T* weights, const Sorted& ids, T* grad_tables, T* grad_weights, long long* winner,
                            Accumulator<T>* parts, long long columns, cudaStream_t stream) {
    cudaError_t error = embedding_bags::launch_backward(grad, tables, rows, bags, mode, weights, ids, grad_tables,
                                                        grad_weights, winner, parts, columns, stream);
    if (error != cudaSuccess || ids.count <= chunk || !columns) return error;
    return launch_kernel(keep_the_first, grid_of(chunks_of(ids.count) * columns, threads), dim3(threads), 0, stream, ids,
                         (const float*)parts, grad_tables, columns);
}

static const testing::Broken<Kernels> broken("parts_dropped", [](Kernels& kernels) {
    kernels.launch_backward = launch_backward<float>;
});
}  // namespace parts_dropped
