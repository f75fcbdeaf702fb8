// What a kernel tells the host about its input, without the host waiting: kernels/dispatch/input_errors.py has the layout.
#pragma once

#include "device/launch.cuh"

constexpr unsigned long long report_b = 1'000'003, report_c = 998'244'353;  // of the digest
constexpr int report_claims = 0, report_found = 1, report_kind = 4, report_count = 5, report_size = 6;

// Whether something was found already: a read, of which the host's memory answers far more a second than atomics.
__device__ inline bool is_reported(const unsigned long long* report) {
#ifdef __CUDA_ARCH__
    return *(volatile const unsigned long long*)(report + report_claims) != 0;
#else
    return __atomic_load_n(report + report_claims, __ATOMIC_RELAXED) != 0;
#endif
}

// Whether this is the first of the lanes that come here together; `lanes`: how many they are. Each access crosses PCIe,
// so one lane of a warp makes it.
__device__ inline bool is_first_lane(int& lanes) {
    unsigned here = __activemask();
    lanes = __popc(here);
    return int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32 == __ffs(int(here)) - 1;
}

// The first to come writes three numbers and of what kind they are, 1 to 15. The others see that and leave.
__device__ inline void write_report(unsigned long long* report, int kind, long long a, long long b, long long c) {
    int lanes;
    if (!is_first_lane(lanes) || is_reported(report) || atomicAdd(report + report_claims, 1ULL) != 0) return;
    using Number = unsigned long long;
    Number digest = Number(a) + report_b * Number(b) + report_c * Number(c);
    Number numbers[] = {Number(a), Number(b), Number(c), digest * 16 + Number(kind)};
    static_assert(report_kind == report_found + 3);
    for (int i = 0; i < 4; ++i) {
#ifdef __CUDA_ARCH__
        ((volatile Number*)report)[report_found + i] = numbers[i];
#else
        __atomic_store_n(report + report_found + i, numbers[i], __ATOMIC_RELAXED);
#endif
    }
}

// Adds 1 to the counter for each thread that comes here.
__device__ inline void count_report(unsigned long long* report) {
    int lanes;
    if (is_first_lane(lanes)) atomicAdd(report + report_count, (unsigned long long)lanes);
}
