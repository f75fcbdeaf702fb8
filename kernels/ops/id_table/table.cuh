// A hash table from int64 keys to rows, many tables in one storage: what one thread does with one key. CUDA kernels
// (kernel.cuh) and the CPU's loops (cpu.cpp) both call these functions.
//
//     hash    = mix(key + seed of the table), 64 bits
//     bucket  = first + (hash / 2^32) · buckets / 2^32         where the search begins; it goes on bucket by bucket
//     tag     = 3 + 253 · (hash mod 2^16) / 2^16               one byte, beside the slots
//
// A bucket is 16 slots, and a slot (key, row). Whether a slot is taken stands in its tag alone, so every key is an
// ordinary one: 0, -1 and the extremes too. 16 tags are one 16-byte access; a key is compared only where the tag is
// equal, which of the keys that are not meant 1 in 253 is. So a look-up reads, as a rule:
//
//     key 8 + its table 4 + tags 16 (a sector of 32) + slot 16 (a sector of 32);  it writes found 1 + row 8 bytes
//
// and an id takes 17 bytes / load: 19.4 at a load of 7/8. Tags are few enough (1/17 of it) to stay in a large L2.
// After SwissTable (abseil.io/about/design/swisstables).
#pragma once

#include "device/launch.cuh"

namespace id_table {

constexpr int bucket_slots = 16;

// What a tag says, unless it is a hash's: from first_tag on.
enum : unsigned { empty = 0, erased = 1, claimed = 2, first_tag = 3 };

struct alignas(16) Slot {
    long long key, row;
};

// A table's buckets are bucket_offsets[table] … bucket_offsets[table + 1] - 1. tags and slots are aligned to 16 bytes.
struct Storage {
    unsigned char* tags;
    Slot* slots;
    const long long* bucket_offsets;
    const long long* seeds;
    long long tables, buckets;
};

// The 16 tags of a bucket.
struct alignas(16) Tags {
    unsigned word[4];
};

// 0x80 in each byte of the word that equals `tag`.
__device__ inline unsigned equal(unsigned word, unsigned tag) {
    unsigned x = word ^ tag * 0x01010101u;
    return ~(((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x | 0x7f7f7f7fu);
}
__device__ inline bool any(const Tags& tags, unsigned tag) {
    return equal(tags.word[0], tag) | equal(tags.word[1], tag) | equal(tags.word[2], tag) | equal(tags.word[3], tag);
}
// The slot, 0 to 3 in its word, of the lowest byte in what `equal` gives.
__device__ inline int lowest(unsigned equal) { return (__ffs(int(equal)) - 1) / 8; }

// The finalizer of MurmurHash3: a bijection, so that different keys have different hashes.
__device__ inline unsigned long long mix(unsigned long long x) {
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

// Where a key's search goes: every bucket of its table once. A table that is not there has no bucket.
struct Probe {
    long long first, end, bucket, left;
    unsigned tag;

    __device__ Probe(const Storage& storage, long long table, long long key) : left(0) {
        if (table < 0 || table >= storage.tables) return;
        first = storage.bucket_offsets[table], end = storage.bucket_offsets[table + 1];
        if (first < 0 || first >= end || end > storage.buckets) return;
        unsigned long long hash = mix((unsigned long long)key + (unsigned long long)storage.seeds[table]);
        left = end - first;
        bucket = first + (long long)((hash >> 32) * (unsigned long long)left >> 32);
        tag = first_tag + unsigned((hash & 0xffff) * (256 - first_tag) >> 16);
    }
    __device__ void next() {
        bucket = bucket + 1 == end ? first : bucket + 1;
        --left;
    }
};

// The index of the key's slot, which is written to `slot`; -1 for a key that is not there.
__device__ inline long long find(const Storage& storage, long long table, long long key, Slot& slot) {
    for (Probe probe(storage, table, key); probe.left; probe.next()) {
        long long base = probe.bucket * bucket_slots;
        Tags tags = *reinterpret_cast<const Tags*>(storage.tags + base);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            for (unsigned found = equal(tags.word[w], probe.tag); found; found &= found - 1) {
                long long index = base + 4 * w + lowest(found);
                slot = storage.slots[index];
                if (slot.key == key) return index;
            }
        }
        if (any(tags, empty)) return -1;
    }
    return -1;
}

// Whether the key is there, and its row; 0 where it is not. A row that is not above 0 belongs to no key.
__device__ inline bool look_up(const Storage& storage, long long table, long long key, long long& row) {
    Slot slot;
    bool found = find(storage, table, key, slot) >= 0 && slot.row > 0;
    row = found ? slot.row : 0;
    return found;
}

// ------------------------------------------------------------------------------------ what writes, beside other threads

__device__ inline unsigned load_now(const unsigned* address) {
#ifdef __CUDA_ARCH__
    return *reinterpret_cast<const volatile unsigned*>(address);
#else
    return __atomic_load_n(address, __ATOMIC_RELAXED);
#endif
}
__device__ inline Tags load_now(const Tags* tags) {
    return {{load_now(&tags->word[0]), load_now(&tags->word[1]), load_now(&tags->word[2]), load_now(&tags->word[3])}};
}

// Finds the key or gives it a slot; returns the slot's index, -1 if the table is full.
//
// A new key's row is -1 - position, of the lowest position that claims it: the caller sees there which position of the
// batch the key belongs to, and writes the row. A key that was there keeps its row, which is above 0.
//
// Threads claim empty slots only, and each the first one of its search; so a slot that one thread passed is never given
// to another for the same key, and all threads of a key meet at one slot. Erased slots are left alone.
__device__ inline long long claim(const Storage& storage, long long table, long long key, long long position) {
    Probe probe(storage, table, key);
    while (probe.left) {
        long long base = probe.bucket * bucket_slots;
        auto* words = reinterpret_cast<Tags*>(storage.tags + base);
        Tags tags = load_now(words);
        __threadfence();  // a tag that is a hash's was written after its slot; so the slot is read after the tag
        for (int w = 0; w < 4; ++w) {
            for (unsigned found = equal(tags.word[w], probe.tag); found; found &= found - 1) {
                long long index = base + 4 * w + lowest(found);
                if (storage.slots[index].key != key) continue;
                atomicMax(&storage.slots[index].row, -1 - position);
                return index;
            }
        }
        if (any(tags, claimed)) continue;  // it may be this key: look again
        if (!any(tags, empty)) {
            probe.next();
            continue;
        }
        int w = 0;
        while (!equal(tags.word[w], empty)) ++w;
        int place = lowest(equal(tags.word[w], empty));
        unsigned word = tags.word[w];
        if (atomicCAS(&words->word[w], word, word | unsigned(claimed) << 8 * place) != word) continue;
        long long index = base + 4 * w + place;
        storage.slots[index] = {key, -1 - position};
        __threadfence();
        atomicAdd(&words->word[w], (probe.tag - claimed) << 8 * place);
        return index;
    }
    return -1;
}

// Frees the slot. While a bucket has an empty slot no search has gone beyond it, and its slots may become empty again; in
// one that has none, a slot is marked as erased, at which a search does not end.
__device__ inline void erase(const Storage& storage, long long index) {
    auto* words = reinterpret_cast<Tags*>(storage.tags + index / bucket_slots * bucket_slots);
    unsigned becomes = any(load_now(words), empty) ? empty : erased;
    unsigned* word = &words->word[index % bucket_slots / 4];
    int shift = int(8 * (index % 4));
    for (unsigned old = load_now(word); (old >> shift & 0xff) >= first_tag;) {
        unsigned now = atomicCAS(word, old, (old & ~(0xffu << shift)) | becomes << shift);
        if (now == old) return;
        old = now;
    }
}

// ------------------------------------------------------------------------------------------- from bags to table numbers

// offsets [F·B + 1] say where each bag of keys begins, feature by feature (torchrec's KeyedJaggedTensor). Table t has the
// features table_offsets[t] … table_offsets[t + 1] - 1; without table_offsets feature t. Where the keys of table t begin:
// of offsets that lead outside, at one of the ends.
template <class Offset>
struct Bags {
    const Offset* offsets;
    const long long* table_offsets;
    long long offsets_count, batch_size;

    __device__ long long begin(long long t) const {
        if (offsets_count < 1) return 0;
        long long feature = table_offsets ? table_offsets[t] : t;
        if (feature <= 0 || batch_size <= 0) return (long long)offsets[0];
        long long most = (offsets_count - 1) / batch_size;
        return (long long)offsets[(feature < most ? feature : most) * batch_size];
    }
};

// The last table that begins at or before this key and so holds it; -1 for a key that lies in none.
template <class Offset>
__device__ inline int table_of(const Bags<Offset>& bags, long long tables, long long position) {
    if (tables < 1 || position < bags.begin(0) || position >= bags.begin(tables)) return -1;
    long long low = 0, high = tables - 1;
    while (low < high) {
        long long middle = (low + high + 1) / 2;
        if (bags.begin(middle) <= position)
            low = middle;
        else
            high = middle - 1;
    }
    return int(low);
}

// offsets[table_offsets[t] · B], with B = bags of all features / table_offsets[tables].
template <class Offset>
__device__ inline Offset table_begin(Bags<Offset> bags, long long tables, long long t) {
    long long features = bags.table_offsets[tables];
    bags.batch_size = features > 0 ? (bags.offsets_count - 1) / features : 0;
    return Offset(bags.begin(t));
}

}  // namespace id_table
