// lookup_interact's CUDA kernels against float64 loops, so that no libtorch is needed.
#include "backward.cuh"
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

    long long width(long long columns) const {
        return (columns + features * (features + 1) / 2 + pad_to - 1) / pad_to * pad_to;
    }
    std::string name() const {
        return "F=" + std::to_string(features) + "/" + std::to_string(pad_to) + (bags ? ",bags" : "") +
               (narrow ? ",int32" : "") + (tf32 ? ",tf32" : "") + (good ? "" : ",hostile");
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
            add_row(values, sizes, rounding);
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
    void add_gradient(long long row, long long i, const std::vector<double>& values, const std::vector<double>& sizes,
                      double rounding) {
        const T* const grads = grad.data() + row * way.width(shape.columns);
        for (long long d = 0; d < shape.columns; ++d) {
            double sum = i ? 0 : testing::to_double(grads[d]), size = 0;
            for (long long j = 0; j <= way.features; ++j) {
                const long long larger = i > j ? i : j, pair = larger * (larger - 1) / 2 + i + j - larger;
                // The zero on the diagonal makes NaN of what is not finite.
                const double weight = i == j ? 0 : testing::to_double(grads[shape.columns + pair]);
                sum += weight * values[size_t(j * shape.columns + d)];
                size += std::fabs(weight) * sizes[size_t(j * shape.columns + d)];
            }
            Expected& expected = i ? grad_sparse : grad_dense;
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
            return functions.launch_backward(on.call, way.tf32, grad.get(), of_dense ? grad_dense.get() : nullptr,
                                             of_sparse ? grad_sparse.get() : nullptr, cudaStream_t{}, limits);
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
