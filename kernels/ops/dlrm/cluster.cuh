// tile.cuh's results by clusters of eight blocks that share the weights, for batches of few tiles: a block takes an eighth
// of most layers' weights from the L2, straight into registers, and what is between the layers travels.
//
// A tile has 8 n rows, of which n are a block's own. cluster_layout.cuh has how layers are cut. Vectors are looked up for a
// block's own rows, and their pairs are its own rows of what the top MLP reads.
//
// An exchange costs a barrier of the cluster, a quarter of a microsecond. Between its halves, as behind every layer's
// products, weights are asked for: those of the next two layers are on their way in registers. A layer with fewer jobs than
// warps has its inputs split among them. The weights of one layer, and of small ones, lie on chip from the beginning.
//
// Bytes: as tile.cuh; from the L2 an eighth of the weights of layers that are cut by outputs or inputs. Between blocks, for
// a tile of R rows: R · outputs · 4 of each layer cut by inputs, 7 R · columns · size of what becomes full.
#pragma once

#include "ops/dlrm/cluster_layout.cuh"

#include "device/bulk_copy.cuh"

namespace dlrm {

// Net: a model and its plan, as constants: Net::model, Net::plan.
template <class T, int n_tiles, int most, class Net>
struct ClusterBlock : BlockThread {
    static constexpr ClusterLayout net = cluster_layout<T>(Net::model, Net::plan, n_tiles);
    static constexpr int rows = 8 * n_tiles, size = int(sizeof(T)), outputs_of_job = fused_mlp::direct_outputs;
    static constexpr int half_bytes = fused_mlp::half_bytes, fragment_bytes = fused_mlp::fragment_bytes;
    static constexpr int row_threads = threads / n_tiles;  // that share one of a block's own rows
    static constexpr int row_warps = warps / n_tiles;

    using Own = Vectors<T, rows, n_tiles, most, row_warps>;

    const Arguments<T, most>& of;
    const Cluster cluster;
    char* const memory;
    const int tiles;
    AsyncCopies copies;
    long long first_row = 0;
    bool is_first = true;  // the first tile

    __device__ explicit ClusterBlock(const Arguments<T, most>& of)
        : of(of), cluster(cluster_blocks), memory(dynamic_shared<char>()), tiles(int((of.net.rows + rows - 1) / rows)) {}
    __device__ Own own() const {
        return {Net::model, of, *reinterpret_cast<const Arguments<T, most>*>(memory + net.near), cluster,
                memory + net.vectors, Net::model.bottom.width[net.bottom], net.place_row, net.vector, warp, g, t};
    }

    // A layer, as a constant. Behind the last one, the last.
    template <int l>
    static constexpr ClusterLayer layer = net.layers[l < net.count ? l : net.count - 1];

    template <int l>
    static constexpr bool takes_all_bits = size == 4 && layer<l>.is_plain;
    // Byte `byte` of what layer l reads of row `row` of its place.
    template <int l>
    __device__ char* input(int row, int byte) const {
        return memory + layer<l>.from + row * layer<l>.from_row + fused_mlp::placed(row, byte);
    }
    // Where number i of the own rows lies there.
    template <int l>
    __device__ int own_place(int i) const { return layer<l>.is_full ? own().row(i) : i; }

    // ------------------------------------------------------------------------------------------------------- weights

