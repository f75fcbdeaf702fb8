// embedding_bags's CUDA kernels against float64 loops, so that no libtorch is needed.
#include "backward.cuh"

#include <algorithm>

#include "check/host/testing.cuh"

namespace op = embedding_bags;
using testing::Buffer;
using testing::Expected;
using testing::Output;
using testing::Shape;

// The functions under test. A kernel of tests/broken puts its own in their place.
template <class T>
struct Functions {
    decltype(&op::launch_one_id<int>) launch_one_id = op::launch_one_id<int>;
    decltype(&op::launch_one_id<long long>) launch_one_id_wide = op::launch_one_id<long long>;
    decltype(&op::launch_bags<T>) launch_bags = op::launch_bags<T>;
    decltype(&op::launch_bags_plain<T>) launch_bags_plain = op::launch_bags_plain<T>;
    decltype(&op::launch_backward<T>) launch_backward = op::launch_backward<T>;
};
using Kernels = Functions<float>;
#ifdef BROKEN_KERNELS
#include BROKEN_KERNELS
#endif

// The tensors, by their bits in Shape::misaligned.
enum { the_tables, the_out, the_grad, the_grad_tables, tensors };

constexpr long long features = 3;
const std::vector<long long> heights = {37, 1, 8}, first = {0, 37, 38, 46};
constexpr long long all_rows = 46;
// One in four ids is none of its table's.
const std::vector<long long> hostile = {-1, 37, 8, 0x7fffffffLL, -0x80000000LL, (1LL << 32) + 5, INT64_MAX, INT64_MIN};

struct Ids {
    std::vector<long long> ids, offsets, bag, feature;  // bag: of each id its row of the output

    // A batch of so many rows; one id a bag, or 0 to 4 and now and then 40 to 43.
    Ids(long long batch, bool ragged, bool narrow) {
        std::mt19937 bits(7);
        offsets = {0};
        for (long long i = 0; i < features * batch; ++i) {
            long long f = ragged ? i / batch : i % features, row = ragged ? (i % batch) * features + f : i;
            long long length = !ragged ? 1 : bits() % 16 ? bits() % 5 : 40 + bits() % 4;
            for (long long n = 0; n < length; ++n) {
                bool good = bits() % 4, is_narrow = narrow;
                ids.push_back(good ? (long long)(bits() % (unsigned)heights[size_t(f)])
                                   : hostile[bits() % (is_narrow ? 5 : hostile.size())]);
                bag.push_back(row);
                feature.push_back(f);
            }
            offsets.push_back((long long)ids.size());
        }
    }
    // The row of id p, or -1.
    long long row(size_t p, long long padding) const {
        long long f = feature[p];
        if (ids[p] < 0 || ids[p] >= heights[size_t(f)] || ids[p] == padding) return -1;
        return first[size_t(f)] + ids[p];
    }
    template <class Id>
    std::vector<Id> as() const {
        return std::vector<Id>(ids.begin(), ids.end());
    }
};

// The ids as embedding_bags_sort gives them.
struct Sorted {
    std::vector<long long> keys;
    std::vector<int> positions, bags, lengths;

    Sorted(const Ids& batch, long long padding) {
        std::vector<long long> key;
        std::vector<int> counted(size_t(features) * batch.offsets.size());
        for (size_t p = 0; p < batch.ids.size(); ++p) {
            long long row = batch.row(p, padding);
            key.push_back(row < 0 ? 2 * first[size_t(batch.feature[p]) + 1] : 2 * row + 1);
            counted[size_t(batch.bag[p])] += batch.ids[p] != padding;
            positions.push_back(int(p)), bags.push_back(int(batch.bag[p]));
        }
        for (long long bag : batch.bag) lengths.push_back(counted[size_t(bag)]);
        std::stable_sort(positions.begin(), positions.end(), [&](int a, int b) { return key[size_t(a)] < key[size_t(b)]; });
        for (int p : positions) keys.push_back(key[size_t(p)]);
    }
};

