"""DLRM's forward by clusters of blocks that share the weights, for batches of few tiles: how a model's layers are cut,
what of it fits, and the source of the kernel (cluster.cuh)."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch

from ...device.launch import cdiv
from ...device.source_launch import Source
from .shape import Shape
from .tile import APART, OUTPUTS, SLOT_BYTES, THREADS, TYPES, Tiles, constants

CLUSTERS = "dlrm_forward_clusters"  # the kernel
BLOCKS, WARPS = 8, THREADS // 32  # of a cluster; of a block
HALF_BYTES = SLOT_BYTES // 2  # of k, that a warp takes at a time
JOB_BYTES = HALF_BYTES * OUTPUTS
ROWS = (8, 16)  # of a tile
MOST_HELD, MOST_KEPT = 4, 8192  # as cluster.cuh has them
# What a layer is estimated by, in cycles of an H200: bytes from the L2 into a multiprocessor, and between those of a
# cluster, a cycle; a barrier of the cluster with what it waits for.
WEIGHTS_A_CYCLE, GIVEN_A_CYCLE, BARRIER = 32, 16, 800


@dataclass(frozen=True)
class Layer:
    """What one block of a cluster does for a layer that is cut in this way; cluster.cuh says what the ways are."""

    inputs: int
    outputs: int
    cut: str
    size: int  # bytes of a number
    rows: int  # of a tile

    @property
    def halves(self) -> int:
        """Pieces of k, of all blocks and of one."""
        return cdiv(self.inputs * self.size, HALF_BYTES)

    @property
    def block_halves(self) -> int:
        return cdiv(self.halves, BLOCKS) if self.cut == "inputs" else self.halves

    @property
    def covered(self) -> int:
        """Columns that it gives, with the zeros behind its outputs."""
        return cdiv(self.outputs * self.size, HALF_BYTES) * HALF_BYTES // self.size

    @property
    def block_jobs(self) -> int:
        units = cdiv(self.outputs * self.size, HALF_BYTES)
        return (cdiv(units, BLOCKS) if self.cut == "outputs" else units) * (HALF_BYTES // self.size // OUTPUTS)

    @property
    def is_plain(self) -> bool:
        return self.outputs == 1

    @property
    def slots_bytes(self) -> int:
        """Of a block's weights where they lie on chip."""
        return self.block_jobs * cdiv(self.halves, 2) * 2 * JOB_BYTES

    @property
    def kept_bytes(self) -> int:
        """Of its weights that lie on chip without being the resident ones."""
        bytes_ = cdiv(self.outputs, OUTPUTS) * cdiv(self.halves, 2) * 2 * JOB_BYTES
        return bytes_ if self.cut == "rows" and not self.is_plain and bytes_ <= MOST_KEPT else 0

    @property
    def input_bytes(self) -> int:
        """Of a row that it reads."""
        return cdiv(self.block_halves * HALF_BYTES, SLOT_BYTES) * SLOT_BYTES + APART

    @property
    def sums_bytes(self) -> int:
        """Of sums of parts of k, where warps share a job."""
        columns = min(WARPS, 1 << (self.block_jobs - 1).bit_length())
        if self.is_plain or self.cut == "inputs" or self.block_halves <= MOST_HELD:
            return 0
        parts = min(WARPS // columns, self.block_halves)
        tiles = 1 if self.cut == "rows" else self.rows // 8
        return parts * self.block_jobs * tiles * 512 if parts > 1 else 0

    @property
    def cycles(self) -> float:
        """Estimated: its weights, and what its sums take to come together."""
        cycles = self.block_jobs * self.block_halves * JOB_BYTES / WEIGHTS_A_CYCLE
        if self.cut == "inputs":
            cycles += BARRIER + 4 * self.rows * self.covered * (BLOCKS - 1) / BLOCKS / GIVEN_A_CYCLE
        return cycles


def cycles_to_give(numbers: int, size: int) -> float:
    """Until so many numbers of each block are in all others."""
    return BARRIER + numbers * size * (BLOCKS - 1) / GIVEN_A_CYCLE


@functools.cache
def layers_of(shape: Shape, dtype: torch.dtype, rows: int) -> tuple[Layer, ...]:
    """The layers, each cut so that all together take the fewest cycles."""
    size, own_rows = dtype.itemsize, rows // BLOCKS
    paths: dict[str, tuple[float, tuple[Layer, ...]]] = {"full": (0.0, ()), "rows": (0.0, ())}  # by what there is
    for mlp in (shape.bottom, shape.top):
        if mlp is shape.top:  # the pairs of the own rows
            cycles, layers = paths["rows"]
            columns = cdiv(mlp[0] * size, HALF_BYTES) * HALF_BYTES // size
            paths = {"rows": (cycles, layers), "full": (cycles + cycles_to_give(own_rows * columns, size), layers)}
        for position, (inputs, outputs) in enumerate(itertools.pairwise(mlp)):
            found: dict[str, tuple[float, tuple[Layer, ...]]] = {}
            for state, (before, layers) in paths.items():
                for cut in _cuts(outputs, position + 2 == len(mlp), mlp is shape.bottom):
                    layer = Layer(inputs, outputs, cut, size, rows)
                    given = _given(state, cut, layers, own_rows, position == 0)
                    if given is None:
                        continue
                    after = {"whole": "full", "outputs": "columns"}.get(cut, "rows")
                    cycles = before + given + layer.cycles
                    if after not in found or cycles < found[after][0]:
                        found[after] = cycles, (*layers, layer)
            paths = found
    return min(paths.values(), key=lambda path: path[0])[1]


def _cuts(outputs: int, is_last: bool, is_bottom: bool) -> tuple[str, ...]:
    """The ways in which a layer may be cut. A bottom MLP ends with rows, and no MLP with what every block has."""
    if outputs == 1:
        return ("rows",)
    if is_last:
        return ("rows", "inputs") if is_bottom else ("rows", "inputs", "outputs")
    return ("rows", "whole", "outputs", "inputs")


def _given(state: str, cut: str, layers: tuple[Layer, ...], own_rows: int, is_first: bool) -> float | None:
    """Cycles until a layer that is cut so has what it reads; None: it never has."""
    if cut == "inputs":
        return 0.0 if state == "columns" else None
    if state == "full" or (state == "rows" and cut == "rows"):
        return 0.0
    if is_first:  # x and the pairs are there in both states
        return None
    last = layers[-1]
    numbers = last.rows * last.block_jobs * OUTPUTS if state == "columns" else own_rows * last.covered
    return cycles_to_give(numbers, last.size)


@dataclass(frozen=True)
class Clusters(Tiles):
    """The kernels for a model; rows: of a tile, one of ROWS. resident: the layer whose weights lie on chip, or -1.
    laid_out: the launch before writes no fragments, so that they are read while it ends."""

    resident: int = -1
    laid_out: bool = False

    @property
    def layers(self) -> tuple[Layer, ...]:
        return layers_of(self.shape, self.dtype, self.rows)

    @property
    def shared_bytes(self) -> int:
        """The arguments, the biases and a barrier; of each layer what it reads, sums of blocks, and weights that are
        kept; sums of warps, the vectors, and the resident weights."""
        size, own_rows, layers = self.dtype.itemsize, self.rows // BLOCKS, self.layers
        parts = [8 * (7 + 6 * self.shape.features), self.biases * size, 16]
        for i, layer in enumerate(layers):
            is_first = i in (0, len(self.shape.bottom) - 1)
            parts.append((own_rows if self._is_of_rows(i, is_first) else self.rows) * layer.input_bytes)
            parts.append(4 * self.rows * layer.covered if layer.cut == "inputs" else 0)
            parts.append(layer.kept_bytes)
        parts.append(max(WARPS * 4, *(layer.sums_bytes for layer in layers)))
        vector = self.shape.width * size
        parts.append(own_rows * self.shape.vectors * (vector if vector % SLOT_BYTES else vector + APART))
        parts.append(layers[self.resident].slots_bytes if self.resident >= 0 else 0)
        return sum(cdiv(part, SLOT_BYTES) * SLOT_BYTES for part in parts)

    def _is_of_rows(self, i: int, is_first: bool) -> bool:
        """Whether a layer finds a block's own rows alone."""
        return self.layers[i].cut == "rows" and (is_first or self.layers[i - 1].cut in ("rows", "inputs"))

    @classmethod
    def of(cls, shape: Shape, dtype: torch.dtype, rows: int, shared_bytes: int) -> Clusters:
        """With the largest share of outputs on chip for which there is room."""
        design = cls(shape, dtype, rows)
        shares = [(layer.slots_bytes, i) for i, layer in enumerate(design.layers) if layer.cut == "outputs"]
        room = shared_bytes - design.shared_bytes
        _, resident = max(((bytes_, i) for bytes_, i in shares if bytes_ <= room), default=(0, -1))
        return cls(shape, dtype, rows, resident)


def resident_clusters(multiprocessors: int) -> int:
    """How many clusters run at once. A GPC's multiprocessors are no multiple of eight: on an H200's 132 it is 15."""
    return max(0, multiprocessors // BLOCKS - 1)


def clusters_for(
    shape: Shape, dtype: torch.dtype, shared_bytes: int, batch: int, multiprocessors: int
) -> Clusters | None:
    """With the fewest rows with which all tiles of a batch run at once, a cluster each; None: there are more, or the
    model does not fit."""
    for rows in ROWS:
        if cdiv(batch, rows) <= resident_clusters(multiprocessors):
            design = Clusters.of(shape, dtype, rows, shared_bytes)
            if not design.why_not(shared_bytes):
                return design
    return None


@functools.cache
def clusters_source(clusters: Clusters) -> Source:
    """The kernel that computes the model, from the fragments that tile.py's has written."""
    shape, (words, model) = clusters.shape, constants(clusters)
    cuts = ", ".join(f"dlrm::Cut::{layer.cut}" for layer in clusters.layers)
    text = f"""\
// {words},
// in tiles of {clusters.rows} rows by clusters that share the weights. Generated by kernels/ops/dlrm/cluster.py.
#include "ops/dlrm/cluster.cuh"

using T = {TYPES[clusters.dtype]};
using Arguments = dlrm::Arguments<T, {shape.features}>;

struct Net {{
    static constexpr dlrm::Model model = {{
{model}
    }};
    static constexpr dlrm::Plan plan = {{
    {{{cuts}}},
    {clusters.resident}, {str(clusters.laid_out).lower()},
    }};
}};
using Block = dlrm::ClusterBlock<T, {clusters.rows // 8}, {shape.features}, Net>;
static_assert(Block::net.shared_bytes == {clusters.shared_bytes}, "so says cluster.py");
static_assert(Block::net.fragments == {clusters.fragments}, "so says tile.py");

extern "C" __global__ void __cluster_dims__({BLOCKS}, 1, 1) __launch_bounds__(fused_mlp::direct_threads, 1)
{CLUSTERS}(const __grid_constant__ Arguments given) {{
    Block(given).run();
}}
"""
    return Source(CLUSTERS, text, THREADS, clusters.shared_bytes, waits=True, cluster=BLOCKS)
