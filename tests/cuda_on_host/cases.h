// What the programs of this folder share: a case is a function that returns 0 if all is right, and runs if its name is
// given. Those named misuse_… are wrong on purpose, and test_cmake.py says what must find them. On a GPU (CMake builds
// the programs for it too) only the others run.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

inline std::map<std::string, int (*)()>& cases() {
    static std::map<std::string, int (*)()> all;
    return all;
}

#define CASE(name)                                                    \
    static int name();                                                \
    static const bool name##_is_a_case = (cases()[#name] = name, true); \
    static int name()

// The line that was wrong, as main's value.
#define REQUIRE(condition)                                            \
    do {                                                              \
        if (!(condition)) {                                           \
            std::printf("line %d: not so: %s\n", __LINE__, #condition); \
            return 1;                                                 \
        }                                                             \
    } while (false)

// An array on the device.
template <class T>
class Array {
public:
    explicit Array(const std::vector<T>& values) : count_(values.size()) {
        if (cudaMalloc(&memory_, bytes()) != cudaSuccess) std::abort();
        if (cudaMemcpy(memory_, values.data(), bytes(), cudaMemcpyHostToDevice) != cudaSuccess) std::abort();
    }
    explicit Array(size_t count) : Array(std::vector<T>(count)) {}
    ~Array() { cudaFree(memory_); }
    Array(const Array&) = delete;
    T* get() const { return memory_; }
    std::vector<T> read() const {
        std::vector<T> values(count_);
        if (cudaMemcpy(values.data(), memory_, bytes(), cudaMemcpyDeviceToHost) != cudaSuccess) std::abort();
        return values;
    }

private:
    size_t bytes() const { return count_ * sizeof(T); }
    size_t count_;
    T* memory_ = nullptr;
};

int main(int count, char** names) {
#ifdef __CUDACC__
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("SKIPPED: no CUDA device\n");
        return 77;
    }
#endif
    int failed = 0, ran = 0;
    for (auto [name, run] : cases()) {
        bool wanted = name.rfind("misuse_", 0) != 0 && count == 1;
        for (int i = 1; i < count; ++i) wanted |= name == names[i];
        if (!wanted) continue;
        ++ran;
        int result = run();
        std::printf("%s: %s\n", name.c_str(), result ? "WRONG" : "right");
        failed += result != 0;
    }
    return failed || !ran;
}
