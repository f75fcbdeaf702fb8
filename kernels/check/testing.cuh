// What the CUDA tests of all ops share: inputs, the comparison, the table and main's return value. C++17, by nvcc for a
// GPU and by g++ for the host (cuda_on_host.h). An op's test gives its float64 reference, its launches and its bytes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "device/launch.cuh"
#include "device/vector.cuh"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (void)(address)
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (void)(address)
#endif

namespace testing {

#ifdef __CUDACC__
constexpr bool on_gpu = true;
#else
constexpr bool on_gpu = false;
#endif
#ifdef __SANITIZE_THREAD__
constexpr bool race_check = true;
#else
constexpr bool race_check = false;
#endif

// --quick, for compute-sanitizer: nothing is timed, and the shapes for that are left out.
inline bool quick = false;

inline double to_double(float value) { return value; }
inline double to_double(double value) { return value; }
inline double to_double(__half value) { return __half2float(value); }
inline double to_double(__nv_bfloat16 value) { return __bfloat162float(value); }

// Names, and torch.testing.assert_close's default tolerances.
template <class T>
struct Dtype;
template <>
struct Dtype<float> {
    static constexpr const char* name = "float32";
    static constexpr double relative = 1.3e-6, absolute = 1e-5, epsilon = 0x1p-23, largest = 3.4028234663852886e38;
};
template <>
struct Dtype<double> {
    static constexpr const char* name = "float64";
    static constexpr double relative = 1e-7, absolute = 1e-7, epsilon = 0x1p-52, largest = 1.7976931348623157e308;
};
template <>
struct Dtype<__half> {
    static constexpr const char* name = "float16";
    static constexpr double relative = 1e-3, absolute = 1e-5, epsilon = 0x1p-10, largest = 65504;
};
template <>
struct Dtype<__nv_bfloat16> {
    static constexpr const char* name = "bfloat16";
    static constexpr double relative = 1.6e-2, absolute = 1e-5, epsilon = 0x1p-7, largest = 3.3895313892515355e38;
};

template <class T>
T rounded(double value) {
    if constexpr (std::is_same_v<T, __half>)
        return __float2half(float(value));
    else if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __float2bfloat16(float(value));
    else
        return T(value);
}

// ------------------------------------------------------------------------------------------------------------- inputs

struct Shape {
    long long rows, columns;
    unsigned misaligned = 0;  // bit n: the test's tensor n begins one element past an aligned address
    bool special = false;     // NaN and Inf are sprinkled in
    bool large = false;       // the inputs reach beyond every bend of the activations

