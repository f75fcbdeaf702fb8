// embedding_bags for tensors: what the core calls.
#include "backward.cuh"
#include "dispatch/op.cuh"

using namespace fused;
namespace bags = embedding_bags;

static bags::Mode mode_of(const String& mode) {
    return mode == "sum" ? bags::Mode::sum : mode == "mean" ? bags::Mode::mean : bags::Mode::max;
}
static bags::Tables tables_of(const Tensor& shape, const Tensor& row_offsets, int64_t padding, bags::Missing missing,
                              const Tensor& report) {
    return {row_offsets.as<const long long>(), shape.sizes[0], padding, missing, report.as<unsigned long long>()};
}
// Offsets with no elements mean no bags, and nothing is launched.
static bags::Bags bags_of(const Tensor& row_offsets, const Tensor& indices, const Tensor& offsets) {
    long long features = row_offsets.elements - 1;
    long long count = offsets ? offsets.elements - 1 : indices.elements;
    return {integers(indices), integers(offsets), indices.elements, features ? count / features : 0, features};
}

cudaError_t forward(Tensor tables, Tensor row_offsets, Tensor indices, Tensor offsets, String mode, Tensor weights,
                    int64_t padding, String out_of_range, Tensor out, Tensor report, Stream stream) {
    bags::Missing missing = out_of_range == "error"  ? bags::Missing::error
                            : out_of_range == "zero" ? bags::Missing::zero
                                                     : bags::Missing::count;
    bags::Tables all = tables_of(tables, row_offsets, padding, missing, report);
    bags::Bags batch = bags_of(row_offsets, indices, offsets);
    return with_dtype(tables, [&](auto t) {
        using T = decltype(t);
        long long columns = tables.columns();
        if (!offsets && !weights)
            return with_dtype_of<int32_t, int64_t>(indices.dtype, [&](auto id) {
                using Id = decltype(id);
                return bags::launch_one_id(all, tables.data, indices.as<Id>(), out.data, indices.elements, batch.features,
                                           columns * (long long)sizeof(T), stream);
            });
        return bags::launch_bags<T>(all, tables.as<T>(), batch, mode_of(mode), weights.as<T>(), out.as<T>(), nullptr,
                                    columns, stream);
    });
}

cudaError_t backward(Tensor grad, Tensor row_offsets, Tensor indices, Tensor offsets, Tensor weights, Tensor tables,
                     Tensor shape, String mode, int64_t padding, String, Tensor keys, Tensor positions,
                     Tensor bags_of_ids, Tensor lengths, Tensor grad_tables, Tensor grad_weights, Stream stream,
                     Workspace workspace) {
    bags::Tables all = tables_of(shape, row_offsets, padding, bags::Missing::zero, Tensor{});
    bags::Bags batch = bags_of(row_offsets, indices, offsets);
    bags::Mode pooling = offsets ? mode_of(mode) : bags::Mode::sum;  // of one id every pooling is that id's row
    bags::Sorted ids = {integers(keys), positions.as<int>(), bags_of_ids.as<int>(), lengths.as<int>(), keys.elements};
    return with_dtype(grad, [&](auto t) {
        using T = decltype(t);
        long long columns = shape.columns(), winners = pooling == bags::Mode::max ? grad.elements : 0;
        return bags::launch_backward<T>(grad.as<T>(), all, tables.as<T>(), batch, pooling, weights.as<T>(), ids,
                                        grad_tables.as<T>(), grad_weights.as<T>(), workspace.get<long long>(winners),
                                        workspace.get<Accumulator<T>>(2 * bags::chunks_of(ids.count) * columns), columns,
                                        stream);
    });
}

FUSED_OP(forward, backward)
