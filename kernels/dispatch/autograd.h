// Autograd and autocast, for every op and both backends, from what Python declared.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/SymIntArrayRef.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "compute.h"

namespace autograd {

using at::Tensor;
using c10::IValue;
using torch::autograd::variable_list;
using torch::jit::Stack;

inline bool needs_gradient(c10::ArrayRef<IValue> arguments) {
    if (!at::GradMode::is_enabled()) return false;
    for (const IValue& value : arguments)
        if (value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad()) return true;
    return false;
}

// A tangent would be lost without a word.
inline void refuse_forward_mode(const std::string& op, c10::ArrayRef<IValue> arguments) {
    for (const IValue& value : arguments)
        if (value.isTensor() && value.toTensor().defined())
            TORCH_CHECK(!value.toTensor()._fw_grad(0).defined(), op,
                        " has no forward-mode derivative: use backend=\"eager\"");
}

inline uint32_t version_of(const IValue& value) {
    return value.isTensor() && !value.toTensor().is_inference() ? uint32_t(value.toTensor()._version()) : 0;
}

class Functional;

// Autograd holds its nodes by std::shared_ptr up to torch 2.11, and by c10::intrusive_ptr in 2.13.
using NodePointer = decltype(torch::autograd::Edge::function);
template <class Pointer, class Base>
Pointer own(Base* made) {
    if constexpr (std::is_same_v<Pointer, std::shared_ptr<Base>>)
        return Pointer(made, [](Base* node) { deleteNode(node); });  // found by its argument: torch::autograd::deleteNode
    else
        return Pointer::unsafe_steal_from_new(made);
}
template <class Pointer, class Base>
Pointer pointer_to(Base* node) {
    if constexpr (std::is_same_v<Pointer, std::shared_ptr<Base>>)
        return node->shared_from_this();
    else
        return Pointer::reclaim_copy(node);
}

// What autograd keeps of a call, and does when its gradients are asked for: as the code that PyTorch generates for its own
// operators does it, for less than a torch::autograd::Function costs. Compiled autograd does not know it.
struct Node : torch::autograd::Node {
    const Functional* kernel = nullptr;
    std::vector<torch::autograd::SavedVariable> saved;
    c10::SmallVector<c10::SymDimVector, 1> shapes;
    std::vector<IValue> others;
    std::vector<uint32_t> versions;  // of the tensors among them
    // Of outputs that are not floating, of which autograd itself keeps nothing.
    struct Undifferentiable {
        std::vector<c10::SymInt> sizes;
        c10::ScalarType dtype;
    };
    std::vector<std::optional<Undifferentiable>> undifferentiable;

    variable_list apply(variable_list&& grads) override;
    std::string name() const override;
    void release_variables() override {
        std::lock_guard lock(mutex_);
        for (auto& variable : saved) variable.reset_data();
        released = keeps;
    }
    bool keeps = false, released = false;
};

// An overload whose backward is another one.
class Functional : public c10::OperatorKernel {
   public:
    Functional(const Declared& declared, c10::OperatorHandle backward) : declared_(declared), backward_(backward) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
        size_t count = op.schema().arguments().size();
        auto arguments = torch::jit::last(*stack, count);
        refuse_forward_mode(declared_.op, arguments);
        keys = keys & c10::after_ADInplaceOrView_keyset;
        // Without a gradient to record, no node is made.
        if (!needs_gradient(arguments)) return op.redispatchBoxed(keys, stack);

