// embedding_bags_apart for tensors: what the core calls. More tables than a launch takes are several launches.
#include "dispatch/op.cuh"
#include "kernel.cuh"

using namespace fused;
namespace apart = embedding_bags_apart;

// launch(first, count) for as many tables at a time as a launch takes.
template <class Launch>
static cudaError_t by_launches(long long features, Launch launch) {
    for (int first = 0; first < features; first += apart::most_tables)
        if (cudaError_t failed = launch(first, int(std::min<long long>(features - first, apart::most_tables)))) return failed;
    return cudaSuccess;
}

cudaError_t forward(Tensors tables, Tensors indices, Tensors offsets, String mode, bool include_last_offset, Tensor out,
                    Tensor report, Stream stream) {
    return with_dtype(out, [&](auto t) {
        using T = decltype(t);
        return by_launches(tables.count, [&](int first, int count) {
            apart::Tables of = {};
            apart::Bags bags = {};
            const T* rows[apart::most_tables];
            of.report = report.as<unsigned long long>();
            of.first = bags.first = first;
            bags.features = count, bags.all_features = int(tables.count);
            bags.batch = out.sizes[0];
            bags.has_offsets = offsets.count, bags.has_last = include_last_offset;
            bags.wide_indices = integers(indices[first]).wide;
            bags.wide_offsets = offsets.count && integers(offsets[first]).wide;
            for (int f = 0; f < count; ++f) {
                rows[f] = tables[first + f].as<T>();
                of.heights[f] = tables[first + f].sizes[0];
                bags.indices[f] = indices[first + f].data;
                bags.counts[f] = indices[first + f].elements;
                bags.strides[f] = indices[first + f].stride;
                if (offsets.count) bags.offsets[f] = offsets[first + f].data;
            }
            auto pooling = mode == "mean" ? apart::Mode::mean : apart::Mode::sum;
            return apart::launch<T>(of, rows, bags, pooling, out.as<T>(), out.columns(), stream);
        });
    });
}

// shapes: of each table 2, R and D.
cudaError_t backward(Tensor grad, Tensors, Tensors, Tensor shapes, String, bool, Tensor keys, Tensor positions, Tensor bags,
                     Tensor lengths, Tensors grad_tables, Stream stream, Workspace workspace) {
    embedding_bags::Sorted ids = {integers(keys), positions.as<int>(), bags.as<int>(), lengths.as<int>(), keys.elements};
    return with_dtype(grad, [&](auto t) {
        using T = decltype(t);
        long long columns = grad.columns(), row = 0;
        auto parts = workspace.get<Accumulator<T>>(2 * embedding_bags::chunks_of(ids.count) * columns);
        return by_launches(grad_tables.count, [&](int first, int count) {
            apart::Gradients<T> to = {};
            to.features = count;
            for (int f = 0; f < count; ++f) {
                to.tables[f] = grad_tables[first + f].as<T>();
                to.first[f] = row;
                row += shapes.sizes[3 * (first + f) + 1];
            }
            to.first[count] = row;
            return apart::launch_backward<T>(grad.as<T>(), to, ids, parts, columns, stream);
        });
    });
}

FUSED_OP(forward, backward)
