// embedding_bags_apart's CUDA kernels against float64 loops, so that no libtorch is needed.
#include "kernel.cuh"

#include <algorithm>
#include <deque>

#include "check/host/testing.cuh"

namespace op = embedding_bags_apart;
using testing::Buffer;
using testing::Expected;
using testing::Output;
using testing::Shape;

// The functions under test. A kernel of tests/broken puts its own in their place.
template <class T>
struct Functions {
    decltype(&op::launch<T>) launch = op::launch<T>;
    decltype(&op::launch_backward<T>) launch_backward = op::launch_backward<T>;
};
using Kernels = Functions<float>;
#ifdef BROKEN_KERNELS
#include BROKEN_KERNELS
#endif

// The tensors, by their bits in Shape::misaligned; a_table is the middle table alone: where one is not aligned,
// none is read as if it were.
enum { a_table, the_out, the_grad, a_gradient, tensors };

constexpr int features = 3, before = 2, all_features = before + features + 1;  // the launch's tables stand among others
const std::vector<long long> heights = {37, 1, 8};
const std::vector<long long> hostile = {-1, 37, 0x7fffffffLL, -0x80000000LL, (1LL << 32) + 5, INT64_MAX, INT64_MIN};

struct Ids {
    std::vector<long long> ids[features], offsets[features], bag[features];  // bag: of each id its row b

    // A batch of so many rows: one id a bag, or 0 to 4 and now and then 40; one in four is none of its table's.
    Ids(long long batch, bool ragged, bool narrow) {
        std::mt19937 bits(7);
        for (int f = 0; f < features; ++f) {
            offsets[f] = {0};
            for (long long b = 0; b < batch; ++b) {
                long long length = !ragged ? 1 : bits() % 16 ? bits() % 5 : 40 + bits() % 4;
                for (long long n = 0; n < length; ++n) {
                    bool good = bits() % 4;
                    ids[f].push_back(good ? (long long)(bits() % unsigned(heights[size_t(f)]))
                                          : hostile[bits() % (narrow ? 4 : hostile.size())]);
                    bag[f].push_back(b);
                }
                offsets[f].push_back((long long)ids[f].size());
            }
        }
    }
    // The id at position p of table f, or -1 if the table has no such row.
    long long row(int f, size_t p) const {
        return ids[f][p] >= 0 && ids[f][p] < heights[size_t(f)] ? ids[f][p] : -1;
    }
    long long length(int f, size_t p) const {
        size_t b = size_t(bag[f][p]);
        return offsets[f][b + 1] - offsets[f][b];
    }
};

// A batch on the device. Each id stands `stride` elements behind the one before it.
struct OnDevice {
    std::deque<Buffer<int>> narrow;
    std::deque<Buffer<long long>> wide, offsets;
    op::Bags bags = {};

    OnDevice(const Ids& batch, long long rows, bool is_narrow, bool ragged, bool has_last, long long stride) {
        bags.wide_indices = !is_narrow, bags.wide_offsets = true, bags.has_offsets = ragged, bags.has_last = has_last;
        bags.batch = rows, bags.features = features, bags.first = before, bags.all_features = all_features;
        for (int f = 0; f < features; ++f) {
            size_t count = batch.ids[f].size();
            std::vector<long long> spread(count ? (count - 1) * size_t(stride) + 1 : 0, 1 << 20);
            for (size_t p = 0; p < count; ++p) spread[p * size_t(stride)] = batch.ids[f][p];
            narrow.emplace_back(std::vector<int>(spread.begin(), spread.end()));
            wide.emplace_back(spread);
            offsets.emplace_back(std::vector<long long>(batch.offsets[f].begin(), batch.offsets[f].end() - !has_last));
            bags.indices[f] = is_narrow ? (const void*)narrow.back().get() : wide.back().get();
            bags.offsets[f] = offsets.back().get();
            bags.counts[f] = (long long)count;
            bags.strides[f] = stride;
        }
    }
};

// The ids of all tables in the order of their rows, which are counted from `first` on, as embedding_bags_sort gives them.
struct Sorted {
    std::vector<long long> keys;
    std::vector<int> positions, bags, lengths;

    Sorted(const Ids& batch, const op::Gradients<float>& to) {
        struct Entry {
            long long key;
            int position;
        };
        std::vector<Entry> entries;
        for (int f = 0; f < features; ++f)
            for (size_t p = 0; p < batch.ids[f].size(); ++p) {
                long long row = batch.row(f, p);
                long long key = row < 0 ? 2 * to.first[f + 1] : 2 * (to.first[f] + row) + 1;
                entries.push_back({key, int(entries.size())});
                bags.push_back(int(batch.bag[f][p]) * all_features + before + f);
                lengths.push_back(int(batch.length(f, p)));
            }
        std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.key < b.key; });
        for (const Entry& entry : entries) keys.push_back(entry.key), positions.push_back(entry.position);
    }
};

