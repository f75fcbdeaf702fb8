// embedding_bags_sort's CUDA kernels against std::stable_sort, so that no libtorch is needed.
#include "kernel.cuh"

#include <algorithm>
#include <numeric>

#include "check/host/testing.cuh"

namespace sort = embedding_bags_sort;
using testing::Buffer;
using testing::Expected;
using testing::Output;
using testing::Shape;

// Gives a launch the memory that it asks for.
struct Memory {
    Buffer<int>* buffer;
    void* operator()(size_t bytes) const {
        if (bytes > buffer->bytes()) std::printf("ERROR: %zu bytes of workspace\n", bytes), std::exit(1);
        return buffer->get();
    }
};

// The functions under test. A kernel of tests/broken puts its own in their place.
template <class Key>
struct Functions {
    decltype(&sort::launch<Key, Memory>) launch = sort::launch<Key, Memory>;
};
using Kernels = Functions<unsigned>;
#ifdef BROKEN_KERNELS
#include BROKEN_KERNELS
#endif

enum class Ids { drawn, alike, hostile };
constexpr long long heights[] = {3, 1, 500, 7, 70000};

// Shape: batch, tables. In bags: every third of the batch · tables is empty, the others have 1 to 3 ids.
struct Case {
    std::vector<long long> row_offsets = {0}, ids, offsets;
    Expected keys, positions, bags, lengths;

    Case(const Shape& shape, Ids kind, bool in_bags, bool narrow, long long rows, long long padding) {
        std::mt19937 bits(3);
        long long batch = shape.rows, features = shape.columns;
        for (long long f = 0; f < features; ++f) row_offsets.push_back(row_offsets.back() + heights[f % 5]);
        std::vector<long long> extremes = {-1, 3, INT32_MAX, INT32_MIN, (1LL << 32) + 2, INT64_MAX, INT64_MIN};
        if (narrow) extremes.resize(4);
        std::vector<long long> order, key;
        if (in_bags) offsets = {0};
        for (long long bag = 0; bag < batch * features; ++bag) {
            long long f = in_bags ? bag / batch : bag % features, length = !in_bags ? 1 : bag % 3 ? 1 + bits() % 3 : 0;
            long long counted = 0, first = (long long)ids.size();
            for (long long i = 0; i < length; ++i) {
                long long height = heights[f % 5], id = (long long)(bits() % (unsigned)height);
                if (kind == Ids::alike) id = 0;
                if (kind == Ids::hostile && bits() % 2) id = bits() % 3 ? extremes[bits() % extremes.size()] : height;
                bool there = id >= 0 && id < height && id != padding;
                ids.push_back(id);
                key.push_back(there ? 2 * (row_offsets[size_t(f)] + id) + 1 : 2 * row_offsets[size_t(f) + 1]);
                if (in_bags) bags.values.push_back(double(bag % batch * features + f));
                counted += padding < 0 || id != padding;
            }
            if (in_bags) offsets.push_back((long long)ids.size());
            for (long long i = first; in_bags && i < offsets.back(); ++i) lengths.values.push_back(double(counted));
        }
        order.resize(ids.size());
        std::iota(order.begin(), order.end(), 0LL);
        std::stable_sort(order.begin(), order.end(), [&](long long a, long long b) { return key[size_t(a)] < key[size_t(b)]; });
        for (long long n : order) keys.values.push_back(double(key[size_t(n)])), positions.values.push_back(double(n));
        if (rows < row_offsets.back()) std::exit(1);
    }
};

// Keys of 32 bits, or of 64 as for tables of 2^30 rows and more.
template <class Key>
void check(testing::Report& report, const Shape& shape, Ids kind, bool in_bags, long long table_keys,
           const Functions<Key>& functions = {}) {
    using Signed = std::conditional_t<sizeof(Key) == 4, int, long long>;
    if (!report.wants<Signed>(shape)) return;
    const char* names[] = {"drawn", "alike", "hostile"};
    long long rows = sizeof(Key) == 4 ? 1LL << 28 : 1LL << 40;
    struct Kind {
        bool narrow;
        long long padding;
    };
    std::vector<Kind> kinds = {{false, -1}, {true, -1}};
    if (kind == Ids::hostile) kinds = {{false, 2}, {true, 0}, {false, -1}};
    for (const Kind& of_ids : kinds) {
        const bool narrow = of_ids.narrow;
        const long long padding = of_ids.padding;
        Case c(shape, kind, in_bags, narrow, rows, padding);
        long long count = (long long)c.ids.size();
        Buffer<long long> row_offsets(c.row_offsets), wide_ids(c.ids), offsets(c.offsets);
        Buffer<int> ids(std::vector<int>(c.ids.begin(), c.ids.end())), memory(8 * count + (1 << 20));
        Buffer<Signed> keys(count);
        Buffer<int> positions(count), bags(in_bags ? count : 0), lengths(in_bags ? count : 0);
        std::vector<Output> outputs = {{"keys", keys, c.keys}, {"positions", positions, c.positions}};
        if (in_bags) outputs.insert(outputs.end(), {{"bags", bags, c.bags}, {"lengths", lengths, c.lengths}});
        std::string how = std::string(in_bags ? "bags" : table_keys ? "by table" : "at once") + (narrow ? ", int32" : "") +
                          (padding < 0 ? "" : ", padding");
        report.check<Signed>(shape, names[int(kind)], how, double(wide_ids.bytes() + keys.bytes()), outputs, [&] {
            Integers given{narrow ? (const void*)ids.get() : wide_ids.get(), !narrow};
            sort::Tables tables{row_offsets.get(), rows, padding, int(shape.columns)};
            return functions.launch(given, in_bags ? Integers{offsets.get(), true} : Integers{}, tables, count, shape.rows,
                                    reinterpret_cast<Key*>(keys.get()), positions.get(), in_bags ? bags.get() : nullptr,
                                    in_bags ? lengths.get() : nullptr, table_keys, Memory{&memory}, cudaStream_t{});
        });
    }
}

