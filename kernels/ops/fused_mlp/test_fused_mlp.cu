// fused_mlp's CUDA kernel against float64 loops, in every shape, with and without clusters.
#include "direct.cuh"

#include <algorithm>
#include <deque>

#include "check/host/testing_operands.cuh"

namespace op = fused_mlp;

// The function under test. A kernel of tests/broken puts its own in its place.
template <class T>
struct Functions {
    decltype(&op::launch<T>) launch = op::launch<T>;
};
using Kernels = Functions<float>;
#ifdef BROKEN_KERNELS
#include BROKEN_KERNELS
#endif

using testing::Buffer;
using testing::Expected;
using testing::Output;
using testing::Shape;
using testing::as_operand;

enum { the_x, the_packed, the_out };  // by their bits in Shape::misaligned

struct Problem {
    Shape shape;  // B and K'
    const char* widths;
    Activation activation = Activation::relu, last = Activation::identity;
    bool tf32 = false, keep = false;
    op::Plan plan = {};
    bool direct = false;
    bool infinite = false;  // the first weight of the last layer's second output
};

double activated(Activation activation, double z) {
    switch (activation) {
        case Activation::relu: return z < 0 ? 0 : z;
        case Activation::leaky_relu: return z < 0 ? 0.01 * z : z;
        case Activation::sigmoid: return 1 / (1 + std::exp(-z));
        case Activation::tanh: return std::tanh(z);
        case Activation::silu: return z / (1 + std::exp(-z));
        case Activation::gelu: return z * 0.5 * std::erfc(-z / std::sqrt(2.0));
        case Activation::gelu_tanh: return z * 0.5 * (1 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
        default: return z;
    }
}

// Appends a layer's weight and bias as packing.py lays them out.
template <class T>
void pack(std::vector<T>& packed, const std::vector<T>& weight, const std::vector<T>& bias) {
    long long outputs = (long long)bias.size(), inputs = (long long)weight.size() / outputs;
    long long stride = op::round_up(inputs, 16), padded = op::round_up(outputs, 16), start = (long long)packed.size();
    packed.resize(size_t(start + padded * (stride + 1)), testing::rounded<T>(0));
    for (long long n = 0; n < outputs; ++n)
        std::copy_n(weight.begin() + n * inputs, inputs, packed.begin() + start + n * stride);
    std::copy(bias.begin(), bias.end(), packed.begin() + start + padded * stride);
}

// Inputs, and what must come out. Operands are rounded as the kernel rounds them, so what is left are the errors of sums
// in float, and that a sum so changed may be rounded to the neighbour, which the next layers then see: `variance` takes
// each to be of its largest size, and adds up squares, as the signs are random.
template <class T>
struct Case {
    std::vector<T> x, packed;
    Expected out, hidden;
    long long hidden_columns = 0;

    explicit Case(const Problem& p) {
        op::Widths widths;
        op::parse(p.widths, widths);
        x = testing::random<T>(p.shape.elements(), 1, p.shape.special);
        bool single = std::is_same_v<T, float>, wide = std::is_same_v<T, double>;
        // Whether layer l rounds what it takes: one of a single output is no product of matrices.
        auto rounds = [&](int l) { return single && p.tf32 && widths.width[l + 1] > 1; };
        long long rows = p.shape.rows;
        std::vector<double> values(size_t(rows * widths.width[0])), variance(values.size());
        for (long long r = 0; r < rows; ++r)
            for (int k = 0; k < widths.width[0]; ++k)
                values[size_t(r * widths.width[0] + k)] =
                    as_operand<T>(testing::to_double(x[size_t(r * p.shape.columns + k)]), rounds(0));
        for (int l = 0; l < widths.count; ++l) {
            bool last = l + 1 == widths.count;
            Activation activation = last ? p.last : p.activation;
            double sum_error = wide ? 0x1p-50 : single && !rounds(l) ? 0x1p-22 : 0x1p-19;
            double rounding = !last && rounds(l + 1) ? 0x1p-10 : testing::Dtype<T>::epsilon;
            int columns = widths.width[l], width = widths.width[l + 1];
            long long padded = op::round_up(width, 16);
            std::vector<T> weight = testing::random<T>(columns * width, unsigned(10 + l));
            std::vector<T> bias = testing::random<T>(width, unsigned(40 + l));
            for (T& w : weight) w = testing::rounded<T>(testing::to_double(w) / std::sqrt(double(columns)));
            if (last && p.infinite) weight[size_t(columns)] = testing::rounded<T>(INFINITY);
            pack(packed, weight, bias);
            std::vector<double> operands;
            for (T w : weight) operands.push_back(as_operand<T>(testing::to_double(w), rounds(l)));
            std::vector<double> next(size_t(rows * width)), next_variance(next.size());
            // What is kept has the padding's columns too: zeros.
            Kept output = {std::vector<double>(size_t(rows * padded)), std::vector<double>(size_t(rows * padded))};
            Kept input = output;
            for (long long r = 0; r < rows; ++r)
                for (int n = 0; n < width; ++n) {
                    double z = testing::to_double(bias[size_t(n)]), size = std::fabs(z), squares = 0;
                    for (int k = 0; k < columns; ++k) {
                        size_t i = size_t(r * columns + k);
                        double w = operands[size_t(n) * size_t(columns) + size_t(k)];
                        z += w * values[i], size += std::fabs(w * values[i]), squares += w * w * variance[i];
                    }
                    size_t i = size_t(r * width + n);
                    double value = activated(activation, z);
                    double error = 1.3 * (squares + sum_error * sum_error * size * size);  // gelu is up to 1.13 steep
                    next[i] = last ? value : as_operand<T>(value, rounds(l + 1));
                    // `out` and what an activation is taken of are of the dtype; what is kept of a layer's outputs is as
                    // the next one takes it, if not every bit of them is needed.
                    double least = wide ? 1e-12 : 5e-7 * std::fmax(1, std::fabs(value));
                    double own = least + testing::Dtype<T>::epsilon * std::fabs(value);
                    double step = last ? own : least + rounding * std::fabs(value);
                    next_variance[i] = error + step * step;
                    bool as_it_is = derivative_reads_every_bit(activation);
                    double kept_step = as_it_is ? own : step;
                    size_t at = size_t(r * padded + n);
                    output.values[at] = as_it_is ? value : next[i], input.values[at] = z;
                    output.slack[at] = 6 * std::sqrt(error + kept_step * kept_step);
                    input.slack[at] = 6 * std::sqrt(error + own * own);
                }
            if (!last) outputs.push_back(output);
            if (derivative_reads_input(activation)) inputs.push_back(input);
            values = std::move(next), variance = std::move(next_variance);
        }
        if (p.keep) keep(rows);
        out.by_slack = hidden.by_slack = true;
        out.values = values;
        for (double v : variance) out.slack.push_back(6 * std::sqrt(v));
    }

private:
    // One layer's numbers, [rows, P(out)].
    struct Kept {
        std::vector<double> values, slack;
    };
    std::vector<Kept> outputs, inputs;

    // `hidden`: side by side the outputs, then what activations were taken of.
    void keep(long long rows) {
        outputs.insert(outputs.end(), inputs.begin(), inputs.end());
        for (const Kept& kept : outputs) hidden_columns += (long long)kept.values.size() / rows;
        for (long long r = 0; r < rows; ++r)
            for (const Kept& kept : outputs) {
                long long columns = (long long)kept.values.size() / rows, from = r * columns, to = from + columns;
                hidden.values.insert(hidden.values.end(), kept.values.begin() + from, kept.values.begin() + to);
                hidden.slack.insert(hidden.slack.end(), kept.slack.begin() + from, kept.slack.begin() + to);
            }
    }
};

const char* name_of(Activation activation) {
    for (const NamedActivation& known : named_activations)
        if (known.activation == activation) return known.name;
    return "";
}

// Whether the launcher can do it here: before sm_90 there are no clusters, before sm_80 no tensor cores for it, and
// shared memory differs. True if it does not know: the launch says why.
template <class T>
bool possible_here(const Problem& p, const op::Widths& widths) {
    constexpr int size = int(sizeof(T));
    op::Device device;
    if (op::this_device(op::forward<T, size == 2, op::Shape<1, 1, 1, 256, 4>>, device) != cudaSuccess) return true;
    bool cores = size == 2 || p.tf32;
    if (p.direct) return device.tensor_cores && device.clusters(p.plan.cluster);
    op::Plan plan = op::choose(p.shape.rows, widths, size, cores, device, p.plan);
    return (!cores || device.tensor_cores) && op::possible(plan, widths, size, device);
}

template <class T>
void check(testing::Report& report, const Problem& p, const Case<T>& c) {
    auto launch = Functions<T>{}.launch;
    if constexpr (std::is_same_v<T, float>) launch = testing::kernels_under_test<Kernels>().launch;
    Buffer<T> x(c.x, p.shape.off(the_x)), packed(c.packed, p.shape.off(the_packed));
    op::Widths widths;
    op::parse(p.widths, widths);
    Buffer<T> out(p.shape.rows * widths.width[widths.count], p.shape.off(the_out));
    Buffer<T> hidden(p.keep ? p.shape.rows * c.hidden_columns : 0);
    std::string direction = std::string(p.widths) + (p.tf32 ? " tf32" : "") + (p.keep ? " keep" : "");
    if (p.direct) direction += " direct " + std::to_string(p.plan.rows);
    if (p.plan.columns) direction += " " + std::to_string(p.plan.rows) + "x" + std::to_string(p.plan.columns);
    if (p.plan.cluster) direction += " cluster " + std::to_string(p.plan.cluster);
    if (p.plan.buffers == 1) direction += " in place";
    if (p.plan.clusters) direction += " of " + std::to_string(p.plan.clusters);
    if (p.infinite) direction += " infinite weight";
    std::string activations = std::string(name_of(p.activation)) + "-" + name_of(p.last);
    if (testing::on_gpu && p.shape.rows && !possible_here<T>(p, widths))
        return report.skip(p.shape, testing::Dtype<T>::name, activations.c_str(), direction, "not on this GPU");
    op::Call<T> call = {x.get(),      packed.get(), out.get(), p.keep ? hidden.get() : nullptr,
                        p.shape.rows, p.shape.columns, widths, p.activation, p.last, p.tf32};
    Buffer<T> fragments(p.direct ? op::fragments_size<T>(op::Chain().append(widths)) : 0);
    cudaError_t made = cudaSuccess;
    if constexpr (sizeof(T) <= 4)
        if (p.direct) made = op::launch_fragments<T>({{packed.get(), widths}}, fragments.get(), cudaStream_t{});
    std::vector<Output> outputs = {{"out", out, c.out}};
    if (p.keep) outputs.push_back({"hidden", hidden, c.hidden});
    report.check<T>(p.shape, activations, direction,
                    double(x.bytes() + packed.bytes() + out.bytes() + hidden.bytes()), outputs,
                    [&] {
                        if constexpr (sizeof(T) <= 4)
                            if (p.direct) return made != cudaSuccess ? made : op::launch_direct(call, fragments.get(), cudaStream_t{}, p.plan);
                        return launch(call, cudaStream_t{}, p.plan);
                    });
}

template <class T>
void check(testing::Report& report, const Problem& p) {
    if (report.wants<T>(p.shape)) check(report, p, Case<T>(p));
}

op::Plan plan(int rows, int columns, int cluster = 0, int buffers = 0, int clusters = 0) {
    op::Plan plan;
    plan.rows = rows, plan.columns = columns, plan.cluster = cluster, plan.buffers = buffers, plan.clusters = clusters;
    return plan;
}

// As the launcher chooses: widths that divide nothing, one layer, many, rows that fill no tile.
template <class T>
void check_widths(testing::Report& report, bool tf32) {
    using A = Activation;
    check<T>(report, {{0, 13}, "13-8", A::relu, A::identity, tf32});
    check<T>(report, {{1, 1}, "1-1", A::relu, A::gelu, tf32, true});
    check<T>(report, {{7, 3}, "3-17-1", A::sigmoid, A::sigmoid, tf32, true});
    check<T>(report, {{9, 37}, "37-41", A::identity, A::identity, tf32});  // of one layer the errors are the products'
    Problem infinite = {{9, 16}, "16-3", A::relu, A::identity, tf32};
    infinite.infinite = true;  // and does not meet the zeros behind the weights of the output before
    check<T>(report, infinite);
    check<T>(report, {{17, 40}, "33-70-5", A::gelu, A::identity, tf32, true});  // x is wider than K
    check<T>(report, {{19, 16}, "16-48-24-32-8-3", A::relu, A::gelu, tf32, true});
    check<T>(report, {{20, 3, 0, true}, "3-20-9", A::relu, A::identity, tf32});    // NaN and Inf stay in their rows,
    check<T>(report, {{20, 16, 0, true}, "3-20-9", A::sigmoid, A::gelu, tf32, true});  // and beyond K nothing counts
    check<T>(report, {{5, 24, Shape::all}, "24-7-16", A::identity, A::relu, tf32, true});
    check<T>(report, {{21, 37}, "32-1", A::relu, A::identity, tf32});  // one output is added up plainly, in any layer
    check<T>(report, {{18, 24, 0, true}, "24-1-200-1-9", A::relu, A::gelu, tf32, true});
    check<T>(report, {{18, 24}, "24-40-1", A::relu, A::identity, tf32, true});  // and `hidden` has it unrounded
    check<T>(report, {{9, 7}, "7-18-3", A::tanh, A::silu, tf32, true});
    check<T>(report, {{9, 7}, "7-18-3", A::leaky_relu, A::gelu_tanh, tf32, true});
    check<T>(report, {{9, 7, 0, true}, "7-18-3", A::silu, A::tanh, tf32, true});
    if (testing::few_rows()) return;
    check<T>(report, {{33, 24, 1u << the_x}, "24-40-10", A::relu, A::relu, tf32});
    check<T>(report, {{33, 24, 1u << the_packed}, "24-40-10", A::relu, A::relu, tf32});
    check<T>(report, {{33, 24, 1u << the_out}, "24-40-10", A::relu, A::relu, tf32});
    check<T>(report, {{3, 2}, "2-3-3-3-3-3-3-3-3-3-3-3-3-3-3-3-2", A::gelu, A::identity, tf32});
    check<T>(report, {{3, 367}, "367-513-2", A::relu, A::identity, tf32});
}

// Every shape; slices of several passes, and of none; tiles after tiles; both ways to write.
template <class T>
void check_plans(testing::Report& report, bool tf32) {
    using A = Activation;
    auto with = [&](long long rows, const char* widths, int columns, const op::Plan& plan) {
        check<T>(report, {{rows, columns}, widths, A::relu, A::identity, tf32, false, plan});
    };
    with(37, "20-100-72-3", 20, plan(16, 64, 1, 2));
    with(17, "40-64-8-3", 40, plan(16, 64, 4, 2));
    with(17, "40-64-8-3", 40, plan(16, 64, 4, 1));
    with(17, "40-240-8-3", 40, plan(16, 64, 4, 1));  // float's last slice is smaller than the others, which fill a pass
    with(66, "72-130-40", 72, plan(32, 128, 1, 2, 2));
    with(35, "72-60-40-3", 72, plan(32, 128, 2, 1, 1));
    if constexpr (op::has_registers<op::Shape<2, 4, 8, 64, 3>>(sizeof(T))) {
        with(70, "20-200-24-3", 20, plan(64, 128, 2, 2));
        with(70, "20-200-24-3", 20, plan(64, 256, 1, 1));
        with(130, "20-72-24-9", 20, plan(128, 128, 1, 1));
        if (!testing::few_rows()) with(140, "100-130-24-9", 100, plan(128, 128, 1, 2));
    }
    if (testing::few_rows()) return;
    with(40, "20-100-72-3", 20, plan(16, 64, 2, 2, 1));
    with(9, "100-300", 100, plan(16, 64, 4));
}

// Weights and biases that end with their last number, as dlrm_forward has them: nothing beside them is read, and the
// fragments are those of the packed ones.
template <class T>
void check_fragments(testing::Report& report) {
    const char* text = "17-18-1";
    op::Widths widths;
    op::parse(text, widths);
    Shape shape = {1, op::fragments_size<T>(op::Chain().append(widths))};
    if (!report.wants<T>(shape)) return;
    std::vector<T> packed;
    std::deque<Buffer<T>> buffers;
    op::LayersToFragments<T> all = {};
    Buffer<T> fragments(shape.elements());
    all.fragments = fragments.get(), all.count = widths.count;
    for (int l = 0; l < widths.count; ++l) {
        all.strides[l] = all.inputs[l] = widths.width[l], all.outputs[l] = widths.width[l + 1];
        std::vector<T> weight = testing::random<T>(all.inputs[l] * all.outputs[l], unsigned(10 + l));
        std::vector<T> bias = testing::random<T>(all.outputs[l], unsigned(40 + l));
        pack(packed, weight, bias);
        all.weights[l] = buffers.emplace_back(weight, true).get();
        all.biases[l] = buffers.emplace_back(bias, true).get();
    }
    Buffer<T> together(packed);
    cudaError_t made = op::launch_fragments<T>({{together.get(), widths}}, fragments.get(), cudaStream_t{});
    testing::require(made == cudaSuccess ? cudaDeviceSynchronize() : made, "launch_fragments");
    Expected expected;
    for (T value : fragments.read()) expected.values.push_back(testing::to_double(value));
    report.check<T>(shape, text, "fragments", double(fragments.bytes()), {{"fragments", fragments, expected}}, [&] {
        dim3 grid(1, unsigned(all.count));
        return launch_kernel(op::fragments_of_layers<T>, grid, dim3(512), 0, cudaStream_t{}, all);
    });
}

// Weights straight into registers.
template <class T>
void check_direct(testing::Report& report, bool tf32) {
    using A = Activation;
    auto with = [&](const testing::Shape& shape, const char* widths, int rows, int cluster = 1, int clusters = 0,
                    A between = A::relu, A last = A::identity) {
        check<T>(report, {shape, widths, between, last, tf32, false, plan(rows, 0, cluster, 0, clusters), true});
    };
    with({0, 13}, "13-8", 16);
    with({1, 1}, "1-1", 8, 1, 0, A::relu, A::gelu);
    with({7, 3}, "3-17-1", 8, 1, 0, A::sigmoid, A::sigmoid);
    with({9, 37}, "37-21", 16, 1, 0, A::identity);
    with({17, 40}, "33-70-5", 16, 1, 0, A::gelu);
    with({19, 16}, "16-48-24-32-8-3", 32, 1, 0, A::relu, A::gelu);
    with({20, 3, 0, true}, "3-20-9", 16);
    with({20, 16, 0, true}, "3-28-9", 32, 1, 0, A::sigmoid, A::gelu);  // NaN beyond K, in what is read at once with it
    with({5, 24, 1u << the_x | 1u << the_out}, "24-16-7", 8, 1, 0, A::identity, A::relu);
    with({21, 37}, "37-1", 16);
    with({18, 24, 0, true}, "24-1-200-1-9", 8, 1, 0, A::relu, A::gelu);  // half of the warps have no row
    with({18, 24}, "24-40-1", 16);
    with({9, 7}, "7-18-1", 8, 1, 0, A::tanh, A::silu);
    with({9, 7}, "7-18-3", 8, 1, 0, A::leaky_relu, A::gelu_tanh);
    with({37, 20}, "20-200-24-3", 16, 2, 1);
    with({17, 40}, "40-64-200-3", 8, 4);
    with({50, 40}, "40-288-1", 16, 1, 1);  // no zeros behind the inputs
    with({40, 20}, "20-1-40-1", 16, 2, 1);
    if (testing::few_rows()) return;
    with({3, 367}, "367-513-2", 16);
    with({37, 20}, "20-600-72-3", 16, 2, 1);
    with({70, 367}, "367-512-256-1", 32, 4, 2);
    with({33, 13}, "13-512-256-64-16", 16, 1, 2);
    with({3, 2}, "2-3-3-3-3-3-3-3-3-3-3-3-3-3-3-3-2", 16, 1, 0, A::gelu);
}

// What the issue is about, timed.
template <class T>
void check_sizes(testing::Report& report, bool tf32) {
    if (!testing::on_gpu || testing::quick) return;
    for (long long rows : {128, 2048})
        for (const char* widths : {"13-512-256-64-16", "367-512-256-1"}) {
            int columns = std::atoi(widths) == 13 ? 16 : 368;
            Problem problem = {{rows, columns}, widths, Activation::relu, Activation::identity, tf32};
            if (!report.wants<T>(problem.shape)) continue;
            Case<T> in_float64(problem);  // of all plans: it takes seconds
            check(report, problem, in_float64);
            problem.direct = sizeof(T) == 2 || tf32;
            for (int tile : {8, 16, 32})
                for (int cluster : {1, 2, 4, 8}) {
                    problem.plan = plan(tile, 0, cluster);
                    check(report, problem, in_float64);
                }
            problem.direct = false;
            for (int cluster : {1, 2, 4, 8}) {
                for (auto [tile, pass] : {std::pair(16, 64), {32, 128}, {64, 128}, {64, 256}, {128, 128}}) {
                    problem.plan = plan(tile, pass, cluster);
                    op::Widths all;
                    op::parse(widths, all);
                    bool cores = sizeof(T) == 2 || tf32;
                    op::Plan chosen = op::choose(rows, all, int(sizeof(T)), cores, op::Device{}, problem.plan);
                    if (!op::possible(chosen, all, int(sizeof(T)), op::Device{})) continue;
                    check(report, problem, in_float64);
                }
            }
        }
}

// How many layers a text names, -1 for no widths: no layer, one too many, a width beyond 2^30, another sign.
void check_parse(testing::Report& report) {
    const std::pair<const char*, int> texts[] = {
        {"1073741824-1023456789", 1}, {"1073741825-1", -1}, {"7", -1}, {"7-", -1}, {"7/7-7", -1}, {"7:7-7", -1},
        {"1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1", 16}, {"1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1", -1},
    };
    Buffer<int> layers(1);
    for (auto [text, count] : texts) {
        Expected expected;
        expected.values = {double(count)};
        report.check<int>({1, 1}, "parse", text, 0, {{"layers", layers, expected}}, [&, text = text] {
            op::Widths widths;
            layers.write({op::parse(text, widths) ? widths.count : -1});
            return cudaSuccess;
        });
    }
}

// What reaches no kernel: where a layer's outputs take its inputs' place, a layer whose columns are not all computed
// before the first is written; a layer of more bytes than 32 bits count.
void check_refusal(testing::Report& report) {
    Buffer<float> x(1), packed(512), out(1);
    Buffer<int> launched(1);
    Expected none;
    none.values = {0};
    auto refused = [&](const char* what, const char* widths, auto launch) {
        report.check<int>({1, 1}, "refused", what, 0, {{"launched", launched, none}}, [&] {
            op::Call<float> call = {};
            call.x = x.get(), call.packed = packed.get(), call.out = out.get(), call.rows = call.x_columns = 1;
            op::parse(widths, call.widths);
            launched.write(std::vector<int>{launch(call) ? 1 : 0});
            return cudaSuccess;
        });
    };
    refused("in place", "1-8-72-1", [&](const op::Call<float>& call) {
        return op::launch(call, cudaStream_t{}, plan(16, 64, 1, 1)) != cudaErrorInvalidConfiguration;
    });
    refused("fragments of 4 GB", "32768-32768", [&](const op::Call<float>& call) {
        auto error = op::launch_fragments<float>({{call.packed, call.widths}}, out.get(), cudaStream_t{});
        return error != cudaErrorInvalidValue;
    });
}

int main(int count, char** arguments) {
    return testing::run(count, arguments, [](testing::Report& report) {
        auto all = [&](auto t, bool tf32) {
            using T = decltype(t);
            check_widths<T>(report, tf32);
            check_plans<T>(report, tf32);
            if constexpr (sizeof(T) <= 4)
                if (sizeof(T) == 2 || tf32) check_direct<T>(report, tf32), check_fragments<T>(report);
            if constexpr (!std::is_same_v<T, double>) check_sizes<T>(report, tf32);
        };
        check_parse(report);
        check_refusal(report);
        all(float{}, true);
        if constexpr (!testing::race_check) {  // a race does not go by the dtype
            all(__half{}, false);
            if (testing::quick) return;
            all(float{}, false);
            all(double{}, false);
            if constexpr (testing::on_gpu) all(__nv_bfloat16{}, false);
        }
    });
}
