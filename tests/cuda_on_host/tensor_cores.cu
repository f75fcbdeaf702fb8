// Tensor cores, asynchronous copies and clusters: what the host does in their place, a GPU must do too.
#include "device/cluster.cuh"

#include "device/async_copy.cuh"
#include "device/tensor_core.cuh"
#include "device/tf32.cuh"

#include "cases.h"

// One warp: out[16, 8] = a[16, k] b[8, k]ᵀ, 32 bytes of k, both read by load_matrices.
template <class T>
__global__ void multiply(const T* a, const T* b, float* out) {
    constexpr int k = step_bytes / int(sizeof(T));
    T* shared = dynamic_shared<T>();  // [16 + 8, k]
    int lane = int(threadIdx.x);
    for (int i = lane; i < 16 * k; i += 32) shared[i] = a[i];
    for (int i = lane; i < 8 * k; i += 32) shared[16 * k + i] = b[i];
    __syncwarp();
    unsigned rows[4], columns[4];
    load_matrices(rows, shared + lane % 16 * k + lane / 16 * (k / 2));
    load_matrices(columns, shared + (16 + lane % 8) * k + lane / 8 % 2 * (k / 2));
    float c[4] = {};
    multiply_step<T>(c, rows, columns[0], columns[1]);
    for (int i = 0; i < 4; ++i) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}
inline void set(float& number, float value) { number = value; }
inline void set(__half& number, float value) { number = __float2half(value); }
inline void set(__nv_bfloat16& number, float value) { number = __float2bfloat16(value); }
template <class T>
int products_are_exact() {
    constexpr int k = step_bytes / int(sizeof(T));
    std::vector<T> a(16 * k), b(8 * k);
    auto value = [](int i) { return float(i * 7 % 31 - 15) / 8; };  // exact in every dtype, and so are their sums
    for (int i = 0; i < 16 * k; ++i) set(a[i], value(i));
    for (int i = 0; i < 8 * k; ++i) set(b[i], value(3 * i + 5));
    Array<T> on_a(a), on_b(b);
    Array<float> out(16 * 8);
    REQUIRE(launch_kernel(multiply<T>, dim3(1), dim3(32), 24 * step_bytes, cudaStream_t{}, on_a.get(), on_b.get(),
                          out.get()) == cudaSuccess);
    std::vector<float> got = out.read();
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 8; ++column) {
            float sum = 0;
            for (int i = 0; i < k; ++i) sum += value(row * k + i) * value(3 * (column * k + i) + 5);
            REQUIRE(got[row * 8 + column] == sum);
        }
    return 0;
}
CASE(a_step_multiplies_tf32) { return products_are_exact<float>(); }
CASE(a_step_multiplies_half) { return products_are_exact<__half>(); }
CASE(a_step_multiplies_bfloat16) { return products_are_exact<__nv_bfloat16>(); }

// What tensor cores take of an operand, by its bits; tests/test_tf32.py asks tf32.py the same. Behind them, whether what
// lies halfway between two numbers becomes the even one.
__global__ void round_to_tf32(const unsigned* from, unsigned* out, int count) {
    for (int i = int(threadIdx.x); i < count; i += int(blockDim.x))
        out[i] = __float_as_uint(rounded_to_tf32(__uint_as_float(from[i]))) & ~0x1fffu;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    bool even = true;
#else
    bool even = false;
#endif
    if (threadIdx.x == 0) out[count] = even;
}
CASE(an_operand_is_rounded) {
    std::vector<unsigned> bits;
    for (unsigned i = 0; i < 4000; ++i) {  // of every exponent; some lie halfway between two
        unsigned number = i * 2654435761u % 0x7e800000u + 0x00800000u;
        if (i % 4 == 0) number = (number & ~0x1fffu) | 0x1000;
        bits.push_back(number | i % 2 << 31);
    }
    for (unsigned sign : {0u, 0x80000000u})
        for (unsigned number : {0u, 0x7f800000u, 0x7f7fefffu, 0x7f7ff000u, 0x7f7fffffu, 0x3fffffffu, 0x00800000u, 0x00801000u})
            bits.push_back(sign | number);  // zero, infinity, to tf32's largest, beyond, to 2, the smallest normal ones
    size_t normal = bits.size();
    for (unsigned denormal : {0x007fffffu, 0x80003fffu, 0x00000001u}) bits.push_back(denormal);
    size_t numbers = bits.size();
    for (unsigned nan : {0x7fffffffu, 0xffffffffu, 0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7ffff000u})
        bits.push_back(nan);
    Array<unsigned> from(bits), out(bits.size() + 1);
    REQUIRE(launch_kernel(round_to_tf32, dim3(1), dim3(64), 0, cudaStream_t{}, from.get(), out.get(), int(bits.size())) ==
            cudaSuccess);
    std::vector<unsigned> got = out.read();
    unsigned even = got.back();
    for (size_t i = 0; i < normal; ++i) REQUIRE(got[i] == (bits[i] + 0x1000 - (even & ~(bits[i] >> 13)) & ~0x1fffu));
    for (size_t i = normal; i < numbers; ++i) REQUIRE(got[i] - (bits[i] & ~0x1fffu) <= 0x2000);  // either neighbour
    for (size_t i = numbers; i < bits.size(); ++i) REQUIRE((got[i] & 0x7fffffff) > 0x7f800000);
    return 0;
}

