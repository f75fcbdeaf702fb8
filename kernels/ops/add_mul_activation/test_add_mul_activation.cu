// add_mul_activation's CUDA kernels against float64 loops, so that no libtorch is needed.
#include "kernel.cuh"

#include "check/host/testing.cuh"

// The functions under test. A kernel of tests/broken puts its own in their place.
template <class T>
struct Functions {
    decltype(&add_mul_activation::launch<T, Activation>) launch = add_mul_activation::launch<T, Activation>;
    decltype(&add_mul_activation::launch_backward<T, Activation>) launch_backward =
        add_mul_activation::launch_backward<T, Activation>;
};
using Kernels = Functions<float>;
#ifdef BROKEN_KERNELS
#include BROKEN_KERNELS
#endif

using testing::Buffer;
using testing::Expected;
using testing::Output;
using testing::Shape;

constexpr double negative = -1.25, positive = 0.75;  // multipliers

// The tensors, by their bits in Shape::misaligned.
enum { the_x, the_bias, the_y, the_out, the_grad, the_saved, the_grad_x, the_grad_y, the_grad_bias, tensors };

double activate(Activation activation, double z) {
    switch (activation) {
        case Activation::relu: return z < 0 ? 0 : z;
        case Activation::sigmoid: return 1 / (1 + std::exp(-z));
        case Activation::tanh: return std::tanh(z);
        case Activation::gelu: return z * 0.5 * std::erfc(-z / std::sqrt(2.0));
        case Activation::silu: return z / (1 + std::exp(-z));
        case Activation::identity: return z;
    }
    return z;
}

double derivative(Activation activation, double z) {
    double s = 1 / (1 + std::exp(-z)), t = std::tanh(z);
    switch (activation) {
        case Activation::relu: return z <= 0 ? 0 : 1;
        case Activation::sigmoid: return s * (1 - s);
        case Activation::tanh: return 1 - t * t;
        case Activation::gelu:
            return 0.5 * std::erfc(-z / std::sqrt(2.0)) + z * std::exp(-0.5 * z * z) / std::sqrt(2 * std::acos(-1.0));
        case Activation::silu: return s * (1 + z * (1 - s));
        case Activation::identity: return 1;
    }
    return 1;
}

template <class T>
struct Case {
    std::vector<T> x, bias, y, grad, out;
    Expected expected_out, expected_grad_x, expected_grad_y, expected_grad_bias;

    Case(const Shape& shape, Activation activation, double multiplier) {
        x = testing::random<T>(shape.elements(), 1, shape.special, shape.large);
        bias = testing::random<T>(shape.columns, 2);
        y = testing::random<T>(shape.elements(), 3, shape.special, shape.large);
        bool through_out = activation == Activation::sigmoid || activation == Activation::tanh;
        // Where the output was rounded to 1 the derivative is 0, and Inf times that another number than the truth.
        grad = testing::random<T>(shape.elements(), 4, shape.special && !through_out);
        std::vector<double> magnitudes(size_t(shape.columns)), squares(size_t(shape.columns));
        expected_grad_bias.values.resize(size_t(shape.columns));
        for (size_t i = 0; i < x.size(); ++i) {
            size_t column = i % size_t(shape.columns);
            double z = testing::to_double(x[i]) + multiplier * testing::to_double(y[i]) +
                       testing::to_double(bias[column]);
            expected_out.values.push_back(activate(activation, z));
            out.push_back(testing::rounded<T>(expected_out.values.back()));
            double g = testing::to_double(grad[i]);
            // relu passes the gradient or not; a product would make Inf · 0 a NaN.
            double grad_x = activation == Activation::relu ? (z <= 0 ? 0 : g) : g * derivative(activation, z);
            // From the output as it was rounded, like eager's: off by up to its last place times the gradient.
            double slack = through_out ? std::fabs(g) * testing::Dtype<T>::epsilon : 0;
            expected_grad_x.values.push_back(grad_x);
            expected_grad_x.slack.push_back(slack);
            expected_grad_y.values.push_back(multiplier * grad_x);
            expected_grad_y.slack.push_back(std::fabs(multiplier) * slack);
            expected_grad_bias.values[column] += grad_x;
            magnitudes[column] += grad_x == 0 ? 0 : std::fabs(g);
            squares[column] += slack * slack;
        }
        // A sum over the rows may cancel, so its error goes by what was added: in the precision that it was added in,
        // and the independent errors of the rounded outputs (twice the root of their squares is over six sigma).
        for (size_t column = 0; column < magnitudes.size(); ++column)
            expected_grad_bias.slack.push_back(4 * testing::Dtype<Accumulator<T>>::epsilon * magnitudes[column] +
                                               2 * std::sqrt(squares[column]));
    }
};