template <class T>
struct Case {
    std::vector<T> tables, weights, grad;
    Expected out, grad_tables, grad_weights;

    Case(const Shape& shape, const Ids& batch, op::Mode mode, bool weighted, long long padding) {
        long long width = shape.columns, bags = shape.rows * features;
        tables = testing::random<T>(all_rows * width, 1, shape.special);
        weights = testing::random<T>((long long)batch.ids.size(), 2);
        grad = testing::random<T>(bags * width, 3);
        size_t elements = size_t(bags * width), count = batch.ids.size();
        std::vector<double> size(elements), counted(size_t(bags), 0.0), table_size(size_t(all_rows * width));
        std::vector<long long> winner(elements, -1);
        out.values.resize(elements);
        grad_tables.values.resize(table_size.size());
        grad_weights.values.resize(count);
        grad_weights.slack.resize(count);
        for (size_t p = 0; p < count; ++p) {
            if (batch.ids[p] == padding) continue;
            long long row = batch.row(p, padding), bag = batch.bag[p];
            for (long long d = 0; d < width; ++d) {
                size_t at = size_t(bag * width + d);
                double value = row < 0 ? 0 : testing::to_double(tables[size_t(row * width + d)]);
                if (weighted && row >= 0) value *= testing::to_double(weights[p]);
                if (mode != op::Mode::max) {
                    out.values[at] += value, size[at] += std::fabs(value);
                } else if (counted[size_t(bag)] == 0 || value > out.values[at]) {
                    out.values[at] = value, winner[at] = row < 0 ? -1 : (long long)p;
                }
            }
            ++counted[size_t(bag)];
        }
        double epsilon = 16 * testing::Dtype<Accumulator<T>>::epsilon;
        for (size_t at = 0; at < elements; ++at) {
            double parts = mode == op::Mode::mean ? std::max(1.0, counted[at / size_t(width)]) : 1;
            out.values[at] /= parts;
            out.slack.push_back(epsilon * size[at] / parts);
        }
        for (size_t p = 0; p < count; ++p) {
            long long row = batch.row(p, padding), bag = batch.bag[p];
            for (long long d = 0; row >= 0 && d < width; ++d) {
                size_t at = size_t(bag * width + d), to = size_t(row * width + d);
                double incoming = testing::to_double(grad[at]), value = testing::to_double(tables[to]);
                grad_weights.values[p] += incoming * value;
                grad_weights.slack[p] += epsilon * std::fabs(incoming * value);
                if (mode == op::Mode::mean) incoming /= counted[size_t(bag)];
                if (mode == op::Mode::max && winner[at] != (long long)p) continue;
                if (weighted) incoming *= testing::to_double(weights[p]);
                grad_tables.values[to] += incoming, table_size[to] += std::fabs(incoming);
            }
        }
        for (double each : table_size) grad_tables.slack.push_back(epsilon * each);
    }
};

