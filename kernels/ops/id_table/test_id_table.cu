// The id table's CUDA kernels against std::map, so that no libtorch is needed. A shape is tables x ids of each.
#include "kernel.cuh"

#include <chrono>
#include <future>
#include <memory>
#include <set>

#include "check/host/testing.cuh"

// The functions under test. A kernel of tests/broken puts its own in their place.
template <class Key, class TableId>
struct Functions {
    decltype(&id_table::launch_look_up<Key, TableId>) look_up = id_table::launch_look_up<Key, TableId>;
    decltype(&id_table::launch_claim<Key, TableId>) claim = id_table::launch_claim<Key, TableId>;
    decltype(&id_table::launch_erase<Key, TableId>) erase = id_table::launch_erase<Key, TableId>;
};
using Kernels = Functions<long long, int>;
#ifdef BROKEN_KERNELS
#include BROKEN_KERNELS
#endif

using id_table::bucket_slots;
using id_table::Slot;
using testing::Buffer;
using testing::Expected;
using testing::Shape;
using Numbers = std::vector<long long>;

// Different ids, the extremes among them.
template <class Key>
std::vector<Key> different_ids(long long count, unsigned seed) {
    using Limits = std::numeric_limits<Key>;
    std::vector<Key> ids = {0, -1, -2, -3, -4, 1, Limits::max(), Limits::min()};
    if (count < (long long)ids.size()) ids.resize(size_t(count));
    std::mt19937_64 bits(seed);
    std::set<Key> known(ids.begin(), ids.end());
    while ((long long)ids.size() < count)
        if (Key id = Key(bits()); known.insert(id).second) ids.push_back(id);
    return ids;
}

template <class T>
std::vector<T> narrowed(const Numbers& values) {
    return {values.begin(), values.end()};
}

// Tables with room for `columns` ids each, at this load; each function below begins with empty ones.
template <class Key, class TableId>
class Tables {
public:
    Tables(const Shape& shape, double load, const Functions<Key, TableId>& op)
        : op_(op), tables_(shape.rows), buckets_((long long)std::ceil(double(shape.columns) / load / bucket_slots)),
          tags_(tables_ * buckets_ * bucket_slots), slots_(tables_ * buckets_ * bucket_slots), offsets_(tables_ + 1),
          seeds_(tables_) {
        Numbers offsets, seeds;
        for (long long t = 0; t <= tables_; ++t) offsets.push_back(t * buckets_);
        for (long long t = 0; t < tables_; ++t) {
            seeds.push_back(t * 7919 - 3);
            for (Key id : different_ids<Key>(shape.columns + 5, unsigned(t))) {
                bool known = (long long)ids.size() % (shape.columns + 5) < shape.columns;  // the last five are not
                rows.push_back(known ? (long long)ids.size() % (shape.columns + 5) + 1 : 0);
                ids.push_back(id), owners.push_back(TableId(t));
            }
        }
        offsets_.write(offsets), seeds_.write(seeds);
    }

    std::vector<Key> ids;         // of all tables, and five more of each that are not inserted
    std::vector<TableId> owners;  // their tables
    Numbers rows;                 // 0 for the five

    // Claims every id, and then again in reverse order; `first` gets the position that each found in its slot.
    cudaError_t claim(Numbers& first) {
        tags_.write(std::vector<unsigned char>(size_t(tables_ * buckets_ * bucket_slots)));
        std::vector<Key> keys;
        std::vector<TableId> tables;
        for (size_t i = 0; i < ids.size(); ++i)
            if (rows[i]) keys.push_back(ids[i]), tables.push_back(owners[i]);
        for (size_t i = keys.size(); i--;) keys.push_back(keys[i]), tables.push_back(tables[i]);
        Buffer<Key> keys_(keys);
        Buffer<TableId> tables_of_keys(tables);
        Buffer<long long> where((long long)keys.size());
        cudaError_t error = op_.claim(storage(), keys_.get(), tables_of_keys.get(), where.get(), (long long)keys.size(), {});
        if (error != cudaSuccess) return error;
        Numbers index = where.read();
        std::vector<Slot> slots = slots_.read();
        first.assign(keys.size(), -1);
        for (size_t i = 0; i < keys.size(); ++i)
            if (index[i] >= 0 && index[i] < (long long)slots.size()) first[i] = -1 - slots[size_t(index[i])].row;
        return cudaSuccess;
    }

