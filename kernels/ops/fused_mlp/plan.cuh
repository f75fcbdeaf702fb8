// How the kernel's work is cut, and what of it lies on chip.
//
// A cluster of blocks takes a tile of rows through all layers; each block computes a slice of every layer's columns, so
// that it reads 1/cluster of the weights. In a block's shared memory lie
//
//     ring     stages · P · (chunk + 16) bytes: the weights of P columns and `chunk` bytes of k, for each stage
//     first    rows · (widest of x and the layers 2, 4, … + 16 bytes): what the layers 1, 3, … read
//     second   the same of the layers 1, 3, …; with one buffer there is none, and a layer's outputs take its inputs' place
//
// The 16 bytes make the distance of rows an odd multiple of 16: eight rows then lie in different banks.
#pragma once

#include "device/cluster.cuh"
#include "device/tensor_core.cuh"

#ifndef __CUDACC_RTC__
#include <algorithm>
#include <cmath>
#endif

namespace fused_mlp {

constexpr int threads = 256, warps = threads / 32, most_layers = 16, group_bytes = 64;
constexpr long long shared_bytes_of_a_block = 227 * 1024;  // of sm_90

// A warp computes 16 · m_tiles rows by 8 · n_tiles columns at a time, row_warps of the 8 warps lie below one another.
// The ring has `stages` of `chunk` bytes of k, of which all but one are on their way while one is multiplied.
template <int m_tiles_, int row_warps_, int n_tiles_, int chunk_, int stages_>
struct Shape {
    static constexpr int m_tiles = m_tiles_, row_warps = row_warps_, n_tiles = n_tiles_, chunk = chunk_, stages = stages_;
    static constexpr int rows = 16 * m_tiles * row_warps, columns = 8 * n_tiles * (warps / row_warps);
    static constexpr int ring_row = chunk + 16, stage_bytes = columns * ring_row;
};

// Every shape that there is a kernel for.
#define FUSED_MLP_SHAPES(each)    \
    each(Shape<1, 1, 1, 256, 4>)  \
    each(Shape<2, 1, 2, 256, 3>)  \
    each(Shape<2, 2, 4, 64, 3>)   \
    each(Shape<2, 2, 8, 64, 3>)   \
    each(Shape<2, 4, 8, 64, 3>)

// Whether a thread has registers for it: a double takes two.
template <class S>
constexpr bool has_registers(int size) {
    return size < 8 || S::m_tiles * S::n_tiles <= 4;
}

struct Widths {
    int count = 0;  // of layers
    int width[most_layers + 1] = {};

    bool operator==(const Widths& other) const {
        for (int i = 0; i <= count; ++i)
            if (width[i] != other.width[i]) return false;
        return count == other.count;
    }
};

// "367-512-256-1". false: it has no layer, or more than most_layers.
constexpr bool parse(const char* text, Widths& widths) {
    widths.count = -1;
    for (long long number = 0;; ++text) {
        if (*text >= '0' && *text <= '9') {
            number = 10 * number + (*text - '0');
            if (number > 1 << 30) return false;
            continue;
        }
        if ((*text && *text != '-') || !number || ++widths.count > most_layers) return false;
        widths.width[widths.count] = int(number);
        number = 0;
        if (!*text) return widths.count > 0;
    }
}

__host__ __device__ constexpr long long round_up(long long n, long long multiple) { return (n + multiple - 1) / multiple * multiple; }

// Columns that a layer of n has on chip: as the weights' rows are padded to, and whole groups of what is multiplied.
__host__ __device__ constexpr int covered(int n, int size) {
    return int(round_up(n, size < 4 ? group_bytes / size : 16));
}

// The columns of a layer that a block computes: the first blocks of a cluster so many, the last ones fewer or none.
inline int slice_of(int covered, int cluster) { return int(round_up(covered, 8 * cluster)) / cluster; }

struct Device {
    // Clusters of 1, 2, 4, 8 and 16 blocks that run at once, where each block fills a multiprocessor. 0: none does.
    int resident[5] = {132, 66, 32, 16, 0};
    long long shared_bytes = shared_bytes_of_a_block;
    bool tensor_cores = true;  // of tf32, bfloat16 and half in one layout
    int number = 0;            // as CUDA counts them

