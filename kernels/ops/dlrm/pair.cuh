// tile.cuh's results by pairs of blocks, for batches of many tiles: a block takes half of most layers' weights, by the
// copy engine, and multiplies them by 32 rows at a time.
//
// pair_layout.cuh has how layers are cut. Each warpgroup has a ring of panels of weights on chip, which is filled again
// as it is read, over the ends of layers and tiles: the weights hang on nothing that is computed. Sums of warpgroups
// that have parts of k of the same outputs come together on chip, so that no more than one sum an output travels. A
// block looks up the vectors of 16 rows, its own; their pairs, and layers 3 and 6, are its own, too.
//
// Bytes: as tile.cuh; from the L2 half of the weights for each block and tile. Between blocks, for a tile: 32 · 4 ·
// outputs of layers 2 and 5, 32 · size · inputs of layer 4; half of each in either direction. Through a block's shared
// memory, for a panel of weights, 12 KB into the tensor cores and 8 KB from the L2: that binds.
// Where values are kept for a backward, all that layers give but for the last is written besides.
#pragma once

#include "ops/dlrm/pair_layout.cuh"

namespace dlrm {

// What a backward reads of a forward that keeps it, for each row of the batch: what the layers of an MLP but the last give,
// one behind the other, as the next one takes it (fused_mlp/packing.py, hidden_parts); v_0; what the top MLP reads, filled
// up with zeros to a multiple of kept_together.
constexpr int kept_together = 8;
template <class T>
struct Values {
    T *bottom, *vector, *features, *top;
};
template <class T, int tables>
struct KeepingArguments {
    Arguments<T, tables> of;
    Values<T> values;
};

// Net: a model, how many panels a ring has, whether the weights were there before the launch before, and whether values
// are kept, as constants: Net::model, Net::stages, Net::laid_out, Net::keeps.
template <class T, int most, class Net>
struct PairBlock : BlockThread {
    static constexpr PairLayout net = pair_layout<T>(Net::model, Net::stages);
    template <int l>
    static constexpr PairLayer layer = net.layers[l];
    static constexpr int size = int(sizeof(T)), of_panel = panel_row / size, stages = Net::stages;
    static constexpr int half_bytes = fused_mlp::half_bytes, fragment_bytes = fused_mlp::fragment_bytes;
    static_assert((layer<1>.from | layer<2>.from | layer<4>.from | layer<5>.from | net.ring) % panel_alignment == 0);

    using Own = Vectors<T, pair_rows, pair_own_rows, most, 1>;
    using Sums = float[4][4];  // of each eight rows

    const Arguments<T, most>& of;
    const Values<T>* const values;
    const Cluster cluster;
    char* const memory;
    const int tiles, clusters;
    const int warpgroup;
    AsyncCopies copies;
    long long first_row = 0;
    bool is_first = true;  // the first tile
    // Of the stream: the panel that is asked for next, its step, and how many are left to be; the slot of the one that
    // is taken next, and the parity of how often that slot was taken.
    const char* next;
    int step = 0, left = 0, slot = 0, parity = 0;

    __device__ explicit PairBlock(const Arguments<T, most>& of, const Values<T>* values = nullptr)
        : of(of), values(values), cluster(pair_blocks), memory(panel_memory()),
          tiles(int((of.net.rows + pair_rows - 1) / pair_rows)), clusters(int(of.net.clusters)),
          warpgroup(thread / warpgroup_threads),
          next(reinterpret_cast<const char*>(of.net.fragments) +
               (1LL * cluster.rank * net.steps * warpgroups + warpgroup) * weights_panel) {}

    __device__ Own own() const {
        return {Net::model, of, *reinterpret_cast<const Arguments<T, most>*>(memory + net.near), cluster,
                memory + net.vectors, layer<pair_bottom - 1>.outputs, net.place_row, net.vector, warp, g, t};
    }
    __device__ const T* laid_out() const { return of.net.fragments; }
    __device__ float kept(int element) const {
        return widen(reinterpret_cast<const T*>(memory + net.kept_place)[element]);
    }

