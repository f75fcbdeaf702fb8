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

template <class T, int n_tiles, int most>
struct TileBlock : fused_mlp::DirectBlock<T, n_tiles> {
    using Base = fused_mlp::DirectBlock<T, n_tiles>;
    using Base::call, Base::cluster, Base::g, Base::memory, Base::net, Base::rows, Base::t, Base::tiles, Base::warp;
    using Base::as_taken, Base::copies, Base::give, Base::width;

    const Model& model;
    const Layout& layout;
    const Arguments<T, most>& of;

    __device__ TileBlock(const Model& model, const Layout& layout, const Arguments<T, most>& of)
        : Base(layout.net, of.net), model(model), layout(layout), of(of) {}

    __device__ char* vector(int row, int v) const { return memory + layout.place + row * layout.place_row + v * layout.vector; }

    // The rows of the tile whose pairs this block computes, by their number among them.
    __device__ int own_row(int i) const { return cluster.rank + i * cluster.size; }

    // ------------------------------------------------------------------------------------------------------ look-ups

    __device__ long long id_at(int table, long long position) const {
        return Integers{of.ids[table], model.wide_ids}[position * of.strides[table]];
    }
    __device__ bool is_id(int table, long long position, long long id, long long height, bool reports) const {
        if (id >= 0 && id < height) return true;
        if (reports) write_report(of.report, bad_id, table, position, id);
        return false;
    }
    // One id a row: a warp takes a row, and a lane finds a table's row of it. The ids are asked for before x is read, and
    // taken after the first layer.
    static constexpr int rows_of_warp = (rows + fused_mlp::direct_warps - 1) / fused_mlp::direct_warps;
    __device__ int row_of_warp(int r) const { return own_row(warp + r * fused_mlp::direct_warps); }
    __device__ bool asks(int r, long long first_row) const {
        return this->lane() < model.tables && row_of_warp(r) < rows && first_row + row_of_warp(r) < call.rows;
    }
    __device__ void ask(long long (&ids)[rows_of_warp], long long first_row) const {
#pragma unroll
        for (int r = 0; r < rows_of_warp; ++r) {
            ids[r] = -1;
            if (asks(r, first_row)) ids[r] = id_at(this->lane(), first_row + row_of_warp(r));
        }
    }
    __device__ void look_up(const long long (&ids)[rows_of_warp], long long first_row) {
        const int parts = layout.columns / width, all = model.tables * parts, table = this->lane();
#pragma unroll
        for (int r = 0; r < rows_of_warp; ++r) {
            const int row = row_of_warp(r);
            if (row >= rows) break;
            unsigned long long found = 0;  // where the table's row is; 0: zeros in its place
            if (asks(r, first_row) && is_id(table, first_row + row, ids[r], of.heights[table], true))
                found = reinterpret_cast<unsigned long long>(of.rows[table] + ids[r] * layout.columns);
            for (int i = table; i - table < all; i += 32) {
                const int vector_of = i / parts, part = i % parts;
                const unsigned long long from = __shfl_sync(~0u, found, vector_of);
                if (i < all) take(vector(row, vector_of + 1) + part * 16, reinterpret_cast<const T*>(from), part * width);
            }
        }
    }
    // 16 bytes of a table's row, or zeros where there is none.
    __device__ void take(char* to, const T* row, int column) {
        const T* const aligned_place = call.fragments;  // of which nothing is read
        if (model.aligned) return copies.copy(to, row ? row + column : aligned_place, row != nullptr);
        Pack<T, width> pack;
#pragma unroll
        for (int e = 0; e < width; ++e) pack.element[e] = row ? row[column + e] : narrow<T>(0.0f);
        *reinterpret_cast<Pack<T, width>*>(to) = pack;
    }
    // 16 bytes of a vector: of its own rows, piece after piece of a vector, vectors of a row, rows.
    struct Piece {
        int row, table, part;
    };
    __device__ int pieces() const {
        return (rows + cluster.size - 1) / cluster.size * model.tables * (layout.columns / width);
    }
    __device__ Piece piece(int i) const {
        int parts = layout.columns / width, whole = i / parts;
        return {own_row(whole / model.tables), whole % model.tables, i % parts};
    }
    // Sums of bags. Bad offsets are clamped to what can be read.
    __device__ void pool(long long first_row) {
        for (int i = int(threadIdx.x); i < pieces(); i += fused_mlp::direct_threads) {
            Piece own = piece(i);
            if (own.row >= rows) continue;
            float sums[width] = {};
            long long row = first_row + own.row;
            if (row < call.rows) {
                long long begin, end;
                bounds(own, row, begin, end);
                for (long long p = begin; p < end; ++p) {
                    long long id = id_at(own.table, p);
                    if (!is_id(own.table, p, id, of.heights[own.table], own.part == 0)) continue;
                    const T* from = of.rows[own.table] + id * layout.columns + own.part * width;
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
            store<width>(reinterpret_cast<T*>(vector(own.row, own.table + 1)) + own.part * width, sums);
        }
    }
    __device__ void bounds(const Piece& own, long long row, long long& begin, long long& end) const {
        Integers offsets{of.offsets[own.table], model.wide_offsets};
        long long ids = of.counts[own.table], batch = call.rows;
        begin = offsets[row], end = row + 1 < batch || model.has_last ? offsets[row + 1] : ids;
        bool bad_begin = begin < 0 || begin > ids || (row == 0 && begin != 0);
        bool bad_end = end < begin || end > ids || (row == batch - 1 && end != ids);
        if (!bad_begin && !bad_end) return;
        if (own.part == 0)
            write_report(of.report, bad_offset, own.table, bad_begin ? row : row + 1, bad_begin ? begin : end);
        begin = begin < 0 ? 0 : begin > ids ? ids : begin;
        end = end < begin ? begin : end > ids ? ids : end;
    }

    // --------------------------------------------------------------------------------------------------- interaction

    __device__ static unsigned rounded(unsigned x) { return __float_as_uint(rounded_to_tf32(__uint_as_float(x))); }
    // A row's pairs of vectors 16 m … 16 m + 15 with those before them.
    template <int m>
    __device__ void meet(int row, bool plain) const {
        constexpr int columns = 2 * m + 2;
        const int vectors = model.tables + 1, bytes = layout.columns * int(sizeof(T));
        float sums[columns][4] = {};
        for (int k = 16 * t; k - 16 * t < bytes; k += fused_mlp::half_bytes) {
            uint4 v[columns];
#pragma unroll
            for (int j = 0; j < columns; ++j) {
                int own = 8 * j + g < vectors ? 8 * j + g : vectors - 1;
                v[j] = k < bytes ? *reinterpret_cast<const uint4*>(vector(row, own) + k) : uint4{};
                if constexpr (sizeof(T) == 4) v[j] = {rounded(v[j].x), rounded(v[j].y), rounded(v[j].z), rounded(v[j].w)};
            }
            const uint4 &one = v[columns - 2], &other = v[columns - 1];
            const unsigned first[4] = {one.x, other.x, one.y, other.y}, second[4] = {one.z, other.z, one.w, other.w};
#pragma unroll
            for (int n = 0; n < columns; ++n) multiply_step<T>(sums[n], first, v[n].x, v[n].y);
#pragma unroll
            for (int n = 0; n < columns; ++n) multiply_step<T>(sums[n], second, v[n].z, v[n].w);
        }
#pragma unroll
        for (int n = 0; n < columns; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int one = 16 * m + g + 8 * (e / 2), other = 8 * n + 2 * t + e % 2;
                if (other < one && one < vectors)
                    this->input(layout.bottom, row, layout.columns + one * (one - 1) / 2 + other) =
                        as_taken(narrow<T>(sums[n][e]), plain);
            }
    }
    // [v_0, pairs] of the tile's rows, to what the top MLP reads, in all blocks of the cluster.
    __device__ void interact() const {
        const int l = layout.bottom, columns = net.layers[l].inputs, lane = int(threadIdx.x) % 32;
        const bool plain = this->is_plain(l);
        const int covered = int(fused_mlp::round_up(columns, Base::of_slot));
        for (int i = warp; own_row(i) < rows; i += fused_mlp::direct_warps) {
            const int row = own_row(i);
            meet<0>(row, plain);
            if (model.tables >= 16) meet<1>(row, plain);
            for (int c = lane; c < layout.columns; c += 32)
                this->input(l, row, c) = as_taken(reinterpret_cast<const T*>(vector(row, 0))[c], plain);
            for (int c = columns + lane; c < covered; c += 32) this->input(l, row, c) = narrow<T>(0.0f);
            if (cluster.size == 1) continue;
            __syncwarp();
            for (int c = lane * width; c < covered; c += 32 * width) give(&this->input(l, row, c));
        }
    }
    __device__ void run() {
        for (int tile = this->first_tile(); tile < tiles; tile += this->step_of_tiles()) {
            const long long first_row = this->first_row(tile);
            long long ids[rows_of_warp];
            if (!model.has_offsets) ask(ids, first_row);
            this->read_x(first_row);
            if (tile == this->first_tile()) this->begin(tile);
            copies.wait(0);
            this->run_layers(0, 1, tile);
            if (model.has_offsets)
                pool(first_row);
            else
                look_up(ids, first_row);
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
