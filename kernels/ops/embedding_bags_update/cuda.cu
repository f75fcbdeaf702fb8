// embedding_bags_update for tensors: what the core calls.
#include "dispatch/op.cuh"
#include "kernel.cuh"

using namespace fused;
namespace update = embedding_bags_update;

cudaError_t forward(Tensor tables, Tensor state, Tensor keys, Tensor positions, Tensor grad, Tensor bags, Tensor lengths,
                    Tensor weights, Scalar learning_rate, String rule, float eps, int64_t chunk, Stream stream,
                    Workspace workspace) {
    update::Rule which = rule == "sgd"       ? update::Rule::sgd
                         : rule == "adagrad" ? update::Rule::adagrad
                                             : update::Rule::rowwise_adagrad;
    return with_dtype_of<float, __half, __nv_bfloat16>(tables.dtype, [&](auto t) {
        using T = decltype(t);
        long long count = keys.elements, columns = tables.columns();
        update::Occurrences<T> all{integers(keys), positions.as<int>(), bags.as<int>(),
                                   lengths.as<int>(), weights.as<T>(), grad.as<T>(), count};
        update::Target<T> to{tables.as<T>(), state.as<float>(), columns, which, learning_rate, eps};
        long long each = chunk ? chunk : update::chunk_of(count, columns);
        return update::launch(all, to, each, workspace.get<float>(update::sums_size(count, columns, each)),
                              workspace.get<int>(update::lists_size(count, each)), stream);
    });
}

FUSED_OP(forward)
