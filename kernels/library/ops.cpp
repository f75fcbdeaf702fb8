// Written by python -m kernels.library from the ops' declarations.
#include "stable_call.h"

extern "C" fused::Table fused_op_table_lookup, fused_op_table_claim_, fused_op_table_erase_, fused_op_expand_table_ids, fused_op_get_table_range;

namespace {

std::tuple<Tensor, Tensor> table_lookup(const Tensor& tags, const Tensor& slots, const Tensor& bucket_offsets, const Tensor& seeds, const Tensor& keys, const Tensor& table_ids) {
    Call call("table_lookup", fused_op_table_lookup.forward);
    call.give(tags, Use::read);
    call.give(slots, Use::read);
    call.give(bucket_offsets, Use::read);
    call.give(seeds, Use::read);
    call.give(keys, Use::read);
    call.give(table_ids, Use::read);
    Tensor made_found = new_empty(tags, keys.sizes(), ScalarType::Bool);
    call.give(made_found, Use::written);
    Tensor made_rows = new_empty(tags, keys.sizes(), ScalarType::Long);
    call.give(made_rows, Use::written);
    call.run();
    return {made_found, made_rows};
}

Tensor table_claim_(const Tensor& tags, const Tensor& slots, const Tensor& bucket_offsets, const Tensor& seeds, const Tensor& keys, const Tensor& table_ids) {
    Call call("table_claim_", fused_op_table_claim_.forward);
    call.give(tags, Use::written);
    call.give(slots, Use::written);
    call.give(bucket_offsets, Use::read);
    call.give(seeds, Use::read);
    call.give(keys, Use::read);
    call.give(table_ids, Use::read);
    Tensor made_where = new_empty(tags, keys.sizes(), ScalarType::Long);
    call.give(made_where, Use::written);
    call.run();
    return made_where;
}

Tensor table_erase_(const Tensor& tags, const Tensor& slots, const Tensor& bucket_offsets, const Tensor& seeds, const Tensor& keys, const Tensor& table_ids) {
    Call call("table_erase_", fused_op_table_erase_.forward);
    call.give(tags, Use::written);
    call.give(slots, Use::written);
    call.give(bucket_offsets, Use::read);
    call.give(seeds, Use::read);
    call.give(keys, Use::read);
    call.give(table_ids, Use::read);
    Tensor made_where = new_empty(tags, keys.sizes(), ScalarType::Long);
    call.give(made_where, Use::written);
    call.run();
    return made_where;
}

Tensor expand_table_ids(const Tensor& offsets, std::optional<Tensor> table_offsets, int64_t num_tables, int64_t batch_size, int64_t num_elements) {
    Call call("expand_table_ids", fused_op_expand_table_ids.forward);
    call.give(offsets, Use::read);
    call.give(table_offsets, Use::read);
    call.give(num_tables);
    call.give(batch_size);
    call.give(num_elements);
    Tensor made_out = new_empty(offsets, {num_elements}, ScalarType::Int);
    call.give(made_out, Use::written);
    call.run();
    return made_out;
}

Tensor get_table_range(const Tensor& offsets, const Tensor& feature_offsets) {
    Call call("get_table_range", fused_op_get_table_range.forward);
    call.give(offsets, Use::read);
    call.give(feature_offsets, Use::read);
    Tensor made_out = new_empty(offsets, feature_offsets.sizes(), offsets.scalar_type());
    call.give(made_out, Use::written);
    call.run();
    return made_out;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(fused_kernels, library) {
    Registration ours;
    ours.add("table_lookup." BACKEND, "(Tensor tags, Tensor slots, Tensor bucket_offsets, Tensor seeds, Tensor keys, Tensor table_ids) -> (Tensor found, Tensor rows)", TORCH_BOX(&table_lookup));
    ours.add("table_claim_." BACKEND, "(Tensor(a!) tags, Tensor(b!) slots, Tensor bucket_offsets, Tensor seeds, Tensor keys, Tensor table_ids) -> (Tensor where)", TORCH_BOX(&table_claim_));
    ours.add("table_erase_." BACKEND, "(Tensor(a!) tags, Tensor(b!) slots, Tensor bucket_offsets, Tensor seeds, Tensor keys, Tensor table_ids) -> (Tensor where)", TORCH_BOX(&table_erase_));
    ours.add("expand_table_ids." BACKEND, "(Tensor offsets, Tensor? table_offsets, int num_tables, SymInt batch_size, SymInt num_elements) -> (Tensor out)", TORCH_BOX(&expand_table_ids));
    ours.add("get_table_range." BACKEND, "(Tensor offsets, Tensor feature_offsets) -> (Tensor out)", TORCH_BOX(&get_table_range));
}
