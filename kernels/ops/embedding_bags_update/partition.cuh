// The rows of embedding tables updated by their gradients, of one id a feature, without a sort of all ids
//
//     tables [R, D], indices and weights [B, F], grad [B, F, D]: what kernel.cuh computes, in two launches
//
// An id of a table of up to 2^b rows gets the key id · odd mod 2^b: another id another key, and neighbours far apart, so
// that the first bits of the keys cut a table's occurrences into buckets of about one size, whatever the ids' law.
//
//     split    A block takes a part of the batch of one table, up to 2048 ids, and sorts it by key, on chip. Groups of
//              lanes take chunks of that, of 33 ids at the least. Where a chunk has eight or more of a row, their
//              gradients are summed, and one element stands for them all: a row that every id names leaves one a chunk.
//     update   A block takes a bucket, collects its elements from all parts, in order, sorts them by the rest of the key
//              and walks them: groups of lanes take chunks, rows that cross chunks are added up on chip, and each row is
//              updated by one group. A bucket that has no room on chip is taken by ranges of its keys, one after the
//              other; a row alone has room.
//
// Bytes: ids in, an element of 8 bytes an id out and in, the gradient in once an occurrence, 64 bytes at a time where D is
// 16, each distinct row and its state in and out. Every sum's order hangs on ids, B, F and D alone; no atomic adds.
#pragma once

#include "kernel.cuh"
#include "ops/embedding_bags_sort/tables.cuh"

namespace embedding_bags_partition {

using embedding_bags_sort::Tables;
using embedding_bags_update::load_floats;
using embedding_bags_update::Occurrences;
using embedding_bags_update::RowSum;
using embedding_bags_update::Rule;
using embedding_bags_update::RowUpdate;
using embedding_bags_update::store_floats;
using embedding_bags_update::store_part;
using embedding_bags_update::Target;

constexpr int threads = 256, warps = threads / lanes_of_a_warp;
constexpr int most_part = 2048, most_elements = 3072;  // ids that a block splits; elements that a block updates by at once
constexpr int few = 8, shortest_chunk = 32;            // occurrences that are summed early, and the chunk that they lie in
constexpr int digit_bits = 8;                          // of a pass of the sort
constexpr int ahead = 3, ahead_with_state = 2;         // occurrences whose gradients and rows are on their way together
constexpr int reads = 4;                               // of a thread's elements that are too
constexpr int most_bucket_bits = 6, bucket_elements = 64;
constexpr int most_packs = 4, most_columns = most_packs * lanes_of_a_warp;  // of a row that lanes of a warp hold
constexpr int resident_blocks = 3;  // of a processor, at the least

struct alignas(8) Element {
    unsigned key;
    int source;  // a row b of the batch, or ~ the number of a sum, or `dropped`
};
constexpr int dropped = -2147483647 - 1;

struct Split {
    int batch, features, part, parts, bucket_bits;
    Element* elements;  // [F, B]: those of a part lie where its ids would
    int* starts;        // [F, parts, buckets + 1]: where in the part the elements of a bucket begin
    float* sums;        // [F · parts · part / few, D]

    __device__ long long part_of(int feature, int number) const { return (long long)feature * parts + number; }
    __device__ int* starts_of(int feature, int number) const {
        return starts + part_of(feature, number) * ((1 << bucket_bits) + 1);
    }
    __device__ const float* sum(int source, long long columns) const { return sums + (long long)~source * columns; }
};

// The keys of a table's ids.
struct Keys {
    int bits;
    unsigned mask, odd, inverse;

