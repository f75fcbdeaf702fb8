// What a pair of blocks does of each layer (pair.cuh), how the weights lie in memory for it, and what lies where on
// chip: all of it constants.
//
// The bottom MLP has four layers and the top MLP three. They are cut, as cluster_layout.cuh says it,
//
//     0 whole · 1 outputs · 2 inputs · 3 rows · vectors · 4 outputs · 5 inputs · 6 rows, one output
//
// Layers 1, 2, 4 and 5 have nearly all weights: their weights come as panels (device/warpgroup.cuh) of 64 outputs, in
// the order of their use, a stream for each of a block's four warpgroups. If a block has fewer outputs of a layer than
// four panels, some warpgroups have the same outputs and other parts of k.
//
// Laid out, in elements: the panels [block][step of the stream][warpgroup][64 rows of 128 bytes]; the fragments
// (fused_mlp/direct.cuh) of layer 0; and what each block keeps on chip: the fragments of layer 3, all biases, the
// weights of layer 6, each filled up with zeros to 16.
#pragma once

#include "ops/dlrm/block.cuh"

#include "device/bulk_copy.cuh"
#include "device/warpgroup.cuh"

namespace dlrm {

constexpr int pair_blocks = 2, pair_rows = product_columns, pair_own_rows = pair_rows / pair_blocks;
constexpr int pair_layers = 7, pair_bottom = 4;
constexpr int warpgroups = fused_mlp::direct_threads / warpgroup_threads;
constexpr int weights_panel = product_rows * panel_row, inputs_panel = pair_rows * panel_row;  // bytes

// A layer with panels, as one block has it.
struct PairProduct {
    bool by_inputs;       // or by outputs
    int inputs, outputs;  // of this block
    int columns, parts;   // warpgroups that have other outputs; that have other parts of k
    int panels, steps;    // of k: all, and those of a warpgroup
    int first;            // its first step in the stream
};

struct PairLayer {
    int inputs, outputs;
    PairProduct product;      // if its weights come as panels; else its fragments:
    int halves, slots, jobs;  // pieces of 64 and of 128 bytes of k; 16 outputs each
    int bias;                 // among what is kept, in elements
    // On chip, in bytes: what it reads, from where on, and how far rows are apart if they are no panels; sums of this
    // block and of the other one, for the own rows.
    int from, from_row, own_sums, received;
};

struct PairLayout {
    PairLayer layers[pair_layers] = {};
    int steps = 0;  // of the stream
    // Of what is laid out, where they begin, in elements: layer 0's fragments, what is kept, the end; and where layer
    // 6's weights begin among what is kept.
    long long first = 0, kept = 0, elements = 0;
    int last_weights = 0;
    // On chip, in bytes.
    int sums = 0, ring = 0, vectors = 0, place_row = 0, vector = 0, kept_place = 0, near = 0, loads = 0;
    long long shared_bytes = 0;
};

__host__ __device__ constexpr bool has_panels(int l) { return l == 1 || l == 2 || l == 4 || l == 5; }

template <class T>
constexpr PairLayout pair_layout(const Model& model, int stages) {
    constexpr int size = int(sizeof(T)), of_panel = panel_row / size, outputs_of_job = fused_mlp::direct_outputs;
    PairLayout net;
    PairLayer* const layers = net.layers;
    for (int l = 0; l < pair_layers; ++l) {
        PairLayer& layer = layers[l];
        const fused_mlp::Widths& widths = l < pair_bottom ? model.bottom : model.top;
        const int place = l < pair_bottom ? l : l - pair_bottom;
        layer.inputs = widths.width[place], layer.outputs = widths.width[place + 1];
        layer.halves = divided(layer.inputs * size, fused_mlp::half_bytes);
        layer.slots = divided(layer.inputs, of_panel), layer.jobs = divided(layer.outputs, outputs_of_job);
        if (!has_panels(l)) continue;
        PairProduct& product = layer.product;
        product.by_inputs = l == 2 || l == 5;
        product.inputs = product.by_inputs ? layer.inputs / pair_blocks : layer.inputs;
        product.outputs = product.by_inputs ? layer.outputs : layer.outputs / pair_blocks;
        product.columns = product.outputs / product_rows, product.parts = warpgroups / product.columns;
        product.panels = divided(product.inputs, of_panel), product.steps = divided(product.panels, product.parts);
        product.first = net.steps, net.steps += product.steps;
    }
    auto fragments = [&](int l) { return layers[l].jobs * layers[l].slots * fused_mlp::fragment_bytes / size; };
    net.first = 1LL * pair_blocks * net.steps * warpgroups * weights_panel / size;
    net.kept = net.first + fragments(0);
    int kept = fragments(3);
    for (PairLayer& layer : net.layers) layer.bias = kept, kept += int(fused_mlp::round_up(layer.outputs, 16));
    net.last_weights = kept, kept += int(fused_mlp::round_up(layers[6].inputs, 16));
    net.elements = net.kept + kept;

    // What layers read in panels, and sums, lie where what lay there has been read: in the bottom MLP layer 1's inputs,
    // then sums of warpgroups and this block's own of layer 2; in the top MLP layer 4's inputs, then the same of layer
    // 5. Half of layer 4's inputs come from the other block while layer 2's sums may still be read.
    auto panels = [&](int columns) { return divided(columns, of_panel) * inputs_panel; };
    auto of_block = [&](int l) { return 4 * pair_own_rows * layers[l].outputs; };
    auto of_warpgroups = [&](int l) { return layers[l].product.parts > 1 ? 64 * fused_mlp::direct_threads : 0; };
    const int fifth = panels(layers[4].inputs);
    layers[2].own_sums = larger(larger(of_warpgroups(1), of_warpgroups(2)), fifth);
    layers[2].from = larger(panels(layers[1].inputs), layers[2].own_sums + of_block(2));
    layers[5].own_sums = larger(of_warpgroups(4), of_warpgroups(5));
    layers[5].from = larger(fifth, layers[5].own_sums + of_block(5));
    auto end_of = [&](int l) { return layers[l].from + panels(layers[l].product.inputs); };
    long long end = larger(end_of(2), end_of(5));
    auto take = [&](long long bytes) {
        const long long begin = end;
        end += fused_mlp::round_up(bytes, panel_row);
        return int(begin);
    };
    net.ring = take(1LL * stages * warpgroups * weights_panel);
    const int vector = model.bottom.width[pair_bottom] * size;
    net.vector = vector % panel_row ? vector : vector + fused_mlp::half_bytes;
    net.place_row = (model.tables + 1) * net.vector;
    net.vectors = layers[5].received = take(larger(pair_own_rows * net.place_row, of_block(5)));  // no vectors by then
    layers[2].received = take(of_block(2));
    // Layer 3's inputs lie where x was. Rows are 64 bytes beyond a multiple of 128 apart, as in direct.cuh.
    for (int l : {0, 3}) layers[l].from_row = layers[l].slots * panel_row + fused_mlp::half_bytes;
    layers[0].from = layers[3].from = take(larger(pair_rows * layers[0].from_row, pair_own_rows * layers[3].from_row));
    net.kept_place = take(1LL * kept * size), net.near = take(8LL * (7 + 6 * model.tables));
    net.loads = take(16LL * stages * warpgroups);
    net.shared_bytes = end;
    return net;
}

}  // namespace dlrm
