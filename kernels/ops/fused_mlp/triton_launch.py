"""How triton_kernel.py's and triton_backward.py's kernels are launched."""

from __future__ import annotations

import torch
from torch import Tensor

from ...device.column_sum_launch import add_chunks, sum_target
from ...device.launch import cdiv, empty, interpreted, products_in, triton_functions
from . import budget, weights_launch
from .budget import NARROW, PROCESSORS, FusedMLPError, OnChip, Tile
from .packing import columns_of_grads, elements, hidden_parts, layers, padded
from .tiles import backward_tile, forward_tile, weight_parts

FROM_SHARED_MEMORY = 64  # rows of a tile from which on tensor cores (wgmma) take weights from shared memory alone
# Weights from which on smaller tiles, too, take them rounded to tf32 by a launch before. Else each program rounds all
# of them as it reads them: on an H200 1.4 µs of 25 for the 319,000 of 367-512-256-1. For the 2.2 million of
# 479-1024-1024-512-256-1 the launch costs 6 µs of 126.
ROUNDED_BEFORE = 2**19

functions = triton_functions(f"{__package__}.triton_kernel")
backward_functions = triton_functions(f"{__package__}.triton_backward")


def _checked(widths: str, needed: OnChip) -> None:
    if not needed.fits:
        raise FusedMLPError(f"fused_mlp: an MLP of widths {widths} does not fit on the chip: {needed}")


def interpreted_tile(rows: int, on_chip: bool = False) -> Tile:
    """The interpreter's time goes by the step, and in large ones by the element."""
    return Tile(power_of_two(rows, 256), columns=512, stages=1, budget=2**20, warps=4, on_chip=on_chip)


def power_of_two(n: int, most: int) -> int:
    """The least power of two that is not below n, from 16 to `most`."""
    return max(16, min(most, 1 << (n - 1).bit_length()))


def forward(
    x: Tensor, packed: Tensor, widths: str, activation: str, final_activation: str, precision: str, keep: bool,
    out: Tensor, hidden: Tensor, *, tile: Tile | None = None, programs: int = PROCESSORS, narrow: int = NARROW,
    least: int | None = None,
) -> None:
    """out = the MLP of x, and with keep hidden, as packing.py lays them out; contiguous, of one dtype. least: as
    tiles.is_on_chip takes it."""
    rows = x.shape[0]
    if rows == 0:
        return
    precision = products_in(precision)
    chosen, needed = forward_tile(
        rows, widths, x.dtype, precision, tile=tile, programs=programs, narrow=narrow, keep=keep,
        activation=activation, least=least,
    )
    _checked(widths, needed)
    tile = interpreted_tile(rows, chosen.on_chip) if tile is None and interpreted() else chosen
    tiles = cdiv(rows, tile.rows)
    grid = tiles if tile.on_chip else min(tiles, programs)
    *_, columns = hidden_parts(widths, activation, final_activation)
    if tile.on_chip:
        hidden = None
    elif not keep:
        hidden = empty((grid * tile.rows, max(columns, 1)), x.dtype, x)
    parts = layers(widths)
    inputs = parts[0].inputs
    # Four bytes or more are copied asynchronously, aligned to 16 or not.
    read = padded(inputs) if x.itemsize < 4 and x.shape[1] >= padded(inputs) else inputs
    packed, of_weights = _for_products(packed, widths, precision, tile)
    functions.forward_kernel[(grid,)](
        x, packed, hidden, out, rows, x.shape[1], tiles,
        WIDTHS=widths, FIRST=int(budget.is_chained(parts, narrow)), ACTIVATION=activation,
        FINAL=final_activation, PRECISION=precision, OF_WEIGHTS=of_weights, KEEP=keep, ROWS=tile.rows,
        COLUMNS=tile.columns, BUDGET=tile.budget, STAGES=tile.stages, READ=read, ON_CHIP=tile.on_chip,
        num_warps=tile.warps,
    )