// Offsets that lie, in storage of their own size, beside a padding and a mean: bags that begin before the ids and end
// behind them, that fall, or that end early. Nothing is read outside, keys ascend, each position comes once, and an id that
// lies in no bag names no row.
void check_lying_offsets(testing::Report& report) {
    struct Kind {
        const char* name;
        std::vector<long long> offsets;
        int none;  // how many ids lie in no bag
    };
    for (const Kind& kind : {Kind{"by one", {-1, 3, 6, 9, 13}, 0}, {"beyond", {-7, 3, 90, 4, 100}, 0}, {"falling", {0, 5, -(1LL << 40), 1LL << 40, 5}, 0},
                             {"early", {0, 1, 2, 3, 4}, 8}, {"late", {9, 10, 11, 12, 12}, 9}}) {
        std::vector<long long> ids;
        for (int i = 0; i < 12; ++i) ids.push_back(i % 3);
        Buffer<long long> row_offsets(std::vector<long long>{0, 4, 8}), indices(ids), offsets(kind.offsets);
        Buffer<int> keys(12), positions(12), bags(12), lengths(12), memory(1 << 16), faults(1);
        Expected none;
        none.values = {0};
        report.check<int>({2, 2}, "lying offsets", kind.name, 0, {{"faults", faults, none}}, [&] {
            sort::Tables tables{row_offsets.get(), 8, 2, 2};
            cudaError_t error = sort::launch<unsigned>({indices.get(), true}, {offsets.get(), true}, tables, 12, 2,
                                                       reinterpret_cast<unsigned*>(keys.get()), positions.get(), bags.get(),
                                                       lengths.get(), 0, Memory{&memory}, cudaStream_t{});
            std::vector<int> key = keys.read(), position = positions.read(), all(12), bag = bags.read();
            std::iota(all.begin(), all.end(), 0);
            std::sort(position.begin(), position.end());
            bool outside = std::any_of(bag.begin(), bag.end(), [](int b) { return b < 0 || b >= 4; });
            long long behind = std::count(key.begin(), key.end(), 16);
            faults.write({!std::is_sorted(key.begin(), key.end()) + 2 * (key[0] < 0 || key[11] > 16) + 4 * (position != all) +
                          8 * outside + 16 * (behind < kind.none)});
            return error;
        });
    }
}

// row_offsets that fall, or lie beyond all rows: keys ascend, name rows that there are, and each position comes once.
void check_falling(testing::Report& report) {
    for (const std::vector<long long>& given : {std::vector<long long>{0, 4, 2, 8}, {8, 0, 3, 3}, {-5, 1LL << 40, 2, 6}, {0, 5, 8, 9},
                                                {-1, 3, 5, 8}}) {
        std::vector<long long> ids;
        for (int i = 0; i < 120; ++i) ids.push_back(i % 7 - 1);
        Buffer<long long> row_offsets(given), indices(ids);
        Buffer<int> keys(120), positions(120), memory(1 << 20), faults(1);
        Expected none;
        none.values = {0};
        for (long long table_keys : {4096, 0})
            report.check<int>({40, 3}, "falling", std::to_string(given[1]), 0, {{"faults", faults, none}}, [&] {
                sort::Tables tables{row_offsets.get(), 8, -1, 3};
                cudaError_t error = sort::launch<unsigned>({indices.get(), true}, {}, tables, 120, 40,
                                                           reinterpret_cast<unsigned*>(keys.get()), positions.get(), nullptr,
                                                           nullptr, table_keys, Memory{&memory}, cudaStream_t{});
                std::vector<int> key = keys.read(), position = positions.read(), all(120);
                std::iota(all.begin(), all.end(), 0);
                std::sort(position.begin(), position.end());
                faults.write({!std::is_sorted(key.begin(), key.end()) + 2 * (key[0] < 0 || key[119] > 16) + 4 * (position != all)});
                return error;
            });
    }
}

int main(int count, char** arguments) {
    return testing::run(count, arguments, [](testing::Report& report) {
        Kernels functions = testing::kernels_under_test<Kernels>();
        for (long long batch : {0, 1, 31, 32, 33}) check<unsigned>(report, {batch, 5}, Ids::drawn, false, 32768, functions);
        for (Ids kind : {Ids::alike, Ids::hostile}) check<unsigned>(report, {70, 5}, kind, false, 32768, functions);
        for (Ids kind : {Ids::drawn, Ids::hostile}) check<unsigned>(report, {30, 5}, kind, true, 0, functions);
        check_falling(report);
        check_lying_offsets(report);
        if (testing::few_rows()) return;
        check<unsigned>(report, {4097, 1}, Ids::alike, false, 32768);  // two runs, which are merged
        for (long long batch : {255, 256, 257}) check<unsigned>(report, {batch, 3}, Ids::drawn, false, 256, functions);
        for (long long batch : {2048, 2049, 8192, 13000}) check<unsigned>(report, {batch, 5}, Ids::hostile, false, 32768);
        check<unsigned>(report, {2, sort::most_tables + 1}, Ids::drawn, false, 32768);
        check<unsigned>(report, {0, 5}, Ids::drawn, true, 0);
        for (Ids kind : {Ids::drawn, Ids::alike, Ids::hostile})
            for (bool in_bags : {false, true}) {
                check<unsigned>(report, {100, 5}, kind, in_bags, 0);
                check<unsigned long long>(report, {100, 5}, kind, in_bags, 32768);
            }
    });
}
