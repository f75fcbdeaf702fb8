// embedding_bags_update's and embedding_bags_add's CUDA kernels against float64 loops, so that no libtorch is needed.
#include "kernel.cuh"

#include "add.cuh"

#include <numeric>

#include "check/host/testing.cuh"

namespace update = embedding_bags_update;
namespace add = embedding_bags_add;
using update::Rule;

// The function under test. A kernel of tests/broken puts its own in its place.
template <class T>
struct Functions {
    cudaError_t (*launch)(const update::Occurrences<T>&, const update::Target<T>&, long long, float*, int*,
                          cudaStream_t, unsigned) = update::launch<T>;
};
using Kernels = Functions<float>;
#ifdef BROKEN_KERNELS
#include BROKEN_KERNELS
#endif

using testing::Buffer;
using testing::Expected;
using testing::Output;
using testing::Shape;

constexpr double rate = 0.25, eps = 1e-3;
enum { the_tables, the_state, the_grad };  // by their bits in Shape::misaligned

// Shape: occurrences, columns. Rows occur as often as `of_rows` says, or one a third of all, others up to 40 times; some keys
// name no row. Bags and lengths if `in_bags`.
template <class T>
struct Case {
    long long count, columns, rows;
    std::vector<int> keys, positions, bags, lengths;
    std::vector<T> tables, grad, weights;
    std::vector<float> state;
    Expected expected_tables, expected_state;

    Case(const Shape& shape, Rule rule, bool in_bags, const std::vector<long long>& of_rows) : count(shape.rows), columns(shape.columns), rows(0) {
        std::mt19937 random(7);
        while ((long long)keys.size() < count) {
            long long times = rows == 2 ? count / 3 : rows % 3 ? 1 : 1 + long(random() % 40);
            if (!of_rows.empty()) times = of_rows[size_t(rows)];
            int key = rows % 7 == 6 ? int(2 * rows) : int(2 * rows + 1);
            for (; times > 0 && (long long)keys.size() < count; --times) keys.push_back(key);
            ++rows;
        }
        for (int n = 0; n < count; ++n) {
            positions.push_back(n);
            bags.push_back(int(random() % unsigned(count)));
            lengths.push_back(1 + int(random() % 4));
        }
        std::shuffle(positions.begin(), positions.end(), random);
        tables = testing::random<T>(rows * columns, 1);
        grad = testing::random<T>(count * columns, 2, shape.special);
        weights = testing::random<T>(count, 3);
        for (long long i = 0; i < rows * (rule == Rule::adagrad ? columns : 1); ++i)
            state.push_back(0.1f + float(random() % 1000) / 1000);
        compute(rule, in_bags);
    }

private:
    void compute(Rule rule, bool in_bags) {
        size_t width = size_t(columns);
        for (const T& value : tables) expected_tables.values.push_back(testing::to_double(value));
        for (float value : state) expected_state.values.push_back(value);
        expected_tables.by_slack = expected_state.by_slack = true;
        expected_tables.slack.resize(tables.size());
        expected_state.slack.resize(state.size());
        if (!width) return;
        const double ulp = 8 * 0x1p-23;
        for (size_t first = 0, end; first < keys.size(); first = end) {
            for (end = first; end < keys.size() && keys[end] == keys[first];) ++end;
            if (keys[first] % 2 == 0) continue;
            size_t row = size_t(keys[first] / 2);
            std::vector<double> g(width), terms(width);
            for (size_t n = first; n < end; ++n) {
                size_t position = size_t(positions[n]), from = in_bags ? size_t(bags[position]) : position;
                double share = in_bags ? testing::to_double(weights[position]) / lengths[position] : 1;
                for (size_t c = 0; c < width; ++c) {
                    double term = share * testing::to_double(grad[from * width + c]);
                    g[c] += term;
                    terms[c] += std::fabs(term);
                }
            }
            double squares = 0, of_squares = 0;
            for (size_t c = 0; c < width; ++c) {
                squares += g[c] * g[c] / double(width);
                of_squares += (2 * std::fabs(g[c]) * terms[c] + g[c] * g[c]) / double(width);
            }
            double* own = rule == Rule::sgd ? nullptr : &expected_state.values[rule == Rule::adagrad ? row * width : row];
            double* slack = own ? &expected_state.slack[size_t(own - expected_state.values.data())] : nullptr;
            if (rule == Rule::rowwise_adagrad) {
                *own += squares;
                *slack = ulp * (*own + of_squares);
            }
            for (size_t c = 0; c < width; ++c) {
                double root = 1, more = 0;
                if (rule == Rule::adagrad) {
                    own[c] += g[c] * g[c];
                    slack[c] = ulp * (own[c] + 2 * std::fabs(g[c]) * terms[c]);
                    root = std::sqrt(own[c]) + eps;
                } else if (rule == Rule::rowwise_adagrad) {
                    root = std::sqrt(*own) + eps;
                    more = std::fabs(g[c]) * of_squares / (root * root);
                }
                size_t i = row * width + c;
                double before = expected_tables.values[i];
                expected_tables.values[i] -= rate * g[c] / root;
                expected_tables.slack[i] = ulp * (std::fabs(before) + rate * (terms[c] + std::fabs(g[c]) + more) / root);
                if (std::isnan(expected_tables.slack[i]) || std::isinf(expected_tables.slack[i]))
                    expected_tables.slack[i] = 0;  // what is not finite is compared as it is
            }
        }
    }
};