// Four groups of copies under way; they are waited for one by one, and the last one's are zeros.
__global__ void copy(const uint4* from, uint4* out) {
    uint4* shared = dynamic_shared<uint4>();
    int thread = int(threadIdx.x), other = 63 - thread;
    AsyncCopies copies;
    for (int group = 0; group < 4; ++group) {
        copies.copy(shared + group * 64 + thread, from + group * 64 + thread, group < 3);
        copies.commit();
    }
    for (int group = 0; group < 4; ++group) {
        copies.wait(3 - group);
        __syncthreads();
        out[group * 64 + other] = shared[group * 64 + other];
    }
}
CASE(copies_are_there_after_the_wait) {
    std::vector<uint4> values(256);
    for (unsigned i = 0; i < 256; ++i) values[i] = {i, i + 1000, i + 2000, i + 3000};
    Array<uint4> from(values), out(256);
    REQUIRE(launch_kernel(copy, dim3(1), dim3(64), 256 * sizeof(uint4), cudaStream_t{}, from.get(), out.get()) ==
            cudaSuccess);
    std::vector<uint4> got = out.read();
    for (unsigned i = 0; i < 256; ++i) REQUIRE(i < 192 ? got[i].x == i && got[i].w == i + 3000 : !got[i].x && !got[i].w);
    return 0;
}

// Every block of a cluster writes its number into all of them, and after the barrier reads its own memory.
__global__ void exchange(int size, unsigned* out) {
    Cluster cluster(size);
    uint4* shared = dynamic_shared<uint4>();  // [size, blockDim.x]
    cluster.barrier();
    unsigned number = unsigned(Cluster::block());
    for (int other = 0; other < size; ++other) {
        uint4* own = shared + cluster.rank * int(blockDim.x) + int(threadIdx.x);
        cluster.store(own, other, uint4{number, threadIdx.x, 0, 0});
    }
    cluster.barrier();
    for (int from = 0; from < size; ++from) {
        uint4 got = shared[from * int(blockDim.x) + int(threadIdx.x)];
        out[(number * unsigned(size) + unsigned(from)) * blockDim.x + threadIdx.x] = got.x * 100 + got.y;
    }
    cluster.barrier();
}
CASE(blocks_of_a_cluster_write_into_one_another) {
#ifdef __CUDACC__
    int major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (major < 9) return 0;
#endif
    for (int size : {2, 4, 8}) {
        constexpr int clusters = 3, threads = 40;
        Array<unsigned> out(clusters * size * size * threads);
        REQUIRE(launch_clusters(exchange, clusters, size, dim3(threads), size_t(size * threads) * sizeof(uint4),
                                cudaStream_t{}, size, out.get()) == cudaSuccess);
        std::vector<unsigned> got = out.read();
        for (int block = 0; block < clusters * size; ++block)
            for (int from = 0; from < size; ++from)
                for (int thread = 0; thread < threads; ++thread)
                    REQUIRE(got[(block * size + from) * threads + thread] ==
                            unsigned(block / size * size + from) * 100 + unsigned(thread));
    }
    return 0;
}

#ifndef __CUDACC__
__global__ void no_wait(const uint4* from, uint4* out) {
    uint4* shared = dynamic_shared<uint4>();
    AsyncCopies copies;
    copies.copy(shared + threadIdx.x, from + threadIdx.x, true);
    copies.commit();
    copies.wait(1);  // the wrong line
    out[threadIdx.x] = shared[threadIdx.x];
}
CASE(a_copy_is_not_there_before_it_is_waited_for) {
    Array<uint4> from(std::vector<uint4>(32, {1, 2, 3, 4})), out(32);
    REQUIRE(launch_kernel(no_wait, dim3(1), dim3(32), 32 * sizeof(uint4), nullptr, from.get(), out.get()) == cudaSuccess);
    REQUIRE(out.read()[5].x == 0xffffffffu);
    return 0;
}

__global__ void no_barrier_after_the_wait(const uint4* from, uint4* out) {
    uint4* shared = dynamic_shared<uint4>();
    AsyncCopies copies;
    copies.copy(shared + threadIdx.x, from + threadIdx.x, true);
    copies.commit();
    copies.wait(0);
    out[threadIdx.x] = shared[63 - threadIdx.x];  // the wrong line: no __syncthreads() before it
}
CASE(misuse_a_copy_is_read_by_another_thread_without_a_barrier) {
    Array<uint4> from(64), out(64);
    return launch_kernel(no_barrier_after_the_wait, dim3(1), dim3(64), 64 * sizeof(uint4), nullptr, from.get(),
                         out.get());
}

__global__ void no_cluster_barrier(unsigned* out) {
    Cluster cluster(2);
    uint4* shared = dynamic_shared<uint4>();
    cluster.barrier();
    cluster.store(shared + threadIdx.x, 1 - cluster.rank, uint4{1, 2, 3, 4});
    __syncthreads();  // the wrong line
    out[unsigned(Cluster::block()) * 32 + threadIdx.x] = shared[threadIdx.x].x;
}
CASE(misuse_a_cluster_barrier_is_missing) {
    Array<unsigned> out(64);
    return launch_clusters(no_cluster_barrier, 1, 2, dim3(32), 32 * sizeof(uint4), nullptr, out.get());
}

__global__ void unaligned(const float* from, float* out) {
    float* shared = dynamic_shared<float>();
    for (int i = int(threadIdx.x); i < 128; i += 32) shared[i] = from[i];
    __syncwarp();
    unsigned registers[4];
    load_matrices(registers, shared + threadIdx.x % 8 + 1);  // the wrong line: a row starts at a multiple of 16 bytes
    out[threadIdx.x] = float(registers[0]);
}
CASE(misuse_a_matrix_row_is_not_aligned) {
    Array<float> from(128), out(32);
    return launch_kernel(unaligned, dim3(1), dim3(32), 512, nullptr, from.get(), out.get());
}
#endif