template <class T>
void check(testing::Report& report, const Shape& shape, const Functions<T>& functions = {}) {
    if (!report.wants<T>(shape)) return;
    using M = op::Mode;
    Buffer<long long> starts(first);
    Buffer<unsigned long long> told(report_size);
    told.write({0, 0, 0, 0, 0, 0});
    long long width = shape.columns;
    auto tables_of = [&](long long padding) {
        return op::Tables{starts.get(), all_rows, padding, op::Missing::error, told.get()};
    };
    for (bool narrow : {false, true}) {
        Ids batch(shape.rows, false, narrow);
        Case<T> c(shape, batch, M::sum, false, -1);
        Buffer<T> tables(c.tables, shape.off(the_tables)), out(shape.rows * features * width, shape.off(the_out));
        Buffer<int> ids(batch.as<int>());
        Buffer<long long> wide_ids(batch.as<long long>());
        for (bool wide : {false, true}) {
            std::string direction = std::string(narrow ? "int32" : "int64") + (wide ? ", 64-bit" : "");
            long long positions = (long long)batch.ids.size(), size = wide ? 0 : first_wide_size;
            report.check<T>(shape, "one id", direction, double(tables.bytes() + 2 * out.bytes()), {{"out", out, c.out}}, [&] {
                return narrow ? functions.launch_one_id(tables_of(-1), tables.get(), ids.get(), out.get(), positions, features,
                                                        width * (long long)sizeof(T), cudaStream_t{}, size)
                              : functions.launch_one_id_wide(tables_of(-1), tables.get(), wide_ids.get(), out.get(), positions,
                                                             features, width * (long long)sizeof(T), cudaStream_t{}, size);
            });
        }
    }
    struct Kind {
        const char* name;
        M mode;
        bool weighted, narrow, ragged;
        long long padding;
    };
    for (const Kind& kind : {Kind{"sum", M::sum, true, false, true, -1}, {"mean", M::mean, false, true, true, 2},
                             {"max", M::max, false, false, true, 0}, {"one", M::sum, true, true, false, -1}}) {
        Ids batch(shape.rows, kind.ragged, kind.narrow);
        Case<T> c(shape, batch, kind.mode, kind.weighted, kind.padding);
        long long count = (long long)batch.ids.size(), bags = shape.rows * features;
        Buffer<T> tables(c.tables, shape.off(the_tables)), out(bags * width, shape.off(the_out)), weights(c.weights);
        Buffer<int> ids(batch.as<int>());
        Buffer<long long> wide_ids(batch.ids), offsets(batch.offsets);
        op::Bags given = {{kind.narrow ? (const void*)ids.get() : wide_ids.get(), !kind.narrow},
                          {kind.ragged ? offsets.get() : nullptr, true}, count, shape.rows, features};
        const T* by = kind.weighted ? weights.get() : nullptr;
        for (long long enough : {op::enough_threads, 1LL})
            report.check<T>(shape, kind.name, enough > 1 ? "forward" : "forward, bags by turns",
                            double(tables.bytes() + out.bytes()), {{"out", out, c.out}}, [&] {
                                return functions.launch_bags(tables_of(kind.padding), tables.get(), given, kind.mode, by,
                                                             out.get(), nullptr, width, cudaStream_t{}, enough);
                            });
        report.check<T>(shape, kind.name, "forward, plain", double(tables.bytes() + out.bytes()),
                        {{"out", out, c.out}}, [&] {
                            return functions.launch_bags_plain(tables_of(kind.padding), tables.get(), given, kind.mode,
                                                               by, out.get(), width, cudaStream_t{});
                        });
        if (shape.special) continue;
        Buffer<T> grad(c.grad, shape.off(the_grad)), grad_tables(all_rows * width, shape.off(the_grad_tables)),
            grad_weights(count);
        Sorted sorted(batch, kind.padding);
        Buffer<long long> wide_keys(sorted.keys), winner(bags * width);
        Buffer<int> keys(std::vector<int>(sorted.keys.begin(), sorted.keys.end()));
        Buffer<int> positions(sorted.positions), bags_of_ids(sorted.bags), lengths(sorted.lengths);
        Buffer<Accumulator<T>> parts(2 * op::chunks_of(count) * width);
        op::Sorted in_order = {{kind.narrow ? (const void*)keys.get() : wide_keys.get(), !kind.narrow}, positions.get(),
                               kind.ragged ? bags_of_ids.get() : nullptr,
                               kind.mode == M::mean ? lengths.get() : nullptr, count};
        std::vector<Output> outputs = {{"grad_tables", grad_tables, c.grad_tables}};
        if (kind.weighted) outputs.push_back({"grad_weights", grad_weights, c.grad_weights});
        report.check<T>(shape, kind.name, "backward", double(grad.bytes() + grad_tables.bytes()), outputs, [&] {
            return functions.launch_backward(grad.get(), tables_of(kind.padding), tables.get(), given, kind.mode, by, in_order,
                                             grad_tables.get(), kind.weighted ? grad_weights.get() : nullptr,
                                             winner.get(), parts.get(), width, cudaStream_t{});
        });
    }
}