    // ---------------------------------------------------------------------------------------------------- what is kept
    // Stores are begun where no barrier of the cluster follows at once, which would wait for them.

    static constexpr int bottom_columns = layer<0>.outputs + layer<1>.outputs + layer<2>.outputs,
                         top_columns = layer<4>.outputs + layer<5>.outputs,
                         features_columns = divided(layer<4>.inputs, kept_together) * kept_together;

    __device__ bool is_there(int row) const { return first_row + row < of.net.rows; }
    // So many columns in panels, of the tile's rows or of the own ones, 16 bytes at a time.
    template <int rows, int columns>
    __device__ void keep(int panels, T* to, int to_row) const {
        constexpr int width = 16 / size, pieces = columns / width;
        each<rows * pieces>(thread, [&](int i) {
            const int row = rows == pair_rows ? i / pieces : own().row(i / pieces), column = i % pieces * width;
            if (is_there(row))
                *reinterpret_cast<uint4*>(to + (first_row + row) * to_row + column) =
                    *reinterpret_cast<const uint4*>(memory + panels + in_panels(row, column));
        });
    }
    // What layer l gives: layer 0, which both blocks have whole, of the own rows; another one of the own outputs.
    template <int l>
    __device__ void keep_outputs(T* to, int to_row) const {
        if constexpr (l == 0) {
            keep<pair_own_rows, layer<l>.outputs>(layer<l + 1>.from, to, to_row);
        } else {
            constexpr int outputs = layer<l>.product.outputs;
            keep<pair_rows, outputs>(layer<l + 1>.from, to + cluster.rank * outputs, to_row);
        }
    }

    // ------------------------------------------------------------------------------------------------------- weights

    __device__ bool leads() const { return thread % warpgroup_threads == 0; }
    __device__ char* panel_of(int slot) const {
        return memory + net.ring + (warpgroup * stages + slot) * weights_panel;
    }
    __device__ BulkLoads& loads(int slot) const {
        return reinterpret_cast<BulkLoads*>(memory + net.loads)[warpgroup * stages + slot];
    }
    // The next panel on its way to a slot, if there is one. What follows it is found for the next time.
    __device__ void ask(int slot) {
        if (!left) return;
        if (leads()) {
            loads(slot).begin(weights_panel);
            loads(slot).copy(panel_of(slot), next, weights_panel);
        }
        constexpr int distance = warpgroups * weights_panel;
        --left, next += distance;
        if (++step == net.steps) step = 0, next -= net.steps * distance;
    }
    // Of layer 0, all of this warp's.
    static constexpr int first_jobs = layer<0>.jobs / warps;
    struct FirstWeights {
        uint4 of[first_jobs][layer<0>.halves][2];
    };
    __device__ void begin(FirstWeights& weights) const {
#pragma unroll
        for (int j = 0; j < first_jobs; ++j)
#pragma unroll
            for (int half = 0; half < layer<0>.halves; ++half) {
                const int job = warp + j * warps;
                const char* from = reinterpret_cast<const char*>(laid_out() + net.first) + 16 * lane() +
                                   (2 * job * layer<0>.slots + half) * (fragment_bytes / 2);
                fused_mlp::begin_load(weights.of[j][half][0], from);
                fused_mlp::begin_load(weights.of[j][half][1], from + fragment_bytes / 4);
            }
    }

    // -------------------------------------------------------------------------------------- what is between the layers

    template <int l>
    static constexpr Activation activation = l + 1 == pair_layers ? Net::model.top_last
                                             : l >= pair_bottom    ? Net::model.top_activation
                                             : l + 1 == pair_bottom ? Net::model.bottom_last
                                                                    : Net::model.bottom_activation;
    template <int l>
    __device__ float bias(int output) const { return kept(layer<l>.bias + output); }
    // Byte `byte` of what layer 0 or 3 reads of a row.
    template <int l>
    __device__ char* input(int row, int byte) const {
        return memory + layer<l>.from + row * layer<l>.from_row + fused_mlp::placed(row, byte);
    }
    // Where a column of a row lies in panels of inputs.
    __device__ static int in_panels(int row, int column) {
        return column / of_panel * inputs_panel + row * panel_row + swizzled(row, column % of_panel * size);
    }
    // One of layer l's sums, with its bias, to what the next layer reads in panels.
    template <int l>
    __device__ void put(int row, int column, float sum) const {
        *reinterpret_cast<T*>(memory + layer<l + 1>.from + in_panels(row, column)) =
            fused_mlp::as_input<T, true>(narrow<T>(activate<activation<l>>(sum)));
    }

