// What the CUDA tests of all ops share: the comparison, the table and main's return value. C++17, by nvcc for a GPU and
// by g++ for the host (cuda_on_host.h). An op's test gives its float64 reference, its launches and its bytes.
#pragma once

#include <cstring>
#include <functional>
#include <map>

#include "check/host/testing_inputs.cuh"

namespace testing {

// --------------------------------------------------------------------------------------------------------- comparison

// What an output must hold, in float64. A value of it may be off by
//
//     absolute + relative · |value| + slack             with the dtype's tolerances, as torch.testing.assert_close;
//     slack + epsilon · |value|                         if by_slack: only what is said here, and the rounding to T;
//     bound · max(1, |value|)                           if bound is not 0.
//
// slack is empty (0), or a number for each value: for a sum k · epsilon · Σ |terms|, as a sum that cancels is not more
// precise than what was added.
struct Expected {
    std::vector<double> values, slack;
    double bound = 0;
    bool by_slack = false;

    template <class T>
    double allowed(size_t i, double want) const {
        double own = slack.empty() ? 0 : slack[i], size = std::fabs(want);
        if (bound > 0) return bound * std::max(1.0, size);
        if (by_slack) return own + Dtype<T>::epsilon * size;
        return Dtype<T>::absolute + Dtype<T>::relative * size + own;
    }
};

// Whether `got` is as far from the expected value as it may be. The largest number may stand for Inf and the reverse:
// the last bit decides which one rounding makes of a result at the edge.
template <class T>
bool agrees(T got, double want, double allowed, double& worst) {
    double value = to_double(got);
    if (std::isnan(want) || std::isnan(value)) return std::isnan(want) && std::isnan(value);
    if (std::isinf(want) || std::isinf(value)) {
        double edge = 0.999 * Dtype<T>::largest;
        return want == value || (std::fabs(want) > edge && std::fabs(value) > edge && (want > 0) == (value > 0));
    }
    double error = std::fabs(value - want);
    worst = std::max(worst, error);
    return error <= allowed;
}

// An output of any dtype and shape: {"out", buffer, expected}. In place: and what it holds before the kernel runs.
class Output {
public:
    template <class T>
    Output(const char* name, Buffer<T>& buffer, const Expected& expected, const std::vector<T>* before = nullptr)
        : bytes(buffer.bytes()) {
        prepare = [&buffer, before] {
            buffer.poison();
            if (before) buffer.write(*before);
        };
        compare = [&buffer, &expected, name = std::string(name), first = std::vector<T>()](bool again,
                                                                                         double& worst) mutable {
            std::vector<T> got = buffer.read();
            std::string failure;
            if (again) {
                if (!got.empty() && std::memcmp(got.data(), first.data(), buffer.bytes()))
                    failure = "two runs gave different bits";
            } else {
                failure = wrong(got, expected, worst);
                if (failure.empty()) failure = buffer.damage();
                first = std::move(got);
            }
            return failure.empty() ? "" : name + ": " + failure;
        };
    }