    // Claims, and gives each id its row.
    cudaError_t insert() {
        Numbers first;
        cudaError_t error = claim(first);
        if (error != cudaSuccess) return error;
        Numbers known;
        for (long long row : rows)
            if (row) known.push_back(row);
        std::vector<Slot> slots = slots_.read();
        for (Slot& slot : slots)
            if (slot.row < 0 && -1 - slot.row < (long long)known.size()) slot.row = known[size_t(-1 - slot.row)];
        slots_.write(slots);
        return cudaSuccess;
    }

    // Gives all slots the row 0, which is no key's.
    void forget_rows() {
        std::vector<Slot> slots = slots_.read();
        for (Slot& slot : slots) slot.row = 0;
        slots_.write(slots);
    }

    // Erases every third id, twice; `there` gets whether each was found.
    cudaError_t erase(Numbers& there) {
        std::vector<Key> keys;
        std::vector<TableId> tables;
        for (int time = 0; time < 2; ++time)
            for (size_t i = 0; i < ids.size(); i += 3) keys.push_back(ids[i]), tables.push_back(owners[i]);
        Buffer<Key> keys_(keys);
        Buffer<TableId> tables_of_keys(tables);
        Buffer<long long> where((long long)keys.size());
        cudaError_t error = op_.erase(storage(), keys_.get(), tables_of_keys.get(), where.get(), (long long)keys.size(), {});
        if (error != cudaSuccess) return error;
        there.clear();
        for (long long index : where.read()) there.push_back(index >= 0);
        return cudaSuccess;
    }

    // found and row of each id, and of each id in a table that is not there.
    cudaError_t look_up(Numbers& found, Numbers& row) {
        std::vector<Key> keys = ids;
        std::vector<TableId> tables = owners;
        for (size_t i = 0; i < ids.size(); ++i) {
            keys.push_back(ids[i]);
            tables.push_back(i % 2 ? TableId(-(long long)i) : TableId(tables_));
        }
        Buffer<Key> keys_(keys);
        Buffer<TableId> tables_of_keys(tables);
        Buffer<long long> got((long long)keys.size());
        Buffer<unsigned char> there((long long)keys.size());
        auto* flags = reinterpret_cast<bool*>(there.get());
        cudaError_t error =
            op_.look_up(storage(), keys_.get(), tables_of_keys.get(), flags, got.get(), (long long)keys.size(), {});
        if (error != cudaSuccess) return error;
        found.clear();
        for (unsigned char flag : there.read()) found.push_back(flag);
        row = got.read();
        return cudaSuccess;
    }

private:
    id_table::Storage storage() const {
        return {tags_.get(), slots_.get(), offsets_.get(), seeds_.get(), tables_, tables_ * buckets_};
    }

    const Functions<Key, TableId>& op_;
    long long tables_, buckets_;
    Buffer<unsigned char> tags_;
    Buffer<Slot> slots_;
    Buffer<long long> offsets_, seeds_;
};

// One row: work fills `got`, which must be `wanted`.
void check_row(testing::Report& report, const Shape& shape, const char* what, const std::string& direction,
               const std::vector<std::pair<const char*, Numbers>>& wanted,
               const std::function<cudaError_t(std::vector<Numbers>&)>& work) {
    std::vector<std::unique_ptr<Buffer<long long>>> buffers;
    std::vector<Expected> expected(wanted.size());
    std::vector<testing::Output> outputs;
    for (size_t o = 0; o < wanted.size(); ++o) {
        buffers.push_back(std::make_unique<Buffer<long long>>((long long)wanted[o].second.size()));
        expected[o].values.assign(wanted[o].second.begin(), wanted[o].second.end());
    }
    for (size_t o = 0; o < wanted.size(); ++o) outputs.push_back({wanted[o].first, *buffers[o], expected[o]});
    report.check<long long>(shape, what, direction, 0, outputs, [&] {
        std::vector<Numbers> got(wanted.size());
        cudaError_t error = work(got);
        for (size_t o = 0; o < wanted.size() && error == cudaSuccess; ++o) buffers[o]->write(got[o]);
        return error;
    });
}

