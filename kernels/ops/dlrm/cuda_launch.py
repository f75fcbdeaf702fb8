"""dlrm_forward's and dlrm_forward_kept's CUDA kernels: their source by the shape of the model, their grids and
arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...device.launch import architecture, cdiv, empty, multiprocessors, shared_memory
from ...device.source_launch import Elements, Source, Stride, launch
from ...dispatch.address import address
from .cluster import Clusters, clusters_for, clusters_source, resident_clusters
from .pair import BLOCKS, ROWS, STAGES, Pairs, lay_out_source, pairs_for, pairs_source, resident_pairs
from .shape import ROWS_OF_A_BLOCK, DLRMError, Shape
from .source import NAME, source_of
from .tile import FRAGMENTS_THREADS, MOST_LAYERS, TYPES, Tiles, fragments_source, tiles_for, tiles_source

LAYERS_OF_A_BLOCK = 8192  # bytes of a layer's fragments that a block writes
KEPT = "dlrm_forward_kept"


def forward(
    dense: Tensor, tables: Sequence[Tensor], indices: Sequence[Tensor], offsets: Sequence[Tensor],
    bottom_weights: Sequence[Tensor], bottom_biases: Sequence[Tensor], top_weights: Sequence[Tensor],
    top_biases: Sequence[Tensor], bottom_activation: str, bottom_final: str, top_activation: str, top_final: str,
    precision: str, out: Tensor, report: Tensor,
) -> None:
    """As op.py declares it; all contiguous but the indices. Raises DLRMError for a model that does not fit, TypeError
    for float64."""
    if dense.dtype not in TYPES:
        dtype = str(dense.dtype).removeprefix("torch.")
        raise TypeError(f'{NAME}: dense must be float32, float16 or bfloat16 for backend="cuda"; got {dtype}')
    activations = bottom_activation, bottom_final, top_activation, top_final
    bags = ("open" if offsets[0].shape[0] == dense.shape[0] else "closed") if offsets else ""
    shape = replace(
        shape_of(tables, indices, offsets, bottom_weights, top_weights), activations=activations, bags=bags,
        aligned=all(map(_is_aligned, tables)),
    )
    rows, inputs = dense.shape
    design = design_of(shape, dense.dtype, precision, architecture(), shared_memory(), rows, multiprocessors())
    if isinstance(design, str):
        raise DLRMError(f"{NAME}: {design}")
    if not rows:
        return
    weights, biases = [*bottom_weights, *top_weights], [*bottom_biases, *top_biases]
    heights, counts = [len(table) for table in tables], list(map(Elements, indices if offsets else ()))
    if isinstance(design, Shape):
        return launch(
            source(shape), (cdiv(rows, ROWS_OF_A_BLOCK),), dense, *tables, *heights, *indices, *map(Stride, indices),
            *offsets, *counts, *weights, *biases, out, report, rows,
        )
    fragments = write_fragments(design, dense, weights, biases)
    program, most = _program(design, multiprocessors())
    clusters = min(cdiv(rows, design.rows), most)
    none = [0] * len(tables)
    launch(
        program, (clusters * program.cluster,), dense, out, fragments, rows, inputs, clusters, *tables, *heights,
        *indices, *map(Stride, indices), *(offsets or none), *(counts or none), report,
    )


def forward_kept(
    dense: Tensor, tables: Sequence[Tensor], indices: Sequence[Tensor], bottom: Tensor, top: Tensor, bottom_widths: str,
    top_widths: str, bottom_activation: str, bottom_final: str, top_activation: str, top_final: str, out: Tensor,
    bottom_values: Tensor, vector: Tensor, features: Tensor, top_values: Tensor, report: Tensor,
) -> None:
    """As op.py declares it; all contiguous but the indices. Raises DLRMError for a model that does not fit."""
    activations = bottom_activation, bottom_final, top_activation, top_final
    shape = Shape(
        *(tuple(map(int, widths.split("-"))) for widths in (bottom_widths, top_widths)), len(tables), activations,
        id_bytes=indices[0].dtype.itemsize, aligned=all(map(_is_aligned, tables)),
    )
    design = design_that_keeps(shape, architecture(), shared_memory(), multiprocessors())
    if isinstance(design, str):
        raise DLRMError(f"{KEPT}: {design}")
    if not (rows := dense.shape[0]):
        return
    fragments = empty((design.fragments,), design.dtype, dense)
    launch(lay_out_source(design), lay_out_grid(design), bottom, top, fragments)
    clusters = min(cdiv(rows, design.rows), resident_pairs(multiprocessors()))
    heights, none = [len(table) for table in tables], [0] * len(tables)
    launch(
        pairs_source(design), (clusters * BLOCKS,), dense, out, fragments, rows, dense.shape[1], clusters, *tables,
        *heights, *indices, *map(Stride, indices), *none, *none, report, bottom_values, vector, features, top_values,
    )


@functools.lru_cache(maxsize=1024)
def design_that_keeps(shape: Shape, arch: int, shared_bytes: int, blocks: int) -> Pairs | str:
    """By what a model is computed in tf32 on such a GPU where a backward's values are kept, or why it is not."""
    if arch != 90:
        return f"values are kept by the instructions of sm_90; this is sm_{arch}"
    found = pairs_for(shape, torch.float32, shared_bytes, blocks)
    if found is None:
        why = Pairs(shape, torch.float32, ROWS, STAGES[-1]).why_not(shared_bytes)
        return why or f"a pair is of {BLOCKS} multiprocessors; there are {blocks}"
    return replace(found, keeps=True)


