// dot_interaction for tensors: what the core calls.
#include "dispatch/op.cuh"
#include "kernel.cuh"

using namespace fused;

cudaError_t forward(Tensor dense, Tensor sparse, int64_t, Tensor out, Stream stream) {
    return with_dtype(dense, [&](auto t) {
        using T = decltype(t);
        return dot_interaction::launch(dense.as<T>(), sparse.as<T>(), out.as<T>(), dense.sizes[0], sparse.sizes[1],
                                       dense.sizes[1], out.sizes[1], stream);
    });
}

cudaError_t backward(Tensor grad, Tensor dense, Tensor sparse, int64_t, Tensor grad_dense, Tensor grad_sparse,
                     Stream stream) {
    return with_dtype(dense, [&](auto t) {
        using T = decltype(t);
        return dot_interaction::launch_backward(grad.as<T>(), dense.as<T>(), sparse.as<T>(), grad_dense.as<T>(),
                                                grad_sparse.as<T>(), dense.sizes[0], sparse.sizes[1], dense.sizes[1],
                                                grad.sizes[1], stream);
    });
}

FUSED_OP(forward, backward)
