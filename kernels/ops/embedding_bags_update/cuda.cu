// embedding_bags_update and embedding_bags_add for tensors: what the core calls.
#include "add.cuh"
#include "dispatch/op.cuh"
#include "kernel.cuh"

using namespace fused;
namespace update = embedding_bags_update;

cudaError_t walk_tensors(Tensor tables, Tensor state, Tensor keys, Tensor positions, Tensor grad, Tensor bags,
                         Tensor lengths, Tensor weights, Scalar learning_rate, String rule, float eps, int64_t chunk,
                         Stream stream, Workspace workspace) {
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

cudaError_t add_tensors(Tensor tables, Tensor row_offsets, Tensor indices, Tensor grad, Tensor offsets, Tensor weights,
                        Scalar learning_rate, String pooling, int64_t padding, Stream stream) {
    embedding_bags::Tables all{row_offsets.as<const long long>(), tables.sizes[0], padding,
                               embedding_bags::Missing::zero, nullptr};
    embedding_bags::Bags bags{integers(indices), integers(offsets), indices.elements, grad.sizes[0], grad.sizes[1]};
    return embedding_bags_add::launch(all, tables.as<float>(), bags, weights.as<float>(), grad.as<float>(),
                                      tables.columns(), pooling == "mean", learning_rate, stream);
}

FUSED_OP_NAMED(embedding_bags_update, walk_tensors)
FUSED_OP_NAMED(embedding_bags_add, add_tensors)
