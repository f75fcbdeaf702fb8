// softmax's CUDA kernels against float64 loops, so that no libtorch is needed.
#include "kernel.cuh"

#include "check/host/testing.cuh"

namespace op = softmax;
using testing::Buffer;
using testing::Expected;
using testing::Shape;

// The tensors, by their bits in Shape::misaligned.
enum { the_x, the_out, the_grad, the_saved, the_grad_x, tensors };

// Rows of every kind that special values make: NaN, +Inf, -Inf alone, -Inf among numbers, one number among -Inf, the
// least numbers that there are, a last one beside which all others are nothing.
template <class T>
std::vector<T> inputs(const Shape& shape) {
    std::vector<T> x = testing::random<T>(shape.elements(), 1, false, shape.large);
    constexpr double infinity = std::numeric_limits<double>::infinity();
    for (long long row = 0; shape.special && row < shape.rows; ++row) {
        T* first = x.data() + row * shape.columns;
        long long kind = (row + shape.columns) % 7;  // so that a few rows, which are cut into parts, are of every kind too
        if (kind == 0) first[shape.columns / 2] = testing::rounded<T>(std::nan(""));
        if (kind == 1) first[shape.columns - 1] = testing::rounded<T>(infinity);
        if (kind == 6) first[shape.columns - 1] = testing::rounded<T>(1000);
        for (long long column = 0; column < shape.columns; ++column)
            if (kind == 5)
                first[column] = testing::rounded<T>(-testing::Dtype<T>::largest);
            else if (kind == 2 || (kind == 3 && column % 2) || (kind == 4 && column))
                first[column] = testing::rounded<T>(-infinity);
    }
    return x;
}

// What is drawn and computed of a large shape: its first rows, which the others repeat. They are an odd number, so that
// they lie in the blocks of a launch, which take a power of two of rows each, differently every time.
inline Shape drawn(Shape shape) {
    if (shape.elements() > 1 << 20) shape.rows = std::min(shape.rows, (1 << 18) / shape.columns | 1);
    return shape;
}

template <class T>
void repeat(std::vector<T>& values, long long count) {
    size_t period = values.size();
    values.resize(size_t(count));
    for (size_t i = period; i < values.size(); ++i) values[i] = values[i - period];
}

template <class T>
struct Case {
    std::vector<T> x, grad, out;
    Expected expected_out, expected_grad_x;

    explicit Case(const Shape& shape) {
        compute(drawn(shape));
        for (std::vector<T>* tensor : {&x, &grad, &out}) repeat(*tensor, shape.elements());
        for (Expected* expected : {&expected_out, &expected_grad_x}) {
            repeat(expected->values, shape.elements());
            repeat(expected->slack, shape.elements());
            expected->by_slack = true;
        }
    }

private:
    void compute(const Shape& shape) {
        x = inputs<T>(shape);
        grad = testing::random<T>(shape.elements(), 2, shape.special);
        double epsilon = testing::Dtype<Accumulator<T>>::epsilon;
        // Numbers below the smallest normal one are zero here, and in float16 they are this far apart.
        constexpr double smallest = sizeof(T) == 8 ? 2.3e-308 : std::is_same_v<T, __half> ? 0x1p-24 : 1.2e-38;
        for (long long row = 0; row < shape.rows; ++row) {
            size_t first = size_t(row * shape.columns), end = first + size_t(shape.columns);
            // More precise than double, whose kernels are compared too.
            long double maximum = -std::numeric_limits<double>::infinity(), sum = 0, product = 0, magnitude = 0;
            for (size_t i = first; i < end; ++i) maximum = fmaxl(maximum, testing::to_double(x[i]));
            for (size_t i = first; i < end; ++i) sum += expl(testing::to_double(x[i]) - maximum);
            for (size_t i = first; i < end; ++i) {
                long double z = testing::to_double(x[i]) - maximum;
                double value = double(expl(z) / sum);
                expected_out.values.push_back(value);
                // z is rounded to the type that is computed in, which changes e^z by |z| times its epsilon.
                double places = 8 + 2 * std::fmin(std::fabs(double(z)), 1000);
                expected_out.slack.push_back(places * epsilon * value + smallest);
                out.push_back(testing::rounded<T>(value));
                long double term = (long double)testing::to_double(grad[i]) * testing::to_double(out[i]);
                product += term;
                magnitude += fabsl(term);
            }
            for (size_t i = first; i < end; ++i) {
                double value = testing::to_double(out[i]), g = testing::to_double(grad[i]);
                expected_grad_x.values.push_back(double(value * (g - product)));
                // The sum may cancel, and the difference too: the error goes by what was added.
                expected_grad_x.slack.push_back(8 * epsilon * value * (std::fabs(g) + double(magnitude)) + smallest);
            }
        }
    }
};

