// What a kernel tells the host about its input, without the host waiting: kernels/dispatch/report.py has the layout.
#pragma once

#include "device/launch.cuh"

constexpr int report_claims = 0, report_found = 1, report_kind = 4, report_count = 5, report_size = 6;

// Whether something was found already: a read, of which the host's memory answers far more a second than atomics.
__device__ inline bool is_reported(const unsigned long long* report) {
#ifdef __CUDA_ARCH__
    return *(volatile const unsigned long long*)(report + report_claims) != 0;
#else
    return __atomic_load_n(report + report_claims, __ATOMIC_RELAXED) != 0;
#endif
}

// Of the lanes that come here together one is the first; `lanes`: how many they are. Each access crosses PCIe, so of a
// warp one lane makes it.
__device__ inline bool is_first_lane(int& lanes) {
    unsigned here = __activemask();
    lanes = __popc(here);
    return int(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32 == __ffs(int(here)) - 1;
}

// The first to come writes three numbers, and then of what kind they are. The others see that and leave.
__device__ inline void write_report(unsigned long long* report, int kind, long long a, long long b, long long c) {
    int lanes;
    if (!is_first_lane(lanes) || is_reported(report) || atomicAdd_system(report + report_claims, 1ULL) != 0) return;
    unsigned long long* found = report + report_found;
    atomicExch_system(found, (unsigned long long)a);
    atomicExch_system(found + 1, (unsigned long long)b);
    atomicExch_system(found + 2, (unsigned long long)c);
    __threadfence_system();
    atomicExch_system(report + report_kind, (unsigned long long)kind);
}

// Adds 1 to the counter for each thread that comes here.
__device__ inline void count_report(unsigned long long* report) {
    int lanes;
    if (is_first_lane(lanes)) atomicAdd_system(report + report_count, (unsigned long long)lanes);
}