template <class T>
void check(testing::Report& report, const Shape& shape, const Functions<T>& op = {},
           const std::vector<long long>& times = {}) {
    if (!report.wants<T>(shape)) return;
    const char* names[] = {"sgd", "adagrad", "rowwise"};
    for (Rule rule : {Rule::sgd, Rule::adagrad, Rule::rowwise_adagrad})
        for (bool in_bags : {false, true}) {
            Case<T> c(shape, rule, in_bags, times);
            Buffer<T> tables((long long)c.tables.size(), shape.off(the_tables)), grad(c.grad, shape.off(the_grad));
            Buffer<float> state((long long)c.state.size(), shape.off(the_state));
            Buffer<T> weights(c.weights);
            Buffer<int> keys(c.keys), positions(c.positions), bags(c.bags), lengths(c.lengths);
            for (long long chunk : {1, 4, 32}) {
                long long partials = update::sums_size(c.count, c.columns, chunk);
                Buffer<float> sums(partials);
                Buffer<int> list(update::lists_size(c.count, chunk));
                std::vector<Output> outputs = {{"tables", tables, c.expected_tables, &c.tables}};
                if (rule != Rule::sgd) outputs.push_back({"state", state, c.expected_state, &c.state});
                std::string direction = (in_bags ? "bags, chunk " : "chunk ") + std::to_string(chunk);
                report.check<T>(shape, names[int(rule)], direction, double(tables.bytes() + grad.bytes()), outputs, [&] {
                    update::Occurrences<T> all{{keys.get(), false}, positions.get(), in_bags ? bags.get() : nullptr,
                                               in_bags ? lengths.get() : nullptr, in_bags ? weights.get() : nullptr,
                                               grad.get(), c.count};
                    update::Target<T> to{tables.get(), state.get(), c.columns, rule, Scalar(rate), float(eps)};
                    // By SGD one block finishes all rows of many chunks, one row after the other.
                    unsigned most_blocks = rule == Rule::sgd ? 1 : update::most_finish_blocks;
                    return op.launch(all, to, chunk, sums.get(), list.get(), cudaStream_t{}, most_blocks);
                });
            }
        }
}

