// dot_interaction's CUDA kernels against float64 loops, so that no libtorch is needed.
#include "kernel.cuh"

#include <utility>

#include "check/host/testing.cuh"

namespace op = dot_interaction;

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

using testing::Buffer;
using testing::Expected;
using testing::Output;
using testing::Shape;

// The tensors, by their bits in Shape::misaligned.
enum { the_dense, the_sparse, the_out, the_grad, the_grad_dense, the_grad_sparse, tensors };

struct Pairs {
    long long features, pad_to;

    long long width(const Shape& shape) const {
        long long pairs = features * (features + 1) / 2;
        return (shape.columns + pairs + pad_to - 1) / pad_to * pad_to;
    }
    std::string name() const { return "F=" + std::to_string(features) + "/" + std::to_string(pad_to); }
};

template <class T>
struct Case {
    std::vector<T> dense, sparse, grad;
    Expected expected_out, expected_grad_dense, expected_grad_sparse;

    Case(const Shape& shape, const Pairs& pairs) : shape(shape), pairs(pairs) {
        dense = testing::random<T>(shape.elements(), 1, shape.special);
        sparse = testing::random<T>(shape.elements() * pairs.features, 2, shape.special);
        grad = testing::random<T>(shape.rows * pairs.width(shape), 3);
        for (long long row = 0; row < shape.rows; ++row) {
            forward(row);
            for (long long i = 0; i <= pairs.features; ++i)
                for (long long column = 0; column < shape.columns; ++column) backward(row, i, column);
        }
        for (Expected* expected : {&expected_out, &expected_grad_dense, &expected_grad_sparse})
            expected->by_slack = true;
    }

private:
    Shape shape;
    Pairs pairs;

    double vector(long long row, long long i, long long column) const {
        long long place = i ? (row * pairs.features + i - 1) * shape.columns : row * shape.columns;
        return testing::to_double((i ? sparse : dense)[size_t(place + column)]);
    }
    static void add(Expected& expected, double value, double magnitude) {
        expected.values.push_back(value);
        expected.slack.push_back(8 * testing::Dtype<Accumulator<T>>::epsilon * magnitude);
    }
    void forward(long long row) {
        for (long long column = 0; column < shape.columns; ++column) add(expected_out, vector(row, 0, column), 0);
        for (long long i = 1; i <= pairs.features; ++i)
            for (long long j = 0; j < i; ++j) {
                double sum = 0, magnitude = 0;
                for (long long column = 0; column < shape.columns; ++column) {
                    double term = vector(row, i, column) * vector(row, j, column);
                    sum += term;
                    magnitude += std::fabs(term);
                }
                add(expected_out, sum, magnitude);
            }
        while ((long long)expected_out.values.size() < (row + 1) * pairs.width(shape)) add(expected_out, 0, 0);
    }
    void backward(long long row, long long i, long long column) {
        const T* grads = grad.data() + row * pairs.width(shape);
        double sum = i ? 0 : testing::to_double(grads[column]), magnitude = std::fabs(sum);
        for (long long j = 0; j <= pairs.features; ++j) {
            long long larger = i > j ? i : j, pair = larger * (larger - 1) / 2 + (i > j ? j : i);
            // The zero on the diagonal makes NaN of what is not finite.
            double term = (i == j ? 0 : testing::to_double(grads[shape.columns + pair])) * vector(row, j, column);
            sum += term;
            magnitude += std::fabs(term);
        }
        add(i ? expected_grad_sparse : expected_grad_dense, sum, magnitude);
    }
};

template <class T>
void check(testing::Report& report, const Shape& shape, const Pairs& pairs, const Functions<T>& functions,
           const op::Limits& limits = {}, const char* way = "") {
    if (!report.wants<T>(shape)) return;
    Case<T> c(shape, pairs);
    std::string name = pairs.name();
    long long width = pairs.width(shape), count = shape.elements();
    Buffer<T> dense(c.dense, shape.off(the_dense)), sparse(c.sparse, shape.off(the_sparse));
    Buffer<T> out(shape.rows * width, shape.off(the_out));
    double bytes = double(dense.bytes() + sparse.bytes() + out.bytes());
    report.check<T>(shape, name, std::string("forward") + way, bytes, {{"out", out, c.expected_out}}, [&] {
        return functions.launch(dense.get(), sparse.get(), out.get(), shape.rows, pairs.features, shape.columns, width,
                                cudaStream_t{}, limits);
    });
    Buffer<T> grad(c.grad, shape.off(the_grad)), grad_dense(count, shape.off(the_grad_dense));
    Buffer<T> grad_sparse(count * pairs.features, shape.off(the_grad_sparse));
    bytes = double(grad.bytes() + 2 * (dense.bytes() + sparse.bytes()));
    auto backward = [&](const char* direction, bool of_dense, bool of_sparse) {
        std::vector<Output> outputs;
        if (of_dense) outputs.emplace_back("grad_dense", grad_dense, c.expected_grad_dense);
        if (of_sparse) outputs.emplace_back("grad_sparse", grad_sparse, c.expected_grad_sparse);
        report.check<T>(shape, name, std::string(direction) + way, bytes, outputs, [&] {
            return functions.launch_backward(grad.get(), dense.get(), sparse.get(),
                                             of_dense ? grad_dense.get() : nullptr,
                                             of_sparse ? grad_sparse.get() : nullptr, shape.rows, pairs.features,
                                             shape.columns, width, cudaStream_t{}, limits);
        });
    };
    backward("backward", true, true);
    if (shape.rows != 7) return;
    backward("of dense", true, false);
    backward("of sparse", false, true);
}