template <class Key, class TableId>
void check_tables(testing::Report& report, const Shape& shape, double load, const Functions<Key, TableId>& op = {}) {
    std::string suffix = std::string(load == 1 ? ", full" : "") + (sizeof(Key) == 4 ? ", int32" : "");
    Tables<Key, TableId> tables(shape, load, op);
    long long count = shape.elements();
    Numbers first, rows = tables.rows, found, there;
    for (long long i = 0; i < count; ++i) first.push_back(i);
    for (long long i = count; i--;) first.push_back(i);
    check_row(report, shape, "table", "claim" + suffix, {{"first", first}},
              [&](std::vector<Numbers>& got) { return tables.claim(got[0]); });

    rows.resize(2 * rows.size());
    for (long long row : rows) found.push_back(row > 0);
    check_row(report, shape, "table", "look up" + suffix, {{"found", found}, {"rows", rows}},
              [&](std::vector<Numbers>& got) {
                  cudaError_t error = tables.insert();
                  return error == cudaSuccess ? tables.look_up(got[0], got[1]) : error;
              });

    Numbers none(rows.size());
    check_row(report, shape, "table", "row 0" + suffix, {{"found", none}, {"rows", none}},
              [&](std::vector<Numbers>& got) {
                  cudaError_t error = tables.insert();
                  tables.forget_rows();
                  return error == cudaSuccess ? tables.look_up(got[0], got[1]) : error;
              });

    for (int time = 0; time < 2; ++time)
        for (size_t i = 0; i < tables.ids.size(); i += 3) there.push_back(tables.rows[i] > 0);
    for (size_t i = 0; i < tables.ids.size(); i += 3) rows[i] = found[i] = 0;
    check_row(report, shape, "table", "erase" + suffix, {{"there", there}, {"found", found}, {"rows", rows}},
              [&](std::vector<Numbers>& got) {
                  cudaError_t error = tables.insert();
                  if (error == cudaSuccess) error = tables.erase(got[0]);
                  return error == cudaSuccess ? tables.look_up(got[1], got[2]) : error;
              });
}

// Storage whose bucket_offsets lie: such a table has no bucket, whatever its keys, and nothing beside the storage is read.
void check_lying_storage(testing::Report& report, const Shape& shape) {
    long long buckets = shape.rows, count = shape.columns;
    std::vector<long long> keys = different_ids<long long>(count, 5);
    Buffer<unsigned char> tags(std::vector<unsigned char>(size_t(buckets * bucket_slots), id_table::erased));
    Buffer<Slot> slots(buckets * bucket_slots);
    Buffer<long long> given(keys), seeds(Numbers{7}), rows(count), where(count);
    Buffer<int> tables(std::vector<int>(size_t(count), 0));
    Buffer<unsigned char> found(count);
    const Numbers lies[] = {{0, buckets + 1}, {-1, buckets}, {buckets, buckets + 1}, {buckets, 0}, {0, 0},
                            {1LL << 62, (1LL << 62) + 1}};
    std::vector<std::pair<const char*, Numbers>> none = {{"found", Numbers(size_t(count), 0)},
                                                         {"rows", Numbers(size_t(count), 0)},
                                                         {"where", Numbers(size_t(count), -1)}};
    int number = 0;
    for (const Numbers& lie : lies) {
        Buffer<long long> offsets(lie);
        ++number;
        id_table::Storage storage{tags.get(), slots.get(), offsets.get(), seeds.get(), 1, buckets};
        check_row(report, shape, "lies", std::to_string(number), none, [&](std::vector<Numbers>& got) {
            cudaError_t error = id_table::launch_look_up(storage, given.get(), tables.get(),
                                                         reinterpret_cast<bool*>(found.get()), rows.get(), count, {});
            if (error != cudaSuccess) return error;
            error = id_table::launch_claim(storage, given.get(), tables.get(), where.get(), count, {});
            for (unsigned char flag : found.read()) got[0].push_back(flag);
            got[1] = rows.read(), got[2] = where.read();
            return error;
        });
    }
}

