// lookup_interact's CUDA kernels against float64 loops, so that no libtorch is needed.
#include "backward.cuh"
#include "columns.cuh"
#include "kernel.cuh"

#include "check/host/testing.cuh"

namespace op = lookup_interact;
using testing::Buffer;
using testing::Expected;
using testing::Output;
using testing::Shape;

// The functions under test. A kernel of tests/broken puts its own in their place.
template <class T>
struct Functions {
    decltype(&op::launch<T>) launch = op::launch<T>;
    decltype(&op::launch_backward<T>) launch_backward = op::launch_backward<T>;
    decltype(&op::launch_columns<T>) launch_columns = op::launch_columns<T>;
    decltype(&op::launch_columns_backward<T>) launch_columns_backward = op::launch_columns_backward<T>;
};
using Kernels = Functions<float>;
#ifdef BROKEN_KERNELS
#include BROKEN_KERNELS
#endif

// The tensors, by their bits in Shape::misaligned.
enum { the_dense, the_tables, the_out, the_grad, the_grad_dense, the_grad_sparse, tensors };

// What else a case hangs on.
struct Way {
    long long features, pad_to;
    bool bags, narrow, tf32, good;  // narrow: ids and offsets of 32 bits; good: all ids are rows of their tables
    enum Kind { dot, fm, flat } kind = dot;

    long long width(long long columns) const {
        const long long others = kind == dot ? features * (features + 1) / 2 : columns * (kind == fm ? 1 : features);
        return (columns + others + pad_to - 1) / pad_to * pad_to;
    }
    op::Kind of_columns() const { return kind == fm ? op::Kind::fm : op::Kind::flat; }
    std::string name() const {
        return (kind == dot ? "F=" : kind == fm ? "fm,F=" : "flat,F=") + std::to_string(features) + "/" +
               std::to_string(pad_to) + (bags ? ",bags" : "") + (narrow ? ",int32" : "") + (tf32 ? ",tf32" : "") +
               (good ? "" : ",hostile");
    }
};

const std::vector<long long> heights = {37, 1, 8};
const std::vector<long long> hostile = {-1, 37, 0x7fffffffLL, -0x80000000LL, (1LL << 32) + 5, INT64_MAX, INT64_MIN};

// The ids of a batch, feature after feature if there are bags, else row after row; and where each table begins.
struct Ids {
    std::vector<long long> first = {0}, ids, offsets = {0};

    Ids(long long rows, const Way& way) {
        std::mt19937 bits(7);
        for (long long f = 0; f < way.features; ++f) first.push_back(first.back() + heights[size_t(f % 3)]);
        auto draw = [&](long long f) {
            const bool is_row = way.good || bits() % 4;
            return is_row ? (long long)(bits() % unsigned(heights[size_t(f % 3)]))
                          : hostile[bits() % (way.narrow ? 4 : hostile.size())];
        };
        if (!way.bags)
            for (long long n = 0; n < rows * way.features; ++n) ids.push_back(draw(n % way.features));
        else
            for (long long n = 0; n < rows * way.features; ++n) {
                for (unsigned length = bits() % 4; length; --length) ids.push_back(draw(n / rows));
                offsets.push_back((long long)ids.size());
            }
    }
    // The rows, of all, that the bag names.
    std::vector<long long> named(long long row, long long f, long long rows, const Way& way) const {
        std::vector<long long> found;
        const size_t bag = size_t(f * rows + row), one = size_t(row * way.features + f);
        for (size_t p = way.bags ? size_t(offsets[bag]) : one; p < (way.bags ? size_t(offsets[bag + 1]) : one + 1); ++p)
            if (ids[p] >= 0 && ids[p] < heights[size_t(f % 3)]) found.push_back(first[size_t(f)] + ids[p]);
        return found;
    }
};

template <class T>
struct Case {
    std::vector<T> dense, tables, grad;
    Expected out, grad_dense, grad_sparse;

