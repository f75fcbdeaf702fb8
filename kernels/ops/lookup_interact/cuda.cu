// lookup_interact for tensors: what the core calls.
#include "backward.cuh"
#include "columns.cuh"
#include "dispatch/op.cuh"
#include "ops/embedding_bags/backward.cuh"

using namespace fused;
namespace op = lookup_interact;

template <class T>
static op::Call<T> call_of(const Tensor& dense, const Tensor& tables, const Tensor& row_offsets, const Tensor& indices,
                           const Tensor& offsets, long long width, const Tensor& report = {}) {
    const auto missing = report ? embedding_bags::Missing::error : embedding_bags::Missing::zero;
    auto* const told = report.as<unsigned long long>();
    const op::Tables of = {row_offsets.as<const long long>(), tables.sizes[0], -1, missing, told};
    const long long features = row_offsets.elements - 1;
    const op::Bags bags = {integers(indices), integers(offsets), indices.elements, dense.sizes[0], features};
    return {of, bags, tables.as<T>(), dense.as<T>(), dense.sizes[1], width};
}

template <class T>
static cudaError_t gradients_of(const op::Call<T>& call, const String& precision, const String& kind, const T* grad,
                                T* grad_dense, T* grad_sparse, Stream stream) {
    if (kind == "dot")
        return op::launch_backward<T>(call, precision == "tf32", grad, grad_dense, grad_sparse, stream);
    const auto columns = kind == "fm" ? op::Kind::fm : op::Kind::flat;
    return op::launch_columns_backward<T>(call, columns, grad, grad_dense, grad_sparse, stream);
}

cudaError_t forward(Tensor dense, Tensor tables, Tensor row_offsets, Tensor indices, Tensor offsets, int64_t,
                    String precision, String kind, Tensor out, Tensor report, Stream stream) {
    return with_dtype(dense, [&](auto t) {
        using T = decltype(t);
        const auto call = call_of<T>(dense, tables, row_offsets, indices, offsets, out.sizes[1], report);
        if (kind == "dot") return op::launch<T>(call, precision == "tf32", out.as<T>(), stream);
        return op::launch_columns<T>(call, kind == "fm" ? op::Kind::fm : op::Kind::flat, out.as<T>(), stream);
    });
}

cudaError_t gradients(Tensor grad_out, Tensor dense, Tensor tables, Tensor row_offsets, Tensor indices, Tensor offsets,
                      String precision, String kind, Tensor grad_dense, Tensor grad_sparse, Stream stream) {
    return with_dtype(grad_out, [&](auto t) {
        using T = decltype(t);
        const auto call = call_of<T>(dense, tables, row_offsets, indices, offsets, grad_out.sizes[1]);
        T *const to_dense = grad_dense.as<T>(), *const to_sparse = grad_sparse.as<T>();
        return gradients_of<T>(call, precision, kind, grad_out.as<T>(), to_dense, to_sparse, stream);
    });
}

cudaError_t backward(Tensor grad_out, Tensor dense, Tensor tables, Tensor row_offsets, Tensor indices, Tensor offsets,
                     int64_t, String precision, String kind, Tensor keys, Tensor positions, Tensor bags, Tensor lengths,
                     Tensor grad_dense, Tensor grad_tables, Stream stream, Workspace workspace) {
    return with_dtype(grad_out, [&](auto t) {
        using T = decltype(t);
        const auto call = call_of<T>(dense, tables, row_offsets, indices, offsets, grad_out.sizes[1]);
        T* const grad_sparse = grad_tables ? workspace.get<T>(call.bags.count() * call.columns) : nullptr;
        cudaError_t error = gradients_of<T>(call, precision, kind, grad_out.as<T>(), grad_dense.as<T>(), grad_sparse,
                                            stream);
        if (error != cudaSuccess || !grad_tables) return error;
        // The vectors' gradients are those of embedding_bags' output.
        const embedding_bags::Sorted ids = {integers(keys), positions.as<int>(), bags.as<int>(), lengths.as<int>(),
                                            keys.elements};
        auto parts = workspace.get<Accumulator<T>>(2 * embedding_bags::chunks_of(ids.count) * call.columns);
        return embedding_bags::launch_backward<T>(grad_sparse, call.tables, call.rows, call.bags,
                                                  embedding_bags::Mode::sum, nullptr, ids, grad_tables.as<T>(), nullptr,
                                                  nullptr, parts, call.columns, stream);
    });
}

FUSED_OP_NAMED(lookup_interact, forward, backward)
FUSED_OP_NAMED(lookup_interact_gradients, gradients)
