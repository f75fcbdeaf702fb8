// BROKEN ON PURPOSE: an id that names no row updates the row behind its table.
// Row: 150x16 float32 sgd chunk 4
// Caught by asan, tsan, gpu: tables: [0-9]+ of [0-9]+ wrong
#pragma once

#include "ops/embedding_bags_update/kernel.cuh"

namespace no_row_updated {
namespace update = embedding_bags_update;

template <class T>
__global__ void kernel(update::Occurrences<T> all, update::Target<T> to) {
    long long column = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= to.columns) return;
    float g = 0;
    for (long long n = 0; n < all.count; ++n) {
        g += all.share(all.positions[n]) * widen(all.gradient(all.positions[n], to.columns)[column]);
        if (n + 1 < all.count && all.keys[n + 1] == all.keys[n]) continue;
        to.tables[all.keys[n] / 2 * to.columns + column] -= to.learning_rate.template get<float>() * g;  // the wrong line
        g = 0;
    }
}

template <class T>
cudaError_t launch(const update::Occurrences<T>& all, const update::Target<T>& to, long long, float*, int*,
                   cudaStream_t stream, unsigned) {
    return launch_kernel(kernel<T>, dim3(unsigned((to.columns + 63) / 64)), dim3(64), 0, stream, all, to);
}

static const testing::Broken<Kernels> broken("no_row_updated", [](Kernels& kernels) {
    kernels.launch = launch<float>;
});
}  // namespace no_row_updated
