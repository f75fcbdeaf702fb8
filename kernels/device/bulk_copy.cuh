// Copies between global and shared memory by the multiprocessor's copy engine (cp.async.bulk, from sm_90 on): one
// thread begins a copy of many bytes, and no thread moves them. Addresses and sizes are multiples of 16 bytes.
//
//     BulkLoads     to shared memory. It lies there itself, aligned to 16 bytes. One thread calls init(threads) before a
//                   __syncthreads(). Then in each round so many threads call begin(bytes), and copy() for so many bytes
//                   in all; every thread that reads them calls wait(number of the round % 2). A round begins after a
//                   barrier of all who read, which follows the wait() of the one before, and before one that precedes
//                   its own; the first may be begun before the __syncthreads(), by who called init().
//     BulkStores    to global memory, of one thread: what it began by copy() may be overwritten in shared memory after
//                   its wait(). What threads wrote there is copied if each calls order_before_bulk_copies() before the
//                   __syncthreads() that the copy follows. A block ends after its last wait().
//
// On the host a load leaves NaN at its place when it is begun, and is done in the first wait() that promises it; a store
// is done in wait(): a reader that comes too early, and a writer that does not wait, both show. So does a store for which
// not every thread of the block has called order_before_bulk_copies() since the one before. What a GPU would copy without
// it, and whether init()'s own is there, the host cannot show: it has one order of all writes.
#pragma once

#include "device/launch.cuh"

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <mutex>
#endif
#ifndef __CUDACC__
#include <deque>
#include <utility>
#include <vector>

namespace cuda_on_host {

struct alignas(16) BulkBytes {
    unsigned char byte[16];
};
struct BulkCopy {
    void* to;
    const void* from;
    unsigned bytes;

    // The accesses that the sanitizers see.
    __attribute__((noinline)) void carry_out() const {
        for (unsigned i = 0; i < bytes / 16; ++i)
            static_cast<BulkBytes*>(to)[i] = static_cast<const BulkBytes*>(from)[i];
    }
    __attribute__((noinline)) void spoil() const {
        for (unsigned i = 0; i < bytes; ++i) static_cast<unsigned char*>(to)[i] = 0xFF;
    }
};
CUDA_ON_HOST_UNSEEN inline void check_bulk_copy(const BulkCopy& copy) {
    if ((reinterpret_cast<uintptr_t>(copy.to) | reinterpret_cast<uintptr_t>(copy.from) | copy.bytes) % 16 == 0) return;
    fail("a bulk copy of %u bytes from %p to %p: all must be multiples of 16", copy.bytes, copy.from, copy.to);
    stop();
}
// What a BulkLoads in shared memory stands for.
struct BulkRound {
    BulkCopy copies[128];
    unsigned count, expected, begun, done, threads, came;
};
inline std::deque<BulkRound> bulk_rounds(64);  // those of one cluster are fewer; each by itself, of less than 48 KB
inline unsigned next_bulk_round;
inline unsigned long long bulk_orders;  // calls of order_before_bulk_copies()
CUDA_ON_HOST_UNSEEN inline void count_bulk_order() { ++bulk_orders; }

}  // namespace cuda_on_host
#endif

class alignas(16) BulkLoads {
public:
#ifdef __CUDACC__
    __device__ void init([[maybe_unused]] unsigned threads) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(this)), "r"(threads) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    }
    __device__ void begin([[maybe_unused]] unsigned bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(this)), "r"(bytes)
                     : "memory");
#endif
    }
    __device__ void copy([[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                         [[maybe_unused]] unsigned bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         address(to)),
                     "l"(from), "r"(bytes), "r"(address(this))
                     : "memory");
#endif
    }
    __device__ void wait([[maybe_unused]] unsigned parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        unsigned done;
        do {
            asm volatile(
                "{ .reg .pred done;\n"
                "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                "selp.u32 %0, 1, 0, done; }"
                : "=r"(done)
                : "r"(address(this)), "r"(parity)
                : "memory");
        } while (!done);
#endif
    }

private:
    static __device__ unsigned address(const void* shared) { return unsigned(__cvta_generic_to_shared(shared)); }
    unsigned long long barrier_;
