// A DLRM's forward in one launch, for models that tensor cores are for:
//
//     out = top([v_0, v_i · v_j for j < i])     v_0 = bottom(x), v_f = Σ of the rows of table f that its bag names
//
// x [B, K], V = F + 1 vectors of D numbers, i and j row by row through the strictly lower triangle; out [B, N].
//
// A block takes a tile of rows, or with the blocks of its cluster; the MLPs are fused_mlp's direct.cuh, as one chain of
// layers whose weights come while the vectors meet, too. Rows of tables are asked for before the bottom MLP begins and
// waited for behind it. A warp computes all pairs of a row, as V Vᵀ: 16 vectors are the rows of a product and 8 the
// columns, so that the registers that hold an operand's rows hold the other's columns too.
//
// Bytes: x, ids, the rows that they name and out once, from memory; from the L2 all weights once a tile, 1/cluster of them
// to each block. FLOPs: 2 B (Σ N(l-1) N(l) + D V (V - 1) / 2).
//
// On chip lie, in bytes: what is between the layers, of either MLP by turns; the tile's vectors.
//
// The op launches what source.py writes; test_dlrm.cu times this one.
#pragma once

#include "ops/fused_mlp/direct.cuh"

#include "device/integers.cuh"
#include "device/report.cuh"

namespace dlrm {

constexpr int most_vectors = 32, most_tables = most_vectors - 1;
constexpr int bad_id = 5, bad_offset = 6;  // what a report says

template <class T>
struct Tables {
    const T* rows[most_tables];
    long long heights[most_tables];
    const void *ids[most_tables], *offsets[most_tables];  // offsets: of B bags, or null for one id a row
    long long counts[most_tables], strides[most_tables];  // of the ids
    bool wide_ids, wide_offsets, has_offsets, has_last;   // has_last: of the offsets the last says where the ids end
    unsigned long long* report;
};

template <class T>
struct Model {
    fused_mlp::DirectNetwork<T> net;  // both MLPs
    int bottom;                       // so many layers are the bottom's
    int tables, columns;              // F, D
    int place, place_row, vector;     // where the vectors lie, and how far rows and vectors are apart, in bytes
    Tables<T> of;
};

template <class T, int n_tiles>
struct TileBlock : fused_mlp::DirectBlock<T, n_tiles> {
    using Base = fused_mlp::DirectBlock<T, n_tiles>;
    using Base::cluster, Base::g, Base::memory, Base::net, Base::rows, Base::t, Base::tiles, Base::warp, Base::width;
    using Base::as_taken, Base::copies, Base::give;

    const Model<T>& model;

    __device__ explicit TileBlock(const Model<T>& model) : Base(model.net), model(model) {}

    __device__ char* vector(int row, int v) const { return memory + model.place + row * model.place_row + v * model.vector; }

    // The rows of the tile whose pairs this block computes, by their number among them.
    __device__ int own_row(int i) const { return cluster.rank + i * cluster.size; }

    // ------------------------------------------------------------------------------------------------------ look-ups