    size_t bytes;
    std::function<void()> prepare;
    // What is wrong after the first run, or, `again`, what differs after the second; '' if nothing.
    std::function<std::string(bool again, double& worst)> compare;

private:
    template <class T>
    static std::string wrong(const std::vector<T>& got, const Expected& expected, double& worst) {
        size_t count = 0, first = 0;
        for (size_t i = 0; i < got.size(); ++i) {
            double want = to_double(rounded<T>(expected.values[i]));
            if (!agrees(got[i], want, expected.template allowed<T>(i, want), worst) && !count++) first = i;
        }
        if (!count) return "";
        char text[160];
        std::snprintf(text, sizeof text, "%zu of %zu wrong; [%zu] is %g, expected %g", count, got.size(), first,
                      to_double(got[first]), expected.values[first]);
        return text;
    }
};

// An output too large to read back: expected(i) is computed for the elements that are looked at.
template <class T>
struct SampledOutput {
    const char* name;
    Buffer<T>& buffer;
    std::function<double(long long)> expected;
};

template <class T>
std::string compare(const SampledOutput<T>& output, long long count, double& worst) {
    std::vector<long long> sample;
    for (long long i = 0; i < 64; ++i) sample.insert(sample.end(), {i, count - 1 - i, (1LL << 31) - 32 + i});
    std::mt19937_64 bits(1);
    for (int i = 0; i < 4096; ++i) sample.push_back((long long)(bits() % (unsigned long long)count));
    Expected tolerance;
    for (long long i : sample) {
        T got;
        require(cudaMemcpy(&got, output.buffer.get() + i, sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
        double want = to_double(rounded<T>(output.expected(i)));
        if (agrees(got, want, tolerance.allowed<T>(0, want), worst)) continue;
        return std::string(output.name) + "[" + std::to_string(i) + "] is " + std::to_string(to_double(got)) +
               ", expected " + std::to_string(want);
    }
    return "";
}

// -------------------------------------------------------------------------------------------------------------- table

class Report {
public:
    Report() {
        std::printf("%-22s %-8s %-9s %-19s %9s %10s %7s\n", "shape", "dtype", "act", "direction", "max error", "us",
                    "GB/s");
    }

    // Whether any row of this shape is checked: the expected values of the others need not be computed.
    template <class T>
    static bool wants(const Shape& shape) {
        return only_row.rfind(only_row.empty() ? "" : shape.name() + " " + Dtype<T>::name + " ", 0) == 0;
    }

    // One row. launch() enqueues the op and returns its error. It runs twice and must give the same bits: the host runs
    // blocks and threads in the opposite order the second time. A race check runs it once, every other row in that order:
    // what orders two accesses does not depend on which came first, and AddressSanitizer's program compares the bits.
    template <class T>
    void check(const Shape& shape, const std::string& activation, const std::string& direction, double bytes,
               const std::vector<Output>& outputs, const std::function<cudaError_t()>& launch) {
        check(shape, Dtype<T>::name, activation, direction, bytes, outputs, launch);
    }

    // One row of a shape too large to read back: compared at the first and last elements, around 2^31, and at 4096
    // others. `error` is the launch's.
    template <class T>
    void check_sampled(const Shape& shape, const char* activation, const std::string& direction,
                       const std::vector<SampledOutput<T>>& outputs, cudaError_t error) {
        if (error == cudaSuccess) error = cudaDeviceSynchronize();
        std::string failure = error == cudaSuccess ? "" : cudaGetErrorString(error);
        double worst = 0;
        for (const SampledOutput<T>& output : outputs)
            if (failure.empty()) failure = compare(output, shape.elements(), worst);
        print(row(shape, Dtype<T>::name, activation, direction), worst, 0, 0, failure);
    }
    // A row that this machine cannot run; `why` is printed.
    void skip(const Shape& shape, const char* dtype, const char* activation, const std::string& direction,
              const char* why) {
        if (!only_row.empty()) return;
        ++skipped_;
        std::printf("%s %9s %10s %7s  SKIPPED: %s\n", row(shape, dtype, activation, direction).c_str(), "-", "-", "-",
                    why);
    }

    // Prints the counts and returns main's value. Nothing checked is a failure too.
    int finish() const {
        std::printf("%d passed, %d failed, %d skipped\n", passed_, failed_, skipped_);
        return failed_ || !passed_;
    }

private:
    static std::string row(const Shape& shape, const char* dtype, const std::string& activation,
                           const std::string& direction) {
        char text[120];
        std::snprintf(text, sizeof text, "%-22s %-8s %-9s %-19s", shape.name().c_str(), dtype, activation.c_str(),
                      direction.c_str());
        return text;
    }

    void check(const Shape& shape, const char* dtype, const std::string& activation, const std::string& direction,
               double bytes, const std::vector<Output>& outputs, const std::function<cudaError_t()>& launch) {
        std::string name = shape.name() + " " + dtype + " " + activation + (activation.empty() ? "" : " ") + direction;
        if (!only_row.empty() && name != only_row) return;
        double worst = 0, seconds = 0;
        std::string failure;
        bool once = race_check && only_row.empty();
        for (bool again : {false, true}) {
            if (again && once) break;
            for (const Output& output : outputs) output.prepare();
            cudaError_t error = run(launch, again || (once && (passed_ + failed_) % 2));
            if (!on_gpu && error == cudaErrorLaunchTimeout)
                return skip(shape, dtype, activation.c_str(), direction, "more blocks than a sanitizer has time for");
            if (error != cudaSuccess) failure = cudaGetErrorString(error);
            for (const Output& output : outputs)
                if (failure.empty()) failure = output.compare(again, worst);
            if (!failure.empty()) break;
        }
        if (failure.empty() && shape.elements() && !quick) seconds = time(launch);
        print(row(shape, dtype, activation, direction), worst, seconds, bytes, failure);
    }

    static cudaError_t run(const std::function<cudaError_t()>& launch, [[maybe_unused]] bool backwards) {
#ifndef __CUDACC__
        cuda_on_host::backwards = backwards;
#endif
        cudaError_t error = launch();
#ifndef __CUDACC__
        cuda_on_host::backwards = false;
#endif
        return error == cudaSuccess ? cudaDeviceSynchronize() : error;
    }

    static double time([[maybe_unused]] const std::function<cudaError_t()>& launch) {
#ifdef __CUDACC__
        constexpr int launches = 20;
        cudaEvent_t start, stop;
        require(cudaEventCreate(&start), "cudaEventCreate");
        require(cudaEventCreate(&stop), "cudaEventCreate");
        require(cudaEventRecord(start), "cudaEventRecord");
        for (int i = 0; i < launches; ++i) require(launch(), "launch");
        require(cudaEventRecord(stop), "cudaEventRecord");
        require(cudaEventSynchronize(stop), "cudaEventSynchronize");
        float milliseconds;
        require(cudaEventElapsedTime(&milliseconds, start, stop), "cudaEventElapsedTime");
        require(cudaEventDestroy(start), "cudaEventDestroy");
        require(cudaEventDestroy(stop), "cudaEventDestroy");
        return milliseconds * 1e-3 / launches;
#else
        return 0;
#endif
    }

    void print(const std::string& row, double worst, double seconds, double bytes, const std::string& failure) {
        ++(failure.empty() ? passed_ : failed_);
        std::printf("%s %9.2g ", row.c_str(), worst);
        if (seconds > 0)
            std::printf("%10.2f %7.0f", seconds * 1e6, bytes / seconds * 1e-9);
        else
            std::printf("%10s %7s", "-", "-");
        std::printf("  %s%s\n", failure.empty() ? "PASS" : "FAIL: ", failure.c_str());
        std::fflush(stdout);
    }

    int passed_ = 0, failed_ = 0, skipped_ = 0;
};

// ---------------------------------------------------------------------------------------------------- broken kernels

// A kernel of tests/broken, which puts its functions in place of the op's own ones:
//     testing::Broken<Kernels> broken("name", [](Kernels& kernels) { kernels.launch = … });
// Kernels is the op's test's struct of the functions under test.
template <class Kernels>
struct Broken {
    using Break = void (*)(Kernels&);
    Broken(const char* name, Break function) { all()[name] = function; }
    static std::map<std::string, Break>& all() {
        static std::map<std::string, Break> kernels;
        return kernels;
    }
};

// The kernels under test: the op's own ones, or those of --broken.
inline std::string broken_name;
template <class Kernels>
Kernels kernels_under_test() {
    Kernels kernels;
    if (broken_name.empty()) return kernels;
    auto found = Broken<Kernels>::all().find(broken_name);
    if (found == Broken<Kernels>::all().end()) {
        std::printf("ERROR: no broken kernel %s\n", broken_name.c_str());
        std::exit(2);
    }
    found->second(kernels);
    return kernels;
}

// What main calls: test(report), unless there is no GPU to run on, which ctest knows by the value 77.
template <class Test>
int run(int count, char** arguments, Test test) {
    std::string option = count > 1 ? arguments[1] : "";
    quick = count == 2 && option == "--quick";
    bool broken = count == 4 && option == "--broken";
    if (count > 1 && !quick && !broken) {
        std::fprintf(stderr, "usage: %s [--quick | --broken KERNEL ROW]\n", arguments[0]);
        return 2;
    }
    if (broken) broken_name = arguments[2], only_row = arguments[3];
#ifdef __CUDACC__
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("SKIPPED: no CUDA device\n");
        return 77;
    }
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    std::printf("%s, sm_%d%d\n", properties.name, properties.major, properties.minor);
#else
    cuda_on_host::most_blocks = race_check ? 8 : 1024;
#endif
    Report report;
    test(report);
    return report.finish();
}

}  // namespace testing
