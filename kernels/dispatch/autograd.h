// Autograd and autocast, for every op and both backends, from what Python declared.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include "compute.h"

namespace autograd {

using at::Tensor;
using c10::IValue;
using torch::autograd::AutogradContext;
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

// An overload whose backward is another one.
class Functional : public c10::OperatorKernel {
   public:
    Functional(const Declared& declared, c10::OperatorHandle backward) : declared_(declared), backward_(backward) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
        size_t count = op.schema().arguments().size();
        auto arguments = torch::jit::last(*stack, count);
        refuse_forward_mode(declared_.op, arguments);
        keys = keys & c10::after_ADInplaceOrView_keyset;
        // Without a gradient to record, no node is made: making one costs more than the rest of the call.
        if (!needs_gradient(arguments)) return op.redispatchBoxed(keys, stack);
        for (size_t i = 0; i < count; ++i)
            if (arguments[i].isTensor() && !contains(declared_.gradients, i))
                TORCH_CHECK(!arguments[i].toTensor().defined() || !arguments[i].toTensor().requires_grad(), declared_.op,
                            ": ", op.schema().arguments()[i].name(), " has no gradient: detach() it");
        std::vector<Tensor> inputs;
        for (int64_t position : declared_.gradients)
            inputs.push_back(arguments[position].isTensor() ? arguments[position].toTensor() : Tensor());
        variable_list outputs = Node::apply(at::TensorList(inputs), this, &op, keys, stack);
        torch::jit::drop(*stack, count);
        for (Tensor& output : outputs) stack->emplace_back(std::move(output));
    }

   private:
    struct Node : torch::autograd::Function<Node> {
        static variable_list forward(AutogradContext* context, at::TensorList, const Functional* kernel,
                                     const c10::OperatorHandle* op, c10::DispatchKeySet keys, Stack* stack) {
            const Declared& declared = kernel->declared_;
            auto arguments = torch::jit::last(*stack, op->schema().arguments().size());
            Stack results(arguments.begin(), arguments.end());
            op->redispatchBoxed(keys, &results);
            variable_list outputs;
            for (IValue& result : results) outputs.push_back(std::move(result).toTensor());

            std::string which = declared.saves_by < 0 ? "" : arguments[declared.saves_by].toStringRef();
            auto saves = declared.saves.find(which);
            TORCH_CHECK(saves != declared.saves.end(), declared.op, ": nothing is declared to be saved for '", which, "'");
            variable_list saved;
            for (int64_t position : declared.saved) {
                if (!contains(saves->second, size_t(position)))
                    saved.emplace_back();
                else
                    saved.push_back(position < 0 ? outputs[-1 - position] : arguments[position].toTensor());
            }
            context->save_for_backward(std::move(saved));
            std::vector<IValue> others;
            for (int64_t position : declared.others) others.push_back(arguments[position]);
            context->saved_data["others"] = c10::ivalue::Tuple::create(std::move(others));
            context->saved_data["kernel"] = reinterpret_cast<int64_t>(kernel);  // registered for as long as the process lives
            variable_list whole;
            for (const Tensor& output : outputs)
                if (!output.is_floating_point()) whole.push_back(output);
            context->mark_non_differentiable(whole);
            return outputs;
        }

        static variable_list backward(AutogradContext* context, const variable_list& grads) {
            auto kernel = reinterpret_cast<const Functional*>(context->saved_data["kernel"].toInt());
            Stack stack;
            for (const Tensor& grad : grads) stack.emplace_back(grad);
            for (Tensor& saved : context->get_saved_variables())
                stack.push_back(saved.defined() ? IValue(std::move(saved)) : IValue());
            for (const IValue& other : context->saved_data["others"].toTupleRef().elements()) stack.push_back(other);
            c10::List<bool> needs;
            for (size_t i = 0; i < kernel->declared_.gradients.size(); ++i) needs.push_back(context->needs_input_grad(i));
            stack.emplace_back(needs);
            kernel->backward_.callBoxed(&stack);
            variable_list found;
            for (size_t i = 0; i < needs.size(); ++i) found.push_back(needs[i] ? stack[i].toTensor() : Tensor());
            found.resize(found.size() + 4);  // the forward's other arguments have none
            return found;
        }
    };

    const Declared& declared_;
    c10::OperatorHandle backward_;
};

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

// The backward's overload: where a gradient of it would be needed, a node that raises when that gradient is asked for.
class Backward : public c10::OperatorKernel {
   public:
    explicit Backward(const Declared& declared) : declared_(declared) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
        size_t count = op.schema().arguments().size();
        auto arguments = torch::jit::last(*stack, count);
        keys = keys & c10::after_ADInplaceOrView_keyset;
        if (!needs_gradient(arguments)) return op.redispatchBoxed(keys, stack);
        std::vector<Tensor> inputs;
        for (const IValue& value : arguments)
            if (value.isTensor() && value.toTensor().defined()) inputs.push_back(value.toTensor());
        variable_list outputs = Node::apply(at::TensorList(inputs), this, &op, keys, stack);
        torch::jit::drop(*stack, count);
        for (Tensor& output : outputs) stack->emplace_back(std::move(output));
    }

   private:
    struct Node : torch::autograd::Function<Node> {
        static variable_list forward(AutogradContext* context, at::TensorList, const Backward* kernel,
                                     const c10::OperatorHandle* op, c10::DispatchKeySet keys, Stack* stack) {
            auto arguments = torch::jit::last(*stack, op->schema().arguments().size());
            Stack results(arguments.begin(), arguments.end());
            op->redispatchBoxed(keys, &results);
            context->saved_data["op"] = kernel->declared_.op;
            variable_list outputs;
            for (IValue& result : results) outputs.push_back(std::move(result).toTensor());
            return outputs;
        }
        static variable_list backward(AutogradContext* context, const variable_list&) {
            TORCH_CHECK(false, context->saved_data["op"].toStringRef(), " has no second derivative: use backend=\"eager\"");
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