template <class T>
void check(testing::Report& report, const Shape& shape, const char* way = "", const op::Limits& limits = {}) {
    if (!report.wants<T>(shape)) return;
    Case<T> c(shape);
    Buffer<T> x(c.x, shape.off(the_x)), out(shape.elements(), shape.off(the_out));
    Buffer<Accumulator<T>> workspace(op::workspace_size<T>(shape.rows, shape.columns, limits));
    double bytes = double(x.bytes() + out.bytes());
    report.check<T>(shape, way, "forward", bytes, {{"out", out, c.expected_out}}, [&] {
        return op::launch(x.get(), out.get(), workspace.get(), shape.rows, shape.columns, cudaStream_t{}, limits);
    });
    report.check<T>(shape, way, "in place", bytes, {{"out", out, c.expected_out, &c.x}}, [&] {
        return op::launch(out.get(), out.get(), workspace.get(), shape.rows, shape.columns, cudaStream_t{}, limits);
    });
    Buffer<T> grad(c.grad, shape.off(the_grad)), saved(c.out, shape.off(the_saved));
    Buffer<T> grad_x(shape.elements(), shape.off(the_grad_x));
    bytes = double(grad.bytes() + saved.bytes() + grad_x.bytes());
    workspace.poison();
    report.check<T>(shape, way, "backward", bytes, {{"grad_x", grad_x, c.expected_grad_x}}, [&] {
        return op::launch_backward(grad.get(), saved.get(), grad_x.get(), workspace.get(), shape.rows, shape.columns,
                                   cudaStream_t{}, limits);
    });
}

// Every way of computing with small inputs: rows of up to `held` threads, longer ones with a block each or, if they are
// fewer than 4, in parts.
template <class T>
void check_ways(testing::Report& report) {
    constexpr int whole = widest<T>;
    op::Limits limits;
    limits.held = 32;
    limits.few_rows = 4;
    limits.part_block = 256 * whole;
    constexpr long long held = 32 * op::held_packs<T, whole> * whole, held_one_by_one = 32 * op::held_packs<T, 1>;
    for (bool special : {false, true}) {
        for (long long columns : {held, held_one_by_one - 1})
            check<T>(report, {7, columns, 0, special}, "held", limits);
        for (long long columns : {held + whole, held_one_by_one + 1, 2 * held - 1, 5003LL, 5002LL, 5000LL})
            check<T>(report, {7, columns, 0, special}, "long", limits);
        for (long long columns : {held + whole, held_one_by_one + 1, 3 * limits.part_block - 1, 5003LL, 5002LL, 9000LL})
            check<T>(report, {3, columns, 0, special}, "parts", limits);
    }
    check<T>(report, {3, 5000, Shape::all}, "parts", limits);
    op::Limits many = limits;  // parts of a row, more than a block has threads
    many.part_block = 32;
    for (int tensor : {the_out, the_grad_x}) {  // one by one, with a last step of one element, and of one less than all
        for (long long columns : {held_one_by_one + 1, 2 * held_one_by_one - 1})
            check<T>(report, {7, columns, 1u << tensor}, "long", limits);
        check<T>(report, {3, held_one_by_one + 1, 1u << tensor}, "parts", many);
    }
    check<T>(report, {1, 2101}, "parts", many);
    check<T>(report, {2, 2500}, "parts", limits);  // few blocks
    limits.narrow = 0;
    for (long long columns : {1, 3, 7, 31}) check<T>(report, {130, columns}, "held", limits);
}

// Two reductions, one after the other: the second may not overwrite what is still to be read of the first.
__global__ void reduce_twice(const float* x, float* out) {
    float sum = reduce_row<Sum>(x[threadIdx.x]);
    out[threadIdx.x] = reduce_row<Sum>(x[threadIdx.x] * sum);
}

void check_reduce_twice(testing::Report& report) {
    Shape shape = {1, 128};
    std::vector<float> x = testing::random<float>(shape.elements(), 1);
    double sum = 0;
    for (float value : x) sum += value;
    Expected expected;
    expected.values.assign(x.size(), sum * sum);
    expected.slack.assign(x.size(), 1e-3);
    Buffer<float> in(x), out(shape.elements());
    report.check<float>(shape, "", "two reductions", 0, {{"out", out, expected}}, [&] {
        dim3 block{unsigned(shape.columns)};
        return launch_kernel(reduce_twice, dim3(1), block, 0, cudaStream_t{}, in.get(), out.get());
    });
}