// Offsets that cannot be: nothing is read outside, and what the rows of good bags give is right.
void check_hostile_offsets(testing::Report& report) {
    Shape shape = {2, 4};
    std::vector<float> tables = testing::random<float>(all_rows * shape.columns, 1);
    Expected expected;
    for (int i = 0; i < 6 * 4; ++i) expected.values.push_back(i < 4 ? testing::to_double(tables[size_t(i)]) : 0);
    Buffer<float> rows(tables), out(6 * 4);
    Buffer<long long> starts(first), ids(std::vector<long long>{0, 0, 0});
    // Bag 0 has id 0; the others fall, are negative, or lie beyond the ids.
    Buffer<long long> offsets(std::vector<long long>{0, 1, 0, -5, INT64_MIN, -1, -1});
    Buffer<unsigned long long> told(report_size);
    told.write({0, 0, 0, 0, 0, 0});
    op::Bags bags = {{ids.get(), true}, {offsets.get(), true}, 3, 2, features};
    op::Tables all = {starts.get(), all_rows, -1, op::Missing::zero, told.get()};
    report.check<float>(shape, "sum", "hostile offsets", 0, {{"out", out, expected}}, [&] {
        return op::launch_bags<float>(all, rows.get(), bags, op::Mode::sum, nullptr, out.get(), nullptr, 4, cudaStream_t{},
                                      op::enough_threads);
    });
    report.check<float>(shape, "sum", "hostile offsets, plain", 0, {{"out", out, expected}}, [&] {
        return op::launch_bags_plain<float>(all, rows.get(), bags, op::Mode::sum, nullptr, out.get(), 4,
                                            cudaStream_t{});
    });
}

// Runs of one row that begin, end or go on at a multiple of `chunk`: ids 64 × 0, 200 × 3 and 7 × 5, say.
void check_runs(testing::Report& report) {
    for (const std::vector<long long>& lengths : {std::vector<long long>{op::chunk, 200, 7}, {op::chunk, op::chunk, 1},
                                                  {1, op::chunk - 1, 3 * op::chunk, 5}, {3 * op::chunk},
                                                  {3 * op::chunk + 1}, {1, op::chunk}}) {
        constexpr long long width = 4;
        std::vector<int> keys, positions;
        Expected expected;
        expected.values.resize(all_rows * width);
        for (size_t run = 0; run < lengths.size(); ++run)
            for (long long n = 0; n < lengths[run]; ++n) keys.push_back(int(4 * run + 1)), positions.push_back(int(positions.size()));
        std::vector<float> grad = testing::random<float>((long long)keys.size() * width, 3);
        std::vector<double> size(expected.values.size());
        for (size_t p = 0; p < keys.size(); ++p)
            for (long long d = 0; d < width; ++d) {
                size_t to = size_t(keys[p] / 2 * width + d);
                double term = testing::to_double(grad[p * width + size_t(d)]);
                expected.values[to] += term, size[to] += std::fabs(term);
            }
        for (double each : size) expected.slack.push_back(16 * testing::Dtype<float>::epsilon * each);
        long long count = (long long)keys.size();
        Buffer<int> key(keys), position(positions);
        Buffer<long long> starts(first);
        Buffer<float> incoming(grad), grad_tables(all_rows * width), parts(2 * op::chunks_of(count) * width);
        op::Sorted sorted = {{key.get(), false}, position.get(), nullptr, nullptr, count};
        op::Bags bags = {{}, {}, count, count, 1};
        op::Tables all = {starts.get(), all_rows, -1, op::Missing::zero, nullptr};
        report.check<float>({count, width}, "runs", std::to_string(lengths.size()), 0, {{"grad_tables", grad_tables, expected}}, [&] {
            return op::launch_backward<float>(incoming.get(), all, nullptr, bags, op::Mode::sum, nullptr, sorted,
                                              grad_tables.get(), nullptr, nullptr, parts.get(), width, cudaStream_t{});
        });
    }
}