    __device__ long long id_at(int table, long long position) const {
        return Integers{model.of.ids[table], model.of.wide_ids}[position * model.of.strides[table]];
    }
    __device__ bool is_id(int table, long long position, long long id, long long height, bool reports) const {
        if (id >= 0 && id < height) return true;
        if (reports) write_report(model.of.report, bad_id, table, position, id);
        return false;
    }
    // One id a row: a warp takes a row, and a lane finds a table's row of it. The ids are asked for before x is read, and
    // taken after the first layer.
    static constexpr int rows_of_warp = (rows + fused_mlp::direct_warps - 1) / fused_mlp::direct_warps;
    __device__ int row_of_warp(int r) const { return own_row(warp + r * fused_mlp::direct_warps); }
    __device__ bool asks(int r, long long first_row) const {
        return this->lane() < model.tables && row_of_warp(r) < rows && first_row + row_of_warp(r) < net.rows;
    }
    __device__ void ask(long long (&ids)[rows_of_warp], long long first_row) const {
#pragma unroll
        for (int r = 0; r < rows_of_warp; ++r) {
            ids[r] = -1;
            if (asks(r, first_row)) ids[r] = id_at(this->lane(), first_row + row_of_warp(r));
        }
    }
    __device__ void look_up(const long long (&ids)[rows_of_warp], long long first_row) {
        const Tables<T>& of = model.of;
        const int parts = model.columns / width, all = model.tables * parts, table = this->lane();
        const T* const aligned_place = net.layers[0].weight;  // of which nothing is read
#pragma unroll
        for (int r = 0; r < rows_of_warp; ++r) {
            const int row = row_of_warp(r);
            if (row >= rows) break;
            unsigned long long found = 0;  // where the table's row is; 0: zeros in its place
            if (asks(r, first_row) && is_id(table, first_row + row, ids[r], of.heights[table], true))
                found = reinterpret_cast<unsigned long long>(of.rows[table] + ids[r] * model.columns);
            for (int i = table; i - table < all; i += 32) {
                const int vector_of = i / parts, part = i % parts;
                const unsigned long long from = __shfl_sync(~0u, found, vector_of);
                const T* source = from ? reinterpret_cast<const T*>(from) + part * width : aligned_place;
                if (i < all) copies.copy(vector(row, vector_of + 1) + part * 16, source, from != 0);
            }
        }
    }
    // 16 bytes of a vector: of its own rows, piece after piece of a vector, vectors of a row, rows.
    struct Piece {
        int row, table, part;
    };
    __device__ int pieces() const {
        return (rows + cluster.size - 1) / cluster.size * model.tables * (model.columns / width);
    }
    __device__ Piece piece(int i) const {
        int parts = model.columns / width, whole = i / parts;
        return {own_row(whole / model.tables), whole % model.tables, i % parts};
    }
    // Sums of bags. Bad offsets are clamped to what can be read.
    __device__ void pool(long long first_row) {
        for (int i = int(threadIdx.x); i < pieces(); i += fused_mlp::direct_threads) {
            Piece own = piece(i);
            if (own.row >= rows) continue;
            float sums[width] = {};
            long long row = first_row + own.row;
            if (row < net.rows) {
                long long begin, end;
                bounds(own, row, begin, end);
                for (long long p = begin; p < end; ++p) {
                    long long id = id_at(own.table, p);
                    if (!is_id(own.table, p, id, model.of.heights[own.table], own.part == 0)) continue;
                    const T* from = model.of.rows[own.table] + id * model.columns + own.part * width;
                    Pack<T, width> pack = load<width>(from);
#pragma unroll
                    for (int e = 0; e < width; ++e) sums[e] += widen(pack.element[e]);
                }
            }
            store<width>(reinterpret_cast<T*>(vector(own.row, own.table + 1)) + own.part * width, sums);
        }
    }
    __device__ void bounds(const Piece& own, long long row, long long& begin, long long& end) const {
        Integers offsets{model.of.offsets[own.table], model.of.wide_offsets};
        long long ids = model.of.counts[own.table], batch = net.rows;
        begin = offsets[row], end = row + 1 < batch || model.of.has_last ? offsets[row + 1] : ids;
        bool bad_begin = begin < 0 || begin > ids || (row == 0 && begin != 0);
        bool bad_end = end < begin || end > ids || (row == batch - 1 && end != ids);
        if (!bad_begin && !bad_end) return;
        if (own.part == 0)
            write_report(model.of.report, bad_offset, own.table, bad_begin ? row : row + 1, bad_begin ? begin : end);
        begin = begin < 0 ? 0 : begin > ids ? ids : begin;
        end = end < begin ? begin : end > ids ? ids : end;
    }

    // --------------------------------------------------------------------------------------------------- interaction

    __device__ static unsigned rounded(unsigned x) { return __float_as_uint(rounded_to_tf32(__uint_as_float(x))); }
    // Of a row the pairs of vectors 16 m … 16 m + 15 with those before them.
    template <int m>
    __device__ void meet(int row, bool plain) const {
        constexpr int columns = 2 * m + 2;
        const int vectors = model.tables + 1, bytes = model.columns * int(sizeof(T));
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
                    this->input(model.bottom, row, model.columns + one * (one - 1) / 2 + other) =
                        as_taken(narrow<T>(sums[n][e]), plain);
            }
    }
    // [v_0, pairs] of the tile's rows, to what the top MLP reads, in all blocks of the cluster.
    __device__ void interact() const {
        const int l = model.bottom, columns = net.layers[l].inputs, lane = int(threadIdx.x) % 32;
        const bool plain = this->is_plain(l);
        const int covered = int(fused_mlp::round_up(columns, Base::of_slot));
        for (int i = warp; own_row(i) < rows; i += fused_mlp::direct_warps) {
            const int row = own_row(i);
            meet<0>(row, plain);
            if (model.tables >= 16) meet<1>(row, plain);
            for (int c = lane; c < model.columns; c += 32)
                this->input(l, row, c) = as_taken(reinterpret_cast<const T*>(vector(row, 0))[c], plain);
            for (int c = columns + lane; c < covered; c += 32) this->input(l, row, c) = narrow<T>(0.0f);
            if (cluster.size == 1) continue;
            __syncwarp();
            for (int c = lane * width; c < covered; c += 32 * width) give(&this->input(l, row, c));
        }
    }
    __device__ void run() {
        for (long long tile = this->begin(); tile < tiles; tile += net.clusters) {
            long long ids[rows_of_warp];
            if (!model.of.has_offsets) ask(ids, tile * rows);
            this->read_x(tile * rows);
            copies.wait(0);
            this->run_layers(0, 1, tile);
            if (model.of.has_offsets)
                pool(tile * rows);
            else
                look_up(ids, tile * rows);
            copies.commit();
            this->run_layers(1, model.bottom, tile);
            copies.wait(0);
            cluster.barrier();
            interact();
            this->run_layers(model.bottom, net.count, tile);
            this->end_tile();
        }
    }
};

