// softmax for tensors: what the core calls.
#include "dispatch/op.cuh"
#include "kernel.cuh"

using namespace fused;

cudaError_t forward(Tensor x, Tensor out, Stream stream, Workspace workspace) {
    return with_dtype(x, [&](auto t) {
        using T = decltype(t);
        auto found = workspace.get<Accumulator<T>>(softmax::workspace_size<T>(x.rows(), x.columns()));
        return softmax::launch(x.as<T>(), out.as<T>(), found, x.rows(), x.columns(), stream);
    });
}

cudaError_t backward(Tensor grad, Tensor out, Tensor grad_x, Stream stream, Workspace workspace) {
    return with_dtype(grad, [&](auto t) {
        using T = decltype(t);
        auto found = workspace.get<Accumulator<T>>(softmax::workspace_size<T>(grad.rows(), grad.columns()));
        return softmax::launch_backward(grad.as<T>(), out.as<T>(), grad_x.as<T>(), found, grad.rows(), grad.columns(),
                                        stream);
    });
}

FUSED_OP(forward, backward)