// row_offsets that lie, in storage of their own size: the row behind the last, where nothing is, is none, and that before
// the first.
void check_lying_rows(testing::Report& report) {
    Expected zeros;
    zeros.values.resize(2 * 4);
    Buffer<float> rows(testing::random<float>(6 * 4, 1)), out(2 * 4);
    Buffer<long long> starts(2), ids(2), offsets(std::vector<long long>{0, 1, 2});
    op::Tables all = {starts.get(), 6, -1, op::Missing::zero, nullptr};
    op::Bags bags = {{ids.get(), true}, {offsets.get(), true}, 2, 2, 1};
    for (bool behind : {true, false}) {
        starts.write(behind ? std::vector<long long>{0, 400} : std::vector<long long>{-1, 5});
        ids.write(behind ? std::vector<long long>{6, 7} : std::vector<long long>{0, 0});
        report.check<float>({2, 4}, "one id", "lying row_offsets", 0, {{"out", out, zeros}}, [&] {
            return op::launch_one_id<long long>(all, rows.get(), ids.get(), out.get(), 2, 1, 16, cudaStream_t{}, first_wide_size);
        });
        report.check<float>({2, 4}, "sum", "lying row_offsets", 0, {{"out", out, zeros}}, [&] {
            return op::launch_bags<float>(all, rows.get(), bags, op::Mode::sum, nullptr, out.get(), nullptr, 4, cudaStream_t{},
                                          op::enough_threads);
        });
        report.check<float>({2, 4}, "sum", "lying row_offsets, plain", 0, {{"out", out, zeros}}, [&] {
            return op::launch_bags_plain<float>(all, rows.get(), bags, op::Mode::sum, nullptr, out.get(), 4,
                                                cudaStream_t{});
        });
    }
}

__global__ void check_a_bag(op::Bags bags, op::Bags::Bag bag, long long i, long long* told) {
    bags.check(bag, i, reinterpret_cast<unsigned long long*>(told), true);
    told[report_size] = bag.begin, told[report_size + 1] = bag.end;
}

