// What an op's cuda.cu sees of a call: plain structs, nothing of torch, so that it builds in seconds, for any torch, and
// by g++ for the host. The core (core.cpp) has checked the arguments, made the tensors contiguous, allocated the outputs
// and set the device before it calls.
//
//     cudaError_t forward(Tensor x, Tensor bias, Tensor out, Stream stream) {
//         return with_dtype(x, [&](auto t) { using T = decltype(t); return launch(x.as<T>(), …, stream); });
//     }
//     FUSED_OP(forward, backward)
//
// A function takes the schema's arguments in order, then the outputs; the backward the gradients of the outputs, what
// was saved, the shapes, the other arguments, then the gradients that it writes. A tensor that is not there (an optional
// argument, a gradient that is not needed) has a null pointer; so has a shape, a Tensor of these sizes.
// A list of tensors is Tensors. Last, in this order: Stream, and Workspace where one is needed.
#pragma once

#include <type_traits>
#include <utility>

#include "device/integers.cuh"
#include "device/scalar.cuh"
#include "device/vector.cuh"
#include "dispatch/call.h"

namespace fused {

using Stream = cudaStream_t;

struct Workspace {
    const Context* context;
    template <class T>
    T* get(long long count) const {
        return count ? static_cast<T*>(context->allocate(context->owner, uint64_t(count) * sizeof(T))) : nullptr;
    }
};

template <class A>
A take(const Argument* arguments, int index, const Context* context) {
    if constexpr (std::is_same_v<A, Tensor>) return arguments[index].tensor;
    else if constexpr (std::is_same_v<A, Tensors>) return arguments[index].tensors;
    else if constexpr (std::is_same_v<A, Scalar>) {
        const Number& number = arguments[index].number;
        return Scalar(number.value, number.on_device, number.dtype == Dtype::float64);
    }
    else if constexpr (std::is_same_v<A, String>) return arguments[index].string;
    else if constexpr (std::is_same_v<A, Stream>) return static_cast<Stream>(context->stream);
    else if constexpr (std::is_same_v<A, Workspace>) return Workspace{context};
    else if constexpr (std::is_floating_point_v<A>) return A(arguments[index].real);
    else return A(arguments[index].integer);
}

template <class... A, int... index>
const char* invoke(cudaError_t (*function)(A...), const Argument* arguments, const Context* context,
                   std::integer_sequence<int, index...>) {
    cudaError_t error = function(take<A>(arguments, index, context)...);
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
template <class... A>
const char* invoke(cudaError_t (*function)(A...), const Argument* arguments, const Context* context) {
    return invoke(function, arguments, context, std::make_integer_sequence<int, int(sizeof...(A))>{});
}
template <class... A>
constexpr int count_arguments(cudaError_t (*)(A...)) {
    return (0 + ... + int(!std::is_same_v<A, Stream> && !std::is_same_v<A, Workspace>));
}

template <auto function>
constexpr Entry entry() {
    if constexpr (std::is_null_pointer_v<decltype(function)>)
        return {};
    else
        return {[](const Argument* arguments, const Context* context) { return invoke(function, arguments, context); },
                count_arguments(function)};
}
template <auto forward, auto backward = nullptr>
constexpr Table table = {entry<forward>(), entry<backward>()};

template <class T>
struct DtypeOf;  // a type that is not on the list has none
#define FUSED_DTYPE_OF(name, number, torch_name, type) \
    template <>                                        \
    struct DtypeOf<type> {                             \
        static constexpr Dtype value = Dtype::name;    \
    };
FUSED_DTYPES(FUSED_DTYPE_OF)
#undef FUSED_DTYPE_OF
template <class T>
constexpr Dtype dtype_of = DtypeOf<T>::value;

inline Integers integers(const Tensor& tensor) { return {tensor.data, tensor.dtype == Dtype::int64}; }

// function(T{}) for the one of Types that the dtype is.
template <class... Types, class Function>
cudaError_t with_dtype_of(Dtype dtype, Function function) {
    cudaError_t error = cudaErrorInvalidValue;
    ((dtype == dtype_of<Types> ? void(error = function(Types{})) : void()), ...);
    return error;
}
template <class Function>
cudaError_t with_dtype(const Tensor& tensor, Function function) {
    return with_dtype_of<float, double, __half, __nv_bfloat16>(tensor.dtype, function);
}

}  // namespace fused

#ifdef CUDA_ON_HOST
extern "C" __attribute__((visibility("default"))) void fused_tell_launches(void (*tell)(const unsigned*)) {
    cuda_on_host::tell_launch = tell;
}
#endif

// FUSED_OP(forward), or FUSED_OP(forward, backward): of a folder with one op. FUSED_OP_NAMED(op, forward): once for each
// op of a folder with several.
#define FUSED_OP(...) FUSED_TABLE(fused_op, __VA_ARGS__)
#define FUSED_OP_NAMED(op, ...) FUSED_TABLE(fused_op_##op, __VA_ARGS__)
#define FUSED_TABLE(name, ...)                                                             \
    extern "C" {                                                                           \
    __attribute__((visibility("default"))) fused::Table name = fused::table<__VA_ARGS__>; \
    }
