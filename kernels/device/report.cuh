// What a kernel tells the host about its input, without the host waiting: kernels/dispatch/report.py has the layout.
#pragma once

#include "device/launch.cuh"

constexpr int report_claims = 0, report_found = 1, report_kind = 4, report_count = 5, report_size = 6;

// The first to come writes three numbers, and then of what kind they are. The others only count.
__device__ inline void write_report(unsigned long long* report, int kind, long long a, long long b, long long c) {
    if (atomicAdd_system(report + report_claims, 1ULL) != 0) return;
    unsigned long long* found = report + report_found;
    atomicExch_system(found, (unsigned long long)a);
    atomicExch_system(found + 1, (unsigned long long)b);
    atomicExch_system(found + 2, (unsigned long long)c);
    __threadfence_system();
    atomicExch_system(report + report_kind, (unsigned long long)kind);
}
