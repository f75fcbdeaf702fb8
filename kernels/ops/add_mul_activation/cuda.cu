// add_mul_activation for tensors: what the core calls.
#include "dispatch/op.cuh"
#include "kernel.cuh"

using namespace fused;

cudaError_t forward(Tensor x, Tensor bias, Tensor y, Scalar multiplier, String activation, Tensor out, Stream stream) {
    return with_dtype(x, [&](auto t) {
        using T = decltype(t);
        return add_mul_activation::launch(activation.text, x.as<T>(), bias.as<T>(), y.as<T>(), multiplier, out.as<T>(),
                                          x.rows(), x.columns(), stream);
    });
}

cudaError_t backward(Tensor grad, Tensor out, Tensor x, Tensor bias, Tensor y, Scalar multiplier, String activation,
                     Tensor grad_x, Tensor grad_bias, Tensor grad_y, Stream stream, Workspace workspace) {
    return with_dtype(grad, [&](auto t) {
        using T = decltype(t);
        long long rows = grad.rows(), columns = grad.columns();
        auto sums = workspace.get<Accumulator<T>>(grad_bias ? add_mul_activation::workspace_size(rows, columns) : 0);
        return add_mul_activation::launch_backward(activation.text, grad.as<T>(), out.as<T>(), x.as<T>(), bias.as<T>(),
                                                   y.as<T>(), multiplier, grad_x.as<T>(), grad_y.as<T>(),
                                                   grad_bias.as<T>(), sums, rows, columns, stream);
    });
}

FUSED_OP(forward, backward)