#else
    CUDA_ON_HOST_UNSEEN void init(unsigned threads) {
        round_ = &cuda_on_host::bulk_rounds[cuda_on_host::next_bulk_round++ % cuda_on_host::bulk_rounds.size()];
        *round_ = {};
        round_->threads = threads;
    }
    CUDA_ON_HOST_UNSEEN void begin(unsigned bytes) {
        if (++round_->came > round_->threads) stop("more threads begin bulk loads than init() was told");
        round_->expected += bytes;
    }
    CUDA_ON_HOST_UNSEEN void copy(void* to, const void* from, unsigned bytes) {
        cuda_on_host::BulkCopy copy = {to, from, bytes};
        cuda_on_host::check_bulk_copy(copy);
        if (round_->count == sizeof round_->copies / sizeof copy) stop("more bulk loads in a round than are emulated");
        copy.spoil();
        round_->copies[round_->count++] = copy;
        round_->begun += bytes;
        cuda_on_host::release(round_);
    }
    CUDA_ON_HOST_UNSEEN void wait(unsigned parity) {
        cuda_on_host::acquire(round_);
        if ((round_->done & 1) != parity) return;
        if (round_->came < round_->threads) stop("a wait for bulk loads that not all threads have begun");
        if (round_->begun != round_->expected) stop("the bulk loads' bytes are not those that begin() was told");
        for (unsigned i = 0; i < round_->count; ++i) round_->copies[i].carry_out();
        round_->count = round_->expected = round_->begun = round_->came = 0;
        ++round_->done;
        cuda_on_host::release(round_);
    }

private:
    CUDA_ON_HOST_UNSEEN static void stop(const char* why) {
        cuda_on_host::fail("%s", why);
        cuda_on_host::stop();
    }
    cuda_on_host::BulkRound* round_;
#endif
};

class BulkStores {
public:
    __device__ void copy([[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                         [[maybe_unused]] unsigned bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"(unsigned(__cvta_generic_to_shared(from))), "r"(bytes)
                     : "memory");
#elif !defined(__CUDACC__)
        check_order();
        open_.push_back({to, from, bytes});
        cuda_on_host::check_bulk_copy(open_.back());
#endif
    }
    // For all but the last `later` commits.
    template <int later = 0>
    __device__ void wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(later) : "memory");
#elif !defined(__CUDACC__)
        for (; committed_.size() > later; committed_.erase(committed_.begin())) {
            for (const cuda_on_host::BulkCopy& copy : committed_.front()) copy.carry_out();
        }
#endif
    }
    // After the last of the copies that one wait() is for.
    __device__ void commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#elif !defined(__CUDACC__)
        committed_.push_back(std::move(open_));
        open_.clear();
        ordered_ += threads();  // and not orders(): other threads may be ahead
#endif
    }

#ifndef __CUDACC__
private:
    CUDA_ON_HOST_UNSEEN static unsigned long long orders() { return cuda_on_host::bulk_orders; }
    static unsigned long long threads() { return 1ULL * blockDim.x * blockDim.y * blockDim.z; }
    CUDA_ON_HOST_UNSEEN void check_order() const {
        if (orders() - ordered_ >= threads()) return;
        cuda_on_host::fail("a bulk store of what not all threads have put in order, by order_before_bulk_copies()");
        cuda_on_host::stop();
    }
    std::vector<cuda_on_host::BulkCopy> open_;
    std::vector<std::vector<cuda_on_host::BulkCopy>> committed_;
    unsigned long long ordered_ = orders();  // of them so many were for what has been committed
#endif
};

__device__ inline void order_before_bulk_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#elif !defined(__CUDACC__)
    cuda_on_host::count_bulk_order();
#endif
}

#ifndef __CUDACC_RTC__
// What a launch of a kernel with bulk copies must know of the GPU: its multiprocessors, 0 where the kernel was compiled
// for one that has no copy engine, or that is older than sm_<architecture>; the bytes of dynamic shared memory that a
// block may have, and a multiprocessor's.
struct BulkDevice {
    int multiprocessors = 0;
    long long of_block = 0, of_multiprocessor = 0;
};

// Asked once for each kernel and GPU: the answers do not change, and asking takes about as long as a launch.
template <auto kernel, int architecture = 90>
BulkDevice bulk_device() {
#ifdef __CUDACC__
    constexpr int most = 64;
    static BulkDevice known[most];
    static std::once_flag asked[most];
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= most) return {};
    std::call_once(asked[device], [&] {
        auto function = reinterpret_cast<const void*>(kernel);
        cudaFuncAttributes compiled;
        int count = 0, of_block = 0, all = 0;
        cudaError_t error = cudaFuncGetAttributes(&compiled, function);
        auto ask = [&](int& answer, cudaDeviceAttr what) {
            if (error == cudaSuccess) error = cudaDeviceGetAttribute(&answer, what, device);
        };
        ask(count, cudaDevAttrMultiProcessorCount);
        ask(of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
        ask(all, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
        if (error == cudaSuccess) of_block -= int(compiled.sharedSizeBytes);
        if (error == cudaSuccess)
            error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, of_block);
        if (error != cudaSuccess) cudaGetLastError();  // or the next launch would return it
        if (error == cudaSuccess && compiled.ptxVersion >= architecture) known[device] = {count, of_block, all};
    });
    return known[device];
#else
    set_shared_memory_limit(kernel, cuda_on_host::shared_bytes_of_a_block);
    return {int(cuda_on_host::multiprocessors), (long long)cuda_on_host::shared_bytes_of_a_block,
            (long long)cuda_on_host::shared_bytes_of_a_multiprocessor};
#endif
}
#endif
