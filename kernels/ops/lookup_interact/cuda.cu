// lookup_interact for tensors: what the core calls.
#include "dispatch/op.cuh"
#include "kernel.cuh"

using namespace fused;
namespace op = lookup_interact;

template <class T>
static op::Call<T> call_of(const Tensor& dense, const Tensor& tables, const Tensor& row_offsets, const Tensor& indices,
                           const Tensor& offsets, long long width, const Tensor& report) {
    const op::Tables of = {row_offsets.as<const long long>(), tables.sizes[0], -1, embedding_bags::Missing::error,
                           report.as<unsigned long long>()};
    const op::Bags bags = {integers(indices), integers(offsets), indices.elements, dense.sizes[0], row_offsets.elements - 1};
    return {of, bags, tables.as<T>(), dense.as<T>(), dense.sizes[1], width};
}

cudaError_t forward(Tensor dense, Tensor tables, Tensor row_offsets, Tensor indices, Tensor offsets, int64_t,
                    String precision, Tensor out, Tensor report, Stream stream) {
    return with_dtype(dense, [&](auto t) {
        using T = decltype(t);
        const auto call = call_of<T>(dense, tables, row_offsets, indices, offsets, out.sizes[1], report);
        return op::launch<T>(call, precision == "tf32", out.as<T>(), stream);
    });
}

FUSED_OP(forward)