template <class T>
struct Case {
    std::vector<T> tables[features], grad;
    Expected out, grads[features];

    Case(const Shape& shape, const Ids& batch, op::Mode mode) {
        long long width = shape.columns;
        size_t elements = size_t(shape.rows * all_features * width);
        grad = testing::random<T>((long long)elements, 3);
        std::vector<double> size(elements);
        // Columns of other launches' tables stay as they were.
        out.values.assign(elements, 0);
        double epsilon = 16 * testing::Dtype<Accumulator<T>>::epsilon;
        for (int f = 0; f < features; ++f) {
            size_t table = size_t(heights[size_t(f)] * width);
            tables[f] = testing::random<T>((long long)table, 10 + f, shape.special);
            std::vector<double> of_rows(table);
            grads[f].values.resize(table);
            for (size_t p = 0; p < batch.ids[f].size(); ++p) {
                long long row = batch.row(f, p), place = batch.bag[f][p] * all_features + before + f;
                double parts = mode == op::Mode::mean ? double(batch.length(f, p)) : 1;
                for (long long d = 0; row >= 0 && d < width; ++d) {
                    size_t from = size_t(row * width + d), to = size_t(place * width + d);
                    double value = testing::to_double(tables[f][from]) / parts, incoming = testing::to_double(grad[to]) / parts;
                    out.values[to] += value, size[to] += std::fabs(value);
                    grads[f].values[from] += incoming, of_rows[from] += std::fabs(incoming);
                }
            }
            for (double each : of_rows) grads[f].slack.push_back(epsilon * each);
        }
        for (double each : size) out.slack.push_back(epsilon * each);
    }
};

template <class T>
void check(testing::Report& report, const Shape& shape, const Functions<T>& functions = {}) {
    if (!report.wants<T>(shape)) return;
    using M = op::Mode;
    long long width = shape.columns;
    Buffer<unsigned long long> told(report_size);
    told.write({0, 0, 0, 0, 0, 0});
    struct Kind {
        const char* name;
        M mode;
        bool narrow, ragged, has_last;
        long long stride;
    };
    for (const Kind& kind : {Kind{"one id", M::sum, false, false, false, 3}, {"one id, int32", M::mean, true, false, false, 1},
                             {"sum", M::sum, true, true, true, 1}, {"mean", M::mean, false, true, false, 2}}) {
        Ids batch(shape.rows, kind.ragged, kind.narrow);
        OnDevice on_device(batch, shape.rows, kind.narrow, kind.ragged, kind.has_last, kind.stride);
        Case<T> c(shape, batch, kind.mode);
        op::Tables tables = {};
        tables.report = told.get(), tables.first = before;
        std::deque<Buffer<T>> held;
        const T* rows[features];
        for (int f = features - 1; f >= 0; --f) {  // so that the first is not the lowest
            held.emplace_back(c.tables[f], f == 1 ? shape.off(a_table) : 0);
            rows[f] = held.back().get();
            tables.heights[f] = heights[size_t(f)];
        }
        std::vector<T> nothing(size_t(shape.rows * all_features * width), T(0));
        Buffer<T> out(shape.rows * all_features * width, shape.off(the_out));
        for (long long enough : {embedding_bags::enough_threads, 1LL}) {
            if (enough == 1 && !kind.ragged) continue;
            report.check<T>(shape, kind.name, enough > 1 ? "forward" : "forward, bags by turns", double(2 * out.bytes()),
                            {{"out", out, c.out, &nothing}}, [&] {
                                return functions.launch(tables, rows, on_device.bags, kind.mode, out.get(), width,
                                                        cudaStream_t{}, enough);
                            });
        }
        if (shape.special) continue;
        // Rows of other launches' tables come before and behind; the middle one's gradient is not wanted.
        for (bool whole : {true, false}) {
            op::Gradients<T> to = {};
            op::Gradients<float> places = {};
            to.features = features;
            std::deque<Buffer<T>> gradients;
            to.first[0] = places.first[0] = 5;
            for (int f = 0; f < features; ++f) {
                gradients.emplace_back(heights[size_t(f)] * width, f == 1 ? shape.off(a_gradient) : 0);
                to.first[f + 1] = places.first[f + 1] = to.first[f] + heights[size_t(f)];
                to.tables[f] = whole || f != 1 ? gradients.back().get() : nullptr;
            }
            Sorted sorted(batch, places);
            // Entries of the last row before these tables: what is its is not stored.
            for (int n = 0; n < 3; ++n) {
                sorted.keys.insert(sorted.keys.begin(), 2 * (to.first[0] - 1) + 1);
                sorted.positions.insert(sorted.positions.begin(), int(sorted.bags.size()));
                sorted.bags.push_back(0), sorted.lengths.push_back(1);
            }
            if (!shape.rows) sorted = Sorted(batch, places);  // there is no row 0 of a gradient to add
            long long count = (long long)sorted.keys.size();
            Buffer<T> grad(c.grad, shape.off(the_grad));
            Buffer<long long> keys(sorted.keys);
            Buffer<int> positions(sorted.positions), bags(sorted.bags), lengths(sorted.lengths);
            Buffer<Accumulator<T>> parts(2 * embedding_bags::chunks_of(count) * width);
            embedding_bags::Sorted ids = {{keys.get(), true}, positions.get(), bags.get(),
                                          kind.mode == M::mean ? lengths.get() : nullptr, count};
            std::vector<Output> outputs;
            for (int f = 0; f < features; ++f)
                if (to.tables[f]) outputs.push_back({"grad_table", gradients[size_t(f)], c.grads[f]});
            report.check<T>(shape, kind.name, whole ? "backward" : "backward, two of three", double(grad.bytes()), outputs,
                            [&] {
                                return functions.launch_backward(grad.get(), to, ids, parts.get(), width, cudaStream_t{});
                            });
        }
    }
}