    __device__ explicit Keys(long long height) : bits(0) {
        while (1LL << bits < height) ++bits;
        mask = (1u << bits) - 1;
        odd = bits ? unsigned(0x9E3779B97F4A7C15ULL >> (64 - bits)) | 1 : 1;  // 2^bits times the golden section
        inverse = odd;                                                        // modulo 8; each step doubles its bits (Newton)
        for (int step = 0; step < 4; ++step) inverse *= 2 - odd * inverse;
    }
    __device__ unsigned of(long long id) const { return unsigned(id) * odd & mask; }
    __device__ unsigned id(unsigned key) const { return key * inverse & mask; }
    // The bits of a key behind those that its bucket has.
    __device__ int rest(int bucket_bits) const { return bits > bucket_bits ? bits - bucket_bits : 0; }
};

__device__ inline int own_thread() { return int(threadIdx.y * blockDim.x + threadIdx.x); }

// The sum of the values of the threads before this one, and of all. Every thread of the block calls it.
__device__ inline int scan_block(int value, int* total) {
    __shared__ int of_warps[warps];
    int lane = own_thread() % lanes_of_a_warp, warp = own_thread() / lanes_of_a_warp, sum = value;
#pragma unroll
    for (int distance = 1; distance < lanes_of_a_warp; distance *= 2) {
        int other = __shfl_up_sync(~0u, sum, unsigned(distance));
        if (lane >= distance) sum += other;
    }
    __syncthreads();  // a call before this one has been read
    if (lane == lanes_of_a_warp - 1) of_warps[warp] = sum;
    __syncthreads();
    int before = 0, all = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) {
        before += w < warp ? of_warps[w] : 0;
        all += of_warps[w];
    }
    *total = all;
    return before + sum - value;
}

// Of the elements from(0 … count) those that `wants` wants, in order, of which there is room for `most` → how many there
// are. `from` may read what is written: no element comes to a later place.
template <class From, class Wants>
__device__ inline int collect(Element* to, int most, int count, From from, Wants wants) {
    int kept = 0;
    for (int begin = 0; begin < count; begin += threads) {
        int i = begin + own_thread(), total;
        Element element = {};
        if (i < count) element = from(i);
        bool wanted = i < count && wants(element);
        int place = kept + scan_block(wanted, &total);
        if (wanted && place < most) to[place] = element;
        kept += total;
    }
    __syncthreads();
    return kept;
}

// Sorts the elements by `bits` bits of their keys from bit `shift` on, stably. counts: [2^bits, warps].
__device__ inline void sort_by_digit(Element* elements, unsigned short* counts, int count, int shift, int bits) {
    constexpr int items = most_elements / threads;
    int thread = own_thread(), lane = thread % lanes_of_a_warp, warp = thread / lanes_of_a_warp, digits = 1 << bits;
    int span = (count + threads - 1) / threads * lanes_of_a_warp;  // of a warp
    for (int i = thread; i < digits * warps; i += threads) counts[i] = 0;
    __syncthreads();
    Element own[items];
    int rank[items];
#pragma unroll
    for (int r = 0; r < items; ++r) {
        if (r * lanes_of_a_warp >= span) continue;
        int i = warp * span + r * lanes_of_a_warp + lane;
        bool there = i < count;
        own[r] = there ? elements[i] : Element{};
        unsigned digit = own[r].key >> shift & unsigned(digits - 1), peers = __ballot_sync(~0u, there);
        for (int bit = 0; bit < bits; ++bit) {
            unsigned ones = __ballot_sync(~0u, int(digit >> bit & 1));
            peers &= digit >> bit & 1 ? ones : ~ones;
        }
        unsigned short* of_digit = counts + digit * warps + warp;
        int before = there ? *of_digit : 0;
        rank[r] = before + __popc(peers & ((1u << lane) - 1));
        __syncwarp();
        if (there && rank[r] == before) *of_digit = static_cast<unsigned short>(before + __popc(peers));
        __syncwarp();
    }
    __syncthreads();
    int of_digit = 0, total;
    for (int w = 0; w < warps && thread < digits; ++w) of_digit += counts[thread * warps + w];
    int place = scan_block(of_digit, &total);
    for (int w = 0; w < warps && thread < digits; ++w) {
        int of_warp = counts[thread * warps + w];
        counts[thread * warps + w] = static_cast<unsigned short>(place);
        place += of_warp;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < items; ++r) {
        if (r * lanes_of_a_warp >= span || warp * span + r * lanes_of_a_warp + lane >= count) continue;
        elements[counts[(own[r].key >> shift & unsigned(digits - 1)) * warps + warp] + rank[r]] = own[r];
    }
    __syncthreads();
}
__device__ inline void sort_elements(Element* elements, unsigned short* counts, int count, int bits) {
    int passes = (bits + digit_bits - 1) / digit_bits;
    for (int shift = 0; passes; --passes) {
        int digit = (bits - shift + passes - 1) / passes;
        sort_by_digit(elements, counts, count, shift, digit);
        shift += digit;
    }
}

