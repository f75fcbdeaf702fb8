// add_mul_activation's CUDA backend as dispatcher ops: checks, device, stream, launch; autograd for the functional form.

#include "dispatch/binding.cuh"
#include "kernel.cuh"

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;

Activation parse(c10::string_view name) {
    constexpr std::pair<const char*, Activation> names[] = {
        {"relu", Activation::relu}, {"sigmoid", Activation::sigmoid}, {"tanh", Activation::tanh},
        {"gelu", Activation::gelu}, {"silu", Activation::silu},       {"identity", Activation::identity}};
    for (auto& [known, activation] : names)
        if (name == known) return activation;
    TORCH_CHECK_VALUE(false, "add_mul_activation: activation must be one of relu, sigmoid, tanh, gelu, silu, identity; got '",
                      name, "'");
}

void launch(const Tensor& x, const Tensor& bias, const Tensor& y, double multiplier, Activation activation,
            const Tensor& out) {
    c10::cuda::CUDAGuard guard(x.device());
    binding::with_dtype(x, [&](auto dtype) {
        using T = typename decltype(dtype)::type;
        using binding::pointer;
        C10_CUDA_CHECK(add_mul_activation::launch(activation, pointer<T>(x), pointer<T>(bias), pointer<T>(y),
                                                  multiplier, pointer<T>(out), binding::rows_of(x),
                                                  binding::columns_of(x), c10::cuda::getCurrentCUDAStream()));
    });
}

Tensor forward(const Tensor& x, const Tensor& bias, const Tensor& y, double multiplier, c10::string_view activation) {
    binding::check("add_mul_activation", x, bias, &y);
    Tensor out = binding::empty(x.sizes(), x);
    launch(x.contiguous(), bias.contiguous(), y.contiguous(), multiplier, parse(activation), out);
    return out;
}

void in_place(const Tensor& x, const Tensor& bias, const Tensor& y, double multiplier, c10::string_view activation) {
    binding::check("add_mul_activation_", x, bias, &y);
    binding::check_in_place("add_mul_activation_", x, bias, &y);
    binding::mark_written(x);  // here, as inference mode leaves the Autograd key out
    if (x.is_contiguous())
        launch(x, bias.contiguous(), y.contiguous(), multiplier, parse(activation), x);
    else
        x.copy_(forward(x, bias, y, multiplier, activation));
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad, const OptionalTensor& out, const OptionalTensor& x,
                                            const OptionalTensor& bias, const OptionalTensor& y, double multiplier,
                                            c10::string_view name, bool need_x, bool need_bias, bool need_y) {
    Activation activation = parse(name);
    int64_t rows = binding::rows_of(grad), columns = binding::columns_of(grad);
    // What this activation's derivative reads must be there, and like the gradient.
    auto saved = [&](const char* argument, const OptionalTensor& tensor, bool needed, at::IntArrayRef shape) {
        if (!needed) return Tensor();
        TORCH_CHECK_VALUE(tensor && tensor->sizes() == shape && tensor->scalar_type() == grad.scalar_type() &&
                              tensor->device() == grad.device(),
                          "add_mul_activation's backward: ", argument, " must be a tensor like grad");
        return tensor->contiguous();
    };
    bool from_input = derivative_reads_input(activation);
    Tensor outs = saved("out", out, derivative_reads_output(activation), grad.sizes());
    Tensor xs = saved("x", x, from_input, grad.sizes()), ys = saved("y", y, from_input, grad.sizes());
    Tensor biases = saved("bias", bias, from_input, grad.sizes().slice(grad.dim() - 1));
    Tensor grads = grad.contiguous();

    c10::cuda::CUDAGuard guard(grad.device());
    Tensor grad_x = binding::empty_gradient(grad.sizes(), need_x, grad);
    Tensor grad_bias = binding::empty_gradient({columns}, need_bias, grad);
    Tensor grad_y = binding::empty_gradient(grad.sizes(), need_y, grad);
    Tensor workspace = binding::workspace(need_bias ? add_mul_activation::workspace_size(rows, columns) : 0, grad);
    binding::with_dtype(grad, [&](auto dtype) {
        using T = typename decltype(dtype)::type;
        using binding::pointer;
        C10_CUDA_CHECK(add_mul_activation::launch_backward(
            activation, pointer<T>(grads), pointer<T>(outs), pointer<T>(xs), pointer<T>(biases), pointer<T>(ys),
            multiplier, pointer<T>(grad_x), pointer<T>(grad_y), pointer<T>(grad_bias),
            pointer<Accumulator<T>>(workspace), rows, columns, c10::cuda::getCurrentCUDAStream()));
    });
    return {grad_x, grad_bias, grad_y};
}

// Dispatcher ops, each looked up once.
auto& forward_op() {
    static auto op = binding::find<decltype(forward)>("fused_kernels::add_mul_activation_cuda");
    return op;
}
auto& in_place_op() {
    static auto op = binding::find<decltype(in_place)>("fused_kernels::add_mul_activation_cuda_");
    return op;
}
auto& backward_op() {
    static auto op = binding::find<decltype(backward)>("fused_kernels::add_mul_activation_backward_cuda");
    return op;
}