    // ------------------------------------------------------------------------------------------------------ products

    // Two steps of mma.sync: 64 bytes of k of 16 outputs and of eight rows, 16 bytes of each from this lane.
    __device__ static void multiply(float (&one)[4], float (&other)[4], const uint4 (&w)[2], const uint4& x) {
        multiply_step<T>(one, {w[0].x, w[0].y, w[0].z, w[0].w}, x.x, x.y);
        multiply_step<T>(other, {w[1].x, w[1].y, w[1].z, w[1].w}, x.z, x.w);
    }
    __device__ void run_first(const FirstWeights& weights) {
        Sums sums[first_jobs] = {};
#pragma unroll
        for (int half = 0; half < layer<0>.halves; ++half)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const uint4 x = *reinterpret_cast<const uint4*>(input<0>(8 * n + g, half * half_bytes + 16 * t));
#pragma unroll
                for (int j = 0; j < first_jobs; ++j) multiply(sums[j][n], sums[j][n], weights.of[j][half], x);
            }
#pragma unroll
        for (int j = 0; j < first_jobs; ++j) {
            const int output = (warp + j * warps) * fused_mlp::direct_outputs + g;
            const float biases[2] = {bias<0>(output), bias<0>(output + 8)};
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    put<0>(8 * n + 2 * t + e % 2, output + e / 2 * 8, sums[j][n][e] + biases[e / 2]);
        }
    }
    // The sums of layer l's panels, which give(eight rows, sums of them) gets: the one warpgroup that has these
    // outputs, or of several each its share of the rows.
    template <int l, class Give>
    __device__ void run_panels(Give give) {
        constexpr PairProduct product = layer<l>.product;
        const int part = warpgroup / product.columns;
        float sums[16] = {};
#pragma unroll 1
        for (int i = 0; i < product.steps; ++i) {
            loads(slot).wait(parity);
            // What lies in the stream behind the last panel of k is not multiplied: zeros would make NaN of what is
            // infinite.
            const int panel = part * product.steps + i;
            if (product.parts * product.steps == product.panels || panel < product.panels)
                multiply_panels<T>(sums, panel_of(slot), memory + layer<l>.from + panel * inputs_panel);
            warpgroup_barrier(warpgroup);
            ask(slot);
            if (++slot == stages) slot = 0, parity ^= 1;
        }
        find_thread();
        constexpr int share = 4 / product.parts;  // of the eights of rows
        Sums own;
        if constexpr (product.parts == 1) {
#pragma unroll
            for (int i = 0; i < 16; ++i) own[i / 4][i % 4] = sums[i];
        } else {
            float4* const all = reinterpret_cast<float4*>(memory + net.sums);
            auto at = [&](int n, int of_part) -> float4& {
                const int group = (n * product.parts + of_part) * product.columns + warpgroup % product.columns;
                return all[group * warpgroup_threads + thread % warpgroup_threads];
            };
            __syncthreads();  // what lay there has been read
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                if (n / share == part) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) own[n % share][e] = sums[4 * n + e];
                } else {
                    at(n, part) = {sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], sums[4 * n + 3]};
                }
            }
            __syncthreads();
            // In the order of the parts, whichever is one's own: equal rows have equal results.
#pragma unroll
            for (int n = 0; n < share; ++n) {
                float sum[4] = {};
#pragma unroll
                for (int p = 0; p < product.parts; ++p) {
                    const float4 mine = {own[n][0], own[n][1], own[n][2], own[n][3]};
                    const float4 more = p == part ? mine : at(part * share + n, p);
                    sum[0] += more.x, sum[1] += more.y, sum[2] += more.z, sum[3] += more.w;
                }
#pragma unroll
                for (int e = 0; e < 4; ++e) own[n][e] = sum[e];
            }
        }
