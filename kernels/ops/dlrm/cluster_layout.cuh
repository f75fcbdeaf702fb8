// What a cluster of blocks that share the weights does of each layer (cluster.cuh), and what of it lies where on chip: all of
// it constants. A layer is cut in one of four ways, a Plan, which cluster.py chooses.
//
//     whole      full → full         every block computes all of it: a layer of few inputs costs less than what travels
//     outputs    full → columns      a block computes its slice of the outputs
//     inputs     columns → rows      of its slice of the inputs, all outputs: sums of a part, which go to the block that has
//                                    the row, and are added up there in the order of the blocks
//     rows       rows → rows         a block computes its own rows, with all weights
//
// What a layer reads is full in every block; or columns, of which every block has a slice; or rows, of which every block has
// its own. What is full has the rows, too. Rows, and columns, become full where a block gives them to all others.
#pragma once

#include "ops/dlrm/block.cuh"

namespace dlrm {

constexpr int cluster_blocks = 8;
constexpr int most_held = 4;  // pieces of 64 bytes of k of 16 outputs that a warp has on their way, of a layer
constexpr int most_kept = 8192;  // bytes of a layer that is cut by rows and lies on chip: it keeps few warps busy

enum class Cut { whole, outputs, inputs, rows };

// resident: the layer whose weights lie on chip, or -1. laid_out: the launch before does not write the fragments.
struct Plan {
    Cut cuts[fused_mlp::most_layers];
    int resident;
    bool laid_out = false;
};

struct ClusterLayer {
    Cut cut;
    Activation activation;
    bool is_last, is_plain, is_full;  // of the network; of one output; it reads what is full
    bool is_given, to_vector, gives_all_bits;  // what it gives becomes full; is vector 0; is not rounded
    bool is_kept;                              // its weights lie on chip, as the resident layer's
    int inputs, outputs, jobs, slots, halves;  // as Fragments; of k that are read
    long long weight;
    int bias;
    int covered;                   // columns that it gives, zeros behind its outputs
    int block_jobs, block_halves;  // of a block; of k, of each job
    // A warp's jobs are `columns` apart. Warps behind these take other parts of k, or others of the tile's eight rows.
    int columns, warp_jobs, parts, warp_halves, tiles, warp_tiles;
    int held;
    int from, from_row, received, place;  // of its weights on chip
};

struct ClusterLayout {
    ClusterLayer layers[fused_mlp::most_layers] = {};
    int count = 0, bottom = 0, resident = -1;
    int exchanges = 0, first_exchange = -1;  // of a tile; 3 l of layer l's sums, 3 l + 1 of what it gives, 3 l + 2 of pairs
    int near = 0, biases = 0, loads = 0, sums = 0, vectors = 0, place_row = 0, vector = 0;
    int bias_bytes = 0;
    long long first_bias = 0, shared_bytes = 0, fragments = 0;
};

__host__ __device__ constexpr bool reads_all_rows(Cut cut) { return cut == Cut::whole || cut == Cut::outputs; }

template <class T>
constexpr ClusterLayer cluster_layer(const fused_mlp::Chain& chain, const Model& model, const Plan& plan, int l, int n_tiles) {
    constexpr int size = int(sizeof(T)), unit_jobs = fused_mlp::half_bytes / size / fused_mlp::direct_outputs;
    const fused_mlp::Fragments<T> own(chain, l);
    const int bottom = model.bottom.count, bytes_of_outputs = own.outputs * size;
    const bool is_first = l == 0 || l == bottom, ends = l + 1 == bottom || l + 1 == chain.count;
    const Cut cut = plan.cuts[l], next = ends ? Cut::rows : plan.cuts[l + 1];
    const Activation between = l < bottom ? model.bottom_activation : model.top_activation;
    ClusterLayer layer = {};
    layer.cut = cut, layer.activation = !ends ? between : l < bottom ? model.bottom_last : model.top_last;
    layer.is_last = l + 1 == chain.count, layer.is_plain = own.outputs == 1, layer.to_vector = l + 1 == bottom;
    layer.is_given = !ends && ((reads_all_rows(next) && cut != Cut::whole) || (next == Cut::rows && cut == Cut::outputs));
    layer.gives_all_bits = size == 4 && !ends && chain.outputs[l + 1] == 1;
    layer.inputs = own.inputs, layer.outputs = own.outputs, layer.jobs = own.jobs, layer.slots = own.slots;
    layer.weight = own.weight, layer.bias = own.bias * size;
    layer.halves = divided(own.inputs * size, fused_mlp::half_bytes);
    const int units = divided(bytes_of_outputs, fused_mlp::half_bytes);
    layer.covered = units * unit_jobs * fused_mlp::direct_outputs;
    layer.block_jobs = (cut == Cut::outputs ? divided(units, cluster_blocks) : units) * unit_jobs;
    layer.block_halves = cut == Cut::inputs ? divided(layer.halves, cluster_blocks) : layer.halves;
    layer.columns = 1;
    while (layer.columns < smaller(layer.block_jobs, fused_mlp::direct_warps)) layer.columns *= 2;
    const int groups = fused_mlp::direct_warps / layer.columns;
    const bool splits = cut != Cut::inputs && layer.block_halves > most_held;
    layer.warp_jobs = divided(layer.block_jobs, layer.columns);
    layer.parts = splits ? smaller(groups, layer.block_halves) : 1;
    layer.warp_halves = divided(layer.block_halves, layer.parts);
    layer.tiles = cut == Cut::rows ? 1 : n_tiles;
    layer.warp_tiles = layer.parts == 1 && groups > 1 ? divided(layer.tiles, groups) : layer.tiles;
    layer.is_kept = cut == Cut::rows && !layer.is_plain && 1LL * own.jobs * own.slots * fused_mlp::fragment_bytes <= most_kept;
    const bool is_on_chip = layer.is_kept || layer.is_plain || plan.resident == l;
    layer.held = is_on_chip ? 0 : smaller(layer.warp_jobs * layer.warp_halves, most_held);
    // The state of what it reads is its own choice at an MLP's beginning, else what the layer before leaves.
    layer.is_full = is_first ? reads_all_rows(cut) : cut != Cut::inputs && plan.cuts[l - 1] == Cut::whole;
    return layer;
}

template <class T>
constexpr ClusterLayout cluster_layout(const Model& model, const Plan& plan, int n_tiles) {
    constexpr int size = int(sizeof(T)), apart = fused_mlp::half_bytes;
    const fused_mlp::Chain chain = fused_mlp::Chain().append(model.bottom).append(model.top);
    ClusterLayout net;
    long long end = 0;
    auto take = [&](long long bytes) {
        const long long begin = end;
        end += fused_mlp::round_up(bytes, fused_mlp::slot_bytes);
        return int(begin);
    };
    auto exchange = [&](int number) {
        if (!net.exchanges++) net.first_exchange = number;
    };
    const fused_mlp::Fragments<T> last(chain, chain.count - 1);
    net.count = chain.count, net.bottom = model.bottom.count, net.resident = plan.resident;
    net.first_bias = last.weight_end, net.fragments = fused_mlp::fragments_size<T>(chain), net.bias_bytes = last.bias_end * size;
    net.near = take(8LL * (7 + 6 * model.tables)), net.biases = take(net.bias_bytes), net.loads = take(16);
    int sums = fused_mlp::direct_warps * 4;
    for (int l = 0; l < net.count; ++l) {
        ClusterLayer& layer = net.layers[l] = cluster_layer<T>(chain, model, plan, l, n_tiles);
        layer.is_full = layer.is_full || (l && net.layers[l - 1].is_given);
        if (layer.is_plain) layer.jobs = 0;
        // Rows are 64 bytes beyond a multiple of 128 apart, as in direct.cuh.
        layer.from_row = int(fused_mlp::round_up(layer.block_halves * fused_mlp::half_bytes, fused_mlp::slot_bytes)) + apart;
        layer.from = take((layer.is_full || layer.cut == Cut::inputs ? 8LL : 1LL) * n_tiles * layer.from_row);
        if (layer.cut == Cut::inputs) layer.received = take(4LL * cluster_blocks * n_tiles * layer.covered), exchange(3 * l);
        if (layer.is_given) exchange(3 * l + 1);
        if (l + 1 == net.bottom && reads_all_rows(plan.cuts[l + 1])) exchange(3 * l + 2);
        if (layer.is_kept) layer.place = take(1LL * layer.jobs * layer.slots * fused_mlp::fragment_bytes);
        const int own = layer.parts * layer.block_jobs * layer.tiles * 512;
        if (layer.parts > 1 && !layer.is_plain && own > sums) sums = own;
    }
    net.sums = take(sums);
    const int columns = model.bottom.width[model.bottom.count], vector = columns * size;
    net.vector = vector % fused_mlp::slot_bytes ? vector : vector + apart, net.place_row = (model.tables + 1) * net.vector;
    net.vectors = take(1LL * n_tiles * net.place_row);
    if (net.resident >= 0) {
        ClusterLayer& layer = net.layers[net.resident];
        layer.place = take(1LL * layer.block_jobs * layer.slots * fused_mlp::fragment_bytes);
    }
    net.shared_bytes = end;
    return net;
}

}  // namespace dlrm