// Offsets that cannot be: nothing is read outside, and what the rows of good bags give is right.
void check_hostile_offsets(testing::Report& report) {
    constexpr long long width = 4;
    std::vector<float> values = testing::random<float>(3 * width, 1);
    Expected expected;
    for (int b = 0; b < 6; ++b)
        for (int d = 0; d < width; ++d) expected.values.push_back(b == 0 ? testing::to_double(values[size_t(d)]) : 0);
    Buffer<float> table(values), out(6 * width);
    // Bag 0 has id 0; the others fall or are negative.
    Buffer<long long> ids(std::vector<long long>{0, 0, 0}), offsets(std::vector<long long>{0, 1, 0, -5, INT64_MIN, -1, -1});
    Buffer<unsigned long long> told(report_size);
    told.write({0, 0, 0, 0, 0, 0});
    op::Tables tables = {};
    tables.heights[0] = 3, tables.report = told.get();
    op::Bags bags = {};
    bags.indices[0] = ids.get(), bags.offsets[0] = offsets.get(), bags.counts[0] = 3, bags.strides[0] = 1;
    bags.wide_indices = bags.wide_offsets = bags.has_offsets = bags.has_last = true;
    bags.batch = 6, bags.features = bags.all_features = 1;
    const float* rows[] = {table.get()};
    report.check<float>({6, width}, "sum", "hostile offsets", 0, {{"out", out, expected}}, [&] {
        return op::launch<float>(tables, rows, bags, op::Mode::sum, out.get(), width, cudaStream_t{},
                                 embedding_bags::enough_threads);
    });
}

__global__ void check_a_bag(op::Bags bags, op::Bags::Bag bag, long long i, long long* told) {
    bags.check(bag, i, reinterpret_cast<unsigned long long*>(told), true);
    told[report_size] = bag.begin, told[report_size + 1] = bag.end;
}

