// Copies from global to shared memory that go on while the thread does something else (cp.async, from sm_80 on). A
// thread groups its copies by commit(); wait(n) returns when all its groups but the n newest are done. What other threads
// copied is seen after a __syncthreads() that follows their wait().
//
// On the host a copy leaves NaN at its place when it is begun, and is done in the wait() that promises it, not before: a
// reader that comes too early, and a copy into what others still read, both show.
#pragma once

#include "device/launch.cuh"

#ifndef __CUDACC__
#include <deque>
#include <functional>
#include <vector>
#endif

class AsyncCopies {
public:
    static constexpr int most_pending = 14;

    // 16 bytes, both addresses multiples of 16; zeros if not `there`, and then nothing is read.
    __device__ void copy(void* to, const void* from, bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(unsigned(__cvta_generic_to_shared(to))),
                     "l"(from), "r"(there ? 16 : 0)
                     : "memory");
#elif defined(__CUDACC__)
        *static_cast<uint4*>(to) = there ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
#else
        alignas(16) static const char zeros[16] = {};
        begin(static_cast<Bytes<16>*>(to), static_cast<const Bytes<16>*>(there ? from : zeros));
#endif
    }
    // The same through the L1 cache: for rows of tables, of which some are read again and again.
    __device__ void copy_through_l1(void* to, const void* from, bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(unsigned(__cvta_generic_to_shared(to))),
                     "l"(from), "r"(there ? 16 : 0)
                     : "memory");
#else
        copy(to, from, there);
#endif
    }
    // One number: four bytes, which may lie anywhere.
    __device__ void copy(float* to, const float* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(from)
                     : "memory");
#elif defined(__CUDACC__)
        *to = *from;
#else
        begin(reinterpret_cast<Bytes<4>*>(to), reinterpret_cast<const Bytes<4>*>(from));
#endif
    }
    __device__ void commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDACC__)
        groups_.push_back(std::move(open_));
        open_.clear();
#endif
    }
    __device__ void wait([[maybe_unused]] int pending) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        // The instruction takes a constant.
        switch (pending) {
#define FUSED_WAIT(n) \
    case n: asm volatile("cp.async.wait_group " #n ";" ::: "memory"); break;
            FUSED_WAIT(1) FUSED_WAIT(2) FUSED_WAIT(3) FUSED_WAIT(4) FUSED_WAIT(5) FUSED_WAIT(6) FUSED_WAIT(7)
            FUSED_WAIT(8) FUSED_WAIT(9) FUSED_WAIT(10) FUSED_WAIT(11) FUSED_WAIT(12) FUSED_WAIT(13) FUSED_WAIT(14)
#undef FUSED_WAIT
            default: asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
#elif !defined(__CUDACC__)
        for (; int(groups_.size()) > pending; groups_.pop_front())
            for (const auto& copy : groups_.front()) copy();
#endif
    }

#ifndef __CUDACC__
private:
    template <int bytes>
    struct alignas(bytes) Bytes {
        unsigned char byte[bytes];
    };
    template <int bytes>
    void begin(Bytes<bytes>* to, const Bytes<bytes>* from) {
        open_.push_back([=] { *to = *from; });
        for (unsigned char& byte : to->byte) byte = 0xFF;
    }
    std::vector<std::function<void()>> open_;
    std::deque<std::vector<std::function<void()>>> groups_;
#endif
};
