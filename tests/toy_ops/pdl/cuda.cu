// add_relu_early for tensors: what the core calls.
#include "dispatch/op.cuh"
#include "kernel.cuh"

using namespace fused;

cudaError_t forward(Tensor x, Tensor bias, Tensor out, Stream stream) {
    return with_dtype(x, [&](auto t) {
        using T = decltype(t);
        return add_relu_early::launch(x.as<T>(), bias.as<T>(), out.as<T>(), x.rows(), x.columns(), stream);
    });
}

FUSED_OP(forward)