    // A layer's first weights of this thread, on their way.
    template <int l>
    struct Weights {
        static constexpr int held = l < net.count ? layer<l>.held : 0;
        static constexpr int plain = l < net.count && layer<l>.is_plain ? divided(layer<l>.inputs, row_threads) : 0;
        uint4 of[held ? 2 * held : 1];
        T single[plain ? plain : 1];
    };
    // A warp's part of a job: its number in this block, and the first of the halves of k.
    struct Item {
        int job, half;
        bool is_there;
    };
    template <int l>
    __device__ int group() const { return warp / layer<l>.columns; }
    template <int l>
    __device__ bool works() const {
        return group<l>() < (layer<l>.parts > 1 ? layer<l>.parts : layer<l>.tiles / layer<l>.warp_tiles);
    }
    template <int l>
    __device__ int first_tile() const { return layer<l>.parts > 1 ? 0 : group<l>() * layer<l>.warp_tiles; }
    template <int l>
    __device__ int first_job() const { return layer<l>.cut == Cut::outputs ? cluster.rank * layer<l>.block_jobs : 0; }
    // Halves of the weights' k before this block's.
    template <int l>
    __device__ int before() const { return layer<l>.cut == Cut::inputs ? cluster.rank * layer<l>.block_halves : 0; }
    template <int l>
    __device__ Item item(int i) const {
        const int job = warp % layer<l>.columns + i / layer<l>.warp_halves * layer<l>.columns;
        const int half = (layer<l>.parts > 1 ? group<l>() * layer<l>.warp_halves : 0) + i % layer<l>.warp_halves;
        // What holds for every warp and block of this layer is known to the compiler.
        constexpr ClusterLayer own = layer<l>;
        constexpr bool all_work = own.columns * (own.parts > 1 ? own.parts : own.tiles / own.warp_tiles) == warps;
        constexpr int all_jobs = own.block_jobs * (own.cut == Cut::outputs ? cluster_blocks : 1);
        constexpr int all_halves = own.block_halves * (own.cut == Cut::inputs ? cluster_blocks : 1);
        const bool has_job = (all_work || works<l>()) && (own.block_jobs % own.columns == 0 || job < own.block_jobs) &&
                             (own.jobs == all_jobs || first_job<l>() + job < own.jobs);
        const bool has_half = (own.parts * own.warp_halves == own.block_halves || half < own.block_halves) &&
                              (own.halves == all_halves || before<l>() + half < own.halves);
        return {job, half, has_job && has_half};
    }
    template <int l>
    __device__ const char* fragments() const { return reinterpret_cast<const char*>(of.net.fragments + layer<l>.weight); }
    template <int l>
    __device__ void fill(uint4* to, int i) const {
        const Item own = item<l>(i);
        to[0] = to[1] = {};  // or what was there a tile before would have to be kept until here
        if (!own.is_there) return;
        const char* from = fragments<l>() + (long long)(first_job<l>() + own.job) * layer<l>.slots * fragment_bytes +
                           (before<l>() + own.half) * (fragment_bytes / 2) + 16 * lane();
        fused_mlp::begin_load(to[0], from), fused_mlp::begin_load(to[1], from + fragment_bytes / 4);
    }
    // The place of weight k of a layer of one output, among its fragments: in halves it is output 0 of a job.
    template <int l>
    __device__ static int place_of_single(int k) {
        if constexpr (size == 4) return 4 * k;
        const int word = k / 2;
        const int step = word / 16 % 2 * 2 + word / 2 % 2;
        return word / 32 * fragment_bytes + step * 512 + word / 4 % 4 * 16 + word % 2 * 8 + k % 2 * 2;
    }
    template <int l>
    __device__ void begin(Weights<l>& weights) const {
#pragma unroll
        for (int i = 0; i < Weights<l>::held; ++i) fill<l>(&weights.of[2 * i], i);
#pragma unroll
        for (int i = 0; i < Weights<l>::plain; ++i)
            if (const int k = thread % row_threads + i * row_threads; k < layer<l>.inputs)
                weights.single[i] = *reinterpret_cast<const T*>(fragments<l>() + place_of_single<l>(k));
    }
    // The resident layer's, all at once.
    __device__ void begin_resident(BulkLoads& loads) const {
        constexpr int l = net.resident;
        const int first = first_job<l>(), bytes = layer<l>.slots * fragment_bytes;
        const int left = layer<l>.jobs - first, jobs = left < 0 ? 0 : left < layer<l>.block_jobs ? left : layer<l>.block_jobs;
        loads.begin(unsigned(jobs * bytes));
        for (int i = 0; i < jobs; ++i)
            loads.copy(memory + layer<l>.place + i * bytes, fragments<l>() + (long long)(first + i) * bytes, unsigned(bytes));
    }