#pragma unroll
        for (int n = 0; n < share; ++n) give((product.parts == 1 ? 0 : part * share) + n, own[n]);
    }
    // Of which of its block's outputs of layer l a thread's first sum is; others are of the eighth behind it.
    template <int l>
    __device__ int first_output() const {
        return warpgroup % layer<l>.product.columns * product_rows + warp % 4 * 16 + g;
    }
    // A layer that is cut by outputs.
    template <int l>
    __device__ void run_outputs() {
        const int first = first_output<l>(), before = cluster.rank * layer<l>.product.outputs;
        const float biases[2] = {bias<l>(before + first), bias<l>(before + first + 8)};
        run_panels<l>([&](int eight, const float (&sums)[4]) {
            const int column = first_output<l>();
#pragma unroll
            for (int e = 0; e < 4; ++e)
                put<l>(8 * eight + 2 * t + e % 2, column + e / 2 * 8, sums[e] + biases[e / 2]);
        });
    }
    // A layer that is cut by inputs, but for the sum over both blocks: this block's sums to the block that has the row.
    // There they lie [number of the row][output], by permuted outputs, as four rows are written at a time.
    template <int l>
    __device__ float& sum_at(int place, int i, int output) const {
        return reinterpret_cast<float*>(memory + place)[i * layer<l>.outputs + (output ^ i % 4 * 8)];
    }
    template <int l>
    __device__ float& own_sum(int i, int output) const { return sum_at<l>(layer<l>.own_sums, i, output); }
    template <int l>
    __device__ float& received(int i, int output) const { return sum_at<l>(layer<l>.received, i, output); }
    template <int l>
    __device__ void run_inputs() {
        if (l == 2 && is_first) cluster.wait();  // nothing is written into the other block before it has begun
        run_panels<l>([&](int eight, const float (&sums)[4]) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int i = 4 * eight + t, output = first_output<l>() + e / 2 * 8, other = 1 - cluster.rank;
                if (e % 2 == other) cluster.store(&received<l>(i, output), other, sums[e]);
                else own_sum<l>(i, output) = sums[e];
            }
        });
        cluster.arrive();
    }
    template <int l>
    __device__ float sum_of_blocks(int i, int output) const {
        return own_sum<l>(i, output) + received<l>(i, output);
    }
    // Layer 3, of the own rows: 16 outputs of eight rows a warp, by sums of a part of k.
    __device__ void run_fourth() const {
        for (int item = warp; item < 2 * layer<3>.jobs; item += warps) {
            const int job = item / 2, first = item % 2 * 8;
            const char* const weights = memory + net.kept_place + job * layer<3>.slots * fragment_bytes + 16 * lane();
            Sums sums = {};
#pragma unroll
            for (int half = 0; half < layer<3>.halves; ++half) {
                const auto* const from = reinterpret_cast<const uint4*>(weights + half * (fragment_bytes / 2));
                multiply(sums[2 * half % 4], sums[2 * half % 4 + 1], {from[0], from[fragment_bytes / 4 / 16]},
                         *reinterpret_cast<const uint4*>(input<3>(first + g, half * half_bytes + 16 * t)));
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int output = job * fused_mlp::direct_outputs + g + e / 2 * 8;
                const float sum = sums[0][e] + sums[1][e] + sums[2][e] + sums[3][e];
                if (output >= layer<3>.outputs) continue;
                const int i = first + 2 * t + e % 2, row = own().row(i);
                const T value = narrow<T>(activate<activation<3>>(sum + bias<3>(output)));
                reinterpret_cast<T*>(own().vector(i, 0))[output] = value;
                if (Net::keeps && is_there(row)) values->vector[(first_row + row) * layer<3>.outputs + output] = value;
            }
        }
    }
    // [v_0, pairs] of the own rows, to what the top MLP reads. If there are many pairs, a warp has half of those of two
    // rows: the two lie 16 rows apart, so that one is placed as the other.
    static constexpr int shares = Net::model.tables < 16 ? 1 : 2;
    static_assert(pair_own_rows == warps && pair_own_rows % 16 == 0);
    template <int m>
    __device__ void interact(int first) const {
        float sums[shares][Own::template tiles_before<m>][4] = {};
        char* const to = memory + layer<4>.from;
        const int row = own().row(first), distance = (own().row(first + pair_own_rows / 2) - row) * panel_row;
        auto put = [&](int column, int share, T value) {
            *reinterpret_cast<T*>(to + in_panels(row, column) + share * distance) = fused_mlp::as_input<T, true>(value);
        };
#pragma unroll
        for (int share = 0; share < shares; ++share)
            own().template multiply<m>(first + share * (pair_own_rows / 2), sums[share]);
#pragma unroll
        for (int n = 0; n < Own::template tiles_before<m>; ++n)
            own().each_pair(m, n, [&](int column, int e) {
#pragma unroll
                for (int share = 0; share < shares; ++share) put(column, share, narrow<T>(sums[share][n][e]));
            });
        if constexpr (m == 0)
#pragma unroll
            for (int share = 0; share < shares; ++share)
                own().give_others(first + share * (pair_own_rows / 2), layer<4>.inputs,
                                  layer<4>.product.panels * of_panel,
                                  [&](int column, T value) { put(column, share, value); });
    }
    // The own rows of it, to the other block.
    __device__ void give_rows() const {
        constexpr int pieces = panel_row / 16, all = layer<4>.product.panels * pair_own_rows * pieces;
        each<all>(thread, [&](int i) {
            const int panel = i / (pair_own_rows * pieces), row = own().row(i / pieces % pair_own_rows);
            char* const own_row = memory + layer<4>.from + panel * inputs_panel + row * panel_row;
            auto* piece = reinterpret_cast<uint4*>(own_row + i % pieces * 16);
            cluster.store(piece, 1 - cluster.rank, *piece);
        });
    }
    // Layer 6, a row a warp, in float.
    __device__ void run_last() const {
        float sum = 0.0f;
        const long long row = first_row + own().row(warp);
#pragma unroll
        for (int i = 0; i < divided(layer<6>.inputs, 32); ++i) {
            const int k = lane() + 32 * i;
            const T value = narrow<T>(activate<activation<5>>(sum_of_blocks<5>(warp, k) + bias<5>(k)));
            if (Net::keeps && row < of.net.rows) values->top[row * top_columns + layer<4>.outputs + k] = value;
            sum += widen(value) * kept(net.last_weights + k);
        }
        sum = reduce_lanes<Sum>(sum, 32);
        if (lane() == 0 && row < of.net.rows) of.net.out[row] = narrow<T>(activate<activation<6>>(sum + bias<6>(0)));
    }

    // -------------------------------------------------------------------------------------------------------- a tile

    static constexpr int x_columns = layer<0>.halves * (half_bytes / size), x_all = pair_rows * x_columns;
    static constexpr int x_turns = divided(x_all, threads);
    __device__ T x_of(int i) const {
        const int column = i % x_columns;
        const long long row = first_row + i / x_columns;
        const bool is_there = i < x_all && row < of.net.rows && column < layer<0>.inputs;
        return is_there ? of.net.x[row * layer<0>.inputs + column] : narrow<T>(0.0f);
    }
    // What hangs on no tile. Until the launch before has ended it may still write what it lays out, or, where that lies
    // there already, x and the ids.
    __device__ void begin_all(FirstWeights& first) {
        using Word = unsigned long long;
        each<int(sizeof of / sizeof(Word))>(lane() * warps + warp, [&](int i) {
            reinterpret_cast<Word*>(memory + net.near)[i] = reinterpret_cast<const Word*>(&of)[i];
        });
        if (leads())
#pragma unroll
            for (int i = 0; i < stages; ++i) loads(i).init(1);
        if (!Net::laid_out) wait_for_predecessor();
        let_successor_begin();
        begin(first);
#pragma unroll
        for (int i = 0; i < stages; ++i) ask(i);
        const char* const from = reinterpret_cast<const char*>(laid_out() + net.kept);
        each<int(net.elements - net.kept) * size / 16>(
            thread, [&](int i) { copies.copy(memory + net.kept_place + 16 * i, from + 16 * i, true); });
        copies.commit();
        if (Net::laid_out) wait_for_predecessor();
    }
    __device__ void run_tile(FirstWeights& first, bool is_last) {
        if (Net::laid_out && is_first) begin_all(first);
        long long ids[Own::rows_of_warp];
        if (!Net::model.has_offsets) own().ask(ids, first_row);
        T x[x_turns];
#pragma unroll
        for (int i = 0; i < x_turns; ++i) x[i] = x_of(thread + i * threads);
        if (!Net::laid_out && is_first) begin_all(first);
#pragma unroll
        for (int turn = 0; turn < x_turns; ++turn)
            if (const int i = thread + turn * threads; x_all % threads == 0 || i < x_all)
                *reinterpret_cast<T*>(input<0>(i / x_columns, i % x_columns * size)) =
                    fused_mlp::as_input<T, true>(x[turn]);
        copies.wait(0);
        __syncthreads();
        find_thread();
        if (Net::model.has_offsets) own().pool(first_row);
        else own().look_up(copies, ids, first_row);
        copies.commit();
        find_thread();
        run_first(first);
        order_before_products();
        __syncthreads();
        if constexpr (Net::keeps) keep_outputs<0>(values->bottom, bottom_columns);
        run_outputs<1>();
        order_before_products();
        __syncthreads();
        if constexpr (Net::keeps) keep_outputs<1>(values->bottom + layer<0>.outputs, bottom_columns);
        run_inputs<2>();
        cluster.wait();
        find_thread();
        each<pair_own_rows * layer<2>.outputs>(thread, [&](int i) {
            const int row = i / layer<2>.outputs, output = i % layer<2>.outputs;
            const float z = activate<activation<2>>(sum_of_blocks<2>(row, output) + bias<2>(output));
            const T value = fused_mlp::as_input<T, true>(narrow<T>(z));
            *reinterpret_cast<T*>(input<3>(row, output * size)) = value;
            constexpr int before = bottom_columns - layer<2>.outputs;
            if (Net::keeps && is_there(own().row(row)))
                values->bottom[(first_row + own().row(row)) * bottom_columns + before + output] = value;
        });
        __syncthreads();
        find_thread();
        run_fourth();
        copies.wait(0);
        __syncthreads();
        find_thread();
        if (shares == 1) interact<0>(warp);
        else if (warp % 2) interact<1>(warp / 2);
        else interact<0>(warp / 2);
        __syncthreads();
        find_thread();
        give_rows();
        order_before_products(true);
        cluster.arrive();
        cluster.wait();
        order_before_products();
        find_thread();
        if constexpr (Net::keeps)
            keep<pair_own_rows, features_columns>(layer<4>.from, values->features, features_columns);
        run_outputs<4>();
        order_before_products();
        __syncthreads();
        if constexpr (Net::keeps) keep_outputs<4>(values->top, top_columns);
        run_inputs<5>();
        find_thread();
        if (!is_last) begin(first);
        cluster.wait();
        find_thread();
        run_last();
    }
    __device__ void run() {
        cluster.begin();
        FirstWeights first;
        const int begin = Cluster::block() / pair_blocks;
        if (begin < tiles) left = (tiles - begin + clusters - 1) / clusters * net.steps;
        for (int tile = begin; tile < tiles; tile += clusters, is_first = false) {
            first_row = (long long)tile * pair_rows;
            find_thread();
            run_tile(first, tile + clusters >= tiles);
        }
    }
};

