// The part of PyTorch's C++ that a function around a kernel needs, so that the text that load_inline builds for a GPU is
// built by g++ too, and run over buffers that watch.cpp looks after. Tensors are of float32.
#pragma once

#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "watched.h"

using cudaStream_t = struct CUstream_st*;

namespace watch {
float* buffer(int number);
int number_of(const float* memory);
float* allocate(long long numbers);  // what the request has left
void clear(float* memory, long long numbers);
void copy(float* to, const float* from, int dims, const int64_t* sizes, const int64_t* strides,
          const int64_t* to_strides);
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

// ------------------------------------------------------------------------------------------------------------- tensors

namespace c10 {

using DeviceIndex = int8_t;
enum ScalarType { Float, Double, Half, BFloat16, Int, Long };
constexpr ScalarType kFloat = Float, kFloat32 = Float, kDouble = Double, kFloat64 = Double, kHalf = Half,
                     kFloat16 = Half, kBFloat16 = BFloat16, kInt = Int, kInt32 = Int, kLong = Long, kInt64 = Long;
enum class DeviceType { CPU, CUDA };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA;
enum class MemoryFormat { Contiguous, Preserve };

struct Device {
    Device(DeviceType = kCUDA, DeviceIndex = 0) {}
    DeviceIndex index() const { return 0; }
    DeviceType type() const { return kCUDA; }
    bool is_cuda() const { return true; }
    bool is_cpu() const { return false; }
    std::string str() const { return "cuda:0"; }
    bool operator==(const Device&) const { return true; }
    bool operator!=(const Device&) const { return false; }
};

struct TensorOptions {
    TensorOptions(ScalarType = kFloat) {}
    TensorOptions dtype(ScalarType) const { return *this; }
    TensorOptions device(Device, DeviceIndex = 0) const { return *this; }
    TensorOptions requires_grad(bool) const { return *this; }
    TensorOptions memory_format(MemoryFormat) const { return *this; }
};

class IntArrayRef {
    const int64_t* first;
    size_t count;

public:
    IntArrayRef(const int64_t* first, size_t count) : first(first), count(count) {}
    IntArrayRef(std::initializer_list<int64_t> list) : first(list.begin()), count(list.size()) {}
    IntArrayRef(const std::vector<int64_t>& list) : first(list.data()), count(list.size()) {}
    const int64_t* begin() const { return first; }
    const int64_t* end() const { return first + count; }
    const int64_t* data() const { return first; }
    int64_t operator[](size_t at) const { return first[at]; }
    int64_t back() const { return first[count - 1]; }
    int64_t front() const { return first[0]; }
    size_t size() const { return count; }
    bool empty() const { return !count; }
    std::vector<int64_t> vec() const { return {begin(), end()}; }
    bool operator==(IntArrayRef other) const {
        return count == other.count && !memcmp(first, other.first, count * sizeof(int64_t));
    }
    bool operator!=(IntArrayRef other) const { return !(*this == other); }
};

}  // namespace c10

namespace torch {

using namespace c10;
template <class T>
struct DefaultPtrTraits {};
template <class T>
struct RestrictPtrTraits {};

// A tensor's elements by their indices, in a kernel.
template <class T, size_t N, template <class> class = DefaultPtrTraits, class Index = int64_t>
class PackedTensorAccessor {
    T* memory;
    Index shape[N], step[N];

public:
    template <class From>
    PackedTensorAccessor(T* memory, const From* sizes, const From* strides) : memory(memory) {
        for (size_t at = 0; at < N; ++at) shape[at] = Index(sizes[at]), step[at] = Index(strides[at]);
    }
    decltype(auto) operator[](Index at) const {
        if constexpr (N == 1)
            return (memory[at * step[0]]);
        else
            return PackedTensorAccessor<T, N - 1, DefaultPtrTraits, Index>(memory + at * step[0], shape + 1, step + 1);
    }
    T* data() const { return memory; }
    Index size(int at) const { return shape[at]; }
    Index stride(int at) const { return step[at]; }
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = PackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = PackedTensorAccessor<T, N, Traits, int64_t>;

class Tensor {
    float* memory = nullptr;
    int dims = 0;
    int64_t shape[8] = {}, step[8] = {};

public:
    Tensor() {}
    Tensor(float* memory, IntArrayRef sizes, const int64_t* strides = nullptr)
        : memory(memory), dims(int(sizes.size())) {
        int64_t next = 1;
        for (int at = dims - 1; at >= 0; --at) {
            shape[at] = sizes[at];
            step[at] = strides ? strides[at] : next;
            next *= shape[at];
        }
    }
    template <class T>
    T* data_ptr() const {
        static_assert(sizeof(T) == sizeof(float) && T(0.5) == T(0.5f) && T(0.5) != T(0), "here tensors are of float");
        return memory;
    }
    void* data_ptr() const { return memory; }
    template <class T>
    T* data() const {
        return data_ptr<T>();
    }
    template <class T>
    T* mutable_data_ptr() const {
        return data_ptr<T>();
    }
    void* mutable_data_ptr() const { return memory; }
    template <class T>
    const T* const_data_ptr() const {
        return data_ptr<T>();
    }
    const void* const_data_ptr() const { return memory; }
    template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
    PackedTensorAccessor32<T, N, Traits> packed_accessor32() const {
        if (dims != N) torch_on_host::raise("the dimensions of packed_accessor32");
        return {data_ptr<T>(), shape, step};
    }
    template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
    PackedTensorAccessor64<T, N, Traits> packed_accessor64() const {
        if (dims != N) torch_on_host::raise("the dimensions of packed_accessor64");
        return {data_ptr<T>(), shape, step};
    }
    int64_t numel() const {
        int64_t product = 1;
        for (int at = 0; at < dims; ++at) product *= shape[at];
        return product;
    }
    int64_t dim() const { return dims; }
    int64_t ndimension() const { return dims; }
    int64_t size(int64_t at) const { return shape[at < 0 ? at + dims : at]; }
    int64_t stride(int64_t at) const { return step[at < 0 ? at + dims : at]; }
    IntArrayRef sizes() const { return {shape, size_t(dims)}; }
    IntArrayRef strides() const { return {step, size_t(dims)}; }
    bool is_contiguous(MemoryFormat = MemoryFormat::Contiguous) const {
        int64_t next = 1;
        for (int at = dims - 1; at >= 0; --at) {
            if (shape[at] != 1 && step[at] != next) return numel() == 0;
            next *= shape[at];
        }
        return true;
    }
    // New memory. As in PyTorch, dimensions keep the order of their strides: like a transposed tensor, it is transposed.
    Tensor like(MemoryFormat format) const {
        Tensor made(watch::allocate(numel()), sizes());
        if (format == MemoryFormat::Contiguous) return made;
        int order[8];
        for (int at = 0; at < dims; ++at) order[at] = dims - 1 - at;
        for (int at = 1; at < dims; ++at)
            for (int late = at, early = at - 1; early >= 0; --early) {
                int64_t inner = step[order[early]], outer = step[order[late]];
                if (!inner || !outer) continue;  // of an expanded dimension nothing is known
                if (inner < outer) break;
                if (inner == outer && shape[order[early]] <= shape[order[late]]) continue;
                std::swap(order[early], order[late]), late = early;
            }
        int64_t next = 1;
        for (int at = 0; at < dims; ++at) {
            made.step[order[at]] = next;
            next *= std::max<int64_t>(shape[order[at]], 1);
        }
        return made;
    }
    Tensor contiguous(MemoryFormat format = MemoryFormat::Contiguous) const {
        return is_contiguous() ? *this : clone(format);
    }
    Tensor clone(MemoryFormat format = MemoryFormat::Preserve) const {
        Tensor made = like(format);
        watch::copy(made.memory, memory, dims, shape, step, made.step);
        return made;
    }
    Tensor reshape(IntArrayRef sizes) const {
        std::vector<int64_t> wanted = sizes.vec();
        int64_t known = 1, *open = nullptr;
        for (int64_t& size : wanted) size < 0 ? void(open = &size) : void(known *= size);
        if (open) *open = known ? numel() / known : 0, known *= *open;
        if (known != numel()) torch_on_host::raise("the sizes of a view");
        return Tensor(contiguous().memory, wanted);
    }
    Tensor view(IntArrayRef sizes) const {
        if (!is_contiguous()) torch_on_host::raise("a view of what is not contiguous");
        return reshape(sizes);
    }
    Tensor reshape(int64_t size) const { return reshape(IntArrayRef{size}); }
    Tensor view(int64_t size) const { return view(IntArrayRef{size}); }
    Tensor view_as(const Tensor& other) const { return view(other.sizes()); }
    Tensor reshape_as(const Tensor& other) const { return reshape(other.sizes()); }
    Tensor flatten() const { return reshape(-1); }
    Tensor detach() const { return *this; }
    bool defined() const { return dims || memory; }
    bool is_cuda() const { return true; }
    bool is_cpu() const { return false; }
    bool is_floating_point() const { return true; }
    bool requires_grad() const { return false; }
    ScalarType scalar_type() const { return kFloat; }
    ScalarType dtype() const { return kFloat; }
    ScalarType type() const { return kFloat; }
    int64_t element_size() const { return sizeof(float); }
    int64_t itemsize() const { return sizeof(float); }
    Device device() const { return {}; }
    DeviceIndex get_device() const { return 0; }
    TensorOptions options() const { return {}; }
};
using OptionalDevice = std::optional<Device>;
inline OptionalDevice device_of(const Tensor&) { return Device(); }

inline Tensor empty(IntArrayRef sizes, TensorOptions = {}) {
    Tensor shaped(nullptr, sizes);
    return Tensor(watch::allocate(shaped.numel()), sizes);
}
inline Tensor zeroed(Tensor made) {
    watch::clear(made.data_ptr<float>(), made.numel());
    return made;
}
inline Tensor zeros(IntArrayRef sizes, TensorOptions = {}) { return zeroed(empty(sizes)); }
inline Tensor empty_like(const Tensor& tensor, MemoryFormat format) { return tensor.like(format); }
inline Tensor empty_like(const Tensor& tensor, TensorOptions = {}, MemoryFormat format = MemoryFormat::Preserve) {
    return tensor.like(format);
}
inline Tensor zeros_like(const Tensor& tensor, TensorOptions = {}) { return zeroed(empty_like(tensor)); }

}  // namespace torch

namespace at {
using namespace torch;
template <class T>
T ceil_div(T a, T b) {
    return (a + b - 1) / b;
}
}  // namespace at

// ------------------------------------------------------------------------------------------------- devices and streams

namespace c10 {
struct DeviceGuard {
    explicit DeviceGuard(std::optional<Device>) {}
};
using OptionalDeviceGuard = DeviceGuard;
}  // namespace c10
namespace c10::cuda {
struct CUDAStream {
    cudaStream_t itself = torch_on_host::current;
    operator cudaStream_t() const { return itself; }
    cudaStream_t stream() const { return itself; }
    void synchronize() const {}
    DeviceIndex device_index() const { return 0; }
};
inline CUDAStream getCurrentCUDAStream(DeviceIndex = 0) { return {}; }
inline CUDAStream getDefaultCUDAStream(DeviceIndex = 0) { return {nullptr}; }
struct CUDAGuard {
    explicit CUDAGuard(DeviceIndex) {}
    explicit CUDAGuard(Device) {}
    void set_index(DeviceIndex) {}
    void set_device(Device) {}
};
struct OptionalCUDAGuard {
    OptionalCUDAGuard() {}
    explicit OptionalCUDAGuard(DeviceIndex) {}
    explicit OptionalCUDAGuard(Device) {}
    explicit OptionalCUDAGuard(std::optional<Device>) {}
    void set_index(DeviceIndex) {}
    void set_device(Device) {}
};
struct CUDAStreamGuard {
    explicit CUDAStreamGuard(CUDAStream) {}
};
using OptionalCUDAStreamGuard = CUDAStreamGuard;
inline DeviceIndex current_device() { return 0; }
}  // namespace c10::cuda
struct cudaDeviceProp {
    int multiProcessorCount = 132, maxThreadsPerBlock = 1024, maxThreadsPerMultiProcessor = 2048, warpSize = 32;
    int maxGridSize[3] = {0x7fffffff, 65535, 65535};
};
namespace at::cuda {
using namespace c10::cuda;
inline const cudaDeviceProp* getCurrentDeviceProperties() {
    static cudaDeviceProp properties;
    return &properties;
}
inline const cudaDeviceProp* getDeviceProperties(int) { return getCurrentDeviceProperties(); }
}  // namespace at::cuda

// -------------------------------------------------------------------------------------------------------------- checks

// A launch that cannot start ends the program at once, with its error.
#define C10_CUDA_KERNEL_LAUNCH_CHECK() (torch_on_host::unchecked = false)
enum cudaError_t { cudaSuccess };
inline cudaError_t cudaGetLastError() {
    torch_on_host::unchecked = false;
    return cudaSuccess;
}
inline cudaError_t cudaPeekAtLastError() { return cudaGetLastError(); }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
#define TORCH_CHECK(condition, ...)                              \
    do {                                                         \
        if (!(condition)) torch_on_host::raise(#condition);      \
    } while (false)
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define TORCH_CHECK_VALUE TORCH_CHECK
#define TORCH_CHECK_TYPE TORCH_CHECK
#define TORCH_CHECK_EQ(a, b, ...) TORCH_CHECK((a) == (b))
#define AT_ASSERTM TORCH_CHECK
#define AT_ASSERT TORCH_CHECK
#define C10_CUDA_CHECK(error) TORCH_CHECK((error) == cudaSuccess)
#define AT_CUDA_CHECK C10_CUDA_CHECK

// Float32 is the only type that is there.
#define AT_DISPATCH_FLOATING_TYPES(type, name, ...) \
    [&] {                                           \
        (void)(type), (void)(name);                 \
        using scalar_t = float;                     \
        return (__VA_ARGS__)();                     \
    }()
#define AT_DISPATCH_ALL_TYPES AT_DISPATCH_FLOATING_TYPES
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF AT_DISPATCH_FLOATING_TYPES
#define AT_DISPATCH_FLOATING_TYPES_AND(also, ...) AT_DISPATCH_FLOATING_TYPES(__VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES_AND2(also, too, ...) AT_DISPATCH_FLOATING_TYPES(__VA_ARGS__)
#define CUDA_KERNEL_LOOP_TYPE(i, n, type)                                                                 \
    int64_t _i_n_d_e_x = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;                                  \
    for (type i = _i_n_d_e_x; _i_n_d_e_x < (n); _i_n_d_e_x += blockDim.x * gridDim.x, i = _i_n_d_e_x)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)

namespace torch_on_host {

// What forward() is given, and takes: a tensor is its buffer, its first number, its dimensions, sizes, strides.
class Arguments {
    const int64_t* next;

public:
    explicit Arguments(const long long* integers) : next(reinterpret_cast<const int64_t*>(integers)) {}
    torch::Tensor tensor() {
        float* memory = watch::buffer(int(next[0])) + next[1];
        size_t dims = size_t(next[2]);
        torch::Tensor made(memory, {next + 3, dims}, next + 3 + dims);
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
