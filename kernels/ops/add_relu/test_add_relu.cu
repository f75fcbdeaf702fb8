// add_relu's CUDA kernels against float64 loops, so that no libtorch is needed.
#include "kernel.cuh"

#include "check/host/testing.cuh"

// The functions under test. A kernel of tests/broken puts its own in their place.
template <class T>
struct Functions {
    decltype(&add_relu::launch<T>) launch = add_relu::launch<T>;
    decltype(&add_relu::launch_backward<T>) launch_backward = add_relu::launch_backward<T>;
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
enum { the_x, the_bias, the_out, the_grad, the_saved, the_grad_x, the_grad_bias, tensors };

template <class T>
struct Case {
    Shape shape;
    std::vector<T> x, bias, grad, out;
    Expected expected_out, expected_grad_x, expected_grad_bias;

    explicit Case(const Shape& shape) : shape(shape) {
        x = testing::random<T>(shape.elements(), 1, shape.special);
        bias = testing::random<T>(shape.columns, 2);
        grad = testing::random<T>(shape.elements(), 3, shape.special);
        std::vector<double> magnitudes(size_t(shape.columns));
        expected_grad_bias.values.resize(size_t(shape.columns));
        for (size_t i = 0; i < x.size(); ++i) {
            size_t column = i % size_t(shape.columns);
            double sum = testing::to_double(x[i]) + testing::to_double(bias[column]);
            expected_out.values.push_back(sum < 0 ? 0 : sum);
            out.push_back(testing::rounded<T>(expected_out.values.back()));
            double grad_x = testing::to_double(out.back()) <= 0 ? 0 : testing::to_double(grad[i]);
            expected_grad_x.values.push_back(grad_x);
            expected_grad_bias.values[column] += grad_x;
            magnitudes[column] += std::fabs(grad_x);
        }
        // A sum over the rows may cancel, so its error goes by what was added, and by the precision it was added in.
        for (double magnitude : magnitudes)
            expected_grad_bias.slack.push_back(4 * testing::Dtype<Accumulator<T>>::epsilon * magnitude);
    }
};

template <class T>
void check(testing::Report& report, const Shape& shape, const Functions<T>& op) {
    if (!report.wants<T>(shape)) return;
    Case<T> c(shape);
    Buffer<T> x(c.x, shape.off(the_x)), bias(c.bias, shape.off(the_bias)), out(shape.elements(), shape.off(the_out));
    double bytes = double(x.bytes() + bias.bytes() + out.bytes());
    bool small = shape.elements() <= 30000;
    for (bool wide : {false, true}) {
        if (wide && !small) continue;
        const char* direction = wide ? "forward, 64-bit" : "forward";
        report.check<T>(shape, "relu", direction, bytes, {{"out", out, c.expected_out}}, [&] {
            return op.launch(x.get(), bias.get(), out.get(), shape.rows, shape.columns, cudaStream_t{},
                             wide ? 0 : first_wide_size);
        });
    }
    report.check<T>(shape, "relu", "in place", bytes, {{"out", out, c.expected_out, &c.x}}, [&] {
        return op.launch(out.get(), bias.get(), out.get(), shape.rows, shape.columns, cudaStream_t{}, first_wide_size);
    });

    Buffer<T> grad(c.grad, shape.off(the_grad)), saved(c.out, shape.off(the_saved));
    Buffer<T> grad_x(shape.elements(), shape.off(the_grad_x)), grad_bias(shape.columns, shape.off(the_grad_bias));
    auto backward = [&](const std::string& direction, bool with_x, bool with_bias, long long elements) {
        Buffer<Accumulator<T>> workspace(add_relu::workspace_size(shape.rows, shape.columns, elements));
        std::vector<Output> outputs;
        if (with_x) outputs.push_back({"grad_x", grad_x, c.expected_grad_x});
        if (with_bias) outputs.push_back({"grad_bias", grad_bias, c.expected_grad_bias});
        double moved = double(grad.bytes() + saved.bytes());
        for (const Output& output : outputs) moved += double(output.bytes);
        report.check<T>(shape, "relu", direction, moved, outputs, [&] {
            return op.launch_backward(grad.get(), saved.get(), with_x ? grad_x.get() : nullptr,
                                      with_bias ? grad_bias.get() : nullptr, workspace.get(), shape.rows,
                                      shape.columns, cudaStream_t{}, elements);
        });
    };
    backward("backward", true, true, chunk_elements);
    if (small) backward("backward, chunks", true, true, 64);
    if (shape.elements() > 1000) return;
    backward("backward: x", true, false, chunk_elements);
    backward("backward: bias", false, true, chunk_elements);
}

// With `out` misaligned an element at a time.
void check_huge([[maybe_unused]] testing::Report& report, [[maybe_unused]] bool misaligned) {
#ifdef __CUDACC__
    using T = __half;
    Shape shape = testing::huge_shape();
    if (misaligned) shape.misaligned = 1u << the_out;
    if (const char* why = testing::too_large(3.0 * double(shape.elements()) * sizeof(T))) {
        report.skip(shape, "float16", "relu", "forward, backward", why);
        return;
    }
    // x stands for the gradient too.
    Buffer<T> x(shape.elements()), bias(shape.columns), out(shape.elements(), shape.off(the_out));
    testing::fill(x, 1);
    testing::fill(bias, 2);
    auto expected_out = [&](long long i) {
        return std::max(0.0, double(testing::element(i, 1)) + testing::element(i % shape.columns, 2));
    };
    report.check_sampled<T>(
        shape, "relu", "forward", {{"out", out, expected_out}},
        add_relu::launch(x.get(), bias.get(), out.get(), shape.rows, shape.columns, cudaStream_t{}));

    auto expected_grad_x = [&](long long i) { return expected_out(i) > 0 ? double(testing::element(i, 1)) : 0.0; };
    Buffer<T> grad_x(shape.elements());
    report.check_sampled<T>(
        shape, "relu", "backward", {{"grad_x", grad_x, expected_grad_x}},
        add_relu::launch_backward<T>(x.get(), out.get(), grad_x.get(), nullptr, nullptr, shape.rows, shape.columns,
                                     cudaStream_t{}));
#endif
}

template <class T>
void check_dtype(testing::Report& report, const Functions<T>& op = {}) {
    for (const Shape& shape : testing::small_shapes()) check<T>(report, shape, op);
    for (const Shape& shape : testing::large_shapes())
        if (!testing::few_rows()) check<T>(report, shape, op);
    for (const Shape& shape : testing::timed_shapes()) check<T>(report, shape, op);
}

int main(int count, char** arguments) {
    return testing::run(count, arguments, [](testing::Report& report) {
        Kernels op = testing::kernels_under_test<Kernels>();
        check_dtype<float>(report, op);
        if constexpr (!testing::race_check) {  // a race does not go by the dtype
            check_dtype<double>(report);
            if (testing::quick) return;
            check_dtype<__half>(report);
            if constexpr (testing::on_gpu) check_dtype<__nv_bfloat16>(report);
            check<float>(report, {560, 40}, op);   // more than 32 chunks of several tiles
            check<float>(report, {2, 70001}, op);  // a row that 16 bits do not count
            check<float>(report, {131073, 2}, op);  // rows of fewer elements than a thread takes
            for (int tensor = 0; tensor < tensors; ++tensor)
                check<float>(report, testing::one_misaligned(tensor, tensor <= the_out), op);
        }
        for (bool misaligned : {false, true}) check_huge(report, misaligned);
    });
}
