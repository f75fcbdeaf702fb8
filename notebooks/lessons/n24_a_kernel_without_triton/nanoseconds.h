// Nanoseconds of a call: the fastest of 20 rounds of 50,000. What else runs on the machine only adds.
#pragma once
#include <algorithm>
#include <chrono>

template <class Call>
double nanoseconds(Call call) {
    constexpr int rounds = 20, calls = 50'000;
    double least = 1e9;
    for (int round = 0; round < rounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < calls; ++i) call();
        const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
        least = std::min(least, took.count() / calls);
    }
    return least;
}