    bool operator==(const Device& other) const {
        for (int i = 0; i < 5; ++i)
            if (resident[i] != other.resident[i]) return false;
        return number == other.number && shared_bytes == other.shared_bytes && tensor_cores == other.tensor_cores;
    }
    int clusters(int blocks) const {
        for (int i = 0; i < 5; ++i)
            if (blocks == 1 << i) return resident[i];
        return 0;
    }
};

#ifndef __CUDACC_RTC__
// kernel: one of those to be launched, all of which are of one binary and of as many threads.
template <class Kernel>
cudaError_t this_device([[maybe_unused]] Kernel kernel, Device& device) {
#ifdef __CUDACC__
    int number = 0, major = 0, multiprocessors = 0, bytes = 0;
    cudaError_t error = cudaGetDevice(&number);
    thread_local int known = -1;
    thread_local Device last;
    if (error != cudaSuccess || number == known) return device = last, error;
    auto ask = [&](int& value, cudaDeviceAttr attribute) {
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, number);
    };
    ask(major, cudaDevAttrComputeCapabilityMajor);
    ask(multiprocessors, cudaDevAttrMultiProcessorCount);
    ask(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    if (error == cudaSuccess) error = set_shared_memory_limit(kernel, size_t(bytes));
    if (error != cudaSuccess) return error;
    device = {{multiprocessors}, bytes, major >= 8, number};
    for (int i = 1; major >= 9 && 1 << i <= portable_cluster_blocks; ++i)
        device.resident[i] = most_resident_clusters(kernel, 1 << i, threads, size_t(bytes));
    known = number, last = device;
#else
    int multiprocessors = int(cuda_on_host::multiprocessors);
    for (int i = 0; i < 5; ++i) device.resident[i] = multiprocessors >> i;
#endif
    return cudaSuccess;
}

// What is 0 is left to choose().
struct Plan {
    int rows = 0, columns = 0;  // of the Shape
    int cluster = 0;            // blocks
    int buffers = 0;            // 2, or 1: less memory, but a barrier more a layer
    int clusters = 0;  // in the launch; each takes tile after tile
    // What follows from these.
    long long row_bytes[2] = {}, ring_bytes = 0, shared_bytes = 0;
    double clocks = 0;  // estimated, of one multiprocessor
    bool launched = false;  // once: its kernel may have the shared memory