// The chunk of `count` elements that a group has: [begin, end).
struct Chunk {
    int length, begin, end;

    __device__ Chunk(int count, int shortest) {
        length = (count + int(blockDim.y) - 1) / int(blockDim.y);
        if (length < shortest) length = shortest;
        length |= 1;  // else all groups of a warp read the same bank
        begin = int(threadIdx.y) * length;
        begin = begin < count ? begin : count;
        end = begin + length < count ? begin + length : count;
    }
    // For each run of `few` or more equal keys within the chunk: function(first, end).
    template <class Function>
    __device__ void runs(const Element* elements, Function function) const {
        for (int i = begin; i + few <= end;) {
            unsigned key = elements[i].key;
            int last = i;
            if (elements[i + few - 1].key == key) {
                for (last = i + few; last < end && elements[last].key == key;) ++last;
                function(i, last);
                i = last;
            } else {
                ++i;
            }
        }
    }
};

// A gradient on its way, or a sum of `split`.
template <class T, int width, int packs>
struct Term {
    using Sum = RowSum<width, packs>;
    Pack<T, width> gradient[packs];
    float share;

    __device__ void read(const Occurrences<T>& all, const Split& split, int source, int feature, long long columns) {
        const T* pointer = nullptr;
        share = 1;
        if (source >= 0) {
            int position = source * split.features + feature;
            share = all.share(position);
            pointer = all.gradient(position, columns);
        } else if constexpr (sizeof(T) == sizeof(float)) {
            pointer = reinterpret_cast<const T*>(split.sum(source, columns));
        }
#pragma unroll
        for (int p = 0; p < packs; ++p)
            if (pointer && Sum::column(p) < columns) gradient[p] = load<width>(pointer + Sum::column(p));
    }
    __device__ void add_to(Sum& g, const Split& split, int source, long long columns) const {
        if (source >= 0 || sizeof(T) == sizeof(float)) return g.add(gradient, share, columns);
#pragma unroll
        for (int p = 0; p < packs; ++p) {
            float values[width] = {};
            if (g.column(p) < columns) load_floats<width>(values, split.sum(source, columns) + g.column(p));
#pragma unroll
            for (int e = 0; e < width; ++e) g.value[p * width + e] += values[e];
        }
    }
};

