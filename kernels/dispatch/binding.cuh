// What the bindings of the pointwise ops share: checks that name the argument, and dtypes as the kernels know them.
#pragma once

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "device/launch.cuh"

namespace binding {

using at::Tensor;

inline const char* name(at::ScalarType dtype) {
    switch (dtype) {
        case at::kFloat: return "float32";
        case at::kDouble: return "float64";
        case at::kHalf: return "float16";
        case at::kBFloat16: return "bfloat16";
        default: return c10::toString(dtype);
    }
}

// The messages and exceptions are those of kernels/pointwise.py.
inline void check(const char* op, const Tensor& x, const Tensor& bias, const Tensor* y = nullptr) {
    at::ScalarType dtype = x.scalar_type();
    TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kDouble, op,
                     ": x must be float32, float16, bfloat16 or float64; got ",
                     name(dtype));
    TORCH_CHECK_VALUE(x.is_cuda(), op, ": x must be a CUDA tensor; got one on ", x.device());
    TORCH_CHECK_VALUE(x.dim() > 0, op, ": x must have at least one dimension; got a tensor of shape []");
    auto like = [&](const char* argument, const Tensor& tensor, at::IntArrayRef shape) {
        TORCH_CHECK_VALUE(tensor.device() == x.device(), op, ": ", argument, " must be on x's device, ", x.device(),
                          "; got ", tensor.device());
        TORCH_CHECK_TYPE(tensor.scalar_type() == dtype, op, ": ", argument, " must have x's dtype, ",
                         name(dtype), "; got ", name(tensor.scalar_type()));
        TORCH_CHECK_VALUE(tensor.sizes() == shape, op, ": ", argument, " must have shape ", shape, ", for x of shape ",
                          x.sizes(), "; got ", tensor.sizes());
    };
    like("bias", bias, x.sizes().slice(x.dim() - 1));
    if (y) like("y", *y, x.sizes());
}

// Whether the memory of two contiguous tensors overlaps. What is not contiguous is copied before x is written.
inline bool overlap(const Tensor& x, const Tensor& other) {
    if (!x.is_contiguous() || !other.is_contiguous() || x.numel() == 0 || other.numel() == 0) return false;
    auto start = static_cast<const char*>(x.const_data_ptr());
    auto other_start = static_cast<const char*>(other.const_data_ptr());
    return start < other_start + other.nbytes() && other_start < start + x.nbytes();
}

inline void check_in_place(const char* op, const Tensor& x, const Tensor& bias, const Tensor* y = nullptr) {
    for (int64_t d = 0; d < x.dim(); ++d)
        TORCH_CHECK_VALUE(x.stride(d) != 0 || x.size(d) <= 1, op,
                          ": x must not be expanded, since it is written to; its strides are ", x.strides());
    TORCH_CHECK_VALUE(!y || !overlap(x, *y) || y->const_data_ptr() == x.const_data_ptr(), op,
                      ": y must be x itself or not overlap it; it shares part of x's memory");
    TORCH_CHECK_VALUE(
        !overlap(x, bias) || (bias.const_data_ptr() == x.const_data_ptr() && bias.numel() == x.numel()), op,
        ": bias must not overlap x, which is written to; it shares x's memory");
}

inline bool needs_gradient(std::initializer_list<const Tensor*> tensors) {
    if (!at::GradMode::is_enabled()) return false;
    for (const Tensor* tensor : tensors)
        if (tensor->requires_grad()) return true;
    return false;
}

inline void refuse_gradients(const char* op, std::initializer_list<const Tensor*> tensors) {
    TORCH_CHECK(!needs_gradient(tensors), op, "_ has no gradient: call ", op, ", or ", op, "_ under torch.no_grad()");
}

// A tangent would be lost without a word.
inline void refuse_forward_mode(const char* op, std::initializer_list<const Tensor*> tensors) {
    for (const Tensor* tensor : tensors)
        TORCH_CHECK(!tensor->_fw_grad(0).defined(), op, " has no forward-mode derivative: use backend=\"eager\"");
}

// In an Autocast kernel: what it passes on. Tensors of differing dtypes are cast to autocast's, float64 excepted, as in
// PyTorch.
class Autocast {
   public:
    explicit Autocast(std::initializer_list<const Tensor*> tensors) {
        for (const Tensor* tensor : tensors) differ_ |= tensor->scalar_type() != (*tensors.begin())->scalar_type();
    }
    Tensor operator()(const Tensor& tensor) const {
        at::ScalarType dtype = tensor.scalar_type();
        bool castable = dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
        return differ_ && castable ? tensor.to(at::autocast::get_autocast_dtype(at::kCUDA)) : tensor;
    }

   private:
    c10::impl::ExcludeDispatchKeyGuard below_{c10::DispatchKey::AutocastCUDA};
    bool differ_ = false;
};

// Tells autograd that x was written to: a backward that saved x raises.
inline void mark_written(const Tensor& x) {
    if (!x.is_inference()) torch::autograd::impl::bump_version(x);
}

template <class T>
T* pointer(const Tensor& tensor) {
    return tensor.defined() && tensor.numel() ? static_cast<T*>(tensor.data_ptr()) : nullptr;
}

template <class T>
struct Dtype {
    using type = T;
};

// function(Dtype<T>) for the dtype of a tensor that `check` has let pass.
template <class Function>
void with_dtype(const Tensor& tensor, Function function) {
    switch (tensor.scalar_type()) {
        case at::kFloat: return function(Dtype<float>{});
        case at::kDouble: return function(Dtype<double>{});
        case at::kHalf: return function(Dtype<__half>{});
        case at::kBFloat16: return function(Dtype<__nv_bfloat16>{});
        default: TORCH_CHECK_TYPE(false, "no kernel for ", tensor.scalar_type());
    }
}

template <class Function>
auto find(const char* op) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(op, "").typed<Function>();
}

inline int64_t columns_of(const Tensor& x) { return x.size(-1); }
inline int64_t rows_of(const Tensor& x) { return x.size(-1) ? x.numel() / x.size(-1) : 0; }

// A contiguous tensor on like's device, its memory not written (NaN under torch.use_deterministic_algorithms). Not
// at::empty, whose way through the dispatcher costs about as much as the rest of a call.
inline Tensor empty(at::IntArrayRef shape, const Tensor& like, std::optional<at::ScalarType> dtype = {}) {
    Tensor tensor(at::detail::empty_cuda(shape, dtype.value_or(like.scalar_type()), like.device(), std::nullopt));
    const auto& context = at::globalContext();
    if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())
        tensor.fill_(std::numeric_limits<double>::quiet_NaN());
    return tensor;
}
// Room for a gradient; of no elements if it is not needed.
inline Tensor empty_gradient(at::IntArrayRef shape, bool needed, const Tensor& like) {
    return empty(needed ? shape : at::IntArrayRef{0}, like);
}
inline Tensor workspace(int64_t elements, const Tensor& like) {
    return empty({elements}, like, like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace binding
