// add_mul_activation's CUDA kernels against float64 loops, so that no libtorch is needed.
#include "kernel.cuh"

#include "check/host/testing_pointwise.cuh"

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

constexpr double negative = -1.25, positive = 0.75;  // multipliers

// A row's name of the activation says the multiplier's sign: gelu-, gelu+.
testing::pointwise::Formula formula(NamedActivation named, double multiplier) {
    return {named.activation, named.name + std::string(multiplier < 0 ? "-" : "+"), multiplier, true};
}

template <class T>
testing::pointwise::Launches<T> launches(Activation activation, double multiplier, const Functions<T>& op = {}) {
    using Arguments = testing::pointwise::Arguments<T>;
    return {[=](const Arguments& a) {
                return op.launch(activation, a.x, a.bias, a.y, multiplier, a.out, a.rows, a.columns, cudaStream_t{},
                                 a.wide_size);
            },
            [=](const Arguments& a) {
                return op.launch_backward(activation, a.grad, a.saved, a.x, a.bias, a.y, multiplier, a.grad_x, a.grad_y,
                                          a.grad_bias, a.workspace, a.rows, a.columns, cudaStream_t{}, a.elements);
            },
            add_mul_activation::workspace_size};
}

template <class T>
void check(testing::Report& report, const testing::Shape& shape, NamedActivation named, const Functions<T>& op = {},
           double multiplier = negative) {
    testing::pointwise::check(report, shape, formula(named, multiplier), launches(named.activation, multiplier, op));
}

constexpr NamedActivation silu = {"silu", Activation::silu}, sigmoid = {"sigmoid", Activation::sigmoid};

template <class T>
void check_dtype(testing::Report& report, const Functions<T>& op = {}) {
    for (NamedActivation activation : pointwise_activations) {
        // A race goes by what the derivative reads: the output, the input, or nothing.
        bool races = activation.activation == Activation::relu || activation.activation == Activation::silu ||
                     activation.activation == Activation::identity;
        if (testing::race_check && !races) continue;
        for (const testing::Shape& shape : testing::small_shapes()) check<T>(report, shape, activation, op);
        check<T>(report, {33, 8}, activation, op, positive);
    }
    for (const testing::Shape& shape : testing::pointwise::large()) check<T>(report, shape, silu, op);
    for (const testing::Shape& shape : testing::timed_shapes()) check<T>(report, shape, sigmoid, op);
}

// What activations.cuh says of its functions in float: act(z) for z from -30 to 30, and near 0.
void check_accuracy(testing::Report& report) {
    std::vector<float> x;
    for (int i = -15000; i <= 15000; i += testing::on_gpu ? 1 : 29) x.push_back(0.002f * i);  // the host is slow
    for (double z = 1; z > 1e-9; z /= 1.3) x.insert(x.end(), {float(z), float(-z)});
    testing::Shape shape = {(long long)x.size(), 1};
    std::vector<float> zeros(x.size());
    testing::Buffer<float> z(x), bias(std::vector<float>{0}), y(zeros), out(shape.elements());
    for (auto [name, activation] : pointwise_activations) {
        testing::Expected expected;
        expected.bound = 5e-7;
        for (float value : x) expected.values.push_back(testing::pointwise::activate(activation, value));
        report.check<float>(shape, name, "accuracy", 0, {{"out", out, expected}}, [&, activation = activation] {
            return add_mul_activation::launch(activation, z.get(), bias.get(), y.get(), 1, out.get(), shape.rows,
                                              shape.columns, cudaStream_t{});
        });
    }
}

int main(int count, char** arguments) {
    using namespace testing::pointwise;
    return testing::run(count, arguments, [](testing::Report& report) {
        Kernels op = testing::kernels_under_test<Kernels>();
        check_dtype(report, op);
        if (!testing::few_rows()) {
            check_accuracy(report);
            ::check(report, narrow(), sigmoid, op);
            // silu's derivative reads x, bias and y; sigmoid's the output.
            for (const testing::Shape& shape : one_misaligned(true))
                ::check(report, shape, shape.off(the_saved) ? sigmoid : silu, op);
        }
        for_other_dtypes([&](auto t) { check_dtype<decltype(t)>(report); });
        if constexpr (testing::on_gpu)
            check_huge(report, formula({"relu", Activation::relu}, negative), launches<__half>(Activation::relu, negative));
    });
}