// Block (p, f) splits part p of the ids of table f. Dynamic shared memory: the elements, and the sort's counts.
template <class T, int width, int packs>
__global__ void __launch_bounds__(threads, resident_blocks)
    split_kernel(Integers indices, Tables tables, Occurrences<T> all, long long columns, Split split) {
    constexpr int items = most_part / threads;
    Element* elements = dynamic_shared<Element>();
    unsigned short* counts = reinterpret_cast<unsigned short*>(elements + most_part);
    int number = int(blockIdx.x), feature = int(blockIdx.y), first = number * split.part, thread = own_thread();
    int count = split.batch - first < split.part ? split.batch - first : split.part;
    long long ids[items];
#pragma unroll
    for (int r = 0; r < items; ++r)
        if (int i = r * threads + thread; i < count)
            ids[r] = indices[(long long)(first + i) * split.features + feature];
    long long begin = tables.bound(feature), height = tables.bound(feature + 1) - begin;
    long long fallen = tables.end_before(feature) - begin;  // a row that an earlier table has is not this one's
    Keys keys(height);
#pragma unroll
    for (int r = 0; r < items; ++r)
        if (int i = r * threads + thread; i < count) {
            bool named = has_row(tables, height, ids[r]) && ids[r] >= fallen;
            elements[i] = {named ? keys.of(ids[r]) : 0, named ? first + i : dropped};
        }
    __syncthreads();
    auto itself = [&](int i) { return elements[i]; };
    auto stays = [](const Element& element) { return element.source != dropped; };
    count = collect(elements, most_part, count, itself, stays);
    sort_elements(elements, counts, count, keys.bits);

    Chunk chunk(count, shortest_chunk);
    int first_sum = int(split.part_of(feature, number)) * (split.part / few);  // two runs begin in no eighth element
    chunk.runs(elements, [&](int i, int end) {
        RowSum<width, packs> g;
        for (int n = i; n < end; n += ahead) {
            Term<T, width, packs> term[ahead];
#pragma unroll
            for (int u = 0; u < ahead; ++u)
                if (n + u < end) term[u].read(all, split, elements[n + u].source, feature, columns);
#pragma unroll
            for (int u = 0; u < ahead; ++u)
                if (n + u < end) g.add(term[u].gradient, term[u].share, columns);
        }
        store_part(split.sums + (first_sum + i / few) * columns, columns, g);
    });
    __syncthreads();
    if (threadIdx.x == 0)
        chunk.runs(elements, [&](int i, int end) {
            elements[i].source = ~(first_sum + i / few);
            for (int n = i + 1; n < end; ++n) elements[n].source = dropped;
        });
    __syncthreads();
    count = collect(elements, most_part, count, itself, stays);

    int rest = keys.rest(split.bucket_bits), *starts = split.starts_of(feature, number);
    for (int bucket = thread; bucket <= 1 << split.bucket_bits; bucket += threads) {
        int low = 0, high = count;
        while (low < high) {
            int middle = (low + high) / 2;
            if (elements[middle].key >> rest < unsigned(bucket)) low = middle + 1;
            else high = middle;
        }
        starts[bucket] = low;
    }
    Element* out = split.elements + (long long)feature * split.batch + first;
    for (int i = thread; i < count; i += threads) out[i] = elements[i];
}