// What is reported: of a bad id its feature among all, its position among its table's ids and its value; of an offset the
// position among its table's.
void check_reports(testing::Report& report) {
    constexpr long long width = 4;
    Buffer<float> first(testing::random<float>(3 * width, 1)), second(testing::random<float>(3 * width, 2)), out(4 * width);
    Buffer<long long> good(std::vector<long long>{0, 2}), bad(std::vector<long long>{1, 9}), told(report_size);
    Buffer<long long> offsets(std::vector<long long>{0, 1});
    auto digest = [](long long a, long long b, long long c) { return a + report_b * b + report_c * c; };
    op::Tables tables = {};
    tables.heights[0] = tables.heights[1] = 3;
    tables.report = reinterpret_cast<unsigned long long*>(told.get());
    tables.first = 64;
    op::Bags bags = {};
    bags.indices[0] = good.get(), bags.indices[1] = bad.get(), bags.offsets[0] = bags.offsets[1] = offsets.get();
    bags.counts[0] = bags.counts[1] = 2, bags.strides[0] = bags.strides[1] = 1;
    bags.wide_indices = bags.wide_offsets = true;
    bags.batch = bags.features = bags.all_features = 2;
    bags.first = 0;
    const float* rows[] = {first.get(), second.get()};
    for (bool ragged : {false, true}) {
        Expected expected;  // claims; feature, position, id; their digest and the kind; count
        expected.values = {1, 65, 1, 9, double(digest(65, 1, 9) * 16 + op::bad_id), 0};
        bags.has_offsets = ragged;
        report.check<long long>({1, 6}, ragged ? "bags" : "one id", "a bad id", 0, {{"report", told, expected}}, [&] {
            told.write(std::vector<long long>(report_size));
            return op::launch<float>(tables, rows, bags, op::Mode::sum, out.get(), width, cudaStream_t{},
                                     embedding_bags::enough_threads);
        });
    }
    Buffer<long long> checked(report_size + 2);
    struct Offsets {
        long long b, begin, end;      // of bag b of table 1, which has three bags and two ids
        long long position, value;    // of what is told; -1: nothing
        long long from, to;           // what is read
    };
    bags.first = 64, bags.batch = 3, bags.has_last = true;
    for (const Offsets& given : {Offsets{1, 0, 2, -1, 0, 0, 2}, {1, 2, 2, -1, 0, 2, 2}, {2, 1, 2, -1, 0, 1, 2},  // good ones
                                 {0, 1, 2, 0, 1, 1, 2}, {1, -1, 1, 1, -1, 0, 1}, {1, 3, 3, 1, 3, 2, 2},
                                 {1, 1, 0, 2, 0, 1, 1}, {1, 0, 3, 2, 3, 0, 2}, {2, 0, 1, 3, 1, 0, 1}, {2, 0, 3, 3, 3, 0, 2}}) {
        Expected expected;
        auto word = (long long)(digest(65, given.position, given.value) * 16 + op::bad_offset);
        expected.values = {0, 0, 0, 0, 0, 0, double(given.from), double(given.to)};
        if (given.position >= 0)
            expected.values = {1, 65, double(given.position), double(given.value), double(word), 0, double(given.from),
                               double(given.to)};
        report.check<long long>({1, 8}, "bags", "an offset", 0, {{"report", checked, expected}}, [&] {
            checked.write(std::vector<long long>(report_size + 2));
            return launch_kernel(check_a_bag, dim3(1), dim3(1), 0, cudaStream_t{}, bags,
                                 op::Bags::Bag{0, 1, given.begin, given.end}, 3 + given.b, checked.get());
        });
    }
}

// As many tables as a launch takes, of one row each, and a gradient of the last one alone.
void check_most_tables(testing::Report& report) {
    constexpr long long width = 4, last = op::most_tables - 1;
    op::Gradients<float> to = {};
    to.features = op::most_tables;
    for (int f = 0; f <= op::most_tables; ++f) to.first[f] = f;
    std::vector<float> values = testing::random<float>(width, 1);
    Expected expected;
    expected.values.assign(values.begin(), values.end());
    Buffer<float> grad(values), table(width), parts(2 * embedding_bags::chunks_of(1) * width);
    to.tables[last] = table.get();
    Buffer<long long> keys(std::vector<long long>{2 * last + 1});
    Buffer<int> positions(std::vector<int>{0}), bags(std::vector<int>{0});
    embedding_bags::Sorted ids = {{keys.get(), true}, positions.get(), bags.get(), nullptr, 1};
    report.check<float>({1, width}, "one id", "64 tables", 0, {{"grad_table", table, expected}}, [&] {
        return op::launch_backward<float>(grad.get(), to, ids, parts.get(), width, cudaStream_t{});
    });
}

template <class T>
void check_dtype(testing::Report& report, const Functions<T>& functions = {}) {
    std::vector<Shape> shapes = {{0, 5}, {3, 0}, {1, 1}, {7, 4}, {30, 16}, {5, 33}, {7, 24, Shape::all}, {7, 8, 0, true}};
    if (!testing::few_rows()) shapes.insert(shapes.end(), {{150, 4}, {40, 128}, {2, 1025}});
    for (const Shape& shape : shapes) check<T>(report, shape, functions);
}

int main(int count, char** arguments) {
    return testing::run(count, arguments, [](testing::Report& report) {
        Kernels functions = testing::kernels_under_test<Kernels>();
        check_dtype<float>(report, functions);
        check_hostile_offsets(report);
        check_reports(report);
        check_most_tables(report);
        if (testing::quick) return;
        if constexpr (!testing::race_check) {  // a race does not go by the dtype
            check_dtype<double>(report);
            check_dtype<__half>(report);
            if constexpr (testing::on_gpu) check_dtype<__nv_bfloat16>(report);
            for (int tensor = 0; tensor < tensors; ++tensor) check<float>(report, {7, 24, 1u << tensor}, functions);
        }
    });
}