// A row's name of the activation says the multiplier's sign: gelu-, gelu+.
template <class T>
void check(testing::Report& report, const Shape& shape, NamedActivation named, double multiplier,
           const Functions<T>& op) {
    if (!report.wants<T>(shape)) return;
    Activation activation = named.activation;
    std::string name = named.name + std::string(multiplier < 0 ? "-" : "+");
    Case<T> c(shape, activation, multiplier);
    Buffer<T> x(c.x, shape.off(the_x)), bias(c.bias, shape.off(the_bias)), y(c.y, shape.off(the_y));
    Buffer<T> out(shape.elements(), shape.off(the_out));
    double bytes = double(x.bytes() + bias.bytes() + y.bytes() + out.bytes());
    bool small = shape.elements() <= 30000;
    for (bool wide : {false, true}) {
        if (wide && !small) continue;
        report.check<T>(shape, name, wide ? "forward, 64-bit" : "forward", bytes, {{"out", out, c.expected_out}}, [&] {
            return op.launch(activation, x.get(), bias.get(), y.get(), multiplier, out.get(), shape.rows, shape.columns,
                             cudaStream_t{}, wide ? 0 : first_wide_size);
        });
    }
    report.check<T>(shape, name, "in place", bytes, {{"out", out, c.expected_out, &c.x}}, [&] {
        return op.launch(activation, out.get(), bias.get(), y.get(), multiplier, out.get(), shape.rows, shape.columns,
                         cudaStream_t{}, first_wide_size);
    });

    // Only what the derivative reads is given; the rest is null.
    bool reads_out = derivative_reads_output(activation), reads_z = derivative_reads_input(activation);
    Buffer<T> grad(c.grad, shape.off(the_grad)), saved(c.out, shape.off(the_saved));
    Buffer<T> grad_x(shape.elements(), shape.off(the_grad_x)), grad_y(shape.elements(), shape.off(the_grad_y));
    Buffer<T> grad_bias(shape.columns, shape.off(the_grad_bias));
    auto backward = [&](const std::string& direction, bool with_x, bool with_y, bool with_bias,
                        long long elements = chunk_elements) {
        Buffer<Accumulator<T>> workspace(add_mul_activation::workspace_size(shape.rows, shape.columns, elements));
        std::vector<Output> outputs;
        if (with_x) outputs.push_back({"grad_x", grad_x, c.expected_grad_x});
        if (with_y) outputs.push_back({"grad_y", grad_y, c.expected_grad_y});
        if (with_bias) outputs.push_back({"grad_bias", grad_bias, c.expected_grad_bias});
        double moved = double(grad.bytes());
        if (reads_out) moved += double(saved.bytes());
        if (reads_z) moved += double(x.bytes() + bias.bytes() + y.bytes());
        for (const Output& output : outputs) moved += double(output.bytes);
        report.check<T>(shape, name, direction, moved, outputs, [&] {
            return op.launch_backward(
                activation, grad.get(), reads_out ? saved.get() : nullptr, reads_z ? x.get() : nullptr,
                reads_z ? bias.get() : nullptr, reads_z ? y.get() : nullptr, multiplier,
                with_x ? grad_x.get() : nullptr, with_y ? grad_y.get() : nullptr,
                with_bias ? grad_bias.get() : nullptr, workspace.get(), shape.rows, shape.columns, cudaStream_t{},
                elements);
        });
    };
    backward("backward", true, true, true);
    if (small) backward("backward, chunks", true, true, true, 64);
    if (shape.elements() > 1000) return;
    backward("backward: x", true, false, false);
    backward("backward: y", false, true, false);
    backward("backward: bias", false, false, true);
    backward("backward: x, y", true, true, false);
    backward("backward: x, bias", true, false, true);
    backward("backward: y, bias", false, true, true);
}