        torch::autograd::edge_list edges;
        for (int64_t position : declared_.gradients)
            edges.push_back(arguments[position].isTensor() ? torch::autograd::impl::gradient_edge(arguments[position].toTensor())
                                                           : torch::autograd::Edge());
        for (size_t i = 0; i < count; ++i)
            if (arguments[i].isTensor() && !contains(declared_.gradients, i))
                TORCH_CHECK(!arguments[i].toTensor().defined() || !arguments[i].toTensor().requires_grad(), declared_.op,
                            ": ", op.schema().arguments()[i].name(), " has no gradient: detach() it");
        auto node = new Node;
        auto owner = own<NodePointer, torch::autograd::Node>(node);
        node->kernel = this;
        node->set_next_edges(std::move(edges));
        for (int64_t position : declared_.others) {
            node->others.push_back(arguments[position]);
            node->versions.push_back(version_of(arguments[position]));
        }
        for (int64_t position : declared_.shapes) node->shapes.emplace_back(arguments[position].toTensor().sym_sizes());
        const Positions& always = saved_always(arguments);
        const Positions besides = saved_besides(arguments);
        auto is_saved = [&](int64_t position) { return contains(always, position) || contains(besides, position); };
        node->keeps = !always.empty() || !besides.empty();
        node->saved.resize(declared_.saved.size());
        for (size_t i = 0; i < node->saved.size(); ++i)
            if (int64_t position = declared_.saved[i]; position >= 0 && is_saved(position))
                if (arguments[position].isTensor()) node->saved[i] = {arguments[position].toTensor(), false};

        size_t before = stack->size() - count;
        {
            at::AutoDispatchBelowADInplaceOrView below;  // grad mode stays on: an outer level of torch.func records too
            op.redispatchBoxed(keys, stack);
        }
        for (size_t i = before; i < stack->size(); ++i) {
            const Tensor& output = (*stack)[i].toTensor();
            auto& kept = node->undifferentiable.emplace_back();
            if (output.is_floating_point() && !contains(declared_.undifferentiable, i - before)) {
                torch::autograd::set_history(output, owner);
            } else {  // one gradient an output, also for what has none
                kept = {output.sym_sizes().vec(), output.scalar_type()};
                node->add_input_metadata(torch::autograd::Node::undefined_input());
            }
        }
        for (size_t i = 0; i < node->saved.size(); ++i)
            if (int64_t position = declared_.saved[i]; position < 0 && is_saved(position))
                node->saved[i] = {(*stack)[before + size_t(-1 - position)].toTensor(), true};
    }

   private:
    friend Node;

    const Positions& saved_always(c10::ArrayRef<IValue> arguments) const {
        static const std::string any;
        const std::string& which = declared_.saves_by.empty() ? any : arguments[declared_.saves_by[0]].toStringRef();
        auto found = declared_.saves.find(which);
        TORCH_CHECK(found != declared_.saves.end(), declared_.op, ": nothing is declared to be saved for '", which, "'");
        return found->second;
    }

    // What the gradients that are wanted here read besides.
    Positions saved_besides(c10::ArrayRef<IValue> arguments) const {
        Positions besides;
        for (const auto& [position, read] : declared_.wanted)
            if (const IValue& value = arguments[position]; value.isTensor() && value.toTensor().requires_grad())
                besides.insert(besides.end(), read.begin(), read.end());
        return besides;
    }

    const Declared& declared_;
    c10::OperatorHandle backward_;
};

inline std::string Node::name() const { return "fused_kernels::" + kernel->declared_.op + "_backward"; }

inline variable_list Node::apply(variable_list&& grads) {
    std::lock_guard lock(mutex_);
    TORCH_CHECK(!released, torch::autograd::ERR_BACKWARD_TWICE);
    for (size_t i = 0; i < others.size(); ++i)
        TORCH_CHECK(version_of(others[i]) == versions[i], name(),
                    ": a number that the derivative reads was modified by an inplace operation after the forward");
    auto given = std::find_if(grads.begin(), grads.end(), [](const Tensor& grad) { return grad.defined(); });
    if (given == grads.end()) return variable_list(num_outputs());
    Stack stack;
    for (size_t i = 0; i < grads.size(); ++i) {
        if (contains(kernel->declared_.undifferentiable, i)) continue;
        if (grads[i].defined())
            stack.emplace_back(grads[i]);
        else if (const auto& output = undifferentiable[i])
            stack.emplace_back(at::zeros_symint(output->sizes, given->options().dtype(output->dtype)));
        else
            stack.emplace_back(input_metadata(i).zeros_like());
    }
    auto self = pointer_to<NodePointer, torch::autograd::Node>(this);
    for (auto& variable : saved) {
        Tensor tensor = variable.unpack(self);
        stack.push_back(tensor.defined() ? IValue(std::move(tensor)) : IValue());
    }
    for (const c10::SymDimVector& shape : shapes) stack.emplace_back(c10::SymIntArrayRef(shape));
    stack.insert(stack.end(), others.begin(), others.end());
    c10::List<bool> needs;
    for (size_t i = 0; i < num_outputs(); ++i) needs.push_back(task_should_compute_output(i));
    stack.emplace_back(needs);
    kernel->backward_.callBoxed(&stack);
    variable_list found;
    for (size_t i = 0; i < num_outputs(); ++i) found.push_back(needs[i] ? stack[i].toTensor() : Tensor());
    return found;
}

