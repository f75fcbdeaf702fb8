// A call as the core hands it to an op's cuda.cu: plain structs, which both are compiled with (op.cuh, core.cpp).
#pragma once

#include <cstdint>
#include <cstring>

namespace fused {

// The dtypes that kernels may get: name, number and name of the c10::ScalarType (core.cpp compares the two), and the type
// in C++, which only those have who include CUDA's headers. kernels/dtypes.py is Python's list.
#define FUSED_DTYPES(entry)                     \
    entry(uint8, 0, Byte, uint8_t)              \
    entry(int8, 1, Char, int8_t)                \
    entry(int16, 2, Short, int16_t)             \
    entry(int32, 3, Int, int32_t)               \
    entry(int64, 4, Long, int64_t)              \
    entry(float16, 5, Half, __half)             \
    entry(float32, 6, Float, float)             \
    entry(float64, 7, Double, double)           \
    entry(boolean, 11, Bool, bool)              \
    entry(bfloat16, 15, BFloat16, __nv_bfloat16)

enum class Dtype : int32_t {
#define FUSED_ENUMERATOR(name, number, torch_name, type) name = number,
    FUSED_DTYPES(FUSED_ENUMERATOR)
#undef FUSED_ENUMERATOR
};

struct Tensor {
    void* data;  // null also for a tensor of no elements
    const int64_t* sizes;
    int64_t elements;
    int32_t dimensions;
    Dtype dtype;
    int64_t stride = 1;  // of ids in a list: elements from one to the next

    template <class T>
    T* as() const {
        return static_cast<T*>(data);
    }
    explicit operator bool() const { return data != nullptr; }
    // Seen as a matrix: the last dimension, and all others together.
    long long columns() const { return dimensions ? sizes[dimensions - 1] : 1; }
    long long rows() const { return columns() ? elements / columns() : 0; }
};

// A list of tensors.
struct Tensors {
    const Tensor* each;
    int64_t count;
    const Tensor& operator[](int64_t i) const { return each[i]; }
};

// A number that may change from call to call: its value if it lies on the host, else where the kernel reads it.
struct Number {
    double value;
    const void* on_device;
    Dtype dtype;
};

struct String {
    const char* text;
    bool operator==(const char* other) const { return std::strcmp(text, other) == 0; }
};

// One argument, whatever its type; which member counts is known by the function's signature.
struct Argument {
    Tensor tensor;
    Tensors tensors;
    Number number;
    String string;
    double real;
    int64_t integer;
};

struct Context {
    void* stream;
    void* owner;
    void* (*allocate)(void* owner, uint64_t bytes);
};

struct Entry {
    const char* (*run)(const Argument*, const Context*);  // returns the error, null if there is none
    int32_t arguments;                                    // that it takes, Stream and Workspace aside
};

// What the core finds in the library.
struct Table {
    Entry forward, backward;
};

}  // namespace fused
