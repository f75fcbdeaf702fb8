// The id table's ops for tensors: what the core calls.
#include "dispatch/op.cuh"
#include "kernel.cuh"
#include "tensors.h"

using namespace fused;
using namespace id_table;

cudaError_t look_up_tensors(Tensor tags, Tensor slots, Tensor bucket_offsets, Tensor seeds, Tensor keys,
                            Tensor table_ids, Tensor found, Tensor rows, Stream stream) {
    return with_keys(tags, slots, bucket_offsets, seeds, keys, table_ids, [&](Storage storage, auto* key, auto* table) {
        return launch_look_up(storage, key, table, found.as<bool>(), rows.as<long long>(), keys.elements,
                              stream);
    });
}

cudaError_t claim_tensors(Tensor tags, Tensor slots, Tensor bucket_offsets, Tensor seeds, Tensor keys,
                          Tensor table_ids, Tensor where, Stream stream) {
    return with_keys(tags, slots, bucket_offsets, seeds, keys, table_ids, [&](Storage storage, auto* key, auto* table) {
        return launch_claim(storage, key, table, where.as<long long>(), keys.elements, stream);
    });
}

cudaError_t erase_tensors(Tensor tags, Tensor slots, Tensor bucket_offsets, Tensor seeds, Tensor keys,
                          Tensor table_ids, Tensor where, Stream stream) {
    return with_keys(tags, slots, bucket_offsets, seeds, keys, table_ids, [&](Storage storage, auto* key, auto* table) {
        return launch_erase(storage, key, table, where.as<long long>(), keys.elements, stream);
    });
}

cudaError_t expand_tensors(Tensor offsets, Tensor table_offsets, int64_t tables, int64_t batch_size, int64_t count,
                           Tensor table_ids, Stream stream) {
    return with_bags(offsets, table_offsets, batch_size, [&](auto bags) {
        return launch_expand(bags, tables, table_ids.as<int>(), count, stream);
    });
}

cudaError_t range_tensors(Tensor offsets, Tensor feature_offsets, Tensor range, Stream stream) {
    return with_bags(offsets, feature_offsets, 0, [&](auto bags) {
        return launch_range(bags, range.elements - 1, offset_pointer(bags, range), stream);
    });
}

FUSED_OP_NAMED(table_lookup, look_up_tensors)
FUSED_OP_NAMED(table_claim_, claim_tensors)
FUSED_OP_NAMED(table_erase_, erase_tensors)
FUSED_OP_NAMED(expand_table_ids, expand_tensors)
FUSED_OP_NAMED(get_table_range, range_tensors)