def _program(design: Tiles, blocks: int) -> tuple[Source, int]:
    """The kernel of a design, and how many of its clusters run at once where so many blocks do; else a block is one."""
    if isinstance(design, Pairs):
        return pairs_source(design), resident_pairs(blocks)
    if isinstance(design, Clusters):
        return clusters_source(design), resident_clusters(blocks)
    return tiles_source(design), blocks


def write_fragments(tiles: Tiles, dense: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """The weights and biases as the tiles take them, by one launch for all layers."""
    fragments = empty((tiles.fragments,), tiles.dtype, dense)
    none = [0] * (MOST_LAYERS - len(weights))
    inputs, outputs = zip(*tiles.shape.layers, strict=True)
    if isinstance(tiles, Pairs):
        program, grid = lay_out_source(tiles), lay_out_grid(tiles)
    else:
        program = fragments_source(tiles.dtype)
        largest = max(inputs * outputs for inputs, outputs in tiles.shape.layers) * tiles.dtype.itemsize
        grid = (cdiv(largest, LAYERS_OF_A_BLOCK), len(weights))
    launch(
        program, grid, *weights, *none, *biases, *none, *inputs, *none, *inputs, *none, *outputs, *none, len(weights),
        fragments,
    )
    return fragments


def lay_out_grid(pairs: Pairs) -> tuple[int]:
    """A thread writes 16 bytes."""
    return (cdiv(pairs.fragments * pairs.dtype.itemsize, 16 * FRAGMENTS_THREADS),)


@functools.lru_cache(maxsize=1024)
def design_of(
    shape: Shape, dtype: torch.dtype, precision: str, arch: int, shared_bytes: int, batch: int = 1, blocks: int = 1
) -> Shape | Tiles | str:
    """By what a model is computed on a GPU of sm_<arch> with so much shared memory a block: its Shape for a row a lane,
    in float32, whatever the precision; in tf32 or halves Tiles for such a batch, of which so many run at once, or, of a
    batch whose tiles are few, Clusters, and of others Pairs; or why by none, which hangs on no batch."""
    if dtype == torch.float32:
        if not (why := shape.why_not()):
            return shape
        if precision != "tf32":
            return f"the model is too large for one kernel: {why}; larger ones take tf32 or halves"
    if arch < 80:
        return f"tf32 and halves take the tensor cores of sm_80 or later; this is sm_{arch}"
    tiles = tiles_for(shape, dtype, shared_bytes, batch, blocks)
    if why := tiles.why_not(shared_bytes):
        return f"the model does not fit into one kernel: {why}"
    if arch != 90:  # of which it is known how many clusters run at once, and which alone has the pairs' instructions
        return tiles
    found = clusters_for(shape, dtype, shared_bytes, batch, blocks) or pairs_for(shape, dtype, shared_bytes, blocks)
    return found or tiles


@functools.cache
def source(shape: Shape) -> Source:
    """What is compiled for a small model."""
    return Source(NAME, source_of(shape), 32 * shape.warps, shape.shared_bytes, waits=True)


def shape_of(
    tables: Sequence[Tensor], indices: Sequence[Tensor], offsets: Sequence[Tensor], bottom_weights: Sequence[Tensor],
    top_weights: Sequence[Tensor],
) -> Shape:
    """The shape of the model that a call is of, as far as its size hangs on it."""
    return Shape(
        bottom=widths(bottom_weights),
        top=widths(top_weights),
        features=len(tables),
        bags="closed" if offsets else "",
        id_bytes=indices[0].dtype.itemsize,
        offset_bytes=offsets[0].dtype.itemsize if offsets else 8,
    )


def widths(weights: Sequence[Tensor]) -> tuple[int, ...]:
    """The widths of the layers with these weights: inputs of the first one, then outputs of each."""
    return weights[0].shape[1], *(weight.shape[0] for weight in weights)


def _is_aligned(table: Tensor) -> bool:
    """Whether it begins at a multiple of 16 bytes; a stand-in says so itself."""
    return (address(table) or 0) % 16 == 0 if isinstance(table, Tensor) else table.aligned
