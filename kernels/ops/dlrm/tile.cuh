// A DLRM's forward in one launch, for models that tensor cores are for:
//
//     out = top([v_0, v_i · v_j for j < i])     v_0 = bottom(x), v_f = Σ of the rows of table f that its bag names
//
// x [B, K], V = F + 1 vectors of D numbers, i and j row by row through the strictly lower triangle; out [B, N].
//
// A block takes a tile of rows, or with the blocks of its cluster; the MLPs are fused_mlp's direct.cuh, as one chain of
// layers whose weights come while the vectors meet, too. Rows of tables are asked for behind the bottom MLP's first layer
// and waited for behind its last. A warp computes all pairs of a row, as V Vᵀ: 16 vectors are the rows of a product and 8 the
// columns, so that the registers that hold an operand's rows hold the other's columns too.
//
// Bytes: x, ids, the rows that they name and out once, from memory; from the L2 all weights once a tile, 1/cluster of them
// to each block. FLOPs: 2 B (Σ N(l-1) N(l) + D V (V - 1) / 2).
//
// On chip lie: all biases; what is between the layers, of either MLP by turns; the tile's vectors.
//
// tile.py writes a kernel of it for a model, whose layout is a constant there; test_dlrm.cu's gets it at the launch.
#pragma once

#include "ops/fused_mlp/direct.cuh"

#include "device/integers.cuh"
#include "device/report.cuh"

namespace dlrm {

constexpr int most_vectors = 32, most_tables = most_vectors - 1;
constexpr int bad_id = 5, bad_offset = 6;  // what a report says

// What a kernel is compiled for. wide: of 64 bits. has_offsets: bags, not one id a row; has_last: of the offsets the last
// says where the ids end. aligned: every table begins at a multiple of 16 bytes.
struct Model {
    fused_mlp::Widths bottom, top;
    Activation bottom_activation, bottom_last, top_activation, top_last;
    int tables;
    bool wide_ids, wide_offsets, has_offsets, has_last, aligned;
};

// Where the model's parts lie on chip.
struct Layout {
    fused_mlp::DirectLayout net;  // both MLPs
    int bottom = 0;               // so many layers are the bottom's
    int columns = 0;              // D
    int place = 0, place_row = 0, vector = 0;  // where the vectors lie, and how far rows and vectors are apart, in bytes
    long long shared_bytes = 0, fragments = 0;  // all that is on chip; elements of the fragments
};

template <class T>
constexpr Layout layout_of(const Model& model, int tile, int cluster = 1) {
    constexpr int size = int(sizeof(T));
    const fused_mlp::Chain chain = fused_mlp::Chain().append(model.bottom).append(model.top);
    Layout layout;
    layout.net = fused_mlp::layout_of<T>(chain, cluster), layout.fragments = fused_mlp::fragments_size<T>(chain);
    layout.bottom = model.bottom.count, layout.columns = model.bottom.width[model.bottom.count];
    const long long first_end = fused_mlp::append_layers<T>(layout.net, chain, model.bottom.count, model.bottom_activation,
                                                            model.bottom_last, tile);
    const long long second_end = fused_mlp::append_layers<T>(layout.net, chain, chain.count, model.top_activation,
                                                             model.top_last, tile);
    const long long place = first_end > second_end ? first_end : second_end;
    // Two neighbouring vectors' 64 bytes lie in different banks.
    const long long vector = 1LL * layout.columns * size, apart = vector % 128 ? vector : vector + 64;
    layout.place = int(place), layout.vector = int(apart), layout.place_row = int((model.tables + 1) * apart);
    layout.shared_bytes = place + tile * (model.tables + 1) * apart;
    fused_mlp::DirectLayer& last = layout.net.layers[model.bottom.count - 1];
    last.to = layout.place, last.to_row = layout.place_row, last.to_vector = true;
    last.written = layout.columns, last.gives_all_bits = true;
    return layout;
}

// What a call gives, of so many tables or fewer. Every member has eight bytes.
template <class T, int tables>
struct Arguments {
    fused_mlp::DirectCall<T> net;
    const T* rows[tables];
    long long heights[tables];
    const void* ids[tables];
    long long strides[tables];    // of the ids
    const void* offsets[tables];  // of bags
    long long counts[tables];     // of the ids, where there are bags
    unsigned long long* report;
};

// The vectors of those rows of a tile that are a block's own, and their pairs. Of `rows` rows a block of a cluster has the
// one of its rank and every `size`th behind it, `own_rows` or fewer: here they go by their number. row_warps: so many warps
// look up one row.
template <class T, int rows, int own_rows, int most, int row_warps>
struct Vectors {
    static constexpr int width = widest<T>;

