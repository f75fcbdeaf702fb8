// What ops.cpp needs: a call of an op's fused::Table with tensors of PyTorch's stable ABI, and its registration.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <deque>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dispatch/call.h"

// The overloads of one backend, for tensors of its devices.
#ifdef USE_CUDA
#include <torch/csrc/stable/accelerator.h>
#define BACKEND "cuda"
#else
#define BACKEND "cpp"
#endif

using torch::headeronly::ScalarType;
using torch::stable::new_empty;
using torch::stable::Tensor;

enum class Use { read, written };

class Call {
public:
    Call(const char* op, fused::Entry entry) : op_(op), entry_(entry) {}

    // A tensor that is read may be strided: it is copied then.
    void give(const Tensor& tensor, Use use) {
        const bool contiguous = tensor.is_contiguous();
        STD_TORCH_CHECK(contiguous || use == Use::read, op_, ": what it writes must be contiguous");
#ifdef USE_CUDA
        STD_TORCH_CHECK(tensor.is_cuda(), op_, ": takes tensors of a GPU");
        const int32_t device = tensor.get_device_index();
        STD_TORCH_CHECK(kept_.empty() || device == device_, op_, ": takes tensors of one GPU");
        device_ = device;
#else
        STD_TORCH_CHECK(tensor.is_cpu(), op_, ": takes tensors of the CPU");
#endif
        kept_.push_back(contiguous ? tensor : torch::stable::contiguous(tensor));
        const Tensor& own = kept_.back();
        next().tensor = {own.numel() ? own.data_ptr() : nullptr, own.sizes().data(), own.numel(), int32_t(own.dim()),
                         fused::Dtype(int32_t(own.scalar_type()))};
    }
    void give(const std::optional<Tensor>& tensor, Use use) {
        if (tensor)
            give(*tensor, use);
        else
            next();
    }
    void give(int64_t value) { next().integer = value; }
    void give(bool value) { next().integer = value; }
    void give(double value) { next().real = value; }
    void give(const std::string& value) { next().string = {strings_.emplace_back(value).c_str()}; }

    void run() {
        STD_TORCH_CHECK(int64_t(given_.size()) == entry_.arguments, op_, ": takes ", entry_.arguments, " arguments");
        fused::Context context{nullptr, nullptr, nullptr};  // none of these ops takes a workspace
#ifdef USE_CUDA
        const torch::stable::accelerator::DeviceGuard guard(device_);
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device_, &context.stream));
#endif
        const char* error = entry_.run(given_.data(), &context);
        STD_TORCH_CHECK(!error, op_, ": ", error);
    }

private:
    fused::Argument& next() { return given_.emplace_back(); }

    const char* op_;
    fused::Entry entry_;
    int32_t device_ = 0;
    std::deque<Tensor> kept_;
    std::deque<std::string> strings_;
    std::vector<fused::Argument> given_;
};

// The ops' schemas, and kernels that run where no others are registered: where Python has declared an op, its own run.
class Registration {
public:
    Registration() {
        aoti_torch_library_init_fragment("fused_kernels", __FILE__, __LINE__, &schemas_);
        aoti_torch_library_init_impl("fused_kernels", "CompositeExplicitAutograd", __FILE__, __LINE__, &kernels_);
    }  // never deleted: a torch::Library takes its registrations back when it ends
    void add(const char* name, const char* schema, void (*boxed)(StableIValue*, uint64_t, uint64_t)) {
        if (aoti_torch_library_def(schemas_, (std::string(name) + schema).c_str()) != AOTI_TORCH_SUCCESS) return;
        TORCH_ERROR_CODE_CHECK(torch_library_impl(kernels_, name, boxed, TORCH_ABI_VERSION));
    }

private:
    TorchLibraryHandle schemas_{}, kernels_{};
};
