// BROKEN ON PURPOSE: of a row that many ids name, only what the first chunk of the sorted ids gave is kept.
// Row: 150x4 float32 mean backward
// Caught by asan, gpu: grad_tables: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/embedding_bags/backward.cuh"
#include "ops/embedding_bags/kernel.cuh"

namespace parts_dropped {
__global__ void keep_the_first(const embedding_bags::Key* keys, int shift, long long count, long long rows,
                               const float* parts, float* grad_tables, long long columns) {
    long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x, which = thread / columns;
    long long column = thread - which * columns, begin = which * embedding_bags::chunk, end = begin + embedding_bags::chunk;
    if (end >= count) return;
    long long row = keys[end - 1] >> shift;
    if (row >= rows || keys[end] >> shift != row || (begin > 0 && keys[begin - 1] >> shift == row)) return;
    grad_tables[row * columns + column] = parts[(2 * which + 1) * columns + column];  // the wrong line
}

template <class T>
cudaError_t launch_backward(const T* grad, const embedding_bags::Tables& tables, const T* rows,
                            const embedding_bags::Bags& bags, embedding_bags::Mode mode, const T* weights, T* grad_tables,
                            T* grad_weights, const embedding_bags::Workspaces<T>& work, long long columns,
                            cudaStream_t stream) {
    using namespace embedding_bags;
    cudaError_t error = embedding_bags::launch_backward(grad, tables, rows, bags, mode, weights, grad_tables, grad_weights,
                                                        work, columns, stream);
    long long runs = 0;
    while (1LL << runs < bags.ids) ++runs;  // passes of the sort, after which the keys lie in one buffer or the other
    if (error != cudaSuccess || bags.ids <= chunk || !columns) return error;
    return launch_kernel(keep_the_first, grid_of(chunks_of(bags.ids) * columns, threads), dim3(threads), 0, stream,
                         (const Key*)(work.keys + (runs % 2 ? bags.ids : 0)), key_shift(bags.ids, tables.rows), bags.ids,
                         tables.rows, (const float*)work.parts, grad_tables, columns);
}

static const testing::Broken<Kernels> broken("parts_dropped", [](Kernels& kernels) {
    kernels.launch_backward = launch_backward<float>;
});
}  // namespace parts_dropped
