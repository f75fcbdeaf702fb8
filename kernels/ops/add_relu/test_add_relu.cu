// add_relu's CUDA kernels against float64 loops, so that no libtorch is needed.
#include "kernel.cuh"

#include "check/host/testing_pointwise.cuh"

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

const testing::pointwise::Formula formula = {Activation::relu, "relu"};

template <class T>
testing::pointwise::Launches<T> launches(const Functions<T>& op = {}) {
    using Arguments = testing::pointwise::Arguments<T>;
    return {[op](const Arguments& a) {
                return op.launch(a.x, a.bias, a.out, a.rows, a.columns, cudaStream_t{}, a.wide_size);
            },
            [op](const Arguments& a) {
                return op.launch_backward(a.grad, a.saved, a.grad_x, a.grad_bias, a.workspace, a.rows, a.columns,
                                          cudaStream_t{}, a.elements);
            },
            add_relu::workspace_size};
}

template <class T>
void check(testing::Report& report, const std::vector<testing::Shape>& shapes, const Functions<T>& op = {}) {
    for (const testing::Shape& shape : shapes) testing::pointwise::check(report, shape, formula, launches(op));
}

int main(int count, char** arguments) {
    using namespace testing::pointwise;
    return testing::run(count, arguments, [](testing::Report& report) {
        Kernels op = testing::kernels_under_test<Kernels>();
        ::check(report, shapes(), op);
        // More than 32 chunks of several tiles; a row that 16 bits do not count.
        if (!testing::few_rows()) ::check(report, {{560, 40}, {2, 70001}, narrow()}, op);
        if (!testing::few_rows()) ::check(report, one_misaligned(formula.has_y), op);
        for_other_dtypes([&](auto t) { ::check<decltype(t)>(report, shapes()); });
        if constexpr (testing::on_gpu) check_huge(report, formula, launches<__half>());
    });
}
