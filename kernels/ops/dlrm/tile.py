"""DLRM's forward in tiles of rows, by tensor cores: whether a model fits, and the source of its kernels (tile.cuh)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from ...device.source_launch import Source
from .shape import Shape

FRAGMENTS, TILES = "dlrm_forward_fragments", "dlrm_forward_tiles"  # the kernels
TYPES = {torch.float32: "float", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16"}
MOST_TABLES, MOST_LAYERS = 31, 16
THREADS, FRAGMENTS_THREADS = 512, 512
SLOT_BYTES, OUTPUTS = 128, 16  # a warp's step: of so many outputs of a layer, so many bytes of what it reads
APART = 64  # bytes behind a multiple of 128, by which rows come to lie in other banks
# Rows of a tile. More rows read the weights less often, and fewer keep more multiprocessors busy.
ROWS = (8, 16, 32)


@dataclass(frozen=True)
class Tiles:
    """The kernels for a model. dtype: one of TYPES; float32 is multiplied in tf32. rows: of a tile.

    tile.cuh lays out what is on chip and the weights' fragments. What a launch must know of that is computed here too,
    and the source has the compiler compare both.
    """

    shape: Shape
    dtype: torch.dtype
    rows: int

    def _slots(self, inputs: int) -> int:
        return -(-inputs * self.dtype.itemsize // SLOT_BYTES)

    def _jobs(self, outputs: int) -> int:
        return 0 if self.dtype == torch.float32 and outputs == 1 else -(-outputs // OUTPUTS)

    @property
    def biases(self) -> int:
        """Elements of all layers' biases, padded."""
        return sum(OUTPUTS * max(1, self._jobs(outputs)) for _, outputs in self.shape.layers)

    @property
    def fragments(self) -> int:
        """Elements of all layers' weights as a warp takes them, and of the biases."""
        slots = (self._slots(inputs) * max(1, OUTPUTS * self._jobs(outputs)) for inputs, outputs in self.shape.layers)
        return sum(slots) * SLOT_BYTES // self.dtype.itemsize + self.biases

    @property
    def shared_bytes(self) -> int:
        """Biases; the inputs of an MLP's layers, at two places by turns; the vectors."""
        begin = -(-self.biases * self.dtype.itemsize // SLOT_BYTES) * SLOT_BYTES
        between = 0
        for widths in (self.shape.bottom, self.shape.top):
            inputs = [self._slots(width) * SLOT_BYTES + APART for width in widths[:-1]]
            between = max(between, max(inputs[::2]) + max(inputs[1::2], default=0))
        vector = self.shape.width * self.dtype.itemsize
        vectors = self.shape.vectors * (vector if vector % SLOT_BYTES else vector + APART)
        return begin + self.rows * (between + vectors)

    def why_not(self, shared_bytes: int) -> str:
        """Why it does not run where a block has so many bytes of shared memory, with the budget; "" if it does."""
        budgets = (
            (self.shape.features, MOST_TABLES, "tables, and a tile takes at most"),
            (len(self.shape.layers), MOST_LAYERS, "layers, and a tile takes at most"),
            (self.shared_bytes, shared_bytes, f"bytes on chip for {self.rows} rows, and a block has"),
        )
        found = [f"{needed:,} {what} {most:,}" for needed, most, what in budgets if needed > most]
        if (vector := self.shape.width * self.dtype.itemsize) % 16:
            found.append(f"vectors of {vector} bytes, and a tile takes multiples of 16")
        if not self.shape.bottom[0]:
            found.append("no dense features")
        return "; ".join(found)


def tiles_for(shape: Shape, dtype: torch.dtype, shared_bytes: int, batch: int, multiprocessors: int) -> Tiles:
    """With the fewest rows with which all tiles of a batch run at once, a multiprocessor each; else with the most rows
    that fit on chip. If none do, with the fewest.

    On an H100, µs of `main` without its fragments, tf32 / bfloat16:

        rows of a tile      8             16            32
        batch    128    33 / 25       38 / 29       61 / 45
               2,048    71 / 50       42 / 30       61 / 44
              16,384   557 / 365     315 / 218     235 / 168
    """
    fewest, *more = (Tiles(shape, dtype, rows) for rows in ROWS)
    fitting = [fewest, *(tiles for tiles in more if not tiles.why_not(shared_bytes))]
    return next((tiles for tiles in fitting if -(-batch // tiles.rows) <= multiprocessors), fitting[-1])


def constants(tiles: Tiles) -> tuple[str, str]:
    """Of a model, for its source: what it is, in words, and the members of a dlrm::Model."""
    shape, mlps = tiles.shape, (tiles.shape.bottom, tiles.shape.top)
    bottom, top = ("-".join(map(str, widths)) for widths in mlps)
    layers = ", ".join(f"{{{len(widths) - 1}, {{{', '.join(map(str, widths))}}}}}" for widths in mlps)
    activations = ", ".join(f"Activation::{activation}" for activation in shape.activations)
    flags = shape.id_bytes == 8, shape.offset_bytes == 8, shape.bags != "", shape.bags == "closed", shape.aligned
    words = f"DLRM's forward for {shape.features} tables of width {shape.width}, bottom MLP {bottom}, top MLP {top}, "
    return words + TYPES[tiles.dtype], f"""\
    {layers},
    {activations},
    {shape.features}, {", ".join(map(str, flags)).lower()},"""


@functools.cache
def tiles_source(tiles: Tiles) -> Source:
    """The kernel that computes the model, from fragments."""
    words, model = constants(tiles)
    text = f"""\
// {words}, in
// tiles of {tiles.rows} rows. Generated by kernels/ops/dlrm/tile.py.
#include "ops/dlrm/tile.cuh"

using T = {TYPES[tiles.dtype]};
using Arguments = dlrm::Arguments<T, {tiles.shape.features}>;

__constant__ constexpr dlrm::Model model = {{
{model}
}};
__constant__ constexpr dlrm::Layout layout = dlrm::layout_of<T>(model, {tiles.rows});
static_assert(layout.shared_bytes == {tiles.shared_bytes} && layout.fragments == {tiles.fragments}, "so says tile.py");

extern "C" __global__ void __launch_bounds__(fused_mlp::direct_threads, 1)
{TILES}(const __grid_constant__ Arguments given) {{
    dlrm::TileBlock<T, {tiles.rows // 8}, {tiles.shape.features}>(model, layout, given).run();
}}
"""
    return Source(TILES, text, THREADS, tiles.shared_bytes, waits=True)


@functools.cache
def fragments_source(dtype: torch.dtype) -> Source:
    """The kernel that lays out weights and biases, of every model."""
    text = f"""\
// Weights of layers as the tiles of dlrm_forward take them. Generated by kernels/ops/dlrm/tile.py.
#include "ops/fused_mlp/direct.cuh"

using Arguments = fused_mlp::LayersToFragments<{TYPES[dtype]}>;

extern "C" __global__ void __launch_bounds__({FRAGMENTS_THREADS})
{FRAGMENTS}(const __grid_constant__ Arguments given) {{
    fused_mlp::write_fragments(given);
}}
"""
    return Source(FRAGMENTS, text, FRAGMENTS_THREADS, waits=True)
