// The driver of the tests of out = act(x + multiplier · y + bias), with y or without, and of its gradients: the float64
// reference, and a row for each way of calling. An op's test gives its launches and its table of cases.
#pragma once

#include "check/host/testing.cuh"
#include "device/activations.cuh"

namespace testing::pointwise {

// The tensors, by their bits in Shape::misaligned.
enum { the_x, the_bias, the_y, the_out, the_grad, the_saved, the_grad_x, the_grad_y, the_grad_bias, tensors };

struct Formula {
    Activation activation;
    std::string name;  // in a row
    double multiplier = 0;
    bool has_y = false;
};

inline double activate(Activation activation, double z) {
    switch (activation) {
        case Activation::relu: return z < 0 ? 0 : z;
        case Activation::sigmoid: return 1 / (1 + std::exp(-z));
        case Activation::tanh: return std::tanh(z);
        case Activation::gelu: return z * 0.5 * std::erfc(-z / std::sqrt(2.0));
        case Activation::silu: return z / (1 + std::exp(-z));
        default: return z;  // identity
    }
}

inline double derivative(Activation activation, double z) {
    double s = 1 / (1 + std::exp(-z)), t = std::tanh(z);
    switch (activation) {
        case Activation::relu: return z <= 0 ? 0 : 1;
        case Activation::sigmoid: return s * (1 - s);
        case Activation::tanh: return 1 - t * t;
        case Activation::gelu:
            return 0.5 * std::erfc(-z / std::sqrt(2.0)) + z * std::exp(-0.5 * z * z) / std::sqrt(2 * std::acos(-1.0));
        case Activation::silu: return s * (1 + z * (1 - s));
        default: return 1;  // identity
    }
}

// What a table of cases is made of. On the host a thread takes several elements from 64 on, so the small shapes suffice.
inline std::vector<Shape> large() { return on_gpu && !quick ? large_shapes() : std::vector<Shape>(); }
inline std::vector<Shape> shapes() {
    std::vector<Shape> shapes = small_shapes();
    for (const auto& more : {large(), timed_shapes()}) shapes.insert(shapes.end(), more.begin(), more.end());
    return shapes;
}
// Each tensor alone is misaligned: the choice of the kernel must look at every one.
inline std::vector<Shape> one_misaligned(bool has_y) {
    std::vector<Shape> shapes;
    for (int tensor = 0; tensor < tensors; ++tensor)
        if (has_y || (tensor != the_y && tensor != the_grad_y))
            shapes.push_back(testing::one_misaligned(tensor, on_gpu && tensor <= the_out));
    return shapes;
}
// Rows of fewer elements than a thread takes, beyond the number from which on it takes several.
inline Shape narrow() { return {on_gpu ? 131073 : 1001, 2}; }

// check(T()) for the other dtypes. On the host the contract has them.
template <class Check>
void for_other_dtypes(Check check) {
    if constexpr (on_gpu) {
        check(double());
        if (quick) return;
        check(__half());
        check(__nv_bfloat16());
    }
}

// What a launch is given. What it is not to compute or not to read is null.
template <class T>
struct Arguments {
    long long rows, columns;
    const T *x = nullptr, *bias = nullptr, *y = nullptr, *grad = nullptr, *saved = nullptr;
    T *out = nullptr, *grad_x = nullptr, *grad_y = nullptr, *grad_bias = nullptr;
    Accumulator<T>* workspace = nullptr;
    long long wide_size = first_wide_size, elements = chunk_elements;
};
template <class T>
struct Launches {
    std::function<cudaError_t(const Arguments<T>&)> forward, backward;
    long long (*workspace_size)(long long rows, long long columns, long long elements);
};

template <class T>
struct Case {
    std::vector<T> x, bias, y, grad, out;
    Expected expected_out, expected_grad_x, expected_grad_y, expected_grad_bias;

