// The look-ups for tensors: what the core calls.
#include "dispatch/op.cuh"
#include "kernel.cuh"

using namespace fused;

static vocabulary::Source source(Tensor tensor) {
    bool there = tensor.dimensions > 0;  // a null pointer may also be a tensor of no elements
    return {tensor.data, there ? tensor.sizes[0] : 0, there};
}

cudaError_t forward(Tensor ids, Tensor table, Tensor image, Tensor audio, Tensor indices, String, int64_t vocab_size,
                    int64_t image_token, int64_t audio_token, Tensor out, Stream stream) {
    long long first = table.dimensions ? table.sizes[0] : vocab_size;
    vocabulary::Request request = {integers(ids), integers(indices), source(table), source(image), source(audio),
                                   first,         image_token,       audio_token};
    return with_dtype(out, [&](auto t) {
        return vocabulary::launch(request, out.data, out.rows(), out.columns() * (long long)sizeof t, stream);
    });
}

cudaError_t backward(Tensor grad, Tensor, Tensor table, Tensor image, Tensor audio, Tensor, String, int64_t, int64_t,
                     int64_t, Tensor sorted_rows, Tensor positions, Tensor starts, Tensor grad_table, Tensor grad_image,
                     Tensor grad_audio, Stream stream, Workspace workspace) {
    return with_dtype(grad, [&](auto t) {
        using T = decltype(t);
        vocabulary::Grouping grouping = {integers(sorted_rows), positions.as<long long>(), starts.as<long long>(),
                                         positions.elements, starts.elements - 1};
        auto sums = workspace.get<Accumulator<T>>(vocabulary::workspace_size(grouping.count, grad.columns()));
        vocabulary::Gradient<T> gradients[] = {{grad_table.as<T>(), source(table).rows},
                                               {grad_image.as<T>(), source(image).rows},
                                               {grad_audio.as<T>(), source(audio).rows}};
        return vocabulary::launch_backward(grad.as<T>(), grouping, gradients, sums, grad.columns(), stream);
    });
}

FUSED_OP(forward, backward)