template <class T, int n_tiles>
__global__ void __launch_bounds__(fused_mlp::direct_threads, 1) tile_forward(const __grid_constant__ Model<T> model) {
    TileBlock<T, n_tiles>(model).run();
}

#ifndef __CUDACC_RTC__
template <class T>
struct Call {
    const T *x, *bottom, *top;  // [rows, x_columns]; the MLPs' fragments
    T* out;                     // [rows, the top's last width]
    long long rows, x_columns;
    fused_mlp::Widths bottom_widths, top_widths;
    Activation between, bottom_last, top_last;
    int tables, columns;
    Tables<T> of;
};

// In tiles of `tile` rows, 8, 16 or 32, by clusters of `cluster` blocks, 0 clusters for as many as run at once.
// cudaErrorInvalidValue: widths that do not belong together, more tables than there may be. cudaErrorInvalidConfiguration:
// vectors or weights that are no multiples of 16 bytes; and as launch_direct_tiles.
template <class T>
cudaError_t launch_tile(const Call<T>& call, int tile, int cluster, int clusters, cudaStream_t stream) {
    constexpr int size = int(sizeof(T));
    const int vectors = call.tables + 1, pairs = vectors * (vectors - 1) / 2;
    const fused_mlp::Widths &bottom = call.bottom_widths, &top = call.top_widths;
    if (call.tables < 1 || call.tables > most_tables || bottom.count < 1 || top.count < 1 ||
        bottom.count + top.count > fused_mlp::most_layers || bottom.width[bottom.count] != call.columns ||
        top.width[0] != call.columns + pairs)
        return cudaErrorInvalidValue;
    using fused_mlp::has;
    if (!has(call.between) || !has(call.bottom_last) || !has(call.top_last)) return cudaErrorInvalidValue;
    if (!call.rows) return cudaSuccess;
    bool whole = aligned(call.bottom, call.top) && 1LL * call.columns * size % 16 == 0;
    for (int f = 0; f < call.tables; ++f) whole = whole && aligned(call.of.rows[f]);
    if (!whole) return cudaErrorInvalidConfiguration;
    fused_mlp::Device device;
    cudaError_t error = fused_mlp::this_device(tile_forward<T, 2>, device);
    if (error != cudaSuccess) return error;

    Model<T> model = {};
    model.of = call.of, model.bottom = bottom.count, model.tables = call.tables, model.columns = call.columns;
    fused_mlp::DirectNetwork<T>& net = model.net;
    net.x = call.x, net.out = call.out, net.rows = call.rows, net.x_columns = call.x_columns;
    net.x_aligned = aligned(call.x) && call.x_columns * size % 16 == 0;
    const int first_biases = fused_mlp::bias_bytes<T>(bottom), biases = first_biases + fused_mlp::bias_bytes<T>(top);
    long long first_end = append_layers(net, call.bottom, bottom, call.between, call.bottom_last, tile, 0, biases);
    long long second_end = append_layers(net, call.top, top, call.between, call.top_last, tile, first_biases, biases);
    long long place = std::max(first_end, second_end);
    // Two neighbouring vectors' 64 bytes lie in different banks.
    long long vector = 1LL * call.columns * size, vector_row = vectors * (vector % 128 ? vector : vector + 64);
    model.place = int(place), model.vector = int(vector_row / vectors), model.place_row = int(vector_row);
    fused_mlp::DirectLayer<T>& last = net.layers[bottom.count - 1];
    last.to = model.place, last.to_row = model.place_row, last.to_vector = true;
    last.written = call.columns, last.gives_all_bits = true;
    long long bytes = place + tile * vector_row;
    auto go = [&](auto* kernel) {
        return launch_direct_tiles(kernel, tile, net, model, bytes, cluster, clusters, device, stream);
    };
    if (tile == 8) return go(tile_forward<T, 1>);
    if (tile == 16) return go(tile_forward<T, 2>);
    if (tile == 32) return go(tile_forward<T, 4>);
    return cudaErrorInvalidConfiguration;
}
#endif

}  // namespace dlrm
