// The tiled kernel of a whole DLRM, the one whose clusters share the weights, and on the host that of pairs, against float64
// loops: tiles, clusters, one id a row and bags, bad ids.
#include "cluster.cuh"
#include "pair.cuh"

#include <algorithm>

#include "check/host/testing_operands.cuh"

namespace {

using testing::Buffer;
using testing::Expected;
using testing::Output;

struct Problem {
    long long rows;
    const char *bottom, *top;
    int tables, tile, cluster = 1, clusters = 0;
    bool bags = false, narrow_ids = false, bad = false;
    bool last = true, apart = false;  // whether the offsets' last is given; ids three places apart, x, tables off by one
    long long bad_id = -1, bad_offset = 0;  // what is bad if anything is: -1 for the table's height; the row, 0 for none
    enum { far_below, below, beyond, falling } offset = far_below;
    bool last_apart = false;  // the last table alone is off by one
};

// What tensor cores take a number for.
template <class T>
double as_operand(double value) {
    return testing::as_operand<T>(value, true);
}

// Values and the variance of their errors: each rounding takes its neighbour, and each sum is off, by chance.
struct Numbers {
    std::vector<double> value, variance;
    explicit Numbers(size_t size) : value(size), variance(size) {}
};

template <class T>
struct Case {
    static constexpr double sum_error = 0x1p-19;
    static constexpr double step = std::is_same_v<T, float> ? 0x1p-10 : testing::Dtype<T>::epsilon;

    fused_mlp::Widths bottom, top;
    int dense, columns;
    std::vector<T> x, bottom_packed, top_packed, tables;
    std::vector<long long> heights, starts, ids, offsets;  // of each table: its rows; where they, ids and offsets begin
    std::vector<long long> first_id;
    Expected out;
    std::vector<double> reported;  // of what is bad: the table, the position, the value

    explicit Case(const Problem& p) {
        fused_mlp::parse(p.bottom, bottom), fused_mlp::parse(p.top, top);
        dense = bottom.width[0], columns = bottom.width[bottom.count];
        size_t rows = size_t(p.rows), vectors = size_t(p.tables) + 1;
        x = testing::random<T>(p.rows * dense, 1, false);
        Numbers v(rows * vectors * size_t(columns));
        Numbers first = mlp(x, bottom, 2, bottom_packed, true);
        for (size_t r = 0; r < rows; ++r)
            for (size_t c = 0; c < size_t(columns); ++c) {
                v.value[r * vectors * size_t(columns) + c] = first.value[r * size_t(columns) + c];
                v.variance[r * vectors * size_t(columns) + c] = first.variance[r * size_t(columns) + c];
            }
        look_up(p, v, vectors);
        size_t width = size_t(columns) + vectors * (vectors - 1) / 2;
        Numbers joined(rows * width);
        for (size_t r = 0; r < rows; ++r) {
            size_t at = r * width;
            const double* own = &v.value[r * vectors * size_t(columns)];
            const double* error = &v.variance[r * vectors * size_t(columns)];
            for (size_t c = 0; c < size_t(columns); ++c, ++at) joined.value[at] = own[c], joined.variance[at] = error[c];
            for (size_t i = 1; i < vectors; ++i)
                for (size_t j = 0; j < i; ++j, ++at)
                    for (size_t c = 0; c < size_t(columns); ++c) {
                        size_t a = i * size_t(columns) + c, b = j * size_t(columns) + c;
                        double one = as_operand<T>(own[a]), other = as_operand<T>(own[b]);
                        joined.value[at] += one * other;
                        double of_one = error[a] + square(step * one), of_other = error[b] + square(step * other);
                        joined.variance[at] += of_one * square(other) + of_other * square(one) +
                                               square(sum_error * one * other);
                    }
        }
        Numbers result = mlp(joined, top, 20, top_packed, false);
        out.by_slack = true;
        out.values = result.value;
        for (double variance : result.variance) out.slack.push_back(6 * std::sqrt(variance));
    }

private:
    static double square(double a) { return a * a; }

