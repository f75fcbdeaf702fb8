// add_relu for tensors: what the core calls.
#include "dispatch/op.cuh"
#include "kernel.cuh"

using namespace fused;

cudaError_t forward(Tensor x, Tensor bias, Tensor out, Stream stream) {
    return with_dtype(x, [&](auto t) {
        using T = decltype(t);
        return add_relu::launch(x.as<T>(), bias.as<T>(), out.as<T>(), x.rows(), x.columns(), stream);
    });
}

cudaError_t backward(Tensor grad, Tensor out, Tensor grad_x, Tensor grad_bias, Stream stream, Workspace workspace) {
    return with_dtype(grad, [&](auto t) {
        using T = decltype(t);
        long long rows = grad.rows(), columns = grad.columns();
        auto sums = workspace.get<Accumulator<T>>(grad_bias ? add_relu::workspace_size(rows, columns) : 0);
        return add_relu::launch_backward(grad.as<T>(), out.as<T>(), grad_x.as<T>(), grad_bias.as<T>(), sums, rows,
                                         columns, stream);
    });
}

FUSED_OP(forward, backward)