// Shape: rows of the batch, columns. Three tables, of 1, 300 and 5 rows; some ids name no row, and 2 is the padding.
void check_additions(testing::Report& report, const Shape& shape) {
    if (!report.wants<float>(shape)) return;
    const std::vector<long long> first = {0, 1, 301, 306};
    const long long features = 3, batch = shape.rows, columns = shape.columns, rows = first[3], padding = 2;
    for (const char* kind : {"one id", "bags", "bags, mean"}) {
        const bool in_bags = *kind == 'b', mean = kind[4] == ',';
        std::mt19937 random(5);
        std::vector<long long> offsets = {0}, ids, of;  // of: the gradient's row
        for (long long i = 0; i < batch * features; ++i) {
            long long f = in_bags ? i / batch : i % features, height = first[size_t(f) + 1] - first[size_t(f)];
            for (int k = in_bags ? int(random() % 5) : 1; k; --k) {
                ids.push_back(random() % 9 ? (long long)(random() % unsigned(height)) : random() % 2 ? height : -1);
                of.push_back(in_bags ? i % batch * features + f : i);
            }
            offsets.push_back((long long)ids.size());
        }
        std::vector<float> before = testing::random<float>(rows * columns, 1);
        std::vector<float> weights = testing::random<float>((long long)ids.size(), 3);
        std::vector<float> grad = testing::random<float>(batch * features * columns, 2, shape.special);
        std::vector<double> times(before.size());
        std::vector<double> expected, slack;
        for (float value : before) expected.push_back(value), slack.push_back(std::fabs(value));
        for (size_t n = 0; n < ids.size(); ++n) {
            long long f = of[n] % features, length = 0;
            for (size_t other = 0; other < ids.size(); ++other) length += of[other] == of[n] && ids[other] != padding;
            if (ids[n] < 0 || ids[n] >= first[size_t(f) + 1] - first[size_t(f)] || ids[n] == padding) continue;
            for (long long c = 0; c < columns; ++c) {
                size_t i = size_t((first[size_t(f)] + ids[n]) * columns + c);
                double term = rate * (mean ? 1.0 / double(length) : weights[n]) * grad[size_t(of[n] * columns + c)];
                expected[i] -= term, slack[i] += std::fabs(term), ++times[i];
            }
        }
        for (size_t i = 0; i < before.size(); ++i) slack[i] *= (4 + times[i]) * 0x1p-23;
        Buffer<float> tables((long long)before.size(), shape.off(the_tables)), gradient(grad, shape.off(the_grad));
        Buffer<float> shares(weights);
        Buffer<int> off(1);
        Expected none;
        none.values = {0};
        Buffer<long long> row_offsets(first), indices(ids), ends(offsets);
        struct Design {
            long long warps;
            int slots;
        };
        // A warp a part of a table, and a warp a table: with as many slots as there is room for, three, and none.
        for (Design design : {Design{add::most_warps, add::shared_floats}, {4, 1 << 20}, {1, 3}, {2, 0}}) {
            std::string direction = kind + (", " + std::to_string(design.warps)) + " warps";
            // Bits do not repeat, so it is not the tables that are the output, but how many elements are too far off.
            // The time of the row is that of the comparison.
            report.check<float>(shape, "add", direction, 0, {{"elements off", off, none}}, [&] {
                embedding_bags::Tables all{row_offsets.get(), rows, padding, embedding_bags::Missing::zero, nullptr};
                embedding_bags::Bags bags{{indices.get(), true}, {in_bags ? ends.get() : nullptr, true},
                                          (long long)ids.size(), batch, features};
                tables.write(before);
                cudaError_t error =
                    add::launch(all, tables.get(), bags, mean ? nullptr : shares.get(), gradient.get(), columns, mean,
                                Scalar(rate), cudaStream_t{}, design.warps, design.slots);
                std::vector<float> got = tables.read();
                int wrong = !tables.damage().empty();
                double worst = 0;
                for (size_t i = 0; i < got.size(); ++i) wrong += !testing::agrees(got[i], expected[i], slack[i], worst);
                off.write({wrong});
                return error;
            });
        }
    }
}