    static constexpr unsigned all = ~0u;
    bool off(int tensor) const { return misaligned >> tensor & 1; }
    long long elements() const { return rows * columns; }
    std::string name() const {
        std::string which = misaligned == all ? "" : " " + std::to_string(misaligned);
        return std::to_string(rows) + "x" + std::to_string(columns) + (misaligned ? " misaligned" + which : "") +
               (special ? " special" : "") + (large ? " large" : "");
    }
};

inline std::vector<Shape> small_shapes() {
    std::vector<Shape> shapes = {{0, 5}, {5, 0}, {1, 1}, {1, 7}, {7, 1}, {5, 1023}, {3, 1025}, {2, 4097}, {1000, 4}};
    shapes.insert(shapes.end(), {{33, 8}, {64, 512}, {33, 8, Shape::all}, {3, 1025, Shape::all}, {13, 40, 0, true}, {13, 40, 0, false, true}});
    // Those that few blocks cover: several blocks a launch, and enough rows to be summed in chunks.
    if (race_check) shapes.insert(shapes.end(), {{2, 1023}, {500, 4}, {128, 256}, {1025, 33, Shape::all}});
    return shapes;
}

// Beyond 2^18 elements, where a kernel may take several a thread: with a tail and a row that ends inside a thread's
// elements, and with rows of whole 16 bytes, aligned and not.
inline std::vector<Shape> large_shapes() { return {{257, 1021}, {65, 4096}, {65, 4096, Shape::all}}; }

// One tensor misaligned, so that none is forgotten when the kernel is chosen; `large` as above.
inline Shape one_misaligned(int tensor, bool large) { return {large ? 65 : 3, 4096, 1u << tensor}; }

// The size that the lecture quotes; none on the host, or with --quick.
inline std::vector<Shape> timed_shapes() {
    if (!on_gpu || quick) return {};
    return {{65536, 512}};
}

// Signed, normally distributed values of T, the same in every run; `seed` tells the tensors of a case apart.
template <class T>
std::vector<T> random(long long count, unsigned seed, bool special = false, bool large = false) {
    std::mt19937 bits(seed);
    std::vector<T> values(static_cast<size_t>(count));
    for (T& value : values) {
        // The sum of four uniform numbers: normal enough, and the same with every standard library.
        double sum = 0;
        for (int i = 0; i < 4; ++i) sum += bits() * 0x1p-32;
        value = rounded<T>((sum - 2) * std::sqrt(3.0) * (large ? 40 : 1));
    }
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const double specials[] = {std::numeric_limits<double>::quiet_NaN(), infinity, -infinity};
    for (size_t i = seed % 3, n = 0; special && i < values.size(); i += 5, ++n) values[i] = rounded<T>(specials[n % 3]);
    return values;
}

// ------------------------------------------------------------------------------------------------------ device memory

inline void require(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::printf("ERROR: %s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}

// `count` elements on the device between two zones of bytes 0xFF, which are NaN in every dtype: a read beyond the ends
// shows in the result, a write in intact(), and either at once under AddressSanitizer.
template <class T>
class Buffer {
public:
    explicit Buffer(long long count, bool misaligned = false)
        : count_(size_t(count)), front_(zone + (misaligned ? sizeof(T) : 0)) {
        require(cudaMalloc(&memory_, total()), "cudaMalloc");
        poison();
    }
    explicit Buffer(const std::vector<T>& values, bool misaligned = false)
        : Buffer((long long)values.size(), misaligned) {
        write(values);
    }
    ~Buffer() {
        guard(false);
        cudaFree(memory_);
    }
    Buffer(const Buffer&) = delete;

    T* get() const { return reinterpret_cast<T*>(memory_ + front_); }
    size_t bytes() const { return count_ * sizeof(T); }

    void poison() {
        guard(false);
        require(cudaMemset(memory_, 0xFF, total()), "cudaMemset");
        guard(true);
    }
    void write(const std::vector<T>& values) {
        if (count_) require(cudaMemcpy(get(), values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    std::vector<T> read() const {
        std::vector<T> values(count_);
        if (count_) require(cudaMemcpy(values.data(), get(), bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
        return values;
    }
    bool intact() const {
        guard(false);
        std::vector<unsigned char> before(front_), after(zone);
        require(cudaMemcpy(before.data(), memory_, front_, cudaMemcpyDeviceToHost), "cudaMemcpy");
        require(cudaMemcpy(after.data(), memory_ + front_ + bytes(), zone, cudaMemcpyDeviceToHost), "cudaMemcpy");
        guard(true);
        auto untouched = [](unsigned char byte) { return byte == 0xFF; };
        return std::all_of(before.begin(), before.end(), untouched) &&
               std::all_of(after.begin(), after.end(), untouched);
    }

private:
    static constexpr size_t zone = 256;  // keeps the alignment that cudaMalloc gives

    size_t total() const { return front_ + bytes() + zone; }
    void guard(bool on) const {
        char* after = memory_ + front_ + bytes();
        if (on) {
            ASAN_POISON_MEMORY_REGION(memory_, front_);
            ASAN_POISON_MEMORY_REGION(after, zone);
        } else {
            ASAN_UNPOISON_MEMORY_REGION(memory_, front_);
            ASAN_UNPOISON_MEMORY_REGION(after, zone);
        }
    }

    size_t count_, front_;
    char* memory_ = nullptr;
};

// --------------------------------------------------------------------------------------------------------- comparison

// What an output must hold: float64 values, and what each may be off beyond the dtype's tolerances (none if empty).
// bound: if not 0, what a value may be off in place of those, as a part of it or of 1, whichever is more.
struct Expected {
    std::vector<double> values, slack;
    double bound = 0;
};

template <class T>
struct Output {
    const char* name;
    Buffer<T>& buffer;
    const Expected& expected;
    const std::vector<T>* before = nullptr;  // in place: what it holds before the kernel; else it is poisoned
};

// '' if `got` is right for an expected value, else why not. The largest number may stand for Inf and the reverse: the
// last bit decides which one rounding makes of a result at the edge.
template <class T>
bool agrees(T got, double expected, double slack, double& worst, double bound = 0) {
    double value = to_double(got), want = to_double(rounded<T>(expected));
    if (std::isnan(want) || std::isnan(value)) return std::isnan(want) && std::isnan(value);
    if (std::isinf(want) || std::isinf(value)) {
        double edge = 0.999 * Dtype<T>::largest;
        return want == value || (std::fabs(want) > edge && std::fabs(value) > edge && (want > 0) == (value > 0));
    }
    double error = std::fabs(value - want);
    worst = std::max(worst, error);
    if (bound > 0) return error <= bound * std::max(1.0, std::fabs(want));
    return error <= Dtype<T>::absolute + slack + Dtype<T>::relative * std::fabs(want);
}

// '' if all is right, else the first element that is not.
template <class T>
std::string compare(const Output<T>& output, const std::vector<T>& got, double& worst) {
    const Expected& expected = output.expected;
    size_t wrong = 0, first = 0;
    for (size_t i = 0; i < got.size(); ++i)
        if (!agrees(got[i], expected.values[i], expected.slack.empty() ? 0 : expected.slack[i], worst, expected.bound) &&
            !wrong++)
            first = i;
    if (!wrong) return "";
    char text[200];
    std::snprintf(text, sizeof text, "%s: %zu of %zu wrong; [%zu] is %g, expected %g", output.name, wrong, got.size(),
                  first, to_double(got[first]), expected.values[first]);
    return text;
}

// An output too large to hold its expected values, which are computed for the elements looked at.
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
    for (long long i : sample) {
        T got;
        require(cudaMemcpy(&got, output.buffer.get() + i, sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
        double expected = output.expected(i);
        if (agrees(got, expected, 0, worst)) continue;
        return std::string(output.name) + "[" + std::to_string(i) + "] is " + std::to_string(to_double(got)) +
               ", expected " + std::to_string(expected);
    }
    return output.buffer.intact() ? "" : std::string(output.name) + ": written beyond its ends";
}

// -------------------------------------------------------------------------------------------------------------- table

class Report {
public:
    Report() {
        std::printf("%-22s %-8s %-8s %-19s %9s %10s %7s\n", "shape", "dtype", "act", "direction", "max error", "us",
                    "GB/s");
    }

    // One row. launch() enqueues the op and returns its error; it runs twice, and must give the same bits.
    template <class T, class Launch>
    void check(const Shape& shape, const char* activation, const std::string& direction, double bytes,
               const std::vector<Output<T>>& outputs, Launch launch) {
        double worst = 0, seconds = 0;
        std::string failure;
        std::vector<std::vector<T>> first;
        for (int run = 0; run < 2 && failure.empty(); ++run) {
            for (const Output<T>& output : outputs) {
                output.buffer.poison();
                if (output.before) output.buffer.write(*output.before);
            }
            cudaError_t error = launch();
            if (error == cudaSuccess) error = cudaDeviceSynchronize();
            if (!on_gpu && error == cudaErrorLaunchTimeout) return print(shape, Dtype<T>::name, activation, direction);
            if (error != cudaSuccess) failure = cudaGetErrorString(error);
            for (size_t i = 0; i < outputs.size() && failure.empty(); ++i) {
                std::vector<T> got = outputs[i].buffer.read();
                if (run == 0) {
                    failure = compare(outputs[i], got, worst);
                    if (failure.empty() && !outputs[i].buffer.intact())
                        failure = std::string(outputs[i].name) + ": written beyond its ends";
                    first.push_back(std::move(got));
                } else if (outputs[i].buffer.bytes() &&
                           std::memcmp(got.data(), first[i].data(), outputs[i].buffer.bytes())) {
                    failure = std::string(outputs[i].name) + ": two runs gave different bits";
                }
            }
        }
        if (failure.empty() && shape.elements() && !quick) seconds = time(launch);
        print(shape, Dtype<T>::name, activation, direction, worst, seconds, bytes, &failure);
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
        print(shape, Dtype<T>::name, activation, direction, worst, 0, 0, &failure);
    }
    // A row that this machine cannot run; `why` is printed.
    void skip(const Shape& shape, const char* dtype, const char* activation, const std::string& direction,
              const char* why) {
        print(shape, dtype, activation, direction, 0, 0, 0, nullptr, why);
    }

    // Prints the counts and returns main's value. Nothing checked is a failure too.
    int finish() const {
        std::printf("%d passed, %d failed, %d skipped\n", passed_, failed_, skipped_);
        return failed_ || !passed_;
    }

private:
    template <class Launch>
    static double time([[maybe_unused]] Launch launch) {
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

    void print(const Shape& shape, const char* dtype, const char* activation, const std::string& direction,
               double worst = 0, double seconds = 0, double bytes = 0, const std::string* failure = nullptr,
               const char* why = "more blocks than a sanitizer has time for") {
        std::printf("%-22s %-8s %-8s %-19s ", shape.name().c_str(), dtype, activation, direction.c_str());
        if (!failure) {
            ++skipped_;
            std::printf("%9s %10s %7s  SKIPPED: %s\n", "-", "-", "-", why);
            return;
        }
        ++(failure->empty() ? passed_ : failed_);
        std::printf("%9.2g ", worst);
        if (seconds > 0)
            std::printf("%10.2f %7.0f", seconds * 1e6, bytes / seconds * 1e-9);
        else
            std::printf("%10s %7s", "-", "-");
        std::printf("  %s%s\n", failure->empty() ? "PASS" : "FAIL: ", failure->c_str());
        std::fflush(stdout);
    }

    int passed_ = 0, failed_ = 0, skipped_ = 0;
};

// What main calls: test(report), unless there is no GPU to run on, which ctest knows by the value 77.
template <class Test>
int run(int count, char** arguments, Test test) {
    quick = count == 2 && std::string(arguments[1]) == "--quick";
    if (count > 1 && !quick) {
        std::fprintf(stderr, "usage: %s [--quick]\n", arguments[0]);
        return 2;
    }
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

// -------------------------------------------------------------------------------------------- more than 2^31 elements

// Element i of a tensor too large to draw on the host: a signed multiple of 1/64 below 2, exact in every dtype.
__host__ __device__ inline float element(unsigned long long i, unsigned seed) {
    unsigned long long hash = (i + 1) * 0x9E3779B97F4A7C15ULL + seed * 0xBF58476D1CE4E5B9ULL;
    hash = (hash ^ (hash >> 29)) * 0x94D049BB133111EBULL;
    return (int(hash >> 56) - 128) / 64.0f;
}

#ifdef __CUDACC__
template <class T>
__global__ void fill_kernel(T* values, long long count, unsigned seed) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        values[i] = narrow<T>(element(i, seed));
}
template <class T>
void fill(const Buffer<T>& buffer, unsigned seed) {
    fill_kernel<<<4096, 256>>>(buffer.get(), (long long)(buffer.bytes() / sizeof(T)), seed);
    require(cudaGetLastError(), "fill");
}
#endif

// More elements than 2^31, in rows that end inside a thread's 16 bytes.
inline Shape huge_shape() { return {(1LL << 31) / 1021 + 3, 1021}; }

// Why tensors of so many bytes are not checked, or null if they are.
inline const char* too_large([[maybe_unused]] double bytes) {
    if (quick) return "--quick";
#ifdef __CUDACC__
    size_t available = 0, total = 0;
    require(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    if (bytes < 0.9 * double(available)) return nullptr;
#endif
    return "not enough GPU memory";
}

}  // namespace testing