    // ------------------------------------------------------------------------------------------------------ products

    template <int l>
    static constexpr int chains = layer<l>.warp_tiles > 1 ? 2 : 4;  // sums of a part of k, added up at the end
    template <int l>
    using Sums = float[chains<l>][layer<l>.warp_tiles][4];

    // Two steps: the weights of 64 bytes of k, and where this lane has them of its first row.
    template <int l>
    __device__ static void multiply(Sums<l>& sums, const uint4& first, const uint4& second, const char* inputs, int number) {
        const unsigned a[2][4] = {{first.x, first.y, first.z, first.w}, {second.x, second.y, second.z, second.w}};
#pragma unroll
        for (int n = 0; n < layer<l>.warp_tiles; ++n) {
            const uint4 b = *reinterpret_cast<const uint4*>(inputs + n * 8 * layer<l>.from_row);
            multiply_step<T>(sums[2 * number % chains<l>][n], a[0], b.x, b.y);
            multiply_step<T>(sums[(2 * number + 1) % chains<l>][n], a[1], b.z, b.w);
        }
    }
    // The row of layer l's inputs that this lane reads first. Of rows, an operand's eight are the own ones again and again.
    template <int l>
    __device__ int input_row() const {
        return layer<l>.cut == Cut::rows ? own_place<l>(g % n_tiles) : 8 * first_tile<l>() + g;
    }
    // All of this warp's jobs: finish(job, sums) is called for each.
    template <int l, class Finish>
    __device__ void multiply_all(Weights<l>& weights, Finish finish) const {
        constexpr int halves = layer<l>.warp_halves, all = layer<l>.warp_jobs * halves;
        constexpr int held = layer<l>.held, step = held ? held : most_held;
        const int row = input_row<l>(), half = item<l>(0).half;
        const char* const inputs[2] = {input<l>(row, half * half_bytes + 16 * t), input<l>(row, (half + 1) * half_bytes + 16 * t)};
#pragma unroll
        for (int j = 0; j < layer<l>.warp_jobs; ++j) {
            Sums<l> sums = {};
#pragma unroll(halves <= 8 * most_held ? halves : 1)
            for (int h = 0; h < halves; h += step) {
#pragma unroll
                for (int s = 0; s < step; ++s) {
                    if (h + s >= halves) break;
                    const int i = j * halves + h + s;
                    const Item own = item<l>(i);
                    const char* const at = inputs[(h + s) % 2] + (h + s) / 2 * fused_mlp::slot_bytes;
                    if constexpr (held == 0) {
                        const char* from = memory + layer<l>.place + own.job * layer<l>.slots * fragment_bytes +
                                           own.half * (fragment_bytes / 2) + 16 * lane();
                        if (own.is_there)
                            multiply<l>(sums, *reinterpret_cast<const uint4*>(from),
                                        *reinterpret_cast<const uint4*>(from + fragment_bytes / 4), at, s);
                    } else {
                        uint4* const slot = &weights.of[2 * ((j * halves + s) % held)];
                        if (own.is_there) multiply<l>(sums, slot[0], slot[1], at, s);
                        if (i + held < all) fill<l>(slot, i + held);
                    }
                }
            }
#pragma unroll
            for (int c = 1; c < chains<l>; ++c)
#pragma unroll
                for (int n = 0; n < layer<l>.warp_tiles; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) sums[0][n][e] += sums[c][n][e];
            const int job = warp % layer<l>.columns + j * layer<l>.columns;
            if (works<l>() && job < layer<l>.block_jobs) finish(job, sums[0]);
        }
    }
    // One of a layer's sums, by the column in this block; row: of the tile, or of the own ones.
    template <int l>
    __device__ void finish(int row, int column, float sum) const {
        constexpr bool by_rows = !reads_all_rows(layer<l>.cut);
        const int output = first_job<l>() * outputs_of_job + column;
        const bool is_there = output < layer<l>.outputs;
        float z = 0.0f;
        if (is_there) {
            const T bias = reinterpret_cast<const T*>(memory + net.biases + layer<l>.bias)[output];
            z = activate<layer<l>.activation>(sum + widen(bias));
        }
        if constexpr (layer<l>.is_last) {
            const long long at = first_row + (by_rows ? own().row(row) : row);
            if (is_there && at < of.net.rows) of.net.out[at * layer<l>.outputs + output] = narrow<T>(z);
        } else if constexpr (layer<l>.to_vector) {
            if (is_there) reinterpret_cast<T*>(own().vector(row, 0))[output] = narrow<T>(z);
        } else {
            if (layer<l>.is_given && output >= layer<l>.covered) return;
            const int place = by_rows ? own_place<l + 1>(row) : row, to = layer<l>.is_given ? output : column;
            *reinterpret_cast<T*>(input<l + 1>(place, to * size)) =
                fused_mlp::as_input<T, !layer<l>.gives_all_bits>(narrow<T>(z));
        }
    }
    // Rows of 16 bytes of what layer l reads, the own ones or this block's columns of all, to all other blocks.
    template <int l, bool columns, int pieces>
    __device__ void give(int first) const {
        constexpr int all = (columns ? rows : n_tiles) * pieces;
        const int left = layer<l>.halves * (half_bytes / 16) - first;
        each<all * (cluster_blocks - 1)>(thread, [&](int i) {
            const int row = i % all / pieces, piece = i % pieces, other = (cluster.rank + 1 + i / all) % cluster_blocks;
            auto* own = reinterpret_cast<uint4*>(input<l>(columns ? row : own_place<l>(row), (first + piece) * 16));
            if (!columns || piece < left) cluster.store(own, other, *own);
        });
    }
    // Before anything is written into another block: all have begun.
    template <int number>
    __device__ void before_exchange() const {
        if (number == net.first_exchange && is_first) cluster.wait();
    }

