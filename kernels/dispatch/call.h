// A call as the core hands it to an op's cuda.cu: plain structs, which both are compiled with (op.cuh, core.cpp).
#pragma once

#include <cstdint>
#include <cstring>

namespace fused {

// The numbers are c10::ScalarType's.
enum class Dtype : int32_t { uint8 = 0, int8 = 1, int16 = 2, int32 = 3, int64 = 4, float16 = 5, float32 = 6, float64 = 7, boolean = 11, bfloat16 = 15 };

struct Tensor {
    void* data;  // null also for a tensor of no elements
    const int64_t* sizes;
    int64_t elements;
    int32_t dimensions;
    Dtype dtype;

    template <class T>
    T* as() const {
        return static_cast<T*>(data);
    }
    explicit operator bool() const { return data != nullptr; }
    // Seen as a matrix: the last dimension, and all others together.
    long long columns() const { return dimensions ? sizes[dimensions - 1] : 1; }
    long long rows() const { return columns() ? elements / columns() : 0; }
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
