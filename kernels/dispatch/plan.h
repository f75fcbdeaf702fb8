// A call's signature, and the plan for calls of it: what to allocate and what to launch.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Allocator.h>

#include <cstring>
#include <memory>
#include <vector>

#include "driver.h"

namespace plan {

using at::Tensor;
using c10::IValue;

inline bool allocations_replaced = false;  // by tests: kernels/dispatch/allocation.py then allocates

inline Tensor allocate(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device) {
    if (allocations_replaced) {
        static auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fused_kernels::_allocate", "")
                             .typed<Tensor(at::IntArrayRef, at::ScalarType, at::Device)>();
        return op.call(sizes, dtype, device);
    }
    // Not at::empty, whose way through the dispatcher costs about as much as the rest of a call.
    auto key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
    return at::detail::empty_generic(sizes, c10::GetAllocator(device.type()), c10::DispatchKeySet(key), dtype, {});
}

struct Allocation {
    at::ScalarType dtype;
    std::vector<int64_t> sizes;
};

// A kernel's argument: a tensor, by its slot; eight bytes; what a program gives; the value of the scalar in a slot, as
// float or as double; how many elements the tensor in a slot has, or from one to the next of its one dimension.
struct Argument {
    enum Kind : int64_t { tensor, literal, computed, scalar_float, scalar_double, elements, stride } kind;
    int64_t value;
};

struct Launch {
    driver::Function function;
    int64_t grid[3];
    unsigned threads, shared;
    driver::Kind kind;
    std::vector<Argument> arguments;
};

// What Python computed from N, the length of the call's ragged tensors, in postfix order: pairs of an Operation and a
// value (kernels/dispatch/varying.py writes them).
using Program = std::vector<int64_t>;
enum Operation : int64_t { constant, length, add, subtract, multiply, floor_divide, modulo, less, less_or_equal, equal };

// The quotient that is rounded down, as Python's is.
inline int64_t floor_quotient(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

inline int64_t run(const Program& program, int64_t n) {
    c10::SmallVector<int64_t, 8> stack;
    for (size_t i = 0; i + 1 < program.size(); i += 2) {
        auto operation = Operation(program[i]);
        if (operation <= length) {
            stack.push_back(operation == constant ? program[i + 1] : n);
            continue;
        }
        int64_t b = stack.pop_back_val(), &a = stack.back();
        switch (operation) {
            case add: a += b; break;
            case subtract: a -= b; break;
            case multiply: a *= b; break;
            case floor_divide: a = floor_quotient(a, b); break;
            case modulo: a -= floor_quotient(a, b) * b; break;
            case less: a = a < b; break;
            case less_or_equal: a = a <= b; break;
            default: a = a == b;
        }
    }
    return stack.back();
}

struct Plan {
    std::vector<Allocation> outputs, workspaces;
    std::vector<int64_t> groups;  // of what is returned, in order: -1 for a tensor, of a list how many
    std::vector<Launch> launches;
    std::vector<Program> programs, conditions;

    bool holds_for(int64_t n) const {
        for (const Program& condition : conditions)
            if (!run(condition, n)) return false;
        return true;
    }
    // A size of an allocation or a grid; a number below 0 stands for a program.
    int64_t size(int64_t given, int64_t n) const { return given < 0 ? run(programs[size_t(-1 - given)], n) : given; }
    Tensor allocate(const Allocation& allocation, int64_t n, at::Device device) const {
        c10::SmallVector<int64_t, 8> sizes(allocation.sizes.begin(), allocation.sizes.end());
        for (int64_t& size : sizes) size = this->size(size, n);
        return plan::allocate(sizes, allocation.dtype, device);
    }
};

// For the call on this thread that asked Python for a plan: what it said by _return_plan.
inline thread_local std::shared_ptr<Plan> returned_by_python;

// ---------------------------------------------------------------------------------------------------------- signature

using Signature = c10::SmallVector<int64_t, 48>;

struct SignatureHash {
    size_t operator()(const Signature& signature) const {
        uint64_t hash = signature.size();
        for (int64_t value : signature) {
            hash = (hash ^ uint64_t(value)) * 0x9E3779B97F4A7C15ull;
            hash ^= hash >> 32;
        }
        return hash;
    }
};

// A tensor's dtype, dimensions, device, layout, and whether its memory is aligned to 16 bytes, as a copy of what is not
// contiguous will be. Its strides do not count: kernels get contiguous tensors.
inline void describe_but_sizes(Signature& signature, const Tensor& tensor) {
    if (!tensor.defined()) return signature.push_back(-1);
    bool dense = tensor.layout() == at::kStrided;
    bool aligned = !dense || !tensor.is_contiguous() || reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
    signature.push_back(int64_t(tensor.scalar_type()) | int64_t(aligned) << 8 | int64_t(dense) << 9 |
                        int64_t(tensor.dim()) << 10 | int64_t(uint8_t(tensor.device().type())) << 24 |
                        int64_t(uint8_t(tensor.device().index())) << 32);
}

inline void describe(Signature& signature, const Tensor& tensor) {
    describe_but_sizes(signature, tensor);
    if (tensor.defined()) signature.append(tensor.sizes().begin(), tensor.sizes().end());
}

// Whether a length N, which changes from call to call, does not count: it is a size like any other where it is 0, and from
// 2^31 on. -1: there is no N.
inline bool varies(int64_t n) { return 0 < n && n < int64_t(1) << 31; }

// The length of all tensors of a ragged list, or -1: they have several, or other dimensions than one.
inline int64_t common_length(c10::ArrayRef<IValue> list) {
    int64_t length = -1;
    for (const IValue& element : list) {
        const Tensor& tensor = element.toTensor();
        if (tensor.dim() != 1 || (length >= 0 && tensor.size(0) != length)) return -1;
        length = tensor.size(0);
    }
    return length;
}

inline void describe_ragged(Signature& signature, const Tensor& tensor, int64_t n) {
    if (!varies(n) || !tensor.defined() || tensor.dim() != 1 || tensor.size(0) != n) return describe(signature, tensor);
    describe_but_sizes(signature, tensor);
    signature.push_back(-1);
}

// A list's part is whether all in it are of length N. If they are not, no length counts that is below 2^31: neither of
// which tensor it is, nor which are alike.
inline void describe_ragged(Signature& signature, c10::ArrayRef<IValue> list, int64_t n) {
    int64_t length = common_length(list);
    if (length >= 0 && (length == n || !varies(n))) {
        for (const IValue& element : list) describe_ragged(signature, element.toTensor(), n);
        return;
    }
    for (const IValue& element : list) {
        const Tensor& tensor = element.toTensor();
        if (tensor.dim() != 1 || tensor.size(0) >= int64_t(1) << 31) {
            describe(signature, tensor);
        } else {
            describe_but_sizes(signature, tensor);
            signature.push_back(-2);
        }
    }
}

inline void describe(Signature& signature, const IValue& value) {
    if (value.isTensor()) return describe(signature, value.toTensor());
    if (value.isNone()) return signature.push_back(-1);
    if (value.isInt()) return signature.push_back(value.toInt());
    if (value.isBool()) return signature.push_back(value.toBool());
    auto bytes = [&](const void* from, size_t count) {
        for (size_t i = 0; i < count; i += 8) {
            int64_t eight = 0;
            std::memcpy(&eight, static_cast<const char*>(from) + i, std::min<size_t>(8, count - i));
            signature.push_back(eight);
        }
    };
    if (value.isDouble()) {
        double number = value.toDouble();
        return bytes(&number, sizeof number);
    }
    if (value.isString()) {
        const std::string& text = value.toStringRef();
        signature.push_back(int64_t(text.size()));
        return bytes(text.data(), text.size());
    }
    TORCH_CHECK(value.isList(), "fused_kernels: an argument of type ", value.tagKind(), " cannot be part of a signature");
    auto list = value.toListRef();
    signature.push_back(int64_t(list.size()));
    for (const IValue& element : list) describe(signature, element);
}

}  // namespace plan
