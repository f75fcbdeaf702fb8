// A thread's place among those of a block of fused_mlp::direct_threads, and its share of what they do in turn.
#pragma once

#include "ops/dlrm/tile.cuh"

namespace dlrm {

__host__ __device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int larger(int a, int b) { return a < b ? b : a; }
__host__ __device__ constexpr int divided(int a, int b) { return (a + b - 1) / b; }

struct BlockThread {
    static constexpr int threads = fused_mlp::direct_threads, warps = fused_mlp::direct_warps;

    int thread, warp, g, t;  // lane = 4 g + t

    __device__ BlockThread() { find_thread(); }
    // Anew at each stage, so that what hangs on it is not kept in registers from stage to stage.
    __device__ void find_thread() {
#ifdef __CUDA_ARCH__
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
#else
        thread = int(threadIdx.x);
#endif
        warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    }
    __device__ int lane() const { return 4 * g + t; }
    // Of `all` things, those of this thread, of `step` that take them in turn.
    template <int all, int step = threads, class Do>
    __device__ static void each(int first, Do body) {
        constexpr int turns = divided(all, step);
#pragma unroll(turns <= 16 ? turns : 4)
        for (int n = 0; n < turns; ++n)
            if (const int i = first + n * step; all % step == 0 || i < all) body(i);
    }
};

}  // namespace dlrm
