"""DLRM's forward by pairs of blocks that share the weights, for batches of many tiles: what of a model fits, and the
source of the kernels (pair.cuh)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from ...device.launch import cdiv
from ...device.source_launch import Source
from ..fused_mlp.packing import layers, padded
from .eager import PAD_TO
from .shape import Shape
from .tile import APART, FRAGMENTS_THREADS, MOST_TABLES, OUTPUTS, SLOT_BYTES, THREADS, TYPES, Tiles, constants

PAIRS, LAY_OUT = "dlrm_forward_pairs", "dlrm_forward_pair_weights"  # the kernels
BLOCKS, ROWS, OWN_ROWS = 2, 32, 16  # of a cluster; of a tile, and of each block
BOTTOM, TOP = 4, 3  # layers of the MLPs
WARPGROUPS, PANEL_OUTPUTS, PANEL_BYTES = 4, 64, 128  # of a block; outputs of a panel of weights, and bytes of k
WEIGHTS_PANEL, INPUTS_PANEL = PANEL_OUTPUTS * PANEL_BYTES, ROWS * PANEL_BYTES  # bytes
FIRST_OUTPUTS = 256  # layer 0's come in so many: 16 a warp
STAGES = (4, 3, 2)  # panels of a warpgroup's ring


@dataclass(frozen=True)
class Product:
    """A layer whose weights come as panels, as one block has it: pair_layout.cuh's PairProduct."""

    inputs: int
    outputs: int
    size: int  # bytes of a number

    @property
    def parts(self) -> int:
        """Warpgroups that have the same outputs."""
        return WARPGROUPS * PANEL_OUTPUTS // self.outputs

    @property
    def panels(self) -> int:
        return cdiv(self.inputs * self.size, PANEL_BYTES)

    @property
    def steps(self) -> int:
        return cdiv(self.panels, self.parts)

    @property
    def sums_bytes(self) -> int:
        """Of sums that warpgroups exchange."""
        return 16 * THREADS * WARPGROUPS if self.parts > 1 else 0


