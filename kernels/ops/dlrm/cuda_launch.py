"""dlrm_forward's CUDA kernel: its source by the shape of the model, its grid and its arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.device.generated import Elements, Source, Stride, launch
from kernels.device.launch import cdiv
from kernels.ops.dlrm.shape import ROWS_OF_A_BLOCK, DLRMError, Shape
from kernels.ops.dlrm.source import NAME, source_of


def forward(
    dense: Tensor, tables: Sequence[Tensor], indices: Sequence[Tensor], offsets: Sequence[Tensor],
    bottom_weights: Sequence[Tensor], bottom_biases: Sequence[Tensor], top_weights: Sequence[Tensor],
    top_biases: Sequence[Tensor], bottom_activation: str, bottom_final: str, top_activation: str, top_final: str,
    out: Tensor, report: Tensor,
) -> None:
    """As op.py declares it; all contiguous but the indices. Raises DLRMError for a model that does not fit, TypeError
    for another dtype than float32."""
    if dense.dtype != torch.float32:
        dtype = str(dense.dtype).removeprefix("torch.")
        raise TypeError(f'{NAME}: dense must be float32 for backend="cuda"; got {dtype}')
    activations = bottom_activation, bottom_final, top_activation, top_final
    bags = ("open" if offsets[0].shape[0] == dense.shape[0] else "closed") if offsets else ""
    shape = replace(
        shape_of(tables, indices, offsets, bottom_weights, top_weights), activations=activations, bags=bags,
        aligned=all(map(_is_aligned, tables)),
    )
    if why := shape.why_not():
        raise DLRMError(f"{NAME}: the model is too large for one kernel: {why}")
    launch(
        source(shape), (cdiv(dense.shape[0], ROWS_OF_A_BLOCK),), dense, *tables, *(len(table) for table in tables),
        *indices, *map(Stride, indices), *offsets, *map(Elements, indices if offsets else ()), *bottom_weights,
        *top_weights, *bottom_biases, *top_biases, out, report, dense.shape[0],
    )


@functools.cache
def source(shape: Shape) -> Source:
    """What is compiled for a model."""
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
    """Of the layers with these weights: inputs of the first one, then outputs of each."""
    return weights[0].shape[1], *(weight.shape[0] for weight in weights)


def _is_aligned(table: Tensor) -> bool:
    """Whether it begins at a multiple of 16 bytes; a stand-in says so itself."""
    return table.data_ptr() % 16 == 0 if isinstance(table, Tensor) else table.aligned
