// embedding_bags_sort for tensors: what the core calls.
#include "dispatch/op.cuh"
#include "kernel.cuh"

using namespace fused;

cudaError_t forward(Tensor indices, Tensor row_offsets, Tensor offsets, int64_t rows, int64_t padding_idx, bool,
                    int64_t table_keys, Tensor keys, Tensor positions, Tensor bags, Tensor lengths, Stream stream,
                    Workspace workspace) {
    long long features = row_offsets.elements - 1;
    long long batch = !features ? 0 : offsets ? (offsets.elements - 1) / features : indices.elements / features;
    embedding_bags_sort::Tables tables{row_offsets.as<long long>(), rows, padding_idx, int(features)};
    return with_dtype_of<int32_t, int64_t>(keys.dtype, [&](auto key) {
        using Key = std::make_unsigned_t<decltype(key)>;
        return embedding_bags_sort::launch(
            integers(indices), offsets ? integers(offsets) : Integers{}, tables, indices.elements, batch, keys.as<Key>(),
            positions.as<int>(), bags.as<int>(), lengths.as<int>(), table_keys,
            [&](size_t bytes) { return workspace.get<char>((long long)bytes); }, stream);
    });
}

FUSED_OP(forward)