def _for_products(packed: Tensor, widths: str, precision: str, tile: Tile) -> tuple[Tensor, str]:
    """(buffer, precision that its weights are rounded for when they are read): rounded before, "ieee"."""
    many = elements(widths) >= ROUNDED_BEFORE or tile.rows >= FROM_SHARED_MEMORY
    if many and precision == "tf32" and packed.dtype == torch.float32:
        return _rounded(packed, widths), "ieee"
    return packed, precision


def _rounded(packed: Tensor, widths: str) -> Tensor:
    """A copy of the buffer, its weights rounded to tf32."""
    copy, block = empty((packed.numel(),), packed.dtype, packed), 2**16 if interpreted() else 1024
    functions.rounding_kernel[(cdiv(packed.numel(), block),)](packed, copy, WIDTHS=widths, BLOCK=block, num_warps=8)
    return copy


def chain(
    grad_out: Tensor, packed: Tensor, hidden: Tensor, out: Tensor, widths: str, activation: str, final_activation: str,
    precision: str, x_columns: int, grad_x: Tensor | None, grads: Tensor, *, tile: Tile | None = None,
) -> Tile:
    """grad_x [B, x_columns], unless that is 0, and grads: of what each layer's activation is applied to, P(out) columns
    a layer. Returns the tile that it took."""
    precision, rows = products_in(precision), grad_out.shape[0]
    chosen, needed = backward_tile(rows, widths, packed.dtype, precision, tile=tile)
    _checked(widths, needed)
    tile = interpreted_tile(rows) if tile is None and interpreted() else chosen
    if rows:
        weights, of_weights = _for_products(packed, widths, precision, tile)
        backward_functions.chain_kernel[(cdiv(rows, tile.rows),)](
            grad_out, weights, hidden, out, grads, grad_x if x_columns else None, rows, x_columns,
            WIDTHS=widths, ACTIVATION=activation, FINAL=final_activation, PRECISION=precision, OF_WEIGHTS=of_weights,
            LOWEST=int(not x_columns), ROWS=tile.rows, COLUMNS=tile.columns, BUDGET=tile.budget, STAGES=tile.stages,
            num_warps=tile.warps,
        )
    return tile


def backward(
    grad_out: Tensor, x: Tensor, packed: Tensor, hidden: Tensor, out: Tensor, widths: str, activation: str,
    final_activation: str, precision: str, keep: bool, grad_x: Tensor | None, grad_packed: Tensor | None, *,
    tile: Tile | None = None, weight_tile: int = 64, step: int = 0, parts: int = 0,
) -> None:
    """grad_x like x, and grad_packed, the weights' and biases' gradients as packing.py lays them out."""
    precision = products_in(precision)
    rows, x_columns = x.shape
    grads = empty((rows, columns_of_grads(widths)), x.dtype, x)
    options = widths, activation, final_activation, precision
    tile = chain(grad_out, packed, hidden, out, *options, 0 if grad_x is None else x_columns, grad_x, grads, tile=tile)
    if grad_packed is None:
        return
    if weights_launch.runs(x.dtype, precision) and not (step or parts):
        parts, part = weights_launch.parts_of(rows, widths)
        target = sum_target(grad_packed, parts)
        weights_launch.weights([x], [hidden], [grads], target, widths, parts, part)
        add_chunks(target, grad_packed)
        return
    if interpreted() and not step:
        widest = max(max(layer.inputs, layer.outputs) for layer in layers(widths))
        weight_tile, step = power_of_two(widest, 512), power_of_two(rows, 512)
    parts, part = weight_parts(rows, widths, weight_tile, parts)
    target = sum_target(grad_packed, parts)
    backward_functions.weights_kernel[(budget.weight_tiles(widths, weight_tile)[-1], parts)](
        x, x_columns, hidden, grads, target, rows, part,
        WIDTHS=widths, ACTIVATION=activation, FINAL=final_activation, PRECISION=precision, TILE=weight_tile,
        STEP=step or 32, STAGES=tile.stages, num_warps=4,
    )
    add_chunks(target, grad_packed)
