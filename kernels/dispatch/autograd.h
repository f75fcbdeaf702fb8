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
    bool needs = false;
    for (const IValue& value : arguments)
        for_each_tensor(value, [&](const Tensor& tensor) { needs |= tensor.requires_grad(); });
    return needs;
}

// A tangent would be lost without a word.
inline void refuse_forward_mode(const std::string& op, c10::ArrayRef<IValue> arguments) {
    for (const IValue& value : arguments)
        for_each_tensor(value, [&](const Tensor& tensor) {
            TORCH_CHECK(!tensor._fw_grad(0).defined(), op, " has no forward-mode derivative: use backend=\"eager\", or reverse mode");
        });
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
    c10::SmallVector<int64_t, 8> groups;  // of what is saved, in order: -1 for a tensor, of a list how many
    c10::SmallVector<c10::SymDimVector, 1> shapes;
    std::vector<IValue> others;
    std::vector<uint32_t> versions;  // of the tensors among them
    // Outputs that are not floating, or declared undifferentiable: autograd itself keeps nothing of them.
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
        for (int64_t position : declared_.gradients) {
            for_each_tensor(arguments[position], [&](const Tensor& tensor) {
                edges.push_back(torch::autograd::impl::gradient_edge(tensor));
            });
            if (arguments[position].isNone()) edges.emplace_back();
        }
        for (size_t i = 0; i < count; ++i)
            if (!contains(declared_.gradients, i))
                for_each_tensor(arguments[i], [&](const Tensor& tensor) {
                    TORCH_CHECK(!tensor.requires_grad(), declared_.op, ": ", op.schema().arguments()[i].name(),
                                " has no gradient: detach() it");
                });
        auto node = new Node;
        auto owner = own<NodePointer, torch::autograd::Node>(node);
        node->kernel = this;
        node->set_next_edges(std::move(edges));
        for (int64_t position : declared_.others) {
            node->others.push_back(arguments[position]);
            node->versions.push_back(version_of(arguments[position]));
        }
        for (int64_t position : declared_.shapes) {
            const IValue& value = arguments[position];
            if (value.isTensor()) {
                node->shapes.emplace_back(value.toTensor().sym_sizes());
                continue;
            }
            c10::SymDimVector& shapes = node->shapes.emplace_back();
            for_each_tensor(value, [&](const Tensor& tensor) {
                shapes.emplace_back(tensor.dim());
                shapes.append(tensor.sym_sizes().begin(), tensor.sym_sizes().end());
            });
        }
        const Positions& always = saved_always(arguments);
        const Positions besides = saved_besides(arguments);
        auto is_saved = [&](int64_t position) { return contains(always, position) || contains(besides, position); };
        node->keeps = !always.empty() || !besides.empty();
        node->saved.reserve(declared_.saved.size());
        for (int64_t position : declared_.saved) {
            bool list = position >= 0 && arguments[position].isTensorList();
            size_t before = node->saved.size();
            if (position >= 0 && is_saved(position))
                for_each_tensor(arguments[position], [&](const Tensor& tensor) { node->saved.emplace_back(tensor, false); });
            if (!list && node->saved.size() == before) node->saved.emplace_back();  // an output, or none
            node->groups.push_back(list ? int64_t(node->saved.size() - before) : -1);
        }

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
        auto saved = node->saved.begin();
        for (size_t i = 0; i < declared_.saved.size(); ++i) {
            if (int64_t position = declared_.saved[i]; position < 0 && is_saved(position))
                *saved = {(*stack)[before + size_t(-1 - position)].toTensor(), true};
            saved += node->groups[i] < 0 ? 1 : node->groups[i];
        }
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
    auto variable = saved.begin();
    for (int64_t group : groups) {
        if (group < 0) {
            Tensor tensor = (variable++)->unpack(self);
            stack.push_back(tensor.defined() ? IValue(std::move(tensor)) : IValue());
            continue;
        }
        c10::List<Tensor> list;
        for (int64_t i = 0; i < group; ++i) list.push_back((variable++)->unpack(self));
        stack.emplace_back(std::move(list));
    }
    for (const c10::SymDimVector& shape : shapes) stack.emplace_back(c10::SymIntArrayRef(shape));
    stack.insert(stack.end(), others.begin(), others.end());
    c10::List<bool> needs;
    for (size_t i = 0; i < num_outputs(); ++i) needs.push_back(task_should_compute_output(i));
    stack.emplace_back(needs);
    kernel->backward_.callBoxed(&stack);
    variable_list found;
    auto take = [&](const Tensor& gradient) { found.push_back(needs[found.size()] ? gradient : Tensor()); };
    for (const IValue& value : stack) for_each_tensor(value, take);
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
            for_each_tensor(value, [&](const Tensor& tensor) {
                node->add_next_edge(torch::autograd::impl::gradient_edge(tensor));
            });
        size_t before = stack->size() - count;
        {
            at::AutoDispatchBelowADInplaceOrView below;
            op.redispatchBoxed(keys, stack);
        }
        for (size_t i = before; i < stack->size(); ++i)
            for_each_tensor((*stack)[i], [&](const Tensor& gradient) { torch::autograd::set_history(gradient, owner); });
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
            if (!contains(scalars_, i))
                for_each_tensor(torch::jit::peek(*stack, i, count), [&](const Tensor& tensor) {
                    if (!tensor.is_floating_point()) return;
                    if (first == c10::ScalarType::Undefined) first = tensor.scalar_type();
                    differ |= tensor.scalar_type() != first;
                });
        c10::ScalarType dtype = at::autocast::get_autocast_dtype(device_);
        auto cast = [&](const Tensor& tensor) {
            return tensor.is_floating_point() && tensor.scalar_type() != at::kDouble ? tensor.to(dtype) : tensor;
        };
        for (size_t i = 0; differ && i < count; ++i) {
            if (contains(scalars_, i) || contains(written_, i)) continue;
            IValue& value = torch::jit::peek(*stack, i, count);
            if (value.isTensor() && value.toTensor().defined()) {
                value = cast(value.toTensor());
            } else if (value.isTensorList()) {
                c10::List<Tensor> list;
                for_each_tensor(value, [&](const Tensor& tensor) { list.push_back(cast(tensor)); });
                value = std::move(list);
            }
        }
        op.callBoxed(stack);
    }

   private:
    c10::DeviceType device_;
    Positions scalars_, written_;
};

}  // namespace autograd