    // -------------------------------------------------------------------------------------------------------- layers

    // Sums of parts of k, of warps or of blocks, each to its place; then a thread adds up those of an output.
    template <int l, class Later>
    __device__ void run_parts(Weights<l>& weights, Later begin_later) {
        float* const sums = reinterpret_cast<float*>(memory + net.sums);
        constexpr int tiles = layer<l>.tiles, all = layer<l>.block_jobs * tiles * 128;
        multiply_all<l>(weights, [&](int job, const float (&own)[layer<l>.warp_tiles][4]) {
#pragma unroll
            for (int n = 0; n < layer<l>.warp_tiles; ++n)
                *reinterpret_cast<float4*>(&sums[((group<l>() * layer<l>.block_jobs + job) * tiles + n) * 128 + 4 * lane()]) =
                    float4{own[n][0], own[n][1], own[n][2], own[n][3]};
        });
        begin_later();
        __syncthreads();
        find_thread();
        each<all>(thread, [&](int i) {
            float sum = 0.0f;
#pragma unroll
            for (int part = 0; part < layer<l>.parts; ++part) sum += sums[part * all + i];
            const int lane = i / 4 % 32, row = i / 128 % tiles * 8 + 2 * (lane % 4) + i % 2;
            const int column = i / 128 / tiles * outputs_of_job + lane / 4 + i % 4 / 2 * 8;
            if (layer<l>.cut != Cut::rows || row < n_tiles) finish<l>(row, column, sum);
        });
    }
    template <int l, class Later>
    __device__ void run_inputs(Weights<l>& weights, Later begin_later) {
        float* const received = reinterpret_cast<float*>(memory + layer<l>.received);
        constexpr int covered = layer<l>.covered, senders = divided(layer<l>.halves, layer<l>.block_halves);
        before_exchange<3 * l>();
        multiply_all<l>(weights, [&](int job, const float (&own)[layer<l>.warp_tiles][4]) {
            if (cluster.rank >= senders) return;
#pragma unroll
            for (int n = 0; n < layer<l>.warp_tiles; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int column = job * outputs_of_job + g + e / 2 * 8, row = first_tile<l>() + n;
                    cluster.store(&received[(cluster.rank * n_tiles + row) * covered + column], 2 * t + e % 2, own[n][e]);
                }
        });
        cluster.arrive();
        begin_later();
        cluster.wait();
        find_thread();
        const int row = thread / row_threads;
        each<covered, row_threads>(thread % row_threads, [&](int column) {
            float sum = 0.0f;
#pragma unroll
            for (int k = 0; k < senders; ++k) sum += received[(k * n_tiles + row) * covered + column];
            finish<l>(row, column, sum);
        });
    }
    // One output, of the own rows: in float, of numbers as they are.
    template <int l, class Later>
    __device__ void run_plain(const Weights<l>& weights, Later begin_later) {
        float* const sums = reinterpret_cast<float*>(memory + net.sums);
        const int row = thread / row_threads;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < Weights<l>::plain; ++i)
            if (const int k = thread % row_threads + i * row_threads; k < layer<l>.inputs)
                sum += widen(weights.single[i]) * widen(*reinterpret_cast<const T*>(input<l>(own_place<l>(row), k * size)));
        sum = reduce_lanes<Sum>(sum, 32);
        if (lane() == 0) sums[warp] = sum;
        begin_later();
        __syncthreads();
        find_thread();
        each<n_tiles * layer<l>.covered>(thread, [&](int i) {
            float all = 0.0f;
#pragma unroll
            for (int k = 0; k < row_warps; ++k) all += sums[i / layer<l>.covered * row_warps + k];
            finish<l>(i / layer<l>.covered, i % layer<l>.covered, all);
        });
    }
    template <int l, class Later>
    __device__ void run_layer(Weights<l>& weights, Later begin_later) {
        find_thread();
        if constexpr (l == net.resident)
            if (is_first) loads().wait(0);
        if constexpr (layer<l>.is_plain) {
            run_plain<l>(weights, begin_later);
        } else if constexpr (layer<l>.cut == Cut::inputs) {
            run_inputs<l>(weights, begin_later);
        } else if constexpr (layer<l>.parts > 1) {
            run_parts<l>(weights, begin_later);
        } else {
            multiply_all<l>(weights, [&](int job, const float (&own)[layer<l>.warp_tiles][4]) {
#pragma unroll
                for (int n = 0; n < layer<l>.warp_tiles; ++n)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int row = 8 * (first_tile<l>() + n) + 2 * t + e % 2;
                        if (layer<l>.cut != Cut::rows || row < n_tiles)
                            finish<l>(row, job * outputs_of_job + g + e / 2 * 8, own[n][e]);
                    }
            });
            begin_later();
        }
    }
    // [v_0, pairs] of the own rows, to what the top MLP reads.
    template <class Later>
    __device__ void interact(Later begin_later) {
        find_thread();
        constexpr int l = net.bottom;
        constexpr int columns = layer<l>.inputs, covered = layer<l>.halves * (half_bytes / size);
        // Warps that share a row: one has what are no pairs, each of the others a tile of the products.
        constexpr int shares = 1 + (Net::model.tables < 16 ? 2 : 6);
        for (int number = warp; number < shares * n_tiles; number += warps) {
            const int i = number / shares, share = number % shares - 1, place = own_place<l>(i), m = share >= 2;
            auto put = [&](int column, T value) {
                *reinterpret_cast<T*>(input<l>(place, column * size)) = fused_mlp::as_input<T, !takes_all_bits<l>>(value);
            };
            if (share < 0) own().give_others(i, columns, covered, put);
            else own().meet(i, m, share - 2 * m, put);
        }
        __syncthreads();
        find_thread();
        if constexpr (!layer<l>.is_full) return begin_later();
        before_exchange<3 * l - 1>();
        give<l, false, layer<l>.halves * (half_bytes / 16)>(0);
        cluster.arrive();
        begin_later();
        cluster.wait();
    }
    // Layer l and those behind it, with the weights of the first two of them on their way.
    template <int l>
    __device__ void run_from(Weights<l>& weights, Weights<l + 1>& next, Weights<0>& first, Weights<1>& second,
                             const long long (&ids)[Own::rows_of_warp], bool ends) {
        Weights<l + 2> later;
        auto begin_later = [&] {
            if constexpr (l + 2 < net.count) begin<l + 2>(later);
            else if constexpr (l + 2 == net.count) ends ? void(first = {}) : begin<0>(first);
            else ends ? void(second = {}) : begin<1>(second);
        };
        // Loads on their way hold up what warps read on chip: before the pairs they can wait.
        if constexpr (l + 1 == net.bottom) run_layer<l>(weights, [] {});
        else run_layer<l>(weights, begin_later);
        if constexpr (l + 1 == net.count) return;
        if constexpr (l == 0) {
            find_thread();
            if (Net::model.has_offsets) own().pool(first_row);
            else own().look_up(copies, ids, first_row);
            copies.commit();
        }
        if constexpr (l + 1 == net.bottom) copies.wait(0);
        __syncthreads();
        if constexpr (layer<l>.is_given) {
            find_thread();
            constexpr bool columns = layer<l>.cut == Cut::outputs;
            constexpr int pieces = (columns ? layer<l>.block_jobs * outputs_of_job : layer<l>.covered) * size / 16;
            before_exchange<3 * l + 1>();
            give<l + 1, columns, pieces>(columns ? cluster.rank * pieces : 0);
            cluster.arrive();
            cluster.wait();
        }
        if constexpr (l + 1 == net.bottom) interact(begin_later);
        if constexpr (l + 1 < net.count) run_from<l + 1>(next, later, first, second, ids, ends);
    }

    // -------------------------------------------------------------------------------------------------------- a tile

    // x is asked for before the weights, and written on chip when they are on their way, as far as registers hold it.
    static constexpr int x_columns = layer<0>.halves * (half_bytes / size);
    static constexpr int x_all = (layer<0>.is_full ? rows : n_tiles) * x_columns, x_turns = divided(x_all, threads);
    static constexpr int x_asked = smaller(x_turns, 8);
    __device__ T x_of(int i) const {
        const int place = i / x_columns, column = i % x_columns;
        const long long row = first_row + (layer<0>.is_full ? place : own().row(place));
        const bool is_there = i < x_all && row < of.net.rows && column < layer<0>.inputs;
        return is_there ? of.net.x[row * of.net.x_columns + column] : narrow<T>(0.0f);
    }
    __device__ void put_x(int i, T x) const {
        if (i < x_all)
            *reinterpret_cast<T*>(input<0>(i / x_columns, i % x_columns * size)) = fused_mlp::as_input<T, !takes_all_bits<0>>(x);
    }
    __device__ BulkLoads& loads() const { return *reinterpret_cast<BulkLoads*>(memory + net.loads); }
    // What hangs on no tile. Until the launch before has ended it may still write the fragments, and nothing is read of
    // them: or, where they are laid out, what else it may write.
    __device__ void begin_all(Weights<0>& first, Weights<1>& second) {
        using Word = unsigned long long;
        each<int(sizeof of / sizeof(Word))>(lane() * warps + warp, [&](int i) {
            reinterpret_cast<Word*>(memory + net.near)[i] = reinterpret_cast<const Word*>(&of)[i];
        });
        if (net.resident >= 0 && thread == 0) loads().init(1);
        if (!Net::plan.laid_out) wait_for_predecessor();
        let_successor_begin();
        begin<0>(first), begin<1>(second);
        copy<net.bias_bytes>(net.biases, reinterpret_cast<const char*>(of.net.fragments + net.first_bias));
        copy_kept<0>();
        copies.commit();
        if (Net::plan.laid_out) wait_for_predecessor();
    }
    template <int bytes>
    __device__ void copy(int to, const char* from) {
        each<bytes / 16>(thread, [&](int i) { copies.copy(memory + to + 16 * i, from + 16 * i, true); });
    }
    template <int l>
    __device__ void copy_kept() {
        if constexpr (layer<l>.is_kept) copy<layer<l>.jobs * layer<l>.slots * fragment_bytes>(layer<l>.place, fragments<l>());
        if constexpr (l + 1 < net.count) copy_kept<l + 1>();
    }
    __device__ void run() {
        if (net.exchanges) cluster.begin();  // the barrier of before_exchange
        Weights<0> first;
        Weights<1> second;
        if (Net::plan.laid_out) begin_all(first, second);
        const int clusters = int(of.net.clusters);
        for (int tile = Cluster::block() / cluster_blocks; tile < tiles; tile += clusters, is_first = false) {
            first_row = (long long)tile * rows;
            find_thread();
            long long ids[Own::rows_of_warp];
            if (!Net::model.has_offsets) own().ask(ids, first_row);
            T x[x_asked];
#pragma unroll
            for (int i = 0; i < x_asked; ++i) x[i] = x_of(thread + i * threads);
            if (is_first && !Net::plan.laid_out) begin_all(first, second);
#pragma unroll
            for (int i = 0; i < x_asked; ++i) put_x(thread + i * threads, x[i]);
            if constexpr (x_turns > x_asked)
                each<x_all - x_asked * threads>(thread, [&](int rest) {
                    const int i = rest + x_asked * threads;
                    put_x(i, x_of(i));
                });
            copies.wait(0);
            __syncthreads();
            if constexpr (net.resident >= 0)
                if (is_first && thread == 0) begin_resident(loads());
            run_from<0>(first, second, first, second, ids, tile + clusters >= tiles);
            // With one exchange a tile, the next one's would overtake those who read this one's.
            if (net.exchanges == 1) cluster.barrier();
        }
    }
};