// An overload that has no gradient, and whose name says what to do about it: the in-place form, or a whole op.
class Refusing : public c10::OperatorKernel {
   public:
    explicit Refusing(std::string op, std::string reason) : op_(std::move(op)), reason_(std::move(reason)) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
        auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
        TORCH_CHECK(!needs_gradient(arguments), reason_);
        refuse_forward_mode(op_, arguments);
        op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
    }

   private:
    std::string op_, reason_;
};

// The backward's overload: where a gradient of it could be asked for, a node that raises when it is.
class Backward : public c10::OperatorKernel {
   public:
    explicit Backward(const Declared& declared) : declared_(declared) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
        size_t count = op.schema().arguments().size();
        auto arguments = torch::jit::last(*stack, count);
        refuse_forward_mode(declared_.op, arguments);
        keys = keys & c10::after_ADInplaceOrView_keyset;
        if (!needs_gradient(arguments)) return op.redispatchBoxed(keys, stack);
        auto node = new Refusal;
        auto owner = own<NodePointer, torch::autograd::Node>(node);
        node->op = declared_.op;
        for (const IValue& value : arguments)
            if (value.isTensor() && value.toTensor().defined())
                node->add_next_edge(torch::autograd::impl::gradient_edge(value.toTensor()));
        size_t before = stack->size() - count;
        {
            at::AutoDispatchBelowADInplaceOrView below;
            op.redispatchBoxed(keys, stack);
        }
        for (size_t i = before; i < stack->size(); ++i) torch::autograd::set_history((*stack)[i].toTensor(), owner);
    }

   private:
    struct Refusal : torch::autograd::Node {
        std::string op;
        variable_list apply(variable_list&&) override {
            TORCH_CHECK(false, op, " has no second derivative: use backend=\"eager\"");
        }
    };

    const Declared& declared_;
};

// Under autocast, tensors of differing dtypes are cast to autocast's; float64, integers, scalars and what is written are
// left alone.
class Autocast : public c10::OperatorKernel {
   public:
    Autocast(c10::DeviceType device, Positions scalars, Positions written)
        : device_(device), scalars_(std::move(scalars)), written_(std::move(written)) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
        c10::impl::ExcludeDispatchKeyGuard below(at::autocast::get_autocast_dispatch_key_from_device_type(device_));
        size_t count = op.schema().arguments().size();
        c10::ScalarType first = c10::ScalarType::Undefined;
        bool differ = false;
        for (size_t i = 0; i < count; ++i)
            if (const Tensor* tensor = floating(*stack, i, count)) {
                if (first == c10::ScalarType::Undefined) first = tensor->scalar_type();
                differ |= tensor->scalar_type() != first;
            }
        c10::ScalarType dtype = at::autocast::get_autocast_dtype(device_);
        for (size_t i = 0; differ && i < count; ++i) {
            const Tensor* tensor = floating(*stack, i, count);
            if (tensor && tensor->scalar_type() != at::kDouble && !contains(written_, i))
                torch::jit::peek(*stack, i, count) = tensor->to(dtype);
        }
        op.callBoxed(stack);
    }

   private:
    const Tensor* floating(Stack& stack, size_t i, size_t count) const {
        IValue& value = torch::jit::peek(stack, i, count);
        if (contains(scalars_, i) || !value.isTensor()) return nullptr;
        const Tensor& tensor = value.toTensor();
        return tensor.defined() && tensor.is_floating_point() ? &tensor : nullptr;
    }

    c10::DeviceType device_;
    Positions scalars_, written_;
};

}  // namespace autograd