// Block (k, f) updates the rows of bucket k of table f. Dynamic shared memory: `most` elements, the sort's counts, two
// parts of rows a chunk, and of each part of the batch how many elements the bucket has before it.
template <class T, int width, int packs, bool is_sgd>
__global__ void __launch_bounds__(threads, resident_blocks)
    update_kernel(Tables tables, Occurrences<T> all, Target<T> to, Split split, int most) {
    constexpr int at_once = is_sgd && packs == 1 ? ahead : ahead_with_state, held = packs * width;
    if (is_sgd) to.rule = Rule::sgd;  // known when it is compiled, so that a row's state takes no registers
    Element* elements = dynamic_shared<Element>();
    unsigned short* counts = reinterpret_cast<unsigned short*>(elements + most_elements);
    float* parts = reinterpret_cast<float*>(counts + (warps << digit_bits));  // [2 · groups, lanes · held]
    int* befores = reinterpret_cast<int*>(parts + 2 * threads * held);
    int bucket = int(blockIdx.x), feature = int(blockIdx.y), thread = own_thread(), lanes = int(blockDim.x);
    long long table = tables.bound(feature);
    Keys keys(tables.bound(feature + 1) - table);
    int start = 0, size = 0, all_elements;
    if (thread < split.parts) {
        const int* starts = split.starts_of(feature, thread) + bucket;
        start = starts[0], size = starts[1] - start;
    }
    int before = scan_block(size, &all_elements);
    if (all_elements == 0) return;
    // With what is added to an element's number its place among the table's is found.
    if (thread < split.parts) befores[thread] = before, befores[split.parts + thread] = thread * split.part + start - before;
    __syncthreads();
    auto from = [&](int i) {
        int low = 0, high = split.parts;  // the last part with no more before it, which has an element
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (befores[middle] <= i) low = middle;
            else high = middle;
        }
        return split.elements[(long long)feature * split.batch + i + befores[split.parts + low]];
    };
    int rest = keys.rest(split.bucket_bits);
    const unsigned end_of_keys = 1u << rest, mask = end_of_keys - 1;
    for (unsigned low = 0, range = end_of_keys; low < end_of_keys;) {
        int count = all_elements;
        if (count <= most) {
            for (int begin = thread; begin < count; begin += reads * threads) {
                Element read[reads];
#pragma unroll
                for (int r = 0; r < reads; ++r)
                    if (int i = begin + r * threads; i < count) read[r] = from(i);
#pragma unroll
                for (int r = 0; r < reads; ++r)
                    if (int i = begin + r * threads; i < count) elements[i] = read[r];
            }
            __syncthreads();
        } else {
            // Before it writes, all threads have done with the last range's elements: it meets at a barrier.
            count = collect(elements, most, count, from,
                            [&](const Element& element) { return ((element.key & mask) - low) < range; });
            if (count > most && range > 1) {
                range /= 2;
                continue;
            }
        }
        low += range;
        sort_elements(elements, counts, count, rest);

        Chunk chunk(count, 1);
        auto ends = [&](int i) { return i + 1 == count || elements[i + 1].key != elements[i].key; };
        auto part = [&](int group, int which) {
            return parts + ((2 * group + which) * lanes + int(threadIdx.x)) * held;
        };
        RowSum<width, packs> g;
        bool whole = chunk.begin == 0 || ends(chunk.begin - 1);  // whether the row begins in this chunk
        for (int n = chunk.begin; n < chunk.end; n += at_once) {
            Term<T, width, packs> term[at_once];
            RowUpdate<T, width, packs> row[at_once];
            Element element[at_once];
            bool is_last[at_once], is_whole[at_once];
#pragma unroll
            for (int u = 0; u < at_once; ++u) {
                int i = n + u;
                if (i >= chunk.end) continue;
                element[u] = elements[i];
                is_last[u] = ends(i);
                is_whole[u] = whole;
                term[u].read(all, split, element[u].source, feature, to.columns);
                if (is_last[u] && whole) row[u].read(to, table + keys.id(element[u].key));
                whole = whole || is_last[u];
            }
#pragma unroll
            for (int u = 0; u < at_once; ++u) {
                int i = n + u;
                if (i >= chunk.end) continue;
                term[u].add_to(g, split, element[u].source, to.columns);
                if (!is_last[u] && i + 1 < chunk.end) continue;
                if (is_last[u] && is_whole[u]) row[u].write(to, table + keys.id(element[u].key), g);
                else store_floats<held>(part(int(threadIdx.y), is_whole[u]), g.value);
                g = {};
            }
        }
        __syncthreads();
        // Whose row goes on behind its chunk adds the parts that others have of it.
        if (chunk.begin < chunk.end && whole && !ends(chunk.end - 1)) {
            const unsigned key = elements[chunk.end - 1].key;
            const long long of_key = table + keys.id(key);
            load_floats<held>(g.value, part(int(threadIdx.y), 1));
            for (int group = int(threadIdx.y) + 1; group * chunk.length < count; ++group) {
                if (elements[group * chunk.length].key != key) break;
                float values[held];
                load_floats<held>(values, part(group, 0));
#pragma unroll
                for (int e = 0; e < held; ++e) g.value[e] += values[e];
            }
            RowUpdate<T, width, packs> row;
            row.read(to, of_key);
            row.write(to, of_key, g);
        }
    }
}

#ifndef __CUDACC_RTC__
// How many ids a part has, into how many buckets a table is cut, by their bits, and for how many elements of a bucket
// there is room on chip.
struct Design {
    int part, bucket_bits, elements;