    Case(const Shape& shape, const Way& way, const Ids& ids) : shape(shape), way(way) {
        dense = testing::random<T>(shape.elements(), 1, shape.special);
        tables = testing::random<T>(ids.first.back() * shape.columns, 2, shape.special);
        grad = testing::random<T>(shape.rows * way.width(shape.columns), 3);
        // Of each term: its factors' rounding to tf32, and of a bag's sum to T.
        double rounding = 8 * testing::Dtype<Accumulator<T>>::epsilon;
        if (sizeof(T) == 4 && way.tf32) rounding = std::max(rounding, 0x1p-10);
        if (way.bags) rounding = std::max(rounding, 2 * testing::Dtype<T>::epsilon);
        for (long long row = 0; row < shape.rows; ++row) {
            std::vector<double> values, sizes;  // of the row's vectors
            for (long long v = 0; v <= way.features; ++v)
                for (long long d = 0; d < shape.columns; ++d) {
                    double value = 0, size = 0;
                    if (v == 0) {
                        value = testing::to_double(dense[size_t(row * shape.columns + d)]), size = std::fabs(value);
                    } else {
                        for (long long named : ids.named(row, v - 1, shape.rows, way)) {
                            const double term = testing::to_double(tables[size_t(named * shape.columns + d)]);
                            value += term, size += std::fabs(term);
                        }
                    }
                    values.push_back(value), sizes.push_back(size);
                }
            if (way.kind == Way::dot)
                add_row(values, sizes, rounding);
            else
                add_columns(values, sizes, rounding);
            for (long long i = 0; i <= way.features; ++i) add_gradient(row, i, values, sizes, rounding);
        }
        out.by_slack = grad_dense.by_slack = grad_sparse.by_slack = true;
    }

private:
    void add_row(const std::vector<double>& values, const std::vector<double>& sizes, double rounding) {
        const size_t columns = size_t(shape.columns);
        const size_t end = out.values.size() + size_t(way.width(shape.columns));
        for (size_t d = 0; d < columns; ++d) out.values.push_back(values[d]), out.slack.push_back(0);
        for (size_t i = 1; i <= size_t(way.features); ++i)
            for (size_t j = 0; j < i; ++j) {
                double sum = 0, size = 0;
                for (size_t d = 0; d < columns; ++d) {
                    sum += values[i * columns + d] * values[j * columns + d];
                    size += sizes[i * columns + d] * sizes[j * columns + d];
                }
                out.values.push_back(sum), out.slack.push_back(rounding * size);
            }
        out.values.resize(end), out.slack.resize(end);
    }
    // Of fm and flat.
    void add_columns(const std::vector<double>& values, const std::vector<double>& sizes, double rounding) {
        const size_t columns = size_t(shape.columns), vectors = size_t(way.features) + 1;
        const size_t end = out.values.size() + size_t(way.width(shape.columns));
        const double of_bags = way.bags ? rounding : 0;
        for (size_t n = 0; n < (way.kind == Way::flat ? vectors : 1) * columns; ++n)
            out.values.push_back(values[n]), out.slack.push_back(n < columns ? 0 : of_bags * sizes[n]);
        for (size_t d = 0; d < columns && way.kind == Way::fm; ++d) {
            double sum = 0, size = 0, pairs = 0, sizes_of_pairs = 0;
            for (size_t i = 0; i < vectors; ++i) {
                pairs += sum * values[i * columns + d], sizes_of_pairs += size * sizes[i * columns + d];
                sum += values[i * columns + d], size += sizes[i * columns + d];
            }
            out.values.push_back(std::isfinite(sum) ? pairs : std::nan(""));
            out.slack.push_back(rounding * sizes_of_pairs);
        }
        out.values.resize(end), out.slack.resize(end);
    }
    void add_gradient(long long row, long long i, const std::vector<double>& values, const std::vector<double>& sizes,
                      double rounding) {
        const T* const grads = grad.data() + row * way.width(shape.columns);
        Expected& expected = i ? grad_sparse : grad_dense;
        for (long long d = 0; d < shape.columns && way.kind == Way::flat; ++d)
            expected.values.push_back(testing::to_double(grads[i * shape.columns + d])), expected.slack.push_back(0);
        for (long long d = 0; d < shape.columns && way.kind == Way::fm; ++d) {
            const double weight = testing::to_double(grads[shape.columns + d]);
            double all = 0, size = 0;
            for (long long j = 0; j <= way.features; ++j)
                all += values[size_t(j * shape.columns + d)], size += sizes[size_t(j * shape.columns + d)];
            const double sum = weight * (all - values[size_t(i * shape.columns + d)]);
            expected.values.push_back(i ? sum : testing::to_double(grads[d]) + sum);
            expected.slack.push_back(rounding * std::fabs(weight) * size + 1e-7 * std::fabs(expected.values.back()));
        }
        for (long long d = 0; d < shape.columns && way.kind == Way::dot; ++d) {
            double sum = i ? 0 : testing::to_double(grads[d]), size = 0;
            for (long long j = 0; j <= way.features; ++j) {
                const long long larger = i > j ? i : j, pair = larger * (larger - 1) / 2 + i + j - larger;
                // The zero on the diagonal makes NaN of what is not finite.
                const double weight = i == j ? 0 : testing::to_double(grads[shape.columns + pair]);
                sum += weight * values[size_t(j * shape.columns + d)];
                size += std::fabs(weight) * sizes[size_t(j * shape.columns + d)];
            }
            expected.values.push_back(sum), expected.slack.push_back(rounding * size + 1e-7 * std::fabs(sum));
        }
    }
    Shape shape;
    Way way;
};

