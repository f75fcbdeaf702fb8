// BROKEN ON PURPOSE: Adagrad's state grows by the square of each occurrence, not by that of their sum.
// Row: 150x16 float32 adagrad chunk 4
// Caught by asan, tsan, gpu: tables: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/embedding_bags_update/kernel.cuh"

namespace each_occurrence {
namespace update = embedding_bags_update;

template <class T>
__global__ void kernel(update::Occurrences<T> all, update::Target<T> to) {
    long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= to.columns) return;
    for (long long n = 0; n < all.count; ++n) {
        long long key = all.keys[n], i = key / 2 * to.columns + column;
        if (key % 2 == 0) continue;
        float g = all.share(all.positions[n]) * widen(all.gradient(all.positions[n], to.columns)[column]);
        to.state[i] += g * g;  // the wrong line
        to.tables[i] -= to.learning_rate.template get<float>() * g / (sqrtf(to.state[i]) + to.eps);
    }
}

template <class T>
cudaError_t launch(const update::Occurrences<T>& all, const update::Target<T>& to, long long, float*, int*,
                   cudaStream_t stream, unsigned) {
    return launch_kernel(kernel<T>, dim3(unsigned((to.columns + 63) / 64)), dim3(64), 0, stream, all, to);
}

static const testing::Broken<Kernels> broken("each_occurrence", [](Kernels& kernels) {
    kernels.launch = launch<float>;
});
}  // namespace each_occurrence