    const Model model;
    const Arguments<T, most>& of;    // as they were given
    const Arguments<T, most>& near;  // the same, where a lane finds what is its own fast
    const Cluster cluster;
    char* const first;  // vector 0 of the first row
    const int columns, row_bytes, vector_bytes;  // D; how far rows and vectors are apart
    const int warp, g, t;  // lane = 4 g + t

    __device__ int lane() const { return 4 * g + t; }

    __device__ char* vector(int i, int v) const { return first + i * row_bytes + v * vector_bytes; }
    __device__ int row(int i) const { return cluster.rank + i * cluster.size; }

    // ------------------------------------------------------------------------------------------------------ look-ups

    __device__ static long long id_at(const Model& model, const Arguments<T, most>& of, int table, long long position) {
        return Integers{of.ids[table], model.wide_ids}[position * of.strides[table]];
    }
    __device__ bool is_id(int table, long long position, long long id, long long height, bool reports) const {
        if (id >= 0 && id < height) return true;
        if (reports) write_report(of.report, bad_id, table, position, id);
        return false;
    }
    // One id a row: a warp takes a row, or its share of the tables of one, and a lane finds a table's row of it. The ids
    // are asked for before x is read, and taken after the first layer.
    static constexpr int warps_of_rows = fused_mlp::direct_warps / row_warps;  // that each take another row
    static constexpr int rows_of_warp = (own_rows + warps_of_rows - 1) / warps_of_rows;
    __device__ int row_of_warp(int r) const { return warp / row_warps + r * warps_of_rows; }
    __device__ int tables_of_warp() const { return (model.tables + row_warps - 1) / row_warps; }
    __device__ int first_table() const { return warp % row_warps * tables_of_warp(); }
    __device__ bool asks(int r, long long first_row) const {
        return lane() < tables_of_warp() && first_table() + lane() < model.tables && row(row_of_warp(r)) < rows &&
               first_row + row(row_of_warp(r)) < of.net.rows;
    }
    __device__ void ask(long long (&ids)[rows_of_warp], long long first_row) const {
#pragma unroll
        for (int r = 0; r < rows_of_warp; ++r) {
            ids[r] = -1;
            if (asks(r, first_row)) ids[r] = id_at(model, of, first_table() + lane(), first_row + row(row_of_warp(r)));
        }
    }
    __device__ void look_up(AsyncCopies& copies, const long long (&ids)[rows_of_warp], long long first_row) const {
        const int parts = columns / width, table = first_table() + lane(), left = model.tables - first_table();
        const int all = (left < tables_of_warp() ? left : tables_of_warp()) * parts;
#pragma unroll
        for (int r = 0; r < rows_of_warp; ++r) {
            const int i = row_of_warp(r);
            if (row(i) >= rows) break;
            unsigned long long found = 0;  // where the table's row is; 0: zeros in its place
            if (asks(r, first_row) && is_id(table, first_row + row(i), ids[r], near.heights[table], true))
                found = reinterpret_cast<unsigned long long>(near.rows[table] + ids[r] * columns);
            for (int piece = lane(); piece - lane() < all; piece += 32) {
                const int of_lane = piece / parts, part = piece % parts;
                const unsigned long long from = __shfl_sync(~0u, found, of_lane);
                char* const to = vector(i, first_table() + of_lane + 1) + part * 16;
                if (piece < all) take(copies, to, reinterpret_cast<const T*>(from), part * width);
            }
        }
    }
    // 16 bytes of a table's row, or zeros where there is none.
    __device__ void take(AsyncCopies& copies, char* to, const T* row, int column) const {
        const T* const aligned_place = of.net.fragments;  // of which nothing is read
        if (model.aligned) return copies.copy(to, row ? row + column : aligned_place, row != nullptr);
        Pack<T, width> pack;
#pragma unroll
        for (int e = 0; e < width; ++e) pack.element[e] = row ? row[column + e] : narrow<T>(0.0f);
        *reinterpret_cast<Pack<T, width>*>(to) = pack;
    }
    // 16 bytes of a vector: of its own rows, piece after piece of a vector, vectors of a row, rows.
    struct Piece {
        int i, table, part;
    };
    __device__ int pieces() const { return (rows + cluster.size - 1) / cluster.size * model.tables * (columns / width); }
    __device__ Piece piece(int number) const {
        int parts = columns / width, whole = number / parts;
        return {whole / model.tables, whole % model.tables, number % parts};
    }
    // Sums of bags. Bad offsets are clamped to what can be read.
    __device__ void pool(long long first_row) const {
        for (int number = int(threadIdx.x); number < pieces(); number += fused_mlp::direct_threads) {
            Piece own = piece(number);
            if (row(own.i) >= rows) continue;
            float sums[width] = {};
            long long own_row = first_row + row(own.i);
            if (own_row < of.net.rows) {
                long long begin, end;
                bounds(own, own_row, begin, end);
                for (long long p = begin; p < end; ++p) {
                    long long id = id_at(model, near, own.table, p);
                    if (!is_id(own.table, p, id, near.heights[own.table], own.part == 0)) continue;
                    const T* from = near.rows[own.table] + id * columns + own.part * width;
                    Pack<T, width> pack;
                    if (model.aligned)
                        pack = load<width>(from);
                    else
#pragma unroll
                        for (int e = 0; e < width; ++e) pack.element[e] = from[e];
#pragma unroll
                    for (int e = 0; e < width; ++e) sums[e] += widen(pack.element[e]);
                }
            }
            store<width>(reinterpret_cast<T*>(vector(own.i, own.table + 1)) + own.part * width, sums);
        }
    }
    __device__ void bounds(const Piece& own, long long own_row, long long& begin, long long& end) const {
        Integers offsets{near.offsets[own.table], model.wide_offsets};
        long long ids = near.counts[own.table], batch = of.net.rows;
        begin = offsets[own_row], end = own_row + 1 < batch || model.has_last ? offsets[own_row + 1] : ids;
        bool bad_begin = begin < 0 || begin > ids || (own_row == 0 && begin != 0);
        bool bad_end = end < begin || end > ids || (own_row == batch - 1 && end != ids);
        if (!bad_begin && !bad_end) return;
        if (own.part == 0)
            write_report(of.report, bad_offset, own.table, bad_begin ? own_row : own_row + 1, bad_begin ? begin : end);
        begin = begin < 0 ? 0 : begin > ids ? ids : begin;
        end = end < begin ? begin : end > ids ? ids : end;
    }