    Case(const Shape& shape, const Formula& formula) {
        x = random<T>(shape.elements(), 1, shape.special, shape.large);
        bias = random<T>(shape.columns, 2);
        y = random<T>(formula.has_y ? shape.elements() : 0, 3, shape.special, shape.large);
        bool rounds = formula.activation == Activation::sigmoid || formula.activation == Activation::tanh;
        // Where the output was rounded to 1 the derivative is 0, and Inf times that another number than the truth.
        grad = random<T>(shape.elements(), 4, shape.special && !rounds);
        std::vector<double> magnitudes(size_t(shape.columns)), squares(size_t(shape.columns));
        expected_grad_bias.values.resize(size_t(shape.columns));
        for (size_t i = 0; i < x.size(); ++i) {
            size_t column = i % size_t(shape.columns);
            double z = to_double(x[i]) + to_double(bias[column]), g = to_double(grad[i]);
            if (formula.has_y) z += formula.multiplier * to_double(y[i]);
            expected_out.values.push_back(activate(formula.activation, z));
            out.push_back(rounded<T>(expected_out.values.back()));
            // relu passes the gradient or not; a product would make Inf · 0 a NaN.
            bool relu = formula.activation == Activation::relu;
            double grad_x = relu ? (z <= 0 ? 0 : g) : g * derivative(formula.activation, z);
            // From the output as it was rounded, like eager's: off by up to its last place times the gradient.
            double slack = rounds ? std::fabs(g) * Dtype<T>::epsilon : 0;
            expected_grad_x.values.push_back(grad_x);
            expected_grad_x.slack.push_back(slack);
            expected_grad_y.values.push_back(formula.multiplier * grad_x);
            expected_grad_y.slack.push_back(std::fabs(formula.multiplier) * slack);
            expected_grad_bias.values[column] += grad_x;
            magnitudes[column] += grad_x == 0 ? 0 : std::fabs(g);
            squares[column] += slack * slack;
        }
        // A sum over the rows may cancel, so its error goes by what was added: in the precision that it was added in,
        // and the independent errors of the rounded outputs (twice the root of their squares is over six sigma).
        for (size_t column = 0; column < magnitudes.size(); ++column)
            expected_grad_bias.slack.push_back(4 * Dtype<Accumulator<T>>::epsilon * magnitudes[column] +
                                               2 * std::sqrt(squares[column]));
    }
};

template <class T>
void check(Report& report, const Shape& shape, const Formula& formula, const Launches<T>& op) {
    if (!report.wants<T>(shape)) return;
    Case<T> c(shape, formula);
    long long count = shape.elements(), of_y = formula.has_y ? count : 0;
    Buffer<T> x(c.x, shape.off(the_x)), bias(c.bias, shape.off(the_bias)), y(c.y, shape.off(the_y));
    Buffer<T> out(count, shape.off(the_out)), grad(c.grad, shape.off(the_grad)), saved(c.out, shape.off(the_saved));
    Buffer<T> grad_x(count, shape.off(the_grad_x)), grad_y(of_y, shape.off(the_grad_y));
    Buffer<T> grad_bias(shape.columns, shape.off(the_grad_bias));
    auto bytes = [](auto&... buffers) { return double((buffers.bytes() + ...)); };

    Arguments<T> forward = {shape.rows, shape.columns, x.get(), bias.get(), y.get()};
    forward.out = out.get();
    bool small = count <= 30000;
    for (bool wide : {false, true}) {
        if (wide && !small) continue;
        forward.wide_size = wide ? 0 : first_wide_size;
        report.check<T>(shape, formula.name, wide ? "forward, 64-bit" : "forward", bytes(x, bias, y, out),
                        {{"out", out, c.expected_out}}, [&] { return op.forward(forward); });
    }
    forward.x = out.get(), forward.wide_size = first_wide_size;
    report.check<T>(shape, formula.name, "in place", bytes(x, bias, y, out), {{"out", out, c.expected_out, &c.x}},
                    [&] { return op.forward(forward); });

    // Only what the derivative reads is given.
    bool reads_out = derivative_reads_output(formula.activation), reads_z = derivative_reads_input(formula.activation);
    auto backward = [&](const std::string& direction, bool with_x, bool with_y, bool with_bias,
                        long long elements = chunk_elements) {
        Buffer<Accumulator<T>> workspace(op.workspace_size(shape.rows, shape.columns, elements));
        std::vector<Output> outputs;
        if (with_x) outputs.push_back({"grad_x", grad_x, c.expected_grad_x});
        if (with_y) outputs.push_back({"grad_y", grad_y, c.expected_grad_y});
        if (with_bias) outputs.push_back({"grad_bias", grad_bias, c.expected_grad_bias});
        double moved = bytes(grad) + (reads_out ? bytes(saved) : 0) + (reads_z ? bytes(x, bias, y) : 0);
        for (const Output& output : outputs) moved += double(output.bytes);
        Arguments<T> arguments = {shape.rows, shape.columns};
        arguments.grad = grad.get(), arguments.workspace = workspace.get(), arguments.elements = elements;
        if (reads_out) arguments.saved = saved.get();
        if (reads_z) arguments.x = x.get(), arguments.bias = bias.get(), arguments.y = y.get();
        if (with_x) arguments.grad_x = grad_x.get();
        if (with_y) arguments.grad_y = grad_y.get();
        if (with_bias) arguments.grad_bias = grad_bias.get();
        report.check<T>(shape, formula.name, direction, moved, outputs, [&] { return op.backward(arguments); });
    };
    backward("backward", true, formula.has_y, true);
    if (small) backward("backward, chunks", true, formula.has_y, true, 64);
    if (count > 1000) return;
    backward("backward: x", true, false, false);
    backward("backward: bias", false, false, true);
    if (!formula.has_y) return;
    backward("backward: y", false, true, false);
    backward("backward: x, y", true, true, false);
    backward("backward: x, bias", true, false, true);
    backward("backward: y, bias", false, true, true);
}

// More than 2^31 elements of relu, with `out` aligned and an element at a time.
inline void check_huge([[maybe_unused]] Report& report, [[maybe_unused]] const Formula& formula,
                       [[maybe_unused]] const Launches<__half>& op) {
#ifdef __CUDACC__
    if (quick || !only_row.empty()) return;
    for (bool misaligned : {false, true}) {
        Shape shape = huge_shape();
        if (misaligned) shape.misaligned = 1u << the_out;
        long long count = shape.elements(), of_y = formula.has_y ? count : 0;
        if (const char* why = too_large(2.0 * double(3 * count + of_y))) {
            report.skip(shape, "float16", "relu", "forward, backward", why);
            continue;
        }
        // x stands for the gradient too, and grad_y is written over y.
        Buffer<__half> x(count), bias(shape.columns), y(of_y), out(count, shape.off(the_out));
        fill(x, 1);
        fill(bias, 2);
        if (formula.has_y) fill(y, 3);
        auto expected_out = [&](long long i) {
            double z = element(i, 1) + element(i % shape.columns, 2);
            return std::max(0.0, formula.has_y ? z + formula.multiplier * element(i, 3) : z);
        };
        Arguments<__half> forward = {shape.rows, shape.columns, x.get(), bias.get(), y.get()};
        forward.out = out.get();
        report.check_sampled<__half>(shape, "relu", "forward", {{"out", out, expected_out}}, op.forward(forward));

        auto expected_grad_x = [&](long long i) { return expected_out(i) > 0 ? double(element(i, 1)) : 0.0; };
        auto expected_grad_y = [&](long long i) { return formula.multiplier * expected_grad_x(i); };
        Buffer<__half> grad_x(count);
        std::vector<SampledOutput<__half>> outputs = {{"grad_x", grad_x, expected_grad_x}};
        if (formula.has_y) outputs.push_back({"grad_y", y, expected_grad_y});
        Arguments<__half> backward = {shape.rows, shape.columns};
        backward.grad = x.get(), backward.saved = out.get(), backward.grad_x = grad_x.get();
        if (formula.has_y) backward.grad_y = y.get();
        report.check_sampled<__half>(shape, "relu", "backward", outputs, op.backward(backward));
    }
#endif
}

}  // namespace testing::pointwise