// A batch on the device.
template <class T>
struct OnDevice {
    Buffer<T> dense, tables;
    Buffer<long long> first, wide, wide_offsets;
    Buffer<int> narrow, narrow_offsets;
    Buffer<unsigned long long> told;
    op::Call<T> call;

    OnDevice(const Shape& shape, const Way& way, const Ids& ids, const Case<T>& c)
        : dense(c.dense, shape.off(the_dense)), tables(c.tables, shape.off(the_tables)), first(ids.first),
          wide(ids.ids), wide_offsets(ids.offsets), narrow(std::vector<int>(ids.ids.begin(), ids.ids.end())),
          narrow_offsets(std::vector<int>(ids.offsets.begin(), ids.offsets.end())), told(report_size) {
        told.write({0, 0, 0, 0, 0, 0});
        auto integers = [&](const Buffer<int>& narrow, const Buffer<long long>& wide) {
            return Integers{way.narrow ? (const void*)narrow.get() : wide.get(), !way.narrow};
        };
        const Integers none = {nullptr, true};
        call = {{first.get(), ids.first.back(), -1, embedding_bags::Missing::error, told.get()},
                {integers(narrow, wide), way.bags ? integers(narrow_offsets, wide_offsets) : none,
                 (long long)ids.ids.size(), shape.rows, way.features},
                tables.get(), dense.get(), shape.columns, way.width(shape.columns)};
    }
};

template <class T>
void check(testing::Report& report, const Shape& shape, const Way& way, const Functions<T>& functions,
           const op::Limits& limits = {}) {
    if (!report.wants<T>(shape)) return;
    const Ids ids(shape.rows, way);
    const Case<T> c(shape, way, ids);
    OnDevice<T> on(shape, way, ids, c);
    Buffer<T> out(shape.rows * way.width(shape.columns), shape.off(the_out));
    const std::string how = limits.plain ? ", plain" : limits.blocks ? ", few blocks" : "";
    double bytes = double(on.dense.bytes() + out.bytes());
    report.check<T>(shape, way.name(), "forward" + how, bytes, {{"out", out, c.out}}, [&] {
        if (way.kind != Way::dot)
            return functions.launch_columns(on.call, way.of_columns(), out.get(), cudaStream_t{}, limits);
        return functions.launch(on.call, way.tf32, out.get(), cudaStream_t{}, limits);
    });
    Buffer<T> grad(c.grad, shape.off(the_grad)), grad_dense(shape.elements(), shape.off(the_grad_dense));
    Buffer<T> grad_sparse(shape.elements() * way.features, shape.off(the_grad_sparse));
    on.call.tables.report = nullptr, on.call.tables.missing = embedding_bags::Missing::zero;
    auto backward = [&](const char* direction, bool of_dense, bool of_sparse) {
        std::vector<Output> outputs;
        if (of_dense) outputs.emplace_back("grad_dense", grad_dense, c.grad_dense);
        if (of_sparse) outputs.emplace_back("grad_sparse", grad_sparse, c.grad_sparse);
        bytes = double(grad.bytes() + 2 * grad_sparse.bytes());
        report.check<T>(shape, way.name(), direction + how, bytes, outputs, [&] {
            T* const to_dense = of_dense ? grad_dense.get() : nullptr;
            T* const to_sparse = of_sparse ? grad_sparse.get() : nullptr;
            if (way.kind != Way::dot)
                return functions.launch_columns_backward(on.call, way.of_columns(), grad.get(), to_dense, to_sparse,
                                                         cudaStream_t{}, limits);
            return functions.launch_backward(on.call, way.tf32, grad.get(), to_dense, to_sparse, cudaStream_t{},
                                             limits);
        });
    };
    backward("backward", true, true);
    if (shape.rows != 9) return;
    backward("of dense", true, false);
    backward("of sparse", false, true);
}