// A thread that finds a tag claimed waits: the slot may become that of its own key.
void check_claimed_slot([[maybe_unused]] testing::Report& report) {
#ifndef __CUDACC__
    const long long key = 12345;
    check_row(report, {1, 1}, "held", "claim", {{"slot", {0}}, {"row", {-6}}, {"taken", {1}}},
              [&](std::vector<Numbers>& got) {
                  Buffer<unsigned char> tags(std::vector<unsigned char>(bucket_slots, id_table::empty));
                  Buffer<Slot> slots(bucket_slots);
                  Buffer<long long> offsets(Numbers{0, 1}), seeds(Numbers{7});
                  id_table::Storage storage{tags.get(), slots.get(), offsets.get(), seeds.get(), 1, 1};
                  auto* word = reinterpret_cast<unsigned*>(tags.get());
                  atomicAdd(word, unsigned(id_table::claimed));  // of the first slot, by a thread that is slow
                  auto other = std::async(std::launch::async, [&] { return id_table::claim(storage, 0, key, 5); });
                  other.wait_for(std::chrono::milliseconds(50));  // it must be waiting, and would otherwise have ended
                  slots.get()[0] = {key, -1 - 9};
                  __threadfence();
                  atomicAdd(word, id_table::Probe(storage, 0, key).tag - id_table::claimed);
                  long long index = other.get(), taken = 0;
                  for (unsigned char tag : tags.read()) taken += tag != id_table::empty;
                  got = {{index}, {index < 0 ? 0 : slots.read()[size_t(index)].row}, {taken}};
                  return cudaSuccess;
              });
#endif
}

// Offsets of features x bags, whose lengths are 0 to 3, and two keys before them that no bag holds. Tables of one
// feature, of none, and of the rest; and tables of features that are not there, in front of the first one or behind the
// last.
template <class Offset>
void check_bags(testing::Report& report, const Shape& shape) {
    std::vector<Offset> offsets = {2};
    for (long long i = 0; i < shape.elements(); ++i) offsets.push_back(offsets.back() + Offset(i * 7 % 4));
    long long one = std::min(1LL, shape.rows);
    Buffer<Offset> given(offsets), nothing(0);
    Buffer<long long> features(4);
    id_table::Bags<Offset> bags{given.get(), features.get(), (long long)offsets.size(), shape.columns};
    for (bool lies : {false, true}) {
        Numbers begins = {0, one, one, shape.rows}, range, wanted;
        for (long long begin : begins) range.push_back(offsets[size_t(begin * shape.columns)]);
        if (lies) begins = {-5, shape.rows + 1, 1LL << 40, shape.rows}, range = {range[0], range[3], range[3], range[3]};
        for (long long i = 0; i < offsets.back() + 3; ++i)
            wanted.push_back(i < range[0] ? -1 : i < range[1] ? 0 : i < range[3] ? 2 : -1);
        features.write(begins);
        std::string suffix = std::string(lies ? ", lies" : "") + (sizeof(Offset) == 4 ? ", int32" : "");
        check_row(report, shape, "bags", "expand" + suffix, {{"tables", wanted}}, [&](std::vector<Numbers>& got) {
            Buffer<int> out((long long)wanted.size());
            cudaError_t error = id_table::launch_expand(bags, 3, out.get(), (long long)wanted.size(), {});
            std::vector<int> read = out.read();
            got[0].assign(read.begin(), read.end());
            return error;
        });
        check_row(report, shape, "bags", "range" + suffix, {{"begins", range}}, [&](std::vector<Numbers>& got) {
            Buffer<Offset> out(4);
            cudaError_t error = id_table::launch_range(bags, 3, out.get(), {});
            std::vector<Offset> read = out.read();
            got[0].assign(read.begin(), read.end());
            return error;
        });
    }
    check_row(report, shape, "bags", "no offsets", {{"begins", {0, 0, 0, 0}}}, [&](std::vector<Numbers>& got) {
        Buffer<Offset> out(4);
        cudaError_t error = id_table::launch_range({nothing.get(), features.get(), 0, 0}, 3, out.get(), {});
        std::vector<Offset> read = out.read();
        got[0].assign(read.begin(), read.end());
        return error;
    });
}

int main(int count, char** arguments) {
    return testing::run(count, arguments, [](testing::Report& report) {
        Kernels op = testing::kernels_under_test<Kernels>();
        for (const Shape& shape : {Shape{1, 1}, Shape{0, 5}, Shape{3, 0}, Shape{1, 16}, Shape{3, 100}, Shape{2, 320}}) {
            for (double load : {0.875, 1.0}) check_tables<long long, int>(report, shape, load, op);
            check_tables<int, long long>(report, shape, 0.875);
        }
        if (!testing::few_rows()) check_tables<long long, int>(report, {5, 4096}, 0.875, op);
        check_lying_storage(report, {3, 40});
        if (!testing::race_check) check_claimed_slot(report);
        for (const Shape& shape : {Shape{3, 0}, Shape{1, 1}, Shape{1, 40}, Shape{5, 1}, Shape{26, 40}}) {
            check_bags<long long>(report, shape);
            check_bags<int>(report, shape);
        }
    });
}