// What activations.cuh says of its functions in float: act(z) for z from -30 to 30, and near 0.
void check_accuracy(testing::Report& report) {
    std::vector<float> x;
    for (int i = -15000; i <= 15000; i += testing::on_gpu ? 1 : 29) x.push_back(0.002f * i);  // the host is slow
    for (double z = 1; z > 1e-9; z /= 1.3) x.insert(x.end(), {float(z), float(-z)});
    Shape shape = {(long long)x.size(), 1};
    std::vector<float> zeros(x.size());
    Buffer<float> z(x), bias(std::vector<float>{0}), y(zeros), out(shape.elements());
    for (auto [name, activation] : named_activations) {
        Expected expected;
        expected.bound = 5e-7;
        for (float value : x) expected.values.push_back(activate(activation, value));
        report.check<float>(shape, name, "accuracy", 0, {{"out", out, expected}}, [&, activation = activation] {
            return add_mul_activation::launch(activation, z.get(), bias.get(), y.get(), 1, out.get(), shape.rows,
                                              shape.columns, cudaStream_t{});
        });
    }
}

// With `out` misaligned an element at a time.
void check_huge([[maybe_unused]] testing::Report& report, [[maybe_unused]] bool misaligned) {
#ifdef __CUDACC__
    using T = __half;
    Shape shape = testing::huge_shape();
    if (misaligned) shape.misaligned = 1u << the_out;
    if (const char* why = testing::too_large(4.0 * double(shape.elements()) * sizeof(T))) {
        report.skip(shape, "float16", "relu", "forward, backward", why);
        return;
    }
    // x stands for the gradient, and grad_y is written over y, so that four such tensors do.
    Buffer<T> x(shape.elements()), bias(shape.columns), y(shape.elements()), out(shape.elements(), shape.off(the_out));
    testing::fill(x, 1);
    testing::fill(bias, 2);
    testing::fill(y, 3);
    auto expected_out = [&](long long i) {
        return std::max(0.0, testing::element(i, 1) + negative * testing::element(i, 3) +
                                 testing::element(i % shape.columns, 2));
    };
    report.check_sampled<T>(
        shape, "relu", "forward", {{"out", out, expected_out}},
        add_mul_activation::launch(Activation::relu, x.get(), bias.get(), y.get(), negative, out.get(), shape.rows,
                                   shape.columns, cudaStream_t{}));

    auto expected_grad_x = [&](long long i) { return expected_out(i) > 0 ? double(testing::element(i, 1)) : 0.0; };
    auto expected_grad_y = [&](long long i) { return negative * expected_grad_x(i); };
    Buffer<T> grad_x(shape.elements());
    report.check_sampled<T>(
        shape, "relu", "backward", {{"grad_x", grad_x, expected_grad_x}, {"grad_y", y, expected_grad_y}},
        add_mul_activation::launch_backward<T>(Activation::relu, x.get(), out.get(), nullptr, nullptr, nullptr,
                                               negative, grad_x.get(), y.get(), nullptr, nullptr, shape.rows,
                                               shape.columns, cudaStream_t{}));
#endif
}

template <class T>
void check_dtype(testing::Report& report, const Functions<T>& op = {}) {
    constexpr NamedActivation silu = {"silu", Activation::silu}, sigmoid = {"sigmoid", Activation::sigmoid};
    for (const Shape& shape : testing::small_shapes())
        for (NamedActivation activation : named_activations) check<T>(report, shape, activation, negative, op);
    for (NamedActivation activation : named_activations) check<T>(report, {33, 8}, activation, positive, op);
    for (const Shape& shape : testing::large_shapes())
        if (!testing::few_rows()) check<T>(report, shape, silu, negative, op);
    for (const Shape& shape : testing::timed_shapes()) check<T>(report, shape, sigmoid, negative, op);
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
            check_accuracy(report);
            // Rows of fewer elements than a thread takes.
            check<float>(report, {131073, 2}, {"sigmoid", Activation::sigmoid}, negative, op);
            // silu's derivative reads x, bias and y; sigmoid's the output.
            for (int tensor = 0; tensor < tensors; ++tensor)
                check<float>(report, testing::one_misaligned(tensor, tensor <= the_out),
                             tensor == the_saved ? NamedActivation{"sigmoid", Activation::sigmoid}
                                                 : NamedActivation{"silu", Activation::silu},
                             negative, op);
        }
        for (bool misaligned : {false, true}) check_huge(report, misaligned);
    });
}