    bool decides() const { return rows || columns || cluster || buffers || clusters; }
};

template <class S>
void lay_out(Plan& plan, const Widths& widths, int size) {
    for (int parity = 0; parity < 2; ++parity) {
        int widest = 0;
        for (int l = 0; l < widths.count; ++l)
            if (plan.buffers == 1 || l % 2 == parity) widest = std::max(widest, covered(widths.width[l], size));
        plan.row_bytes[parity] = widest ? (long long)widest * size + 16 : 0;
    }
    long long buffers = S::rows * (plan.row_bytes[0] + (plan.buffers == 1 ? 0 : plan.row_bytes[1]));
    plan.ring_bytes = (long long)S::stages * S::stage_bytes;
    plan.shared_bytes = plan.ring_bytes + buffers;
}

// Whether the kernel can do that. With one buffer, outputs are written where the inputs were, so that all columns of a
// slice must be computed before the first is written.
inline bool possible(const Plan& plan, const Widths& widths, int size, const Device& device) {
    if (plan.buffers == 1)
        for (int l = 1; l < widths.count; ++l)
            if (slice_of(covered(widths.width[l], size), plan.cluster) > plan.columns) return false;
    return device.clusters(plan.cluster) > 0 && plan.shared_bytes <= device.shared_bytes;
}

// Clocks of the whole launch, roughly, to choose by. The constants are fitted to times on an H200: all plans of the MLPs
// 13-512-256-64-16 and 367-512-256-1 at 128, 2048 and 16384 rows, which they give to some 15 %.
//
// A step is 32 bytes of k. Its product of 16 · 8 numbers takes a multiprocessor's tensor cores 2 clocks, plain
// multiplications 10 (float) or 20 (double, of half as many numbers); its operands come from shared memory at 80 bytes a
// clock; eight warps cannot hide all of its latency. A stage costs its copies and a barrier, a pass the sums it writes, a
// layer its barriers. All multiprocessors together get 1600 bytes a clock of the weights from the L2.
template <class S>
double estimate(const Plan& plan, const Widths& widths, int size, bool tensor_cores, long long rows) {
    constexpr double launch = 6200, of_layer = 2500, of_stage = 410, of_sum = 0.38, latency = 144, l2 = 1600;
    double tiles = double((rows + S::rows - 1) / S::rows), busy = double(plan.clusters) * plan.cluster;
    double product = tensor_cores ? 2 : size == 8 ? 20 : 10, m = S::m_tiles, n = S::n_tiles;
    double step = std::max({1.6 * (32 * m + 16 * n), warps * m * n * product, latency});
    double weights = 0, multiply = 0, waiting = 0;
    for (int l = 0; l < widths.count; ++l) {
        int inputs = covered(widths.width[l], size), slice = slice_of(covered(widths.width[l + 1], size), plan.cluster);
        double passes = double((slice + S::columns - 1) / S::columns);
        double stages = double((inputs * size + S::chunk - 1) / S::chunk);
        weights += double(inputs) * slice * size;
        multiply += passes * (stages * of_stage + inputs * size / step_bytes * step + S::rows * S::columns * of_sum);
        waiting += of_layer * (plan.buffers == 1 ? 1.2 : 1);
    }
    return launch + std::ceil(tiles / plan.clusters) * (std::max(weights * busy / l2, multiply) + waiting);
}

// The plan for B rows: of all that are possible the one that is estimated to take the least time. `wanted` holds what
// the caller has decided. If none is possible, shared_bytes is what the smallest would need.
inline Plan choose(long long rows, const Widths& widths, int size, bool tensor_cores, const Device& device,
                   const Plan& wanted = {}) {
    Plan best, smallest;
    auto consider = [&](auto shape, int cluster, int buffers) {
        using S = decltype(shape);
        if (!has_registers<S>(size)) return;
        Plan plan = wanted;
        plan.rows = S::rows, plan.columns = S::columns, plan.cluster = cluster, plan.buffers = buffers;
        auto agrees = [](int want, int is) { return !want || want == is; };
        if (!agrees(wanted.rows, plan.rows) || !agrees(wanted.columns, plan.columns) ||
            !agrees(wanted.cluster, cluster) || !agrees(wanted.buffers, buffers))
            return;
        lay_out<S>(plan, widths, size);
        if (!smallest.rows || plan.shared_bytes < smallest.shared_bytes) smallest = plan;
        if (!possible(plan, widths, size, device)) return;
        long long tiles = (rows + S::rows - 1) / S::rows, resident = device.clusters(cluster);
        if (!plan.clusters) plan.clusters = int(std::min(tiles, resident));
        plan.clocks = estimate<S>(plan, widths, size, tensor_cores, rows);
        if (!best.rows || plan.clocks < best.clocks) best = plan;
    };
    for (int cluster = 1; cluster <= most_cluster_blocks; cluster *= 2)
        for (int buffers = 1; buffers <= 2; ++buffers) {
#define FUSED_MLP_CONSIDER(...) consider(__VA_ARGS__{}, cluster, buffers);
            FUSED_MLP_SHAPES(FUSED_MLP_CONSIDER)
#undef FUSED_MLP_CONSIDER
        }
    return best.rows ? best : smallest;
}

// choose() for a call of this kind, kept for this thread's next one: a model makes a few kinds again and again, and some
// 50 plans are looked at to choose.
template <class T, bool tensor_cores>
Plan& remembered(long long rows, const Widths& widths, const Device& device) {
    struct Kind {
        long long rows = -1;
        Widths widths;
        Device device;
        Plan plan;
    };
    constexpr int most = 8;
    thread_local Kind kinds[most];
    thread_local int next = 0;
    for (Kind& kind : kinds)
        if (kind.rows == rows && kind.widths == widths && kind.device == device) return kind.plan;
    Kind& kind = kinds[next++ % most];
    kind = {rows, widths, device, choose(rows, widths, int(sizeof(T)), tensor_cores, device)};
    return kind.plan;
}
#endif

}  // namespace fused_mlp