void check_huge([[maybe_unused]] testing::Report& report) {
#ifdef __CUDACC__
    using T = __half;
    op::Limits few_threads;
    few_threads.held = 32;
    struct {
        Shape shape;
        const char* way;
        op::Limits limits;
    } cases[] = {{testing::huge_shape(), "held", {}},
                 {testing::huge_shape(), "long", few_threads},
                 {{(1LL << 31) / 7 + 100, 7}, "narrow", {}}};
    for (const auto& [shape, way, limits] : cases) {
        if (const char* why = testing::too_large(3.0 * double(shape.elements()) * sizeof(T))) {
            report.skip(shape, "float16", way, "forward, backward", why);
            continue;
        }
        // x stands for the gradient too.
        Buffer<T> x(shape.elements()), out(shape.elements()), grad_x(shape.elements());
        testing::fill(x, 1);
        auto expected_out = [columns = shape.columns](long long i) {
            long long first = i / columns * columns;
            double sum = 0;
            for (long long j = first; j < first + columns; ++j) sum += std::exp(testing::element(j, 1));
            return std::exp(testing::element(i, 1)) / sum;
        };
        // From `out` as the forward rounded it: where the difference cancels, float16's rounding is most of the result.
        auto expected_grad_x = [&, columns = shape.columns](long long i) {
            long long first = i / columns * columns;
            std::vector<T> saved(static_cast<size_t>(columns));
            testing::require(cudaMemcpy(saved.data(), out.get() + first, saved.size() * sizeof(T),
                                        cudaMemcpyDeviceToHost), "cudaMemcpy");
            double product = 0;
            for (long long j = 0; j < columns; ++j)
                product += testing::to_double(saved[size_t(j)]) * testing::element(first + j, 1);
            return testing::to_double(saved[size_t(i - first)]) * (testing::element(i, 1) - product);
        };
        report.check_sampled<T>(
            shape, way, "forward", {{"out", out, expected_out}},
            op::launch<T>(x.get(), out.get(), nullptr, shape.rows, shape.columns, cudaStream_t{}, limits));
        report.check_sampled<T>(
            shape, way, "backward", {{"grad_x", grad_x, expected_grad_x}},
            op::launch_backward<T>(x.get(), out.get(), grad_x.get(), nullptr, shape.rows, shape.columns,
                                   cudaStream_t{}, limits));
    }
#endif
}

template <class T>
void check_dtype(testing::Report& report) {
    for (Shape shape : testing::small_shapes()) check<T>(report, shape);
    const Shape shapes[] = {{300, 7}, {op::narrow_threads - 1, 7}, {129, 1}, {70, 33}, {5, 70}, {5, 72}, {9, 520}, {5, 1022}, {12, 7, 0, true}};
    for (const Shape& shape : shapes) check<T>(report, shape);
    check_ways<T>(report);
    for (const Shape& shape : testing::large_shapes())
        if (!testing::few_rows()) check<T>(report, shape);
    constexpr long long longest = 1024LL * op::held_packs<T, 1>;  // row that is held
    for (long long columns : {longest, longest + 1, longest + 2, longest + widest<T>, 40000LL})
        if (!testing::few_rows()) check<T>(report, {2, columns});
    if (testing::on_gpu && !testing::quick) check<T>(report, {300, 40000});
    for (const Shape& shape : testing::timed_shapes()) {
        check<T>(report, shape);
        for (long long columns : {8192LL, 4LL, 7LL, 131072LL})  // what a dtype changes shows in small shapes
            if (std::is_same_v<T, float>) check<T>(report, {shape.elements() / columns, columns});
    }
}

int main(int count, char** arguments) {
    return testing::run(count, arguments, [](testing::Report& report) {
        check_dtype<float>(report);
        check_reduce_twice(report);
        if constexpr (!testing::race_check) {  // a race does not go by the dtype
            check_dtype<double>(report);
            if (testing::quick) return;
            check_dtype<__half>(report);
            if constexpr (testing::on_gpu) check_dtype<__nv_bfloat16>(report);
            for (int tensor = 0; tensor < tensors; ++tensor)
                check<float>(report, testing::one_misaligned(tensor, false));
        }
        check_huge(report);
    });
}
