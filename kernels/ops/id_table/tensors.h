// From the core's tensors to table.cuh's structs, for cuda.cu and cpu.cpp.
#pragma once

#include "dispatch/op.cuh"
#include "table.cuh"

namespace id_table {

// function(storage, keys, table_ids), pointers of the tensors' types; of a storage that vector accesses do not take, an
// error.
template <class Function>
cudaError_t with_keys(fused::Tensor tags, fused::Tensor slots, fused::Tensor bucket_offsets, fused::Tensor seeds,
                      fused::Tensor keys, fused::Tensor table_ids, Function function) {
    if (!aligned(tags.as<char>(), slots.as<char>())) return cudaErrorInvalidValue;
    Storage storage{tags.as<unsigned char>(), slots.as<Slot>(), bucket_offsets.as<long long>(), seeds.as<long long>(),
                    bucket_offsets.elements - 1, tags.elements / bucket_slots};
    return fused::with_dtype_of<int32_t, int64_t>(keys.dtype, [&](auto key) {
        return fused::with_dtype_of<int32_t, int64_t>(table_ids.dtype, [&](auto table_id) {
            return function(storage, keys.as<decltype(key)>(), table_ids.as<decltype(table_id)>());
        });
    });
}

// function(Bags<int or long long>).
template <class Function>
cudaError_t with_bags(fused::Tensor offsets, fused::Tensor table_offsets, long long batch_size, Function function) {
    return fused::with_dtype_of<int32_t, int64_t>(offsets.dtype, [&](auto offset) {
        return function(Bags<decltype(offset)>{offsets.as<decltype(offset)>(), table_offsets.as<long long>(),
                                               offsets.elements, batch_size});
    });
}
template <class Offset>
Offset* offset_pointer(const Bags<Offset>&, fused::Tensor tensor) {
    return tensor.as<Offset>();
}

}  // namespace id_table