// Offsets that fall: whichever bags ids count for, no gradient is read behind the last one, where large numbers are. A
// warp takes four bags of 128 columns at once.
void check_falling_offsets(testing::Report& report) {
    const long long features = 3, batch = 5, columns = 128, count = batch * features, ids = 60;
    if (!report.wants<float>({batch, columns})) return;
    std::vector<float> grad = testing::random<float>(count * columns, 2);
    grad.resize(size_t(32 * features * columns), 1e6f);
    Buffer<float> tables(features * columns), gradient(grad);
    Buffer<int> off(1);
    Buffer<long long> row_offsets(std::vector<long long>{0, 1, 2, 3});
    Buffer<long long> indices(std::vector<long long>(size_t(ids), 0)), ends(count + 1);
    Expected none;
    none.values = {0};
    report.check<float>({batch, columns}, "add", "falling offsets", 0, {{"elements off", off, none}}, [&] {
        std::mt19937 random(5);
        int wrong = 0;
        for (int round = 0; round < 20; ++round) {
            std::vector<long long> offsets;
            for (long long i = 0; i <= count; ++i) offsets.push_back((long long)(random() % 70) - 5);
            ends.write(offsets);
            tables.write(std::vector<float>(size_t(features * columns)));
            embedding_bags::Tables all{row_offsets.get(), features, -1, embedding_bags::Missing::zero, nullptr};
            embedding_bags::Bags bags{{indices.get(), true}, {ends.get(), true}, ids, batch, features};
            cudaError_t error = add::launch(all, tables.get(), bags, nullptr, gradient.get(), columns, false,
                                            Scalar(rate), cudaStream_t{}, 2);
            if (error != cudaSuccess) return error;
            for (float value : tables.read()) wrong += !(std::fabs(value) < 1e5f);
        }
        off.write({wrong});
        return cudaSuccess;
    });
}

// One column more than lanes can hold.
void check_too_wide(testing::Report& report) {
    Buffer<float> rows(1), sums(1);
    Buffer<int> keys(std::vector<int>{1}), positions(std::vector<int>{0}), list(4), launched(1);
    Expected none;
    none.values = {0};
    report.check<int>({1, update::most_columns + 1}, "sgd", "refused", 0, {{"launched", launched, none}}, [&] {
        update::Occurrences<float> all{{keys.get(), false}, positions.get(), nullptr, nullptr, nullptr, rows.get(), 1};
        update::Target<float> to{rows.get(), nullptr, update::most_columns + 1, Rule::sgd, Scalar(rate), float(eps)};
        launched.write({update::launch(all, to, 4, sums.get(), list.get(), cudaStream_t{}) != cudaErrorInvalidValue});
        return cudaSuccess;
    });
}

int main(int count, char** arguments) {
    return testing::run(count, arguments, [](testing::Report& report) {
        Kernels op = testing::kernels_under_test<Kernels>();
        for (const Shape& shape : {Shape{0, 5}, {5, 0}, {1, 1}, {1, 7}, {150, 16}, {150, 3}, {70, 128}})
            check<float>(report, shape, op);
        for (const Shape& shape : {Shape{0, 4}, {5, 0}, {1, 1}, {70, 16}, {40, 7}, {9, 128}}) check_additions(report, shape);
        if (testing::few_rows()) return;
        for (const Shape& shape : {Shape{300, 16, Shape::all}, {40, 132}, {20, 1025}, {65, 4}, {60, 16, 0, true}})
            check_additions(report, shape);
        // Chunks of four: a row that ends with one; that begins the last one, with another behind it and without; and
        // that ends where a row of many chunks would, with the last id.
        for (const std::vector<long long>& times : {std::vector<long long>{1, 19, 1}, {1, 20}, {1, 20, 1}, {1, 66}})
            check<float>(report, {std::accumulate(times.begin(), times.end(), 0LL), 7}, op, times);
        check<float>(report, {3, update::most_columns}, op);
        check_too_wide(report);
        check_falling_offsets(report);
        for (const Shape& shape : {Shape{150, 16, Shape::all}, {70, 132}, {150, 1025}, {20, 4100}, {60, 16, 0, true}})
            check<float>(report, shape, op);
        for (int tensor : {the_tables, the_state, the_grad}) check<float>(report, {40, 16, 1u << tensor}, op);
        for (const Shape& shape : {Shape{150, 16}, {70, 7}, {20, 264}}) {
            check<__half>(report, shape);
            if constexpr (testing::on_gpu) check<__nv_bfloat16>(report, shape);
        }
    });
}
