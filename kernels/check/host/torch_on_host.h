// The part of PyTorch's C++ that a function around a kernel needs, so that the text that load_inline builds for a GPU is
// built by g++ too, and run over buffers that watch.cpp looks after. Tensors are of float32.
#pragma once

#include <stdint.h>
#include <string.h>

#include "watched.h"

using cudaStream_t = struct CUstream_st*;

namespace watch {
[[noreturn]] void stop(const char* status, const char* text);
float* buffer(int number);
int number_of(const float* memory);
float* allocate(long long numbers);  // what the request has left
void copy(float* to, const float* from, int dims, const long long* sizes, const long long* strides);
}  // namespace watch

namespace torch_on_host {

inline bool unchecked = false;  // a launch whose error nobody has asked for yet
const cudaStream_t current = reinterpret_cast<cudaStream_t>(0x5);

inline dim3 on(cudaStream_t stream, dim3 grid) {
    if (stream != current) watch::stop("stream", "");
    unchecked = true;
    return grid;
}
inline dim3 on(dim3) { watch::stop("stream", ""); }
[[noreturn]] inline void raise(const char* condition) { watch::stop("raised", condition); }

}  // namespace torch_on_host

namespace torch {

enum ScalarType { kFloat32, kFloat = kFloat32, kFloat64, kDouble = kFloat64, kFloat16, kHalf = kFloat16, kBFloat16 };

struct IntArrayRef {
    const long long* data;
    int count;
    long long operator[](int at) const { return data[at]; }
    bool operator==(const IntArrayRef& other) const {
        return count == other.count && !memcmp(data, other.data, count * sizeof(long long));
    }
    bool operator!=(const IntArrayRef& other) const { return !(*this == other); }
    size_t size() const { return count; }
};

class Tensor {
    float* memory = nullptr;
    int dims = 0;
    long long shape[8] = {}, step[8] = {};

public:
    Tensor() {}
    Tensor(float* memory, int dims, const long long* sizes, const long long* strides) : memory(memory), dims(dims) {
        for (int at = 0; at < dims; ++at) shape[at] = sizes[at], step[at] = strides[at];
    }
    Tensor like(float* other) const {  // contiguous
        Tensor made = *this;
        made.memory = other;
        long long next = 1;
        for (int at = dims - 1; at >= 0; --at) made.step[at] = next, next *= shape[at];
        return made;
    }
    template <class T>
    T* data_ptr() const {
        static_assert(sizeof(T) == sizeof(float) && T(0.5) == T(0.5f) && T(0.5) != T(0), "here tensors are of float");
        return memory;
    }
    template <class T>
    T* mutable_data_ptr() const {
        return data_ptr<T>();
    }
    template <class T>
    const T* const_data_ptr() const {
        return data_ptr<T>();
    }
    int64_t numel() const {
        int64_t product = 1;
        for (int at = 0; at < dims; ++at) product *= shape[at];
        return product;
    }
    int64_t dim() const { return dims; }
    int64_t size(int64_t at) const { return shape[at < 0 ? at + dims : at]; }
    int64_t stride(int64_t at) const { return step[at < 0 ? at + dims : at]; }
    IntArrayRef sizes() const { return {shape, dims}; }
    IntArrayRef strides() const { return {step, dims}; }
    bool is_contiguous() const {
        long long next = 1;
        for (int at = dims - 1; at >= 0; --at) {
            if (shape[at] != 1 && step[at] != next) return numel() == 0;
            next *= shape[at];
        }
        return true;
    }
    Tensor contiguous() const {
        if (is_contiguous()) return *this;
        Tensor made = like(watch::allocate(numel()));
        watch::copy(made.memory, memory, dims, shape, step);
        return made;
    }
    bool is_cuda() const { return true; }
    ScalarType scalar_type() const { return kFloat32; }
    ScalarType dtype() const { return kFloat32; }
    int device() const { return 0; }
    int get_device() const { return 0; }
    ScalarType options() const { return kFloat32; }
};

inline Tensor empty_like(const Tensor& tensor) { return tensor.like(watch::allocate(tensor.numel())); }
inline Tensor empty(IntArrayRef sizes, ScalarType = kFloat32) {
    long long strides[8] = {};
    Tensor shaped(nullptr, sizes.count, sizes.data, strides);
    return empty_like(shaped);
}

}  // namespace torch

namespace at {
using torch::Tensor;
using torch::empty;
using torch::empty_like;
}  // namespace at

namespace c10::cuda {
struct CUDAStream {
    operator cudaStream_t() const { return torch_on_host::current; }
    cudaStream_t stream() const { return torch_on_host::current; }
};
inline CUDAStream getCurrentCUDAStream(int = 0) { return {}; }
struct CUDAGuard {
    explicit CUDAGuard(int) {}
};
}  // namespace c10::cuda
namespace at::cuda {
using c10::cuda::CUDAGuard;
using c10::cuda::CUDAStream;
using c10::cuda::getCurrentCUDAStream;
}  // namespace at::cuda

// A launch that cannot start ends the program at once, with its error.
#define C10_CUDA_KERNEL_LAUNCH_CHECK() (torch_on_host::unchecked = false)
enum cudaError_t { cudaSuccess };
inline cudaError_t cudaGetLastError() {
    torch_on_host::unchecked = false;
    return cudaSuccess;
}
#define C10_CUDA_CHECK(error) TORCH_CHECK((error) == cudaSuccess)
#define AT_CUDA_CHECK C10_CUDA_CHECK
#define TORCH_CHECK(condition, ...)                              \
    do {                                                         \
        if (!(condition)) torch_on_host::raise(#condition);      \
    } while (false)

namespace torch_on_host {

// What forward() is given, and takes: a tensor is its buffer, its first number, its dimensions, sizes, strides.
class Arguments {
    const long long* next;

public:
    explicit Arguments(const long long* integers) : next(integers) {}
    torch::Tensor tensor() {
        float* memory = watch::buffer(int(next[0])) + next[1];
        int dims = int(next[2]);
        torch::Tensor made(memory, dims, next + 3, next + 3 + dims);
        next += 3 + 2 * dims;
        return made;
    }
    long long integer() { return *next++; }
    double number() {
        double value;
        memcpy(&value, next++, sizeof value);
        return value;
    }
};

inline void give(const torch::Tensor& out) {
    if (unchecked) watch::stop("unchecked", "");
    char text[256];
    int written = snprintf(text, sizeof text, "%d %d", out.numel() ? watch::number_of(out.data_ptr<float>()) : -1,
                           out.is_contiguous());
    for (int at = 0; at < out.dim(); ++at)
        written += snprintf(text + written, sizeof text - written, " %lld", (long long)out.size(at));
    watch::stop("ok", text);
}

}  // namespace torch_on_host