#ifndef __CUDACC_RTC__
template <class T, int n_tiles, class Net>
__global__ void __launch_bounds__(fused_mlp::direct_threads, 1)
    cluster_forward(const __grid_constant__ Arguments<T, Net::model.tables> of) {
    ClusterBlock<T, n_tiles, Net::model.tables, Net>(of).run();
}

// By so many clusters, 0 for as many as run at once. of: without x_columns and clusters. Errors: as launch_tile.
template <class T, int n_tiles, class Net>
cudaError_t launch_cluster(Arguments<T, Net::model.tables> of, int clusters, cudaStream_t stream) {
    constexpr ClusterLayout net = cluster_layout<T>(Net::model, Net::plan, n_tiles);
    if (!of.net.rows) return cudaSuccess;
    if (!aligned(of.net.fragments) || Net::model.bottom.width[net.bottom] * sizeof(T) % 16) return cudaErrorInvalidConfiguration;
    fused_mlp::Device device;
    cudaError_t error = fused_mlp::this_device(cluster_forward<T, n_tiles, Net>, device);
    if (error != cudaSuccess) return error;
#ifndef __CUDACC__
    device.resident[3] = 1;  // the emulated one has fewer multiprocessors than a cluster has blocks, and runs any
#endif
    of.net.x_columns = Net::model.bottom.width[0];
    return launch_direct_tiles(cluster_forward<T, n_tiles, Net>, 8 * n_tiles, of.net, of, net.shared_bytes, cluster_blocks,
                               clusters, device, stream);
}
#endif

}  // namespace dlrm