template <class T>
void check_dtype(testing::Report& report, const Functions<T>& functions) {
    auto at = [&](const Shape& shape, const Pairs& pairs) { check<T>(report, shape, pairs, functions); };
    // Few features and the usual ones, at widths that 16 bytes divide and not, in blocks that are full and not.
    for (long long features : {0, 1, 8, 26, 27, 40})
        for (long long columns : {16, 17}) at({7, columns}, {features, columns == 16 ? 1 : 4});
    for (long long columns : {1, 3, 16, 32, 64, 130}) at({7, columns}, {9, columns == 16 ? 1 : 4});
    for (long long pad_to : {1, 4, 16}) at({35, 16}, {26, pad_to});
    at({8, 16}, {40, 16});  // as many rows as a block of tiled.cuh takes, whose outputs need more room than its vectors
    at({20, 16, 0, true}, {26, 1});
    at({20, 16, Shape::all}, {26, 1});
    for (long long rows : {0, 1}) at({rows, 16}, {26, 1});
    at({5, 0}, {4, 1});
    at({2, 4}, {150, 1});  // more pairs than a block's threads
    op::Limits nothing, little, tiled, many;
    nothing.threads = 0;
    nothing.bulk_blocks = little.bulk_blocks = tiled.bulk_blocks = many.bulk_blocks = -1;
    many.enough_blocks = 0;
    check<T>(report, {8, 16}, {40, 16}, functions, many, ", as of many rows");
    check<T>(report, {35, 16}, {26, 1}, functions, many, ", as of many rows");
    check<T>(report, {7, 130}, {9, 4}, functions, many, ", as of many rows");
    for (const Pairs& pairs : {Pairs{26, 1}, Pairs{26, 16}})
        check<T>(report, {35, 16}, pairs, functions, tiled, ", tiled");
    little.shared = 8 * 1024;  // a row or two of a block, also in float64
    for (const op::Limits& limits : {nothing, little})
        for (const Pairs& pairs : {Pairs{26, 4}, Pairs{3, 1}})
            check<T>(report, {7, 24}, pairs, functions, limits, limits.threads ? ", little" : ", plain");
    if (testing::on_gpu && !testing::quick) {
        at({4096, 16}, {26, 1});
        at({9000, 16}, {26, 8});
        at({2048, 64}, {26, 8});
        at({1024, 128}, {26, 1});
    }
}

// By the kernels of bulk_forward.cuh and fast/, also where there are few rows: tiles that are full and not, several for
// a block, one or none; rows of out that lie apart in shared memory and that do not; what they do not take.
template <class T>
void check_bulk(testing::Report& report, const Functions<T>& functions) {
    op::Limits limits;
    limits.bulk_blocks = 2;
    auto at = [&](const Shape& shape, const Pairs& pairs) {
        check<T>(report, shape, pairs, functions, limits, ", bulk");
    };
    for (long long rows : {1, 7, 60, 129, 230}) at({rows, 16}, {26, 1});
    at({100, 32}, {26, 1});
    at({165, 16}, {9, 1});
    for (long long columns : {32, 64, 128}) at({37, columns}, {26, columns == 64 ? 16 : 1});
    at({31, 128}, {14, 1});
    at({53, 64}, {9, 8});
    for (long long pad_to : {4, 16}) at({70, 16}, {20, pad_to});
    if (sizeof(T) == 2) {
        for (long long features : {1, 12, 15, 16, 31}) at({11, 16}, {features, 1});
        for (long long columns : {8, 20, 24, 96, 136})
            at({11, columns}, {columns == 24 ? 12 : 26, columns == 96 ? 8 : 1});
        at({7, 16}, {17, 8});
        at({3, 16}, {1, 1 << 16});  // a row of out that is too long
    }
    at({11, 16}, {32, 1});
    at({70, 16, Shape::all}, {17, 1});
    at({70, 16, 0, true}, {26, 1});
    for (int tensor = 0; tensor < tensors; ++tensor) at({18, 16, 1u << tensor}, {26, 4});
#ifndef __CUDACC__
    // A chip where a block has less memory than two of these tiles take.
    auto usual = std::exchange(cuda_on_host::shared_bytes_of_a_block, size_t(99 * 1024));
    check<T>(report, {37, 128}, {26, 1}, functions, limits, ", 99 KB");
    cuda_on_host::shared_bytes_of_a_block = usual;
#endif
}

int main(int count, char** arguments) {
    return testing::run(count, arguments, [](testing::Report& report) {
        Kernels kernels = testing::kernels_under_test<Kernels>();
        check_dtype<float>(report, kernels);
        check_bulk<float>(report, kernels);
        for (int tensor = 0; tensor < tensors; ++tensor)
            check<float>(report, {18, 16, 1u << tensor}, {26, 4}, kernels);
        check_bulk<__half>(report, {});
        if (testing::quick) return;
        if constexpr (!testing::race_check) {  // a race does not go by the dtype
            check_dtype<double>(report, {});
            check_dtype<__half>(report, {});
        }
        if constexpr (testing::on_gpu) {
            check_dtype<__nv_bfloat16>(report, {});
            check_bulk<__nv_bfloat16>(report, {});
        }
    });
}
