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

// A kernel's argument: a tensor, by its slot; eight bytes; the value of the scalar in a slot, as float or as double.
struct Argument {
    enum Kind : int64_t { tensor, literal, scalar_float, scalar_double } kind;
    int64_t value;
};

struct Launch {
    driver::Function function;
    unsigned grid[3], threads, shared;
    driver::Kind kind;
    std::vector<Argument> arguments;
};

struct Plan {
    std::vector<Allocation> outputs, workspaces;
    std::vector<Launch> launches;
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

// Of a tensor its dtype, shape, device, layout, and whether its memory is aligned to 16 bytes, as a copy of what is not
// contiguous will be. Its strides do not count: kernels get contiguous tensors.
inline void describe(Signature& signature, const Tensor& tensor) {
    if (!tensor.defined()) return signature.push_back(-1);
    bool dense = tensor.layout() == at::kStrided;
    bool aligned = !dense || !tensor.is_contiguous() || reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
    signature.push_back(int64_t(tensor.scalar_type()) | int64_t(aligned) << 8 | int64_t(dense) << 9 |
                        int64_t(tensor.dim()) << 10 | int64_t(uint8_t(tensor.device().type())) << 24 |
                        int64_t(uint8_t(tensor.device().index())) << 32);
    signature.append(tensor.sizes().begin(), tensor.sizes().end());
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