    Numbers mlp(const std::vector<T>& input, const fused_mlp::Widths& widths, unsigned seed, std::vector<T>& packed, bool relu) {
        Numbers numbers(input.size());
        for (size_t i = 0; i < input.size(); ++i) numbers.value[i] = testing::to_double(input[i]);
        return mlp(numbers, widths, seed, packed, relu);
    }
    // relu between the layers; behind the last one if `relu`.
    Numbers mlp(Numbers numbers, const fused_mlp::Widths& widths, unsigned seed, std::vector<T>& packed, bool relu) {
        size_t rows = numbers.value.size() / size_t(widths.width[0]);
        for (int l = 0; l < widths.count; ++l) {
            size_t inputs = size_t(widths.width[l]), outputs = size_t(widths.width[l + 1]);
            bool plain = sizeof(T) == 4 && outputs == 1;
            size_t stride = size_t(fused_mlp::round_up(int(inputs), 16)), padded = size_t(fused_mlp::round_up(int(outputs), 16));
            std::vector<T> weight = testing::random<T>((long long)(inputs * outputs), seed + unsigned(l));
            std::vector<T> bias = testing::random<T>((long long)outputs, seed + 100 + unsigned(l));
            for (T& w : weight) w = testing::rounded<T>(testing::to_double(w) / std::sqrt(double(inputs)));
            size_t start = packed.size();
            packed.resize(start + padded * (stride + 1), testing::rounded<T>(0));
            std::vector<double> operands(inputs * outputs);
            for (size_t n = 0; n < outputs; ++n) {
                for (size_t k = 0; k < inputs; ++k) {
                    packed[start + n * stride + k] = weight[n * inputs + k];
                    double w = testing::to_double(weight[n * inputs + k]);
                    operands[n * inputs + k] = plain ? w : as_operand<T>(w);
                }
                packed[start + padded * stride + n] = bias[n];
            }
            Numbers next(rows * outputs);
            for (size_t r = 0; r < rows; ++r)
                for (size_t n = 0; n < outputs; ++n) {
                    double z = testing::to_double(bias[n]), size = std::fabs(z), squares = 0;
                    for (size_t k = 0; k < inputs; ++k) {
                        double taken = numbers.value[r * inputs + k], w = operands[n * inputs + k];
                        double own = plain ? taken : as_operand<T>(taken);
                        z += w * own, size += std::fabs(w * own);
                        squares += w * w * (numbers.variance[r * inputs + k] + (plain || (!l && relu) ? 0 : square(step * own)));
                    }
                    bool rectified = (l + 1 < widths.count || relu) && z < 0;
                    next.value[r * outputs + n] = rectified ? 0 : z;
                    double least = 5e-7 * std::fmax(1, std::fabs(z)) + testing::Dtype<T>::epsilon * std::fabs(z);
                    next.variance[r * outputs + n] = squares + square(sum_error * size) + square(least);
                }
            numbers = std::move(next);
        }
        return numbers;
    }
    // Ids drawn, and what they name: into the vectors behind the first.
    void look_up(const Problem& p, Numbers& v, size_t vectors) {
        unsigned drawn = 12345;
        auto draw = [&](long long below) { return drawn = drawn * 1664525u + 1013904223u, (long long)(drawn >> 8) % below; };
        for (int f = 0; f < p.tables; ++f) {
            long long height = 1 + (f * 7) % 23;
            if (p.last_apart && f + 1 == p.tables) tables.push_back(testing::rounded<T>(0));
            heights.push_back(height), starts.push_back((long long)tables.size());
            std::vector<T> rows = testing::random<T>(height * columns, 50 + unsigned(f));
            tables.insert(tables.end(), rows.begin(), rows.end());
            first_id.push_back((long long)ids.size());
            std::vector<long long> own, ends = {0};
            for (long long r = 0; r < p.rows; ++r) {
                for (long long n = p.bags ? draw(4) : 1; n > 0; --n) own.push_back(draw(height));
                ends.push_back((long long)own.size());
            }
            // The first table's offsets, or the last one's: there is nothing in front of its ids, or behind them.
            bool spoilt = p.bad && f == (!p.bad_offset ? p.tables / 2 : p.offset == p.beyond ? p.tables - 1 : 0);
            if (spoilt) reported = {double(f), double(own.size() / 2), double(p.bad_id < 0 ? height : p.bad_id - 2)};
            const long long ids_of_table = (long long)own.size();
            if (spoilt && p.bad_offset) {
                long long &end = ends[size_t(p.bad_offset)], before = ends[size_t(p.bad_offset) - 1];
                end = p.offset == p.far_below ? -7 : p.offset == p.below ? -1 : p.offset == p.beyond ? ids_of_table + 1
                                                                                                     : before - 1;
                reported = {double(f), double(p.bad_offset), double(end)};
            }
            if (spoilt && !p.bad_offset) own[own.size() / 2] = (long long)reported[2];
            ids.insert(ids.end(), own.begin(), own.end());
            if (p.bags) offsets.insert(offsets.end(), ends.begin(), ends.end());
            for (size_t r = 0; r < size_t(p.rows); ++r) {
                long long begin = std::clamp(ends[r], 0LL, ids_of_table);
                long long end = std::clamp(ends[r + 1], begin, ids_of_table);
                for (long long position = begin; position < end; ++position) {
                    long long id = own[size_t(position)];
                    if (id < 0 || id >= height) continue;
                    for (size_t c = 0; c < size_t(columns); ++c) {
                        size_t at = (r * vectors + size_t(f) + 1) * size_t(columns) + c;
                        v.value[at] += testing::to_double(rows[size_t(id) * size_t(columns) + c]);
                        if (p.bags) v.variance[at] += square(testing::Dtype<T>::epsilon * v.value[at]);
                    }
                }
            }
        }
    }
};

// A launch of as many blocks as it takes: each does little.
template <class Launch>
cudaError_t laid_out_by(Launch launch) {
#ifdef __CUDACC__
    return launch();
#else
    const auto most = std::exchange(cuda_on_host::most_blocks, 0);
    const cudaError_t error = launch();
    cuda_on_host::most_blocks = most;
    return error;
#endif
}

template <class T, class Launch>
void check(testing::Report& report, const Problem& p, const Case<T>& c, const char* design, Launch launch_it) {
    Buffer<T> x(c.x, p.apart), bottom_packed(c.bottom_packed), top_packed(c.top_packed), tables(c.tables, p.apart);
    Buffer<T> fragments(fused_mlp::fragments_size<T>(fused_mlp::Chain().append(c.bottom).append(c.top)));
    const std::initializer_list<fused_mlp::Packed<T>> mlps = {{bottom_packed.get(), c.bottom}, {top_packed.get(), c.top}};
    cudaError_t made = laid_out_by([&] { return fused_mlp::launch_fragments<T>(mlps, fragments.get(), cudaStream_t{}); });
    Buffer<T> out(p.rows * c.top.width[c.top.count]);
    const size_t stride = p.apart ? 3 : 1;
    std::vector<long long> wide(c.ids.size() * stride, -5);  // what lies between them is no id
    for (size_t i = 0; i < c.ids.size(); ++i) wide[i * stride] = c.ids[i];
    std::vector<int> narrow(wide.begin(), wide.end());
    Buffer<long long> ids(wide), offsets(c.offsets);
    Buffer<int> narrow_ids(narrow);
    Buffer<unsigned long long> told(report_size);
    told.write(std::vector<unsigned long long>(report_size));
    dlrm::Call<T> call = {};
    constexpr Activation relu = Activation::relu, identity = Activation::identity;
    call.model = {c.bottom, c.top, relu, relu, relu, identity, p.tables, !p.narrow_ids, true, p.bags, p.last, true};
    call.of.net = {x.get(), out.get(), fragments.get(), p.rows, 0, 0};  // the rest follows from the model
    auto& of = call.of;
    for (int f = 0; f < p.tables; ++f) {
        size_t own = size_t(f), next = own + 1;
        of.rows[f] = tables.get() + c.starts[own], of.heights[f] = c.heights[own];
        of.ids[f] = p.narrow_ids ? static_cast<const void*>(narrow_ids.get() + c.first_id[own] * (long long)stride)
                                 : static_cast<const void*>(ids.get() + c.first_id[own] * (long long)stride);
        of.counts[f] = (next < c.first_id.size() ? c.first_id[next] : (long long)c.ids.size()) - c.first_id[own];
        of.offsets[f] = p.bags ? offsets.get() + f * (p.rows + 1) : nullptr, of.strides[f] = (long long)stride;
    }
    of.report = told.get();
    std::string what = design + std::string(p.bottom) + " " + std::to_string(p.tables) + " " + p.top + " tile " +
                       std::to_string(p.tile) + " cluster " + std::to_string(p.cluster);
    if (p.bags) what += " bags";
    if (p.narrow_ids) what += " int32";
    if (!p.last) what += " without the last offset";
    if (p.apart) what += " apart";
    if (p.last_apart) what += " the last table apart";
    if (p.bad) what += p.bad_offset ? " bad offset" : p.bad_id < 0 ? " bad id" : " negative id";
    auto launch = [&] { return made != cudaSuccess ? made : launch_it(call, fused_mlp::layers_of<T>(mlps, nullptr)); };
    report.check<T>({p.rows, c.dense}, "relu", what, 0, {{"out", out, c.out}}, launch);
    if (!p.bad) return;
    Expected reported;
    reported.values = c.reported;
    Buffer<double> seen(3);
    report.check<T>({p.rows, c.dense}, "relu", what + ", the report", 0, {{"report", seen, reported}}, [&] {
        cudaError_t error = launch();
        if (error == cudaSuccess) error = cudaDeviceSynchronize();
        std::vector<unsigned long long> found = told.read();
        auto number = [&](int i) { return double((long long)found[size_t(report_found + i)]); };
        seen.write({number(0), number(1), number(2)});
        return error;
    });
}

template <class T>
void check(testing::Report& report, const Problem& p, const Case<T>& c) {
    check(report, p, c, "", [&](const dlrm::Call<T>& call, const auto&) {
        return dlrm::launch_tile(call, p.tile, p.cluster, p.clusters, cudaStream_t{});
    });
}
template <class T>
void check(testing::Report& report, const Problem& p) {
    check(report, p, Case<T>(p));
}

template <class T>
void check_all(testing::Report& report) {
    check<T>(report, {0, "13-16", "22-1", 3, 16});
    check<T>(report, {1, "13-16", "22-1", 3, 8});
    check<T>(report, {19, "3-40-16", "17-24-5", 1, 16});
    check<T>(report, {37, "13-40-16", "61-40-1", 9, 16, 2, 1});
    check<T>(report, {21, "13-24-32", "152-40-1", 15, 8, 4, 1, false, true});
    check<T>(report, {21, "13-40-16", "512-40-1", 31, 32, 1, 0, true});
    check<T>(report, {11, "13-40-48", "258-40-1", 20, 8, 1, 1, true, true});
    check<T>(report, {11, "13-16", "61-8-1", 9, 16, 1, 0, false, false, true});
    check<T>(report, {11, "13-16", "61-8-1", 9, 8, 2, 1, true, false, true});
    check<T>(report, {11, "13-16", "61-8-1", 9, 16, 1, 0, false, true, true, true, false, 1});
    for (auto offset : {Problem::far_below, Problem::below, Problem::beyond, Problem::falling})
        check<T>(report, {11, "13-16", "61-8-1", 9, 8, 1, 1, true, false, true, true, false, -1, 4, offset});
    check<T>(report, {11, "13-16", "61-8-1", 9, 8, 1, 0, false, false, false, true, false, -1, 0, Problem::far_below, true});
    check<T>(report, {37, "13-40-16", "61-40-24-5", 9, 8, 1, 1});  // an odd number of layers, tile after tile
    check<T>(report, {21, "13-40-16", "61-40-1", 9, 16, 1, 0, true, true, false, false, true});
    check<T>(report, {21, "16-16", "61-3", 9, 8, 2, 1, false, false, false, true, true});
}

// ------------------------------------------------------------------------------------------ clusters that share weights

using dlrm::Cut;
constexpr Cut whole = Cut::whole, outputs = Cut::outputs, inputs = Cut::inputs, rows = Cut::rows;

// Models and their plans: main and one that is cut as it is; each state before and behind each cut; layers of more than a
// warp has on its way, or of fewer jobs than blocks; a layer of one output in the middle; one exchange a tile, and none.
// Given's weights are laid out, as a package's.
struct Main {
    static constexpr const char *bottom = "13-512-256-64-16", *top = "367-512-256-1";
    static constexpr int tables = 26;
    static constexpr dlrm::Plan plan = {{whole, outputs, inputs, rows, outputs, inputs, rows}, 4};
};
struct Small : Main {
    static constexpr const char *bottom = "13-40-72-24-16", *top = "61-72-40-1";
    static constexpr int tables = 9;
};
struct Given {
    static constexpr const char *bottom = "3-40-24-48", *top = "258-40-24-5";
    static constexpr int tables = 20;
    static constexpr dlrm::Plan plan = {{outputs, outputs, inputs, outputs, rows, outputs}, -1, true};
};
struct Long {
    static constexpr const char *bottom = "100-300-160-32", *top = "47-260-40-300-3";
    static constexpr int tables = 5;
    static constexpr dlrm::Plan plan = {{whole, rows, rows, outputs, inputs, outputs, inputs}, 5};
};
struct OneExchange {
    static constexpr const char *bottom = "2100-16", *top = "512-3";
    static constexpr int tables = 31;
    static constexpr dlrm::Plan plan = {{rows, outputs}, 1};
};
struct NoExchange {
    static constexpr const char *bottom = "16-1-32", *top = "33-1";
    static constexpr int tables = 1;
    static constexpr dlrm::Plan plan = {{rows, rows, rows}, -1};
};
enum Flags { plainly = 0, bags = 1, narrow_ids = 2, no_last = 4, apart = 8, bad = 16, keeping = 32 };

template <class Of, int flags>
struct Net : Of {
    static constexpr fused_mlp::Widths parsed(const char* text) {
        fused_mlp::Widths widths;
        fused_mlp::parse(text, widths);
        return widths;
    }
    static constexpr Activation relu = Activation::relu, identity = Activation::identity;
    static constexpr dlrm::Model model = {parsed(Of::bottom), parsed(Of::top), relu, relu, relu, identity, Of::tables,
                                          !(flags & narrow_ids), true, bool(flags & bags), !(flags & no_last), !(flags & apart)};
};

template <int tables, class T>
dlrm::Arguments<T, tables> arguments_of(const dlrm::Call<T>& call) {
    dlrm::Arguments<T, tables> of = {};
    of.net = call.of.net, of.report = call.of.report;
    for (int f = 0; f < tables; ++f) {
        of.rows[f] = call.of.rows[f], of.heights[f] = call.of.heights[f], of.ids[f] = call.of.ids[f];
        of.strides[f] = call.of.strides[f], of.offsets[f] = call.of.offsets[f], of.counts[f] = call.of.counts[f];
    }
    return of;
}

template <class Of, int flags>
Problem problem_of(Problem p, long long rows_of_call) {
    p.rows = rows_of_call, p.bottom = Of::bottom, p.top = Of::top, p.tables = Of::tables, p.bags = flags & bags;
    p.narrow_ids = flags & narrow_ids, p.last = !(flags & no_last), p.apart = flags & apart, p.bad = flags & bad;
    return p;
}

template <class T, int n_tiles, class Of, int flags = plainly>
void check_cluster(testing::Report& report, Problem p, const Case<T>& c, int clusters) {
    using Own = Net<Of, flags>;
    check(report, p, c, "sharing ", [&](const dlrm::Call<T>& call, const auto&) {
        return dlrm::launch_cluster<T, n_tiles, Own>(arguments_of<Of::tables>(call), clusters, cudaStream_t{});
    });
}
template <class T, class Of, int flags = plainly>
void check_cluster(testing::Report& report, long long rows_of_call, int clusters, Problem p = {}) {
    p = problem_of<Of, flags>(p, rows_of_call), p.cluster = dlrm::cluster_blocks;
    const Case<T> c(p);
    // Each kernel is compiled for seconds: where ids lie does not go by the tile, nor do most states by the dtype.
    if constexpr (flags == plainly && (sizeof(T) == sizeof(float) || std::is_same_v<Of, Small>))
        if (!testing::few_rows()) p.tile = 8, check_cluster<T, 1, Of, flags>(report, p, c, clusters);
    p.tile = 16, check_cluster<T, 2, Of, flags>(report, p, c, clusters);
}
template <class T>
void check_clusters(testing::Report& report) {
    check_cluster<T, Small>(report, 21, 1);
    check_cluster<T, Given>(report, 19, 1);
    if constexpr (sizeof(T) == sizeof(float)) check_cluster<T, OneExchange>(report, 19, 1);
    if constexpr (testing::race_check) return;
    if (testing::quick && sizeof(T) < sizeof(float)) return;
    check_cluster<T, Small>(report, 0, 1);
    check_cluster<T, Small>(report, 37, 2);
    check_cluster<T, Long>(report, 19, 1);
    if constexpr (sizeof(T) == sizeof(float)) check_cluster<T, NoExchange>(report, 19, 1);
#ifndef __CUDACC__
    cuda_on_host::shared_bytes_of_a_multiprocessor = 1 << 20;  // the emulated device has four for a cluster's eight blocks
#endif
    check_cluster<T, Main>(report, 20, 0);
    check_cluster<T, Small, bags | narrow_ids | apart>(report, 21, 1);
}
// Ids and offsets that are bad, or lie apart.
template <class T>
void check_clusters_called(testing::Report& report) {
    Problem negative = {}, offset = {};
    negative.bad_id = 1, offset.bad_offset = 4, offset.offset = Problem::falling;
    check_cluster<T, Small, bad>(report, 11, 0);
    check_cluster<T, Small, narrow_ids | apart | bad>(report, 11, 0, negative);
    check_cluster<T, Small, bags | no_last>(report, 11, 0);
    check_cluster<T, Small, bags | bad>(report, 11, 0, offset);
}

#ifndef __CUDACC__
// -------------------------------------------------------------------------- pairs, whose products only sm_90a has and the host

// Warpgroups that share a block's outputs four, two and one at a time, with one that has no panel of k; small and large D;
// many tables and few.
struct Parts {
    static constexpr const char *bottom = "13-256-128-64-16", *top = "61-128-64-1";
    static constexpr int tables = 9;
};
struct Halved {
    static constexpr const char *bottom = "32-256-256-128-24", *top = "160-256-128-1";
    static constexpr int tables = 16;
};
struct Whole {
    static constexpr const char *bottom = "5-256-512-256-8", *top = "504-512-256-1";
    static constexpr int tables = 31;
};

template <class Of, int flags>
struct PairNet : Net<Of, flags> {
    static constexpr int stages = 2;
    static constexpr bool laid_out = false, keeps = flags & keeping;
};
template <class T, class Own>
__global__ void pair_forward(const __grid_constant__ dlrm::KeepingArguments<T, Own::model.tables> given) {
    dlrm::PairBlock<T, Own::model.tables, Own>(given.of, &given.values).run();
}
template <class T, class Own>
__global__ void pair_weights(const __grid_constant__ fused_mlp::LayersToFragments<T> all) {
    dlrm::PairWeights<T, Own>{all}.write();
}

template <class T, class Of, int flags = plainly>
void check_pair(testing::Report& report, long long rows_of_call, int clusters, Problem p = {}) {
    using Own = PairNet<Of, flags>;
    static constexpr dlrm::PairLayout net = dlrm::pair_layout<T>(Own::model, Own::stages);
    p = problem_of<Of, flags>(p, rows_of_call), p.tile = dlrm::pair_rows, p.cluster = dlrm::pair_blocks;
    check(report, p, Case<T>(p), "pairs ", [&](const dlrm::Call<T>& call, fused_mlp::LayersToFragments<T> layers) {
        Buffer<T> laid_out(net.elements);
        // What is kept is as long as it must be: what is written beyond shows.
        using Block = dlrm::PairBlock<T, Of::tables, Own>;
        auto rows = [&](int columns) { return Own::keeps ? call.of.net.rows * columns : 0; };
        Buffer<T> bottom(rows(Block::bottom_columns)), vector(rows(net.layers[3].outputs));
        Buffer<T> features(rows(Block::features_columns)), top(rows(Block::top_columns));
        dlrm::KeepingArguments<T, Of::tables> given = {arguments_of<Of::tables>(call),
                                                       {bottom.get(), vector.get(), features.get(), top.get()}};
        given.of.net.fragments = layers.fragments = laid_out.get(), given.of.net.clusters = clusters;
        const dim3 threads(fused_mlp::direct_threads), blocks(unsigned(net.elements * sizeof(T) / 16 / threads.x + 1));
        cudaError_t error = laid_out_by([&] {
            return launch_kernel(pair_weights<T, Own>, blocks, threads, 0, cudaStream_t{}, layers);
        });
        if (error == cudaSuccess) error = set_shared_memory_limit(pair_forward<T, Own>, size_t(net.shared_bytes));
        if (error != cudaSuccess) return error;
        return launch_clusters(pair_forward<T, Own>, clusters, dlrm::pair_blocks, threads, size_t(net.shared_bytes),
                               cudaStream_t{}, given);
    });
}
template <class T>
void check_pairs(testing::Report& report) {
    check_pair<T, Parts, keeping>(report, 70, 1);
    if constexpr (testing::race_check) return;
    if constexpr (sizeof(T) == 2) check_pair<T, Whole>(report, 33, 2);
    if (testing::quick && sizeof(T) < sizeof(float)) return;
    check_pair<T, Halved, keeping>(report, 31, 1);
    if constexpr (sizeof(T) == sizeof(float)) {
        check_pair<T, Main>(report, 33, 1);
        check_pair<T, Parts, bags | narrow_ids | apart | bad>(report, 40, 2);
    }
}
#endif

// The main model, timed.
template <class T>
void check_main(testing::Report& report) {
    if (!testing::on_gpu || testing::quick) return;
    for (long long rows : {120, 128, 240}) check_cluster<T, Main>(report, rows, 0);
    for (long long rows : {128, 2048, 16384}) {
        Problem p = {rows, "13-512-256-64-16", "367-512-256-1", 26, 16};
        Case<T> in_float64(p);
        for (int tile : {8, 16, 32})
            for (int cluster : {1, 2, 4}) {
                if (rows * cluster > 4096 && cluster > 1) continue;  // there is enough for every multiprocessor
                p.tile = tile, p.cluster = cluster;
                check(report, p, in_float64);
            }
    }
}

}  // namespace

int main(int count, char** arguments) {
    return testing::run(count, arguments, [](testing::Report& report) {
        check_all<float>(report);
        check_clusters<float>(report);
#ifndef __CUDACC__
        check_pairs<float>(report);
#endif
        if constexpr (testing::race_check) return;
#ifndef __CUDACC__
        check_pairs<__half>(report);
#endif
        check_clusters_called<float>(report);
        check_all<__half>(report);
        check_clusters<__half>(report);
        check_main<float>(report);
        check_main<__half>(report);
        if constexpr (testing::on_gpu) {
            check_all<__nv_bfloat16>(report);
            check_cluster<__nv_bfloat16, Main>(report, 20, 0);
            check_main<__nv_bfloat16>(report);
        }
    });
}