    // --------------------------------------------------------------------------------------------------- interaction

    __device__ static unsigned rounded(unsigned x) { return __float_as_uint(rounded_to_tf32(__uint_as_float(x))); }
    // Of row i, 16 bytes of vector 8 j + g, from byte k on.
    __device__ uint4 operand(int i, int j, int k) const {
        const int vectors = model.tables + 1, own = 8 * j + g < vectors ? 8 * j + g : vectors - 1;
        uint4 v = k < columns * int(sizeof(T)) ? *reinterpret_cast<const uint4*>(vector(i, own) + k) : uint4{};
        if constexpr (sizeof(T) == 4) v = {rounded(v.x), rounded(v.y), rounded(v.z), rounded(v.w)};
        return v;
    }
    // Of this lane's four products of vectors 16 m … with 8 n …, those that are pairs: give(column, number), behind the
    // columns of vector 0.
    template <class Give>
    __device__ void each_pair(int m, int n, Give give) const {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            int one = 16 * m + g + 8 * (e / 2), other = 8 * n + 2 * t + e % 2;
            if (other < one && one <= model.tables) give(columns + one * (one - 1) / 2 + other, e);
        }
    }
    template <class Give>
    __device__ void give_pairs(int m, int n, const float (&sums)[4], Give give) const {
        each_pair(m, n, [&](int column, int e) { give(column, narrow<T>(sums[e])); });
    }
    // A row's products of vectors 16 m … 16 m + 15 with all those before them, eight a tile.
    template <int m>
    static constexpr int tiles_before = 2 * m + 2;
    template <int m>
    __device__ void multiply(int i, float (&sums)[tiles_before<m>][4]) const {
        constexpr int tiles = tiles_before<m>;
        const int bytes = columns * int(sizeof(T));
        for (int k = 16 * t; k - 16 * t < bytes; k += fused_mlp::half_bytes) {
            uint4 v[tiles];
#pragma unroll
            for (int j = 0; j < tiles; ++j) v[j] = operand(i, j, k);
            const uint4 &one = v[tiles - 2], &other = v[tiles - 1];
            const unsigned begin[4] = {one.x, other.x, one.y, other.y}, end[4] = {one.z, other.z, one.w, other.w};
#pragma unroll
            for (int n = 0; n < tiles; ++n) multiply_step<T>(sums[n], begin, v[n].x, v[n].y);
#pragma unroll
            for (int n = 0; n < tiles; ++n) multiply_step<T>(sums[n], end, v[n].z, v[n].w);
        }
    }
    template <int m, class Give>
    __device__ void meet(int i, Give give) const {
        float sums[tiles_before<m>][4] = {};
        multiply<m>(i, sums);
#pragma unroll
        for (int n = 0; n < tiles_before<m>; ++n) give_pairs(m, n, sums[n], give);
    }
    // The same with vectors 8 n … 8 n + 7 alone, where there are warps for it.
    template <class Give>
    __device__ void meet(int i, int m, int n, Give give) const {
        float first[4] = {}, second[4] = {};
        for (int k = 16 * t; k - 16 * t < columns * int(sizeof(T)); k += fused_mlp::half_bytes) {
            const uint4 one = operand(i, 2 * m, k), other = operand(i, 2 * m + 1, k), v = operand(i, n, k);
            multiply_step<T>(first, {one.x, other.x, one.y, other.y}, v.x, v.y);
            multiply_step<T>(second, {one.z, other.z, one.w, other.w}, v.z, v.w);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) first[e] += second[e];
        give_pairs(m, n, first, give);
    }
    // What a row's interaction begins with, vector 0, and the zeros up to `covered` behind its end.
    template <class Give>
    __device__ void give_others(int i, int end, int covered, Give give) const {
        for (int c = lane(); c < columns; c += 32) give(c, reinterpret_cast<const T*>(vector(i, 0))[c]);
        for (int c = end + lane(); c < covered; c += 32) give(c, narrow<T>(0.0f));
    }
};