struct AddMulActivation : torch::autograd::Function<AddMulActivation> {
    static Variable forward(AutogradContext* context, const Variable& x, const Variable& bias, const Variable& y,
                            double multiplier, const std::string& name) {
        at::AutoDispatchBelowADInplaceOrView below;
        Tensor out = forward_op().call(x, bias, y, multiplier, name);
        Activation activation = parse(name);
        if (derivative_reads_output(activation)) context->save_for_backward({out});
        if (derivative_reads_input(activation)) context->save_for_backward({x, bias, y});
        context->saved_data["multiplier"] = multiplier;
        context->saved_data["activation"] = name;
        return out;
    }
    static variable_list backward(AutogradContext* context, variable_list grads) {
        variable_list saved = context->get_saved_variables();
        OptionalTensor out, x, bias, y;
        if (saved.size() == 1) out = saved[0];
        if (saved.size() == 3) x = saved[0], bias = saved[1], y = saved[2];
        bool need_x = context->needs_input_grad(0), need_bias = context->needs_input_grad(1),
             need_y = context->needs_input_grad(2);
        auto [grad_x, grad_bias, grad_y] = backward_op().call(
            grads[0], out, x, bias, y, context->saved_data["multiplier"].toDouble(),
            context->saved_data["activation"].toStringView(), need_x, need_bias, need_y);
        return {need_x ? grad_x : Tensor(), need_bias ? grad_bias : Tensor(), need_y ? grad_y : Tensor(), Tensor(),
                Tensor()};
    }
};

struct AddMulActivationBackward : torch::autograd::Function<AddMulActivationBackward> {
    static variable_list forward(AutogradContext*, const Variable& grad, const OptionalTensor& out,
                                 const OptionalTensor& x, const OptionalTensor& bias, const OptionalTensor& y,
                                 double multiplier, const std::string& name, bool need_x, bool need_bias, bool need_y) {
        at::AutoDispatchBelowADInplaceOrView below;
        auto [grad_x, grad_bias, grad_y] =
            backward_op().call(grad, out, x, bias, y, multiplier, name, need_x, need_bias, need_y);
        return {grad_x, grad_bias, grad_y};
    }
    static variable_list backward(AutogradContext*, variable_list) {
        TORCH_CHECK(false, "add_mul_activation has no second derivative: use backend=\"eager\"");
    }
};

// Without a gradient to record, no node is made: making one costs more than the rest of the call.
Tensor forward_autograd(const Tensor& x, const Tensor& bias, const Tensor& y, double multiplier,
                        c10::string_view activation) {
    binding::refuse_forward_mode("add_mul_activation", {&x, &bias, &y});
    if (binding::needs_gradient({&x, &bias, &y}))
        return AddMulActivation::apply(x, bias, y, multiplier, std::string(activation));
    at::AutoDispatchBelowADInplaceOrView below;
    return forward_op().call(x, bias, y, multiplier, activation);
}
void in_place_autograd(const Tensor& x, const Tensor& bias, const Tensor& y, double multiplier,
                       c10::string_view activation) {
    binding::refuse_gradients("add_mul_activation", {&x, &bias, &y});
    binding::refuse_forward_mode("add_mul_activation_", {&x, &bias, &y});
    at::AutoDispatchBelowADInplaceOrView below;
    in_place_op().call(x, bias, y, multiplier, activation);
}
std::tuple<Tensor, Tensor, Tensor> backward_autograd(const Tensor& grad, const OptionalTensor& out,
                                                     const OptionalTensor& x, const OptionalTensor& bias,
                                                     const OptionalTensor& y, double multiplier,
                                                     c10::string_view name, bool need_x, bool need_bias, bool need_y) {
    const Tensor none;
    if (binding::needs_gradient({&grad, out ? &*out : &none, x ? &*x : &none, bias ? &*bias : &none, y ? &*y : &none})) {
        variable_list grads = AddMulActivationBackward::apply(grad, out, x, bias, y, multiplier, std::string(name),
                                                              need_x, need_bias, need_y);
        return {grads[0], grads[1], grads[2]};
    }
    at::AutoDispatchBelowADInplaceOrView below;
    return backward_op().call(grad, out, x, bias, y, multiplier, name, need_x, need_bias, need_y);
}

Tensor forward_autocast(const Tensor& x, const Tensor& bias, const Tensor& y, double multiplier,
                        c10::string_view activation) {
    binding::Autocast cast({&x, &bias, &y});
    return forward_op().call(cast(x), cast(bias), cast(y), multiplier, activation);
}
void in_place_autocast(const Tensor& x, const Tensor& bias, const Tensor& y, double multiplier,
                       c10::string_view activation) {
    binding::Autocast cast({&x, &bias, &y});
    in_place_op().call(x, cast(bias), cast(y), multiplier, activation);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fused_kernels, library) {
    library.def("add_mul_activation_cuda(Tensor x, Tensor bias, Tensor y, float multiplier, str activation) -> Tensor");
    library.def("add_mul_activation_cuda_(Tensor(a!) x, Tensor bias, Tensor y, float multiplier, str activation) -> ()");
    library.def(
        "add_mul_activation_backward_cuda(Tensor grad, Tensor? out, Tensor? x, Tensor? bias, Tensor? y, "
        "float multiplier, str activation, bool need_x, bool need_bias, bool need_y) -> (Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(fused_kernels, CUDA, library) {
    library.impl("add_mul_activation_cuda", forward);
    library.impl("add_mul_activation_cuda_", in_place);
    library.impl("add_mul_activation_backward_cuda", backward);
}
TORCH_LIBRARY_IMPL(fused_kernels, Autograd, library) {
    library.impl("add_mul_activation_cuda", forward_autograd);
    library.impl("add_mul_activation_cuda_", in_place_autograd);
    library.impl("add_mul_activation_backward_cuda", backward_autograd);
}
TORCH_LIBRARY_IMPL(fused_kernels, AutocastCUDA, library) {
    library.impl("add_mul_activation_cuda", forward_autocast);
    library.impl("add_mul_activation_cuda_", in_place_autocast);
}