// Weights and biases as pairs take them.
template <class T, class Net>
struct PairWeights {
    static constexpr PairLayout net = pair_layout<T>(Net::model, Net::stages);
    template <int l>
    static constexpr PairLayer layer = net.layers[l];
    static constexpr int size = int(sizeof(T)), width = widest<T>;

    const fused_mlp::LayersToFragments<T>& all;

    template <int l>
    __device__ T weight(int output, int k) const {
        const bool is_there = output < layer<l>.outputs && k < layer<l>.inputs;
        return is_there ? all.weights[l][output * all.strides[l] + k] : narrow<T>(0.0f);
    }
    // Of a panel at this step of the stream, 16 bytes of a row, from byte `byte` of k on.
    template <int l>
    __device__ Pack<T, width> panel_piece(int block, int step, int warpgroup, int row, int byte) const {
        constexpr PairProduct product = layer<l>.product;
        const int before = product.by_inputs ? 0 : block * product.outputs;
        const int output = before + warpgroup % product.columns * product_rows + row;
        const int panel = warpgroup / product.columns * product.steps + step - product.first;
        const int k = (product.by_inputs ? block * product.inputs : 0) + (panel * panel_row + byte) / size;
        Pack<T, width> piece = {};
        if (panel >= product.panels || k >= layer<l>.inputs) return piece;
        const T* const from = all.weights[l];
        const bool is_aligned = reinterpret_cast<unsigned long long>(from) % 16 == 0 && all.strides[l] % width == 0;
        if (is_aligned)
            piece = load<width>(from + output * all.strides[l] + k);
        else
#pragma unroll
            for (int e = 0; e < width; ++e) piece.element[e] = weight<l>(output, k + e);
#pragma unroll
        for (int e = 0; e < width; ++e) piece.element[e] = fused_mlp::as_input<T, true>(piece.element[e]);
        return piece;
    }
    __device__ Pack<T, width> panel_piece(int i) const {
        constexpr int pieces = panel_row / 16;
        const int row = i / pieces % product_rows, byte = swizzled(row, i % pieces * 16);  // its own inverse
        const int panel = i / pieces / product_rows, warpgroup = panel % warpgroups;
        const int step = panel / warpgroups % net.steps, block = panel / warpgroups / net.steps;
        if (step < layer<2>.product.first) return panel_piece<1>(block, step, warpgroup, row, byte);
        if (step < layer<4>.product.first) return panel_piece<2>(block, step, warpgroup, row, byte);
        if (step < layer<5>.product.first) return panel_piece<4>(block, step, warpgroup, row, byte);
        return panel_piece<5>(block, step, warpgroup, row, byte);
    }
    template <int l>
    __device__ Pack<T, width> fragment_piece(long long element) const {
        return fused_mlp::fragment_piece<T>(int(element / width), layer<l>.slots,
                                            [&](int output, int k) { return weight<l>(output, k); });
    }
    // Behind the fragments of what is kept: biases and the last layer's weights.
    __device__ T number(int i) const {
        if (i >= net.last_weights) return weight<pair_layers - 1>(0, i - net.last_weights);
        return bias<0>(i);
    }
    template <int l>
    __device__ T bias(int i) const {
        if constexpr (l + 1 < pair_layers)
            if (i >= layer<l + 1>.bias) return bias<l + 1>(i);
        const int output = i - layer<l>.bias;
        return output < layer<l>.outputs ? all.biases[l][output] : narrow<T>(0.0f);
    }
    // A thread writes 16 bytes. A successor that begins early finds all that was there before this launch.
    __device__ void write() const {
        wait_for_predecessor();
        let_successor_begin();
        const long long element = (1LL * blockIdx.x * blockDim.x + threadIdx.x) * width;
        if (element >= net.elements) return;
        Pack<T, width> piece;
        if (element < net.first) {
            piece = panel_piece(int(element / width));
        } else if (element < net.kept) {
            piece = fragment_piece<0>(element - net.first);
        } else if (element < net.kept + layer<0>.bias) {
            piece = fragment_piece<3>(element - net.kept);
        } else {
#pragma unroll
            for (int e = 0; e < width; ++e) piece.element[e] = number(int(element - net.kept) + e);
        }
        *reinterpret_cast<Pack<T, width>*>(all.fragments + element) = piece;
    }
};

}  // namespace dlrm