template <class T>
void check_dtype(testing::Report& report, const Functions<T>& functions) {
    auto at = [&](const Shape& shape, const Way& way, const op::Limits& limits = {}) {
        check<T>(report, shape, way, functions, limits);
    };
    for (bool tf32 : {false, true}) {
        if (tf32 && sizeof(T) != 4) continue;
        at({9, 16}, {26, 1, false, true, tf32, false});
        at({9, 16}, {26, 8, true, false, tf32, false});
        at({5, 16, 0, true}, {26, 8, false, false, tf32, true});
        for (long long features : {1, 2, 15, 16, 27, 28, 31, 32}) at({3, 16}, {features, 1, false, false, tf32, true});
        for (long long columns : {4, 8, 24, 64, 128}) at({3, columns}, {26, 8, columns == 24, true, tf32, true});
        // Padded rows that are longer than the pairs of 32 vectors.
        for (long long pad_to : {8, 1024}) at({21, 20}, {31, pad_to, false, false, tf32, true}, {1, false});
        at({21, 16}, {9, 8, false, false, tf32, true}, {2, false});
        if (testing::few_rows()) continue;
        at({3, 1024}, {26, 1, false, false, tf32, true});  // beyond a block's memory
        for (int tensor = 0; tensor < tensors; ++tensor) at({5, 16, 1u << tensor}, {26, 8, false, true, tf32, true});
    }
    at({3, 16}, {5, 1, true, true, false, false}, {0, true});
    at({3, 5}, {5, 4, false, false, false, false});
    for (const Shape& shape : {Shape{0, 16}, {3, 0}, {1, 1}}) at(shape, {4, 1, false, false, false, true});
    if (testing::on_gpu && !testing::quick)
        for (long long rows : {2048, 65536}) at({rows, 16}, {26, 8, false, false, true, true});
    for (Way::Kind kind : {Way::fm, Way::flat}) {
        at({9, 16}, {26, 1, false, true, false, false, kind});
        at({9, 16}, {26, 8, true, false, false, false, kind});
        at({5, 16, 0, true}, {26, 8, false, false, false, true, kind});
        // One lane for a vector, and all; vectors that a warp finds at once, one more, and as many again.
        for (long long columns : {1, 3, 4, 8, 20, 128, 132})
            at({3, columns}, {26, 8, columns == 20, true, false, true, kind});
        for (long long features : {0, 1, 30, 31, 32, 63, 64})
            for (long long columns : {4, 16}) at({3, columns}, {features, 1, features == 31, false, false, true, kind});
        at({21, 16}, {9, 8, false, false, false, true, kind}, {2, false});
        at({21, 16}, {9, 1024, false, false, false, true, kind}, {1, false});
        at({3, 16}, {26, 1, true, true, false, false, kind}, {0, true});
        for (const Shape& shape : {Shape{0, 16}, {3, 0}, {1, 1}}) at(shape, {4, 1, false, false, false, true, kind});
        if (testing::few_rows()) continue;
        for (int tensor = 0; tensor < tensors; ++tensor)
            at({5, 16, 1u << tensor}, {26, 8, false, true, false, true, kind});
        if (testing::on_gpu && !testing::quick)
            for (long long rows : {2048, 65536}) at({rows, 16}, {26, 8, false, false, false, true, kind});
    }
}

int main(int count, char** arguments) {
    return testing::run(count, arguments, [](testing::Report& report) {
        Kernels kernels = testing::kernels_under_test<Kernels>();
        check_dtype<float>(report, kernels);
        if (testing::quick) return;
        if constexpr (!testing::race_check) {  // a race does not go by the dtype
            check_dtype<double>(report, {});
            check_dtype<__half>(report, {});
            if constexpr (testing::on_gpu) check_dtype<__nv_bfloat16>(report, {});
        }
    });
}
