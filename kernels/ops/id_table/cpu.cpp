// The id table's ops for tensors of the CPU: table.cuh's functions in loops, on several threads.
#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "tensors.h"

using namespace fused;
using namespace id_table;

namespace {

constexpr long long keys_of_a_thread = 1 << 15;  // fewer do not pay for starting a thread

// work(part, parts) for each part from 0, on as many threads, or on as many as the system gives. What work throws is
// thrown here, when all have ended.
template <class Work>
void on_threads(long long count, Work work) {
    long long cores = std::max(1u, std::thread::hardware_concurrency());
    long long parts = std::clamp(count / keys_of_a_thread, 1LL, cores);
    std::atomic<long long> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
    auto run = [&] {
        try {
            for (long long part; (part = next++) < parts;) work(part, parts);
        } catch (...) {
            if (!failed.exchange(true)) error = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    try {
        while ((long long)others.size() < parts - 1) others.emplace_back(run);
    } catch (const std::exception&) {  // no more threads, or no memory for one
    }
    run();
    for (std::thread& other : others) other.join();
    if (error) std::rethrow_exception(error);
}

// function(i) for each i below count.
template <class Function>
cudaError_t for_each(long long count, Function function) {
    on_threads(count, [&](long long part, long long parts) {
        for (long long i = count * part / parts; i < count * (part + 1) / parts; ++i) function(i);
    });
    return cudaSuccess;
}

cudaError_t look_up_tensors(Tensor tags, Tensor slots, Tensor bucket_offsets, Tensor seeds, Tensor keys,
                            Tensor table_ids, Tensor found, Tensor rows) {
    return with_keys(tags, slots, bucket_offsets, seeds, keys, table_ids, [&](Storage storage, auto* key, auto* table) {
        return for_each(keys.elements, [&](long long i) {
            found.as<bool>()[i] = look_up(storage, table[i], key[i], rows.as<long long>()[i]);
        });
    });
}

// A table is one thread's, which takes its keys in order: so slots do not hang on which thread was first.
cudaError_t claim_tensors(Tensor tags, Tensor slots, Tensor bucket_offsets, Tensor seeds, Tensor keys,
                          Tensor table_ids, Tensor where) {
    return with_keys(tags, slots, bucket_offsets, seeds, keys, table_ids, [&](Storage storage, auto* key, auto* table) {
        on_threads(keys.elements, [&](long long part, long long parts) {
            for (long long i = 0; i < keys.elements; ++i)
                if ((unsigned long long)table[i] % parts == (unsigned long long)part)
                    where.as<long long>()[i] = claim(storage, table[i], key[i], i);
        });
        return cudaSuccess;
    });
}

cudaError_t erase_tensors(Tensor tags, Tensor slots, Tensor bucket_offsets, Tensor seeds, Tensor keys,
                          Tensor table_ids, Tensor where) {
    return with_keys(tags, slots, bucket_offsets, seeds, keys, table_ids, [&](Storage storage, auto* key, auto* table) {
        for_each(keys.elements, [&](long long i) {
            Slot slot;
            where.as<long long>()[i] = find(storage, table[i], key[i], slot);
        });
        for (long long i = 0; i < keys.elements; ++i)
            if (where.as<long long>()[i] >= 0) erase(storage, where.as<long long>()[i]);
        return cudaSuccess;
    });
}

cudaError_t expand_tensors(Tensor offsets, Tensor table_offsets, int64_t tables, int64_t batch_size, int64_t count,
                           Tensor table_ids) {
    return with_bags(offsets, table_offsets, batch_size, [&](auto bags) {
        return for_each(count, [&](long long i) { table_ids.as<int>()[i] = table_of(bags, tables, i); });
    });
}

cudaError_t range_tensors(Tensor offsets, Tensor feature_offsets, Tensor range) {
    return with_bags(offsets, feature_offsets, 0, [&](auto bags) {
        for (long long t = 0; t < range.elements; ++t)
            offset_pointer(bags, range)[t] = table_begin(bags, range.elements - 1, t);
        return cudaSuccess;
    });
}

}  // namespace

FUSED_OP_NAMED(table_lookup, look_up_tensors)
FUSED_OP_NAMED(table_claim_, claim_tensors)
FUSED_OP_NAMED(table_erase_, erase_tensors)
FUSED_OP_NAMED(expand_table_ids, expand_tensors)
FUSED_OP_NAMED(get_table_range, range_tensors)
