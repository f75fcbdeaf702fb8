// Calls a reader's launch() case by case, a line a case: puzzles.py reads them.
//
//     check_launch DRIVER CASE …      over a driver that records (tests/fake_libcuda.c): what it was given; of what is
//                                     thrown, behind how many launches
//     check_launch "" CASE …          on GPU 0: whether each number of out is right
//
// CASE: n,stride,first count,first out.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "counts_images.h"

void launch(cubin::Program& program, const float* counts, float* out, int stride, int n, void* stream);

struct Case {
    int n = 0, stride = 0, counts = 0, out = 0;
};

struct Launched {  // fake_libcuda.c's struct launch
    void* function;
    unsigned grid[3], block[3], shared, kind;
    void* stream;
    int64_t parameters[32];
    unsigned cluster[3];
};

static void recorded(void* library, cubin::Program& program, const Case& given) {
    auto fake = [&](const char* name) { return static_cast<int*>(dlsym(library, name)); };
    // Either kernel has five parameters at least, the hidden ones included; those behind the pointers have four bytes.
    fake("fake_parameters")[0] = 5;
    for (int i = 2; i < 5; ++i) fake("fake_parameter_bytes")[i] = 4;
    // Addresses that nobody reads.
    float *counts = reinterpret_cast<float*>(0x10000), *out = reinterpret_cast<float*>(0x40000);
    launch(program, counts + given.counts, out + given.out, given.stride, given.n, reinterpret_cast<void*>(0x77));
    const int count = fake("fake_launch_count")[0];
    std::printf("\n@ launched %d", count);  // @: a line of ours, among what the reader's function prints
    if (count) {
        const Launched& last = static_cast<Launched*>(dlsym(library, "fake_launches"))[(count - 1) % 64];
        const bool is_by_16 = last.function == program["by_16"].function();
        std::printf(" %s %u %u %u %u %d", is_by_16 ? "by_16" : "any", last.grid[0], last.grid[1], last.grid[2], last.shared,
                    last.stream == reinterpret_cast<void*>(0x77));
        for (int i = 0; i < (is_by_16 ? 3 : 4); ++i) std::printf(" %lld", static_cast<long long>(i < 2 ? last.parameters[i] : int32_t(last.parameters[i])));
    }
}

static void executed(cubin::Program& program, const Case& given) {
    const cubin::Driver& cuda = cubin::driver();
    cubin::Result (*allocate)(void**, size_t), (*release)(void*), (*to_device)(void*, const void*, size_t);
    cubin::Result (*to_host)(void*, const void*, size_t);
    cuda.find(allocate, "cuMemAlloc_v2"), cuda.find(release, "cuMemFree_v2");
    cuda.find(to_device, "cuMemcpyHtoD_v2"), cuda.find(to_host, "cuMemcpyDtoH_v2");
    constexpr int beyond = 64;  // numbers that must stay as they are
    const int64_t before = given.stride < 0 ? int64_t(given.n - 1) * -given.stride : 0;  // where the first count lies
    const size_t first = given.counts + before, apart = std::abs(given.stride);
    std::vector<float> counts(given.counts + given.n * apart + beyond), out(given.out + given.n + beyond, -7);
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = i % 11 ? float(i % 7) - 1 : NAN;
    void *on_counts, *on_out;
    cuda.check(allocate(&on_counts, counts.size() * sizeof(float)), "cuMemAlloc");
    cuda.check(allocate(&on_out, out.size() * sizeof(float)), "cuMemAlloc");
    cuda.check(to_device(on_counts, counts.data(), counts.size() * sizeof(float)), "cuMemcpyHtoD");
    cuda.check(to_device(on_out, out.data(), out.size() * sizeof(float)), "cuMemcpyHtoD");
    launch(program, static_cast<float*>(on_counts) + first, static_cast<float*>(on_out) + given.out, given.stride,
           given.n, nullptr);
    cuda.check(to_host(out.data(), on_out, out.size() * sizeof(float)), "the kernel");  // behind it in its stream
    release(on_counts), release(on_out);
    for (size_t i = 0; i < out.size(); ++i) {
        const int64_t place = int64_t(i) - given.out;
        const bool is_written = place >= 0 && place < given.n;
        const float count = is_written ? counts[first + place * given.stride] : 0;
        const float want = is_written ? std::log1p(count > 0 ? count : 0) : -7;
        if (!(std::fabs(out[i] - want) < 1e-5f))
            return void(std::printf("\n@ wrong %lld %g %g", static_cast<long long>(place), double(want), double(out[i])));
    }
    std::printf("\n@ right");
}

int main(int count, char** words) {
    const bool records = *words[1];
    if (records) cubin::use_driver(words[1]);
    void* library = records ? dlopen(words[1], RTLD_NOW) : nullptr;
    int* launched = records ? static_cast<int*>(dlsym(library, "fake_launch_count")) : nullptr;
    auto count_launches = [&] { return launched ? *launched : 0; };
    cubin::use_device(0);
    cubin::Program program(counts_images::images);
    for (int i = 2; i < count; ++i) {
        Case given;
        std::sscanf(words[i], "%d,%d,%d,%d", &given.n, &given.stride, &given.counts, &given.out);
        if (launched) *launched = 0;
        try {
            records ? recorded(library, program, given) : executed(program, given);
        } catch (const cubin::Error& error) {
            std::printf("\n@ error %d %s", count_launches(), error.what());
        } catch (const std::exception& error) {
            std::printf("\n@ thrown %d %s", count_launches(), error.what());
        } catch (...) {
            std::printf("\n@ thrown %d what is no std::exception", count_launches());
        }
        std::printf("\n"), std::fflush(stdout);
    }
}