template <class T, int n_tiles, int most>
struct TileBlock : fused_mlp::DirectBlock<T, n_tiles> {
    using Base = fused_mlp::DirectBlock<T, n_tiles>;
    using Base::call, Base::cluster, Base::memory, Base::net, Base::rows, Base::tiles, Base::warp;
    using Base::as_taken, Base::copies, Base::give, Base::width;
    using Own = Vectors<T, rows, rows, most, 1>;

    const Model& model;
    const Layout& layout;
    const Own own;

    __device__ TileBlock(const Model& model, const Layout& layout, const Arguments<T, most>& of)
        : Base(layout.net, of.net), model(model), layout(layout),
          own{model, of, of, cluster, memory + layout.place + cluster.rank * layout.place_row, layout.columns,
              cluster.size * layout.place_row, layout.vector, warp, Base::g, Base::t} {}

    // [v_0, pairs] of the tile's rows, to what the top MLP reads, in all blocks of the cluster.
    __device__ void interact() const {
        const int l = layout.bottom, columns = net.layers[l].inputs, lane = int(threadIdx.x) % 32;
        const bool plain = this->is_plain(l);
        const int covered = int(fused_mlp::round_up(columns, Base::of_slot));
        for (int i = warp; own.row(i) < rows; i += fused_mlp::direct_warps) {
            const int row = own.row(i);
            auto put = [&](int column, T value) { this->input(l, row, column) = as_taken(value, plain); };
            own.template meet<0>(i, put);
            if (model.tables >= 16) own.template meet<1>(i, put);
            own.give_others(i, columns, covered, put);
            if (cluster.size == 1) continue;
            __syncwarp();
            for (int c = lane * width; c < covered; c += 32 * width) give(&this->input(l, row, c));
        }
    }
    __device__ void run() {
        for (int tile = this->first_tile(); tile < tiles; tile += this->step_of_tiles()) {
            const long long first_row = this->first_row(tile);
            long long ids[Own::rows_of_warp];
            if (!model.has_offsets) own.ask(ids, first_row);
            this->read_x(first_row);
            if (tile == this->first_tile()) this->begin(tile);
            copies.wait(0);
            this->run_layers(0, 1, tile);
            if (model.has_offsets)
                own.pool(first_row);
            else
                own.look_up(copies, ids, first_row);
            copies.commit();
            this->run_layers(1, layout.bottom, tile);
            copies.wait(0);
            cluster.barrier();
            interact();
            this->run_layers(layout.bottom, net.count, tile);
            this->end_tile();
        }
    }
};

