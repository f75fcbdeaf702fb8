// What the CUDA tests compute with: dtypes, shapes, inputs, and device memory between guard zones.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

// What the host's sanitizers see goes by the width of a dtype, and bfloat16's is float16's: it is left to the GPU. Its
// values are compared on the host too, by the contract (check/contract).
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

// --quick, for compute-sanitizer: the rows of a race check, and nothing is timed.
inline bool quick = false;

// Whether only the rows of a race check are wanted: of few shapes and dtypes.
inline bool few_rows() { return race_check || quick; }

// --broken: only this row is checked, over a kernel of tests/broken. AddressSanitizer does not guard the zones around
// tensors then, so that the comparison itself has to find what was written there.
inline std::string only_row;

inline double to_double(float value) { return value; }
inline double to_double(double value) { return value; }
inline double to_double(int value) { return value; }
inline double to_double(long long value) { return double(value); }
inline double to_double(__half value) { return __half2float(value); }
inline double to_double(__nv_bfloat16 value) { return __bfloat162float(value); }

// Names; torch.testing.assert_close's default tolerances; epsilon, the distance from 1 to the next number.
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

// Integers are right or wrong; those up to 2^53 can be told apart.
struct IntegerDtype {
    static constexpr double relative = 0, absolute = 0, epsilon = 0, largest = 0x1p63;
};
template <>
struct Dtype<int> : IntegerDtype {
    static constexpr const char* name = "int32";
};
template <>
struct Dtype<long long> : IntegerDtype {
    static constexpr const char* name = "int64";
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
    shapes.insert(shapes.end(), {{33, 8}, {64, 512}, {33, 8, Shape::all}, {3, 1025, Shape::all}});
    shapes.insert(shapes.end(), {{13, 40, 0, true}, {13, 40, 0, false, true}});
    // A race check runs only what few blocks cover: several blocks a launch, and rows enough for several chunks.
    if (race_check) shapes.insert(shapes.end(), {{2, 1023}, {500, 4}, {128, 256}, {1025, 33, Shape::all}});
    return shapes;
}

// Beyond 2^18 elements a kernel may take several of them a thread. The rows of the first shape end inside a thread's
// elements, and its last thread has too few; the others have rows of whole 16 bytes, aligned and not.
inline std::vector<Shape> large_shapes() { return {{257, 1021}, {65, 4096}, {65, 4096, Shape::all}}; }

// One tensor alone is misaligned: the choice of the kernel must look at every one. large: beyond 2^18 elements.
inline Shape one_misaligned(int tensor, bool large) { return {large ? 65 : 3, 4096, 1u << tensor}; }

// The size that the lecture quotes. The host times nothing.
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

// `count` elements on the device between two zones. The zones hold NaN in every dtype, until poison() makes the buffer an
// output: then they hold another number, so that NaN that was read beyond an input and written here is seen. A read
// beyond the ends shows in the result, a write in damage(), and either at once under AddressSanitizer.
template <class T>
class Buffer {
public:
    explicit Buffer(long long count, bool misaligned = false)
        : count_(size_t(count)), front_(zone + (misaligned ? sizeof(T) : 0)) {
        require(cudaMalloc(&memory_, total()), "cudaMalloc");
        fill(nan);
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

    // The elements become NaN.
    void poison() { fill(0xFE); }
    void write(const std::vector<T>& values) {
        if (count_) require(cudaMemcpy(get(), values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    std::vector<T> read() const {
        std::vector<T> values(count_);
        if (count_) require(cudaMemcpy(values.data(), get(), bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
        return values;
    }
    // '' if the zones are as poison() left them, else which element beyond the ends was written.
    std::string damage() const {
        guard(false);
        std::vector<unsigned char> bytes(total());
        require(cudaMemcpy(bytes.data(), memory_, total(), cudaMemcpyDeviceToHost), "cudaMemcpy");
        guard(true);
        for (size_t i = 0; i < total(); ++i) {
            if (i == front_) i += this->bytes();
            if (bytes[i] == zone_byte_) continue;
            long long offset = (long long)i - (long long)front_, size = (long long)sizeof(T);
            long long element = (offset < 0 ? offset - size + 1 : offset) / size;
            return "element " + std::to_string(element) + " of " + std::to_string(count_) + " was written";
        }
        return "";
    }

private:
    static constexpr size_t zone = 256;  // keeps the alignment that cudaMalloc gives

    static constexpr unsigned char nan = 0xFF;

    size_t total() const { return front_ + bytes() + zone; }
    void fill(unsigned char zone_byte) {
        zone_byte_ = zone_byte;
        guard(false);
        require(cudaMemset(memory_, zone_byte, total()), "cudaMemset");
        if (count_) require(cudaMemset(get(), nan, bytes()), "cudaMemset");
        guard(true);
    }
    void guard(bool on) const {
        char* after = memory_ + front_ + bytes();
        if (on && only_row.empty()) {
            ASAN_POISON_MEMORY_REGION(memory_, front_);
            ASAN_POISON_MEMORY_REGION(after, zone);
        } else {
            ASAN_UNPOISON_MEMORY_REGION(memory_, front_);
            ASAN_UNPOISON_MEMORY_REGION(after, zone);
        }
    }

    size_t count_, front_;
    unsigned char zone_byte_ = nan;
    char* memory_ = nullptr;
};

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
#ifdef __CUDACC__
    size_t available = 0, total = 0;
    require(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    if (bytes < 0.9 * double(available)) return nullptr;
#endif
    return "not enough GPU memory";
}

}  // namespace testing