// What bags report: the position of a bad id that is not the first of those looked up together, and how many there were,
// in rows so wide that several groups take a bag.
void check_report_of_bags(testing::Report& report) {
    constexpr long long width = 1024;
    Buffer<float> rows(testing::random<float>(all_rows * width, 1)), out(3 * width);
    Buffer<long long> starts(first), ids(std::vector<long long>{0, 1, 77, 2, 3, 0, 0}), told(report_size);
    auto digest = [](long long a, long long b, long long c) { return a + report_b * b + report_c * c; };
    Buffer<long long> offsets(std::vector<long long>{0, 5, 6, 7});
    op::Bags bags = {{ids.get(), true}, {offsets.get(), true}, 7, 1, features};
    for (op::Missing missing : {op::Missing::error, op::Missing::count}) {
        Expected expected;
        expected.values = {0, 0, 0, 0, 0, 1};
        if (missing == op::Missing::error) expected.values = {1, 0, 2, 77, double(digest(0, 2, 77) * 16 + op::bad_id), 0};
        op::Tables all = {starts.get(), all_rows, -1, missing, reinterpret_cast<unsigned long long*>(told.get())};
        const char* name = missing == op::Missing::error ? "a bad id" : "a count";
        report.check<long long>({1, 6}, "bags", name, 0, {{"report", told, expected}}, [&] {
            told.write(std::vector<long long>(report_size));
            return op::launch_bags<float>(all, rows.get(), bags, op::Mode::sum, nullptr, out.get(), nullptr, width,
                                          cudaStream_t{}, op::enough_threads);
        });
        report.check<long long>({1, 6}, "bags, plain", name, 0, {{"report", told, expected}}, [&] {
            told.write(std::vector<long long>(report_size));
            return op::launch_bags_plain<float>(all, rows.get(), bags, op::Mode::sum, nullptr, out.get(), width,
                                                cudaStream_t{});
        });
    }
    struct Offsets {
        long long i, begin, end;    // of bag i of three, which have 7 ids
        long long position, value;  // of what is told; -1: nothing
        long long from, to;         // what is read
    };
    Buffer<long long> checked(report_size + 2);
    // A bag by itself: in a launch another thread may be the first to report.
    for (const Offsets& given : {Offsets{1, 0, 7, -1, 0, 0, 7}, {1, 7, 7, -1, 0, 7, 7}, {2, 3, 7, -1, 0, 3, 7},  // good ones
                                 {0, 1, 7, 0, 1, 1, 7}, {1, -1, 4, 1, -1, 0, 4}, {1, 8, 8, 1, 8, 7, 7}, {2, 9, 7, 2, 9, 7, 7},
                                 {1, 3, 2, 2, 2, 3, 3}, {1, 0, 8, 2, 8, 0, 7}, {2, 0, 6, 3, 6, 0, 6}, {2, 0, 8, 3, 8, 0, 7}}) {
        Expected expected;
        auto word = (long long)(digest(0, given.position, given.value) * 16 + op::bad_offset);
        expected.values = {0, 0, 0, 0, 0, 0, double(given.from), double(given.to)};
        if (given.position >= 0)
            expected.values = {1, 0, double(given.position), double(given.value), double(word), 0, double(given.from),
                               double(given.to)};
        report.check<long long>({1, 8}, "bags", "an offset", 0, {{"report", checked, expected}}, [&] {
            checked.write(std::vector<long long>(report_size + 2));
            return launch_kernel(check_a_bag, dim3(1), dim3(1), 0, cudaStream_t{}, bags,
                                 op::Bags::Bag{0, 0, given.begin, given.end}, given.i, checked.get());
        });
    }
}

// What the kernel reports: a bad id, once, and how many there were.
void check_report(testing::Report& report) {
    Buffer<float> rows(testing::random<float>(all_rows * 4, 1)), out(12);
    Buffer<long long> starts(first), ids(9), told(report_size);
    op::Tables all = {starts.get(), all_rows, -1, op::Missing::error, reinterpret_cast<unsigned long long*>(told.get())};
    for (long long bad : {7, -1}) {  // -1 is no padding where there is none
        ids.write({0, 0, 0, 5, bad, 0, 0, 0, 0});
        Expected expected;  // claims; feature, position, id; their digest and the kind; count
        auto word = (long long)((1 + report_b * 4 + report_c * bad) * 16 + op::bad_id);
        expected.values = {1, 1, 4, double(bad), double(word), 0};
        report.check<long long>({1, 6}, "", "report", 0, {{"report", told, expected}}, [&] {
            told.write(std::vector<long long>(report_size));
            return op::launch_one_id<long long>(all, rows.get(), ids.get(), out.get(), 6, features, 8, cudaStream_t{},
                                                first_wide_size);
        });
    }
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
        check_report(report);
        check_report_of_bags(report);
        check_lying_rows(report);
        check_runs(report);
        if (testing::quick) return;
        if constexpr (!testing::race_check) {  // a race does not go by the dtype
            check_dtype<double>(report);
            check_dtype<__half>(report);
            if constexpr (testing::on_gpu) check_dtype<__nv_bfloat16>(report);
            for (int tensor = 0; tensor < tensors; ++tensor) check<float>(report, {7, 24, 1u << tensor}, functions);
        }
    });
}
