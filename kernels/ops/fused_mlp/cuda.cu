// fused_mlp for tensors: what the core calls.
#include "kernel.cuh"

#include "dispatch/op.cuh"

using namespace fused;
namespace mlp = fused_mlp;

cudaError_t forward(Tensor x, Tensor packed, String widths, String activation, String last_activation,
                    String precision, bool keep, Tensor out, Tensor hidden, Stream stream) {
    return with_dtype(x, [&](auto t) {
        using T = decltype(t);
        mlp::Call<T> call = {x.as<T>(), packed.as<T>(), out.as<T>(), keep ? hidden.as<T>() : nullptr,
                             out.rows(), x.columns()};
        call.tf32 = precision == "tf32";
        if (!mlp::parse(widths.text, call.widths)) return cudaErrorInvalidValue;
        cudaError_t error = find_activation(activation.text, call.activation);
        if (error == cudaSuccess) error = find_activation(last_activation.text, call.last_activation);
        return error == cudaSuccess ? mlp::launch(call, stream) : error;
    });
}

FUSED_OP(forward)
