// Thread block clusters (from sm_90 on): up to 8 blocks, 16 where a kernel asks for it, that run at the same time on
// neighbouring multiprocessors, wait for one another and write into each other's shared memory. A cluster of one block
// runs everywhere. On the host the clusters of a launch run one after the other, the blocks of each by turns.
//
// Include this first: on the host it changes what __shared__ is (cooperative.cuh).
#pragma once

#include "device/cooperative.cuh"

constexpr int most_cluster_blocks = 16, portable_cluster_blocks = 8;

#ifndef __CUDACC__
namespace cuda_on_host {
inline void* cluster_memory[most_cluster_blocks];  // the dynamic shared memory of each block of the running cluster
inline int first_block_of_cluster, blocks_of_cluster = 1;  // of another launch than launch_clusters', too
}  // namespace cuda_on_host
#endif

class Cluster {
public:
    const int size, rank;  // blocks, and this one's number among them

    __device__ explicit Cluster(int size) : size(size), rank(size == 1 ? 0 : rank_of_block()) {
#ifndef __CUDACC__
        if (size != cuda_on_host::blocks_of_cluster) {
            cuda_on_host::fail("a kernel for clusters of %d blocks is launched in clusters of %d", size,
                               cuda_on_host::blocks_of_cluster);
            cuda_on_host::stop();
        }
        if (threadIdx.x == 0 && size > 1) cuda_on_host::cluster_memory[rank] = dynamic_shared<char>();
#endif
    }
    // This block's number in the launch.
    __device__ static int block() {
#ifdef __CUDACC__
        return int(blockIdx.x);
#else
        return cuda_on_host::first_block_of_cluster + int(blockIdx.x);
#endif
    }
    // What was written before it, in any block's shared memory, is seen after it by all blocks of the cluster. A block
    // may be written to after the first barrier, and must not return before the one that follows the last write to it.
    __device__ void barrier() const {
        if (size == 1) return __syncthreads();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#elif !defined(__CUDACC__)
        grid_barrier();
#endif
    }
    // The first half of a first barrier, at a kernel's beginning: that this thread has begun, and nothing that it wrote.
    __device__ void begin() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
    }
    // The barrier in two halves: what a thread does between them hangs on no other block, and is seen by none before it
    // comes to the next barrier. On the host all of it is in the second half.
    __device__ void arrive() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
    }
    __device__ void wait() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#elif !defined(__CUDACC__)
        grid_barrier();
#endif
    }
    // A number, or 16 bytes, to the place of `own` in another block's dynamic shared memory.
    __device__ void store([[maybe_unused]] float* own, [[maybe_unused]] int other, [[maybe_unused]] float value) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address_in(other, own)), "f"(value) : "memory");
#elif !defined(__CUDACC__)
        *place_in(other, own) = value;
#endif
    }
    __device__ void store([[maybe_unused]] uint4* own, [[maybe_unused]] int other, [[maybe_unused]] uint4 value) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address_in(other, own)), "r"(value.x),
                     "r"(value.y), "r"(value.z), "r"(value.w)
                     : "memory");
#elif !defined(__CUDACC__)
        *place_in(other, own) = value;
#endif
    }

private:
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __device__ static unsigned address_in(int other, const void* own) {
        unsigned address = unsigned(__cvta_generic_to_shared(own));
        asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(other));
        return address;
    }
#elif !defined(__CUDACC__)
    template <class T>
    static T* place_in(int other, T* own) {
        char* memory = static_cast<char*>(cuda_on_host::cluster_memory[other]);
        return reinterpret_cast<T*>(memory + (reinterpret_cast<char*>(own) - dynamic_shared<char>()));
    }
#endif
    __device__ static int rank_of_block() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        int rank;
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
        return rank;
#elif !defined(__CUDACC__)
        return int(blockIdx.x);
#else
        return 0;
#endif
    }
};

#ifndef __CUDACC_RTC__
#ifdef __CUDACC__
// How many clusters of `cluster` blocks run at once. The blocks of a cluster lie in one GPC, and a GPC's multiprocessors
// need not be a multiple of it: of clusters of four an H100 holds 32 or fewer, not 132 / 4. 0: none, as where the kernel
// was compiled for a GPU without clusters. For more than portable_cluster_blocks, and above 48 KB, the kernel must have
// been allowed them.
template <class... Parameters>
int most_resident_clusters(void (*kernel)(Parameters...), int cluster, int threads, size_t shared_bytes) {
    cudaFuncAttributes compiled;
    int clusters = 0;
    cudaError_t error = cudaFuncGetAttributes(&compiled, reinterpret_cast<const void*>(kernel));
    if (error == cudaSuccess && compiled.ptxVersion >= 90) {
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = unsigned(cluster);
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t configuration = {};
        configuration.gridDim = dim3(unsigned(cluster));
        configuration.blockDim = dim3(unsigned(threads));
        configuration.dynamicSmemBytes = shared_bytes;
        configuration.attrs = &attribute;
        configuration.numAttrs = 1;
        error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &configuration);
    }
    if (error != cudaSuccess) cudaGetLastError();  // or the next launch would return it
    return error == cudaSuccess ? clusters : 0;
}
#endif

// launch_kernel(…) in clusters of `cluster` blocks, of which there are `clusters`.
template <class... Parameters, class... Arguments>
cudaError_t launch_clusters(void (*kernel)(Parameters...), int clusters, int cluster, dim3 block, size_t shared_bytes,
                            cudaStream_t stream, Arguments... arguments) {
#ifdef __CUDACC__
    if (cluster == 1) return launch_kernel(kernel, dim3(clusters), block, shared_bytes, stream, arguments...);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = unsigned(cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t configuration = {};
    configuration.gridDim = dim3(unsigned(clusters) * unsigned(cluster));
    configuration.blockDim = block;
    configuration.dynamicSmemBytes = shared_bytes;
    configuration.stream = stream;
    configuration.attrs = &attribute;
    configuration.numAttrs = 1;
    cudaError_t error = cudaSuccess;
    if (cluster > portable_cluster_blocks)
        error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (error == cudaSuccess) error = cudaLaunchKernelEx(&configuration, kernel, arguments...);
    if (error != cudaSuccess) cudaGetLastError();
    return error;
#else
    if (cluster == 1) return launch_kernel(kernel, dim3(clusters), block, shared_bytes, stream, arguments...);
    if (cluster > most_cluster_blocks) return cudaErrorInvalidConfiguration;
    if (cuda_on_host::most_blocks && 1ULL * clusters * cluster > cuda_on_host::most_blocks) return cudaErrorLaunchTimeout;
    cuda_on_host::blocks_of_cluster = cluster;
    cudaError_t error = cudaSuccess;
    for (int c = 0; c < clusters && error == cudaSuccess; ++c) {
        cuda_on_host::first_block_of_cluster = (cuda_on_host::backwards ? clusters - 1 - c : c) * cluster;
        error = launch_cooperative_kernel(kernel, dim3(cluster), block, shared_bytes, stream, arguments...);
    }
    cuda_on_host::blocks_of_cluster = 1, cuda_on_host::first_block_of_cluster = 0;
    return error;
#endif
}
#endif