#ifndef __CUDACC_RTC__
// A kernel for every model.
template <class T>
struct Call {
    Model model;
    Layout layout;
    Arguments<T, most_tables> of;
};
template <class T, int n_tiles>
__global__ void __launch_bounds__(fused_mlp::direct_threads, 1) tile_forward(const __grid_constant__ Call<T> call) {
    TileBlock<T, n_tiles, most_tables>(call.model, call.layout, call.of).run();
}

// Of the call model and of, without x_columns and clusters, are given. In tiles of `tile` rows, 8, 16 or 32, by clusters of
// `cluster` blocks, 0 clusters for as many as run at once. cudaErrorInvalidValue: widths that do not belong together, more
// tables than there may be. cudaErrorInvalidConfiguration: vectors or fragments that are no multiples of 16 bytes; and as
// launch_direct_tiles.
template <class T>
cudaError_t launch_tile(Call<T> call, int tile, int cluster, int clusters, cudaStream_t stream) {
    Model& model = call.model;
    const fused_mlp::Widths &bottom = model.bottom, &top = model.top;
    const int vectors = model.tables + 1, columns = bottom.width[bottom.count];
    if (model.tables < 1 || model.tables > most_tables || bottom.count < 1 || top.count < 1 ||
        bottom.count + top.count > fused_mlp::most_layers || top.width[0] != columns + vectors * (vectors - 1) / 2)
        return cudaErrorInvalidValue;
    if (!call.of.net.rows) return cudaSuccess;
    if (!aligned(call.of.net.fragments) || columns * sizeof(T) % 16) return cudaErrorInvalidConfiguration;
    fused_mlp::Device device;
    cudaError_t error = fused_mlp::this_device(tile_forward<T, 2>, device);
    if (error != cudaSuccess) return error;
    model.aligned = true;
    for (int f = 0; f < model.tables; ++f) model.aligned = model.aligned && aligned(call.of.rows[f]);
    call.layout = layout_of<T>(model, tile, cluster);
    call.of.net.x_columns = bottom.width[0];
    auto go = [&](auto* kernel) {
        return launch_direct_tiles(kernel, tile, call.of.net, call, call.layout.shared_bytes, cluster, clusters, device, stream);
    };
    if (tile == 8) return go(tile_forward<T, 1>);
    if (tile == 16) return go(tile_forward<T, 2>);
    if (tile == 32) return go(tile_forward<T, 4>);
    return cudaErrorInvalidConfiguration;
}
#endif

}  // namespace dlrm