@dataclass(frozen=True)
class Pairs(Tiles):
    """The kernels for a model, in tiles of ROWS rows. stages: one of STAGES. laid_out: as Clusters have it. keeps: they
    write what a backward reads, too, and take each MLP's weights and biases as packing.py has them."""

    stages: int = 2
    laid_out: bool = False
    keeps: bool = False

    def _product(self, layer: int) -> Product:
        inputs, outputs = self.shape.layers[layer]
        by_inputs = layer in (2, 5)
        share = (inputs // BLOCKS, outputs) if by_inputs else (inputs, outputs // BLOCKS)
        return Product(*share, self.dtype.itemsize)

    def _fragments(self, layer: int) -> int:
        """Bytes of a layer's fragments."""
        inputs, outputs = self.shape.layers[layer]
        return cdiv(outputs, OUTPUTS) * self._slots(inputs) * OUTPUTS * SLOT_BYTES

    def _panels(self, columns: int) -> int:
        """Bytes of so many columns of a tile's rows, in panels."""
        return cdiv(columns * self.dtype.itemsize, PANEL_BYTES) * INPUTS_PANEL

    @property
    def _kept(self) -> int:
        """Bytes that each block keeps: the fragments of layer 3, all biases, the weights of the last layer."""
        numbers = [outputs for _, outputs in self.shape.layers] + [self.shape.top[-2]]
        return self._fragments(3) + sum(cdiv(count, OUTPUTS) * OUTPUTS for count in numbers) * self.dtype.itemsize

    @property
    def fragments(self) -> int:
        """Elements of all that is laid out: panels, the fragments of layer 0, and what is kept."""
        steps = sum(self._product(layer).steps for layer in (1, 2, 4, 5))
        bytes_ = BLOCKS * steps * WARPGROUPS * WEIGHTS_PANEL + self._fragments(0) + self._kept
        return bytes_ // self.dtype.itemsize

    @property
    def shared_bytes(self) -> int:
        """What is between the layers, in places that serve several by turns; the rings; vectors, and then the other
        block's sums of layer 5; its sums of layer 2; x, and then layer 3's inputs; what is kept; the arguments; the
        rings' barriers."""
        (second, third, fifth, sixth), size = map(self._product, (1, 2, 4, 5)), self.dtype.itemsize
        of_block = {layer: 4 * OWN_ROWS * self.shape.layers[layer][1] for layer in (2, 5)}
        given = self._panels(fifth.inputs)
        bottom = max(self._panels(second.inputs), max(second.sums_bytes, third.sums_bytes, given) + of_block[2])
        top = max(given, max(fifth.sums_bytes, sixth.sums_bytes) + of_block[5])
        between = max(bottom + self._panels(third.inputs), top + self._panels(sixth.inputs))
        vector = self.shape.width * size
        vectors = OWN_ROWS * self.shape.vectors * (vector if vector % SLOT_BYTES else vector + APART)
        first, fourth = (self._slots(self.shape.layers[layer][0]) * SLOT_BYTES + APART for layer in (0, 3))
        parts = (
            self.stages * WARPGROUPS * WEIGHTS_PANEL, max(vectors, of_block[5]), of_block[2],
            max(ROWS * first, OWN_ROWS * fourth), self._kept, 8 * (7 + 6 * self.shape.features),
            16 * self.stages * WARPGROUPS,
        )  # fmt: skip
        return between + sum(cdiv(part, SLOT_BYTES) * SLOT_BYTES for part in parts)

    def why_not(self, shared_bytes: int) -> str:
        """Why it does not run where a block has so many bytes of shared memory; "" if it does."""
        bottom, top, size = self.shape.bottom, self.shape.top, self.dtype.itemsize
        if (len(bottom) - 1, len(top) - 1) != (BOTTOM, TOP):
            return f"MLPs of {len(bottom) - 1} and {len(top) - 1} layers, and a pair takes {BOTTOM} and {TOP}"
        some = [PANEL_OUTPUTS * columns for columns in (1, 2, 4)]
        of_both = [BLOCKS * width for width in some]
        widths = (("bottom", 2, bottom[2], of_both), ("bottom", 3, bottom[3], some), ("top", 1, top[1], of_both),
                  ("top", 2, top[2], some), ("top", 3, top[3], [1]))  # fmt: skip
        found = [
            f"{width} outputs of the {mlp} MLP's layer {number}, and a pair takes {', '.join(map(str, taken))}"
            for mlp, number, width, taken in widths
            if width not in taken
        ]
        if bottom[1] % FIRST_OUTPUTS:
            multiples = f"multiples of {FIRST_OUTPUTS}"
            found.append(f"{bottom[1]} outputs of the bottom MLP's layer 1, and a pair takes {multiples}")
        if bottom[0] * size > SLOT_BYTES:
            found.append(f"{bottom[0] * size} bytes of dense features, and a pair takes at most {SLOT_BYTES}")
        if (vector := bottom[-1] * size) % 16:
            found.append(f"vectors of {vector} bytes, and a pair takes multiples of 16")
        if self.shape.features > MOST_TABLES:
            found.append(f"{self.shape.features} tables, and a pair takes at most {MOST_TABLES}")
        if not found and self.shared_bytes > shared_bytes:
            found.append(f"{self.shared_bytes:,} bytes on chip, and a block has {shared_bytes:,}")
        return "; ".join(found)


def resident_pairs(multiprocessors: int) -> int:
    """How many run at once: multiprocessors come in pairs."""
    return multiprocessors // BLOCKS


def pairs_for(shape: Shape, dtype: torch.dtype, shared_bytes: int, multiprocessors: int) -> Pairs | None:
    """With the longest rings for which there is room; None: no pair runs, or the model does not fit."""
    if resident_pairs(multiprocessors):
        for stages in STAGES:
            design = Pairs(shape, dtype, ROWS, stages)
            if not design.why_not(shared_bytes):
                return design
    return None


def _net(pairs: Pairs) -> tuple[str, str]:
    """Of a model, for both sources: what it is, in words, and the declarations that both begin with."""
    words, model = constants(pairs)
    return words, f"""\
#include "ops/dlrm/pair.cuh"

using T = {TYPES[pairs.dtype]};

struct Net {{
    static constexpr dlrm::Model model = {{
{model}
    }};
    static constexpr int stages = {pairs.stages};
    static constexpr bool laid_out = {str(pairs.laid_out).lower()};
    static constexpr bool keeps = {str(pairs.keeps).lower()};
}};
static_assert(dlrm::pair_layout<T>(Net::model, Net::stages).shared_bytes == {pairs.shared_bytes}, "so says pair.py");
static_assert(dlrm::pair_layout<T>(Net::model, Net::stages).elements == {pairs.fragments}, "so says pair.py");
static_assert(dlrm::kept_together == {PAD_TO}, "so says eager.py");
"""


@functools.cache
def pairs_source(pairs: Pairs) -> Source:
    """The kernel that computes the model, from what lay_out_source's has written."""
    words, net = _net(pairs)
    arguments, given = ("KeepingArguments", "given.of, &given.values") if pairs.keeps else ("Arguments", "given")
    text = f"""\
// {words},
// in tiles of {ROWS} rows by pairs of blocks. Generated by kernels/ops/dlrm/pair.py.
{net}
using Arguments = dlrm::{arguments}<T, {pairs.shape.features}>;

extern "C" __global__ void __cluster_dims__({BLOCKS}, 1, 1) __launch_bounds__(fused_mlp::direct_threads, 1)
{PAIRS}(const __grid_constant__ Arguments given) {{
    dlrm::PairBlock<T, {pairs.shape.features}, Net>({given}).run();
}}
"""
    return Source(PAIRS, text, THREADS, pairs.shared_bytes, waits=True, cluster=BLOCKS, specific=True)


@functools.cache
def lay_out_source(pairs: Pairs) -> Source:
    """The kernel that lays out the model's weights and biases."""
    words, net = _net(pairs)
    arguments, layers_ = "using Arguments = fused_mlp::LayersToFragments<T>;", "given"
    if pairs.keeps:
        arguments = "struct Arguments {\n    const T *bottom, *top;\n    T* fragments;\n};"
        layers_ = f"fused_mlp::LayersToFragments<T>{{{_in_buffers(pairs.shape)}, given.fragments}}"
    text = f"""\
// Weights and biases of {words},
// as pairs of blocks take them. Generated by kernels/ops/dlrm/pair.py.
{net}
{arguments}

extern "C" __global__ void __launch_bounds__({FRAGMENTS_THREADS})
{LAY_OUT}(const __grid_constant__ Arguments given) {{
    dlrm::PairWeights<T, Net>{{{layers_}}}.write();
}}
"""
    return Source(LAY_OUT, text, FRAGMENTS_THREADS, waits=True)


def _in_buffers(shape: Shape) -> str:
    """The members of LayersToFragments, but for the last, of the MLPs' buffers."""
    weights, biases, strides = [], [], []
    for name, widths in (("bottom", shape.bottom), ("top", shape.top)):
        for layer in layers("-".join(map(str, widths))):
            weights.append(f"given.{name} + {layer.weight}")
            biases.append(f"given.{name} + {layer.bias}")
            strides.append(str(padded(layer.inputs)))
    lists = ["{" + ", ".join(of_layers) + "}" for of_layers in (weights, biases, strides)]
    return ", ".join([*lists, "{}", "{}", str(len(weights))])