    long long parts(long long batch) const { return (batch + part - 1) / part; }
    // The most elements that a row can have: of each part one a chunk, and what is too few for a sum at both its ends.
    long long of_a_row(long long batch) const { return parts(batch) * (part / shortest_chunk + 2 * (few - 1)); }
};
inline Design design_of(long long batch) {
    Design design{256, 0, most_elements};
    while (design.part < most_part && design.parts(batch) > 32) design.part *= 2;
    while (design.bucket_bits < most_bucket_bits && batch >> (design.bucket_bits + 1) >= bucket_elements)
        ++design.bucket_bits;
    return design;
}

template <class T, int width, int packs>
cudaError_t launch(Integers indices, const Tables& tables, const Occurrences<T>& all, const Target<T>& to,
                   const Split& split, int most, cudaStream_t stream) {
    unsigned lanes = 1;
    while (lanes * width * packs < to.columns) lanes *= 2;
    dim3 block(lanes, threads / lanes);
    size_t counts = sizeof(unsigned short) * (warps << digit_bits), features = size_t(split.features);
    cudaError_t error =
        launch_kernel(split_kernel<T, width, packs>, dim3(unsigned(split.parts), unsigned(features)), block,
                      sizeof(Element) * most_part + counts, stream, indices, tables, all, to.columns, split);
    if (error != cudaSuccess) return error;
    size_t shared = sizeof(Element) * most_elements + counts + sizeof(float) * 2 * threads * width * packs +
                    sizeof(int) * 2 * size_t(split.parts);
    auto kernel = to.rule == Rule::sgd ? update_kernel<T, width, packs, true> : update_kernel<T, width, packs, false>;
    error = set_shared_memory_limit(kernel, shared);
    if (error != cudaSuccess) return error;
    return launch_kernel(kernel, dim3(1u << split.bucket_bits, unsigned(features)), block, shared, stream,
                         tables, all, to, split, most);
}

// tables and state of `to` are written; all: weights, the gradient and B · F. allocate(bytes): memory while this runs.
template <class T, class Allocate>
cudaError_t launch(Integers indices, const Tables& tables, const Occurrences<T>& all, const Target<T>& to, const Design& design,
                   Allocate allocate, cudaStream_t stream) {
    if (all.count == 0 || to.columns == 0) return cudaSuccess;
    bool by_packs = to.columns % widest<T> == 0 && aligned(to.tables, all.grad) &&
                    (to.rule != Rule::adagrad || aligned(to.state));
    long long batch = all.count / tables.features, parts = design.parts(batch);
    if (to.columns > most_columns || all.count >= 1LL << 31 || tables.rows >= 1LL << 31 ||
        tables.features > 65535 || parts > threads || design.of_a_row(batch) > design.elements ||
        design.part > most_part || design.elements > most_elements)
        return cudaErrorInvalidValue;
    size_t elements = size_t(all.count), starts = size_t(tables.features * parts * ((1 << design.bucket_bits) + 1));
    size_t sums = (size_t(tables.features * parts * (design.part / few)) * size_t(to.columns) + 3) / 4 * 4;
    char* memory = static_cast<char*>(allocate(sizeof(float) * sums + sizeof(Element) * elements + sizeof(int) * starts));
    float* first_sum = reinterpret_cast<float*>(memory);
    Element* first_element = reinterpret_cast<Element*>(first_sum + sums);
    Split split{int(batch), tables.features, design.part, int(parts), design.bucket_bits, first_element,
                reinterpret_cast<int*>(first_element + elements), first_sum};
    auto go = by_packs ? launch<T, widest<T>, 1> : to.columns > lanes_of_a_warp ? launch<T, 1, most_packs> : launch<T, 1, 1>;
    return go(indices, tables, all, to, split, design.elements, stream);
}
#endif

}  // namespace embedding_bags_partition
