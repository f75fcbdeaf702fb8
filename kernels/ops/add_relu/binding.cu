// add_relu's CUDA backend as dispatcher ops: checks, device, stream, launch; autograd for the functional form.

#include "dispatch/binding.cuh"
#include "kernel.cuh"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

void launch(const Tensor& x, const Tensor& bias, const Tensor& out) {
    c10::cuda::CUDAGuard guard(x.device());
    binding::with_dtype(x, [&](auto dtype) {
        using T = typename decltype(dtype)::type;
        C10_CUDA_CHECK(add_relu::launch(binding::pointer<T>(x), binding::pointer<T>(bias), binding::pointer<T>(out),
                                        binding::rows_of(x), binding::columns_of(x),
                                        c10::cuda::getCurrentCUDAStream()));
    });
}

Tensor forward(const Tensor& x, const Tensor& bias) {
    binding::check("add_relu", x, bias);
    Tensor out = binding::empty(x.sizes(), x);
    launch(x.contiguous(), bias.contiguous(), out);
    return out;
}

void in_place(const Tensor& x, const Tensor& bias) {
    binding::check("add_relu_", x, bias);
    binding::check_in_place("add_relu_", x, bias);
    binding::mark_written(x);  // here, as inference mode leaves the Autograd key out
    if (x.is_contiguous())
        launch(x, bias.contiguous(), x);
    else
        x.copy_(forward(x, bias));
}

std::tuple<Tensor, Tensor> backward(const Tensor& grad, const Tensor& out, bool need_x, bool need_bias) {
    TORCH_CHECK_VALUE(grad.sizes() == out.sizes() && grad.scalar_type() == out.scalar_type() &&
                          grad.device() == out.device(),
                      "add_relu's backward: grad must be like out");
    c10::cuda::CUDAGuard guard(grad.device());
    Tensor grads = grad.contiguous(), outs = out.contiguous();
    int64_t rows = binding::rows_of(out), columns = binding::columns_of(out);
    Tensor grad_x = binding::empty_gradient(out.sizes(), need_x, out);
    Tensor grad_bias = binding::empty_gradient({columns}, need_bias, out);
    Tensor workspace = binding::workspace(need_bias ? add_relu::workspace_size(rows, columns) : 0, out);
    binding::with_dtype(out, [&](auto dtype) {
        using T = typename decltype(dtype)::type;
        C10_CUDA_CHECK(add_relu::launch_backward(binding::pointer<T>(grads), binding::pointer<T>(outs),
                                                 binding::pointer<T>(grad_x), binding::pointer<T>(grad_bias),
                                                 binding::pointer<Accumulator<T>>(workspace), rows, columns,
                                                 c10::cuda::getCurrentCUDAStream()));
    });
    return {grad_x, grad_bias};
}

// Dispatcher ops, each looked up once.
auto& forward_op() {
    static auto op = binding::find<decltype(forward)>("fused_kernels::add_relu_cuda");
    return op;
}
auto& in_place_op() {
    static auto op = binding::find<decltype(in_place)>("fused_kernels::add_relu_cuda_");
    return op;
}
auto& backward_op() {
    static auto op = binding::find<decltype(backward)>("fused_kernels::add_relu_backward_cuda");
    return op;
}

struct AddRelu : torch::autograd::Function<AddRelu> {
    static Variable forward(AutogradContext* context, const Variable& x, const Variable& bias) {
        at::AutoDispatchBelowADInplaceOrView below;
        Tensor out = forward_op().call(x, bias);
        context->save_for_backward({out});
        return out;
    }
    static variable_list backward(AutogradContext* context, variable_list grads) {
        bool need_x = context->needs_input_grad(0), need_bias = context->needs_input_grad(1);
        auto [grad_x, grad_bias] = backward_op().call(grads[0], context->get_saved_variables()[0], need_x, need_bias);
        return {need_x ? grad_x : Tensor(), need_bias ? grad_bias : Tensor()};
    }
};

struct AddReluBackward : torch::autograd::Function<AddReluBackward> {
    static variable_list forward(AutogradContext*, const Variable& grad, const Variable& out, bool x, bool bias) {
        at::AutoDispatchBelowADInplaceOrView below;
        auto [grad_x, grad_bias] = backward_op().call(grad, out, x, bias);
        return {grad_x, grad_bias};
    }
    static variable_list backward(AutogradContext*, variable_list) {
        TORCH_CHECK(false, "add_relu has no second derivative: use backend=\"eager\"");
    }
};

// Without a gradient to record, no node is made: making one costs more than the rest of the call.
Tensor forward_autograd(const Tensor& x, const Tensor& bias) {
    binding::refuse_forward_mode("add_relu", {&x, &bias});
    if (binding::needs_gradient({&x, &bias})) return AddRelu::apply(x, bias);
    at::AutoDispatchBelowADInplaceOrView below;
    return forward_op().call(x, bias);
}
void in_place_autograd(const Tensor& x, const Tensor& bias) {
    binding::refuse_gradients("add_relu", {&x, &bias});
    binding::refuse_forward_mode("add_relu_", {&x, &bias});
    at::AutoDispatchBelowADInplaceOrView below;
    in_place_op().call(x, bias);
}
std::tuple<Tensor, Tensor> backward_autograd(const Tensor& grad, const Tensor& out, bool need_x, bool need_bias) {
    if (binding::needs_gradient({&grad, &out})) {
        variable_list grads = AddReluBackward::apply(grad, out, need_x, need_bias);
        return {grads[0], grads[1]};
    }
    at::AutoDispatchBelowADInplaceOrView below;
    return backward_op().call(grad, out, need_x, need_bias);
}

Tensor forward_autocast(const Tensor& x, const Tensor& bias) {
    binding::Autocast cast({&x, &bias});
    return forward_op().call(cast(x), cast(bias));
}
void in_place_autocast(const Tensor& x, const Tensor& bias) {
    binding::Autocast cast({&x, &bias});
    in_place_op().call(x, cast(bias));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fused_kernels, library) {
    library.def("add_relu_cuda(Tensor x, Tensor bias) -> Tensor");
    library.def("add_relu_cuda_(Tensor(a!) x, Tensor bias) -> ()");
    library.def("add_relu_backward_cuda(Tensor grad, Tensor out, bool need_x, bool need_bias) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(fused_kernels, CUDA, library) {
    library.impl("add_relu_cuda", forward);
    library.impl("add_relu_cuda_", in_place);
    library.impl("add_relu_backward_cuda", backward);
}
TORCH_LIBRARY_IMPL(fused_kernels, Autograd, library) {
    library.impl("add_relu_cuda", forward_autograd);
    library.impl("add_relu_cuda_", in_place_autograd);
    library.impl("add_relu_backward_cuda", backward_autograd);
}
TORCH_LIBRARY_IMPL(fused_kernels, AutocastCUDA, library) {
    library.impl("add_relu_cuda", forward_autocast);
    library.impl("add_relu_cuda_", in_place_autocast);
}
