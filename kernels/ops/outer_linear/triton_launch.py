"""Which kernels compute outer_linear and its gradients."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...device import launch
from ...device.reduce import unit
from .folding import BLOCK, blocks, folded_width, pairs
from .triton_tiles import Limits, Tiles, processors_to_fill, splits, suits_few_rows, tiles

kernels = launch.triton_functions(f"{__package__}.triton_kernel")
backwards = launch.triton_functions(f"{__package__}.triton_backward")


def forward(
    c: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str, folded: bool, out: Tensor,
    limits: Limits | None = None, **changed,
) -> None:
    """out = act(vec(c cᵀ) weightᵀ + bias), or with a folded weight; contiguous, of one dtype."""
    if out.numel() == 0:
        return
    limits, precision = limits or Limits(), launch.products_in(precision)
    (rows, columns), outputs = c.shape, weight.shape[0]
    if not folded and suits_few_rows(c, weight, precision, "few_rows", limits):
        _forward_of_few_rows(c, weight, bias, activation, precision, out)
        return
    rounds = _precision(c, precision) == "tf32"
    rounded = False  # whether the weight is as the products take it
    if not folded and weight.dtype.itemsize >= 4 and limits.folds(rows, columns, outputs):
        given, weight = weight, launch.empty((outputs, folded_width(columns)), weight.dtype, weight)
        _fold(given, weight, columns, pairs=(0, pairs(blocks(columns))), precision=precision)
        folded, rounded = True, rounds
    elif folded and rounds and rows >= limits.round_from:
        given, weight, rounded = weight, launch.empty(weight.shape, weight.dtype, weight), True
        _masked(given, None, weight, "identity", precision)
    _product(c, weight, bias, activation, precision, folded, rounded, out, **changed)


def _forward_of_few_rows(
    c: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str, out: Tensor
) -> None:
    (rows, columns), outputs = c.shape, weight.shape[0]
    tile, size = tiles("few_rows", c.dtype, precision, rows, outputs), unit(columns, c.itemsize)
    blocks, row_tiles, output_tiles = (
        launch.cdiv(columns, tile.width), launch.cdiv(rows, tile.rows), launch.cdiv(outputs, tile.outputs)
    )
    splits = max(1, min(2 * processors_to_fill() // (blocks * row_tiles * output_tiles), columns // 8))
    parts = launch.empty((blocks * splits, rows, outputs), torch.float32, c)
    kernels.few_rows_kernel[(blocks * splits, row_tiles, output_tiles)](
        c, weight, parts, rows, outputs, columns // size, blocks, splits,
        UNIT=size, PRECISION=precision, ROWS=tile.rows, OUTPUTS=tile.outputs, WIDTH=tile.width, STAGES=tile.stages,
        num_warps=tile.warps,
    )
    _finish(parts, bias, out, activation)


def _finish(parts: Tensor, bias: Tensor, out: Tensor, activation: str) -> None:
    """out = act(the sum of parts [several, B, H] + bias)."""
    at_once, tile = _sums_of()
    kernels.finish_kernel[(launch.cdiv(out.numel(), tile),)](
        parts, bias, out, out.numel(), out.shape[1], parts.shape[0],
        ACTIVATION=activation, TILE=tile, AT_ONCE=at_once, num_warps=8,
    )


def fold(weight: Tensor, columns: int, folded: Tensor) -> None:
    """folded [H, folded_width(C)] of weight [H, C²]; contiguous, of one dtype."""
    if folded.numel():
        _fold(weight, folded, columns, pairs=(0, pairs(blocks(columns))))


def _fold(
    weight: Tensor, folded: Tensor, columns: int, *, pairs: tuple[int, int], length: int = 0, precision: str = "ieee"
) -> None:
    """Fold pairs of blocks, (first, how many), and round the sums for products in `precision`; for grad_c with outputs
    innermost, in rows of `length`."""
    outputs, (first_pair, count), turned = weight.shape[0], pairs, length > 0
    size, at_once = unit(columns, weight.itemsize), 32 if turned else 16
    if launch.interpreted():
        at_once = max(16, min(128, launch.next_power_of_2(outputs)))
    kernels.fold_kernel[(count, launch.cdiv(length if turned else outputs, at_once))](
        weight, folded, first_pair, outputs, columns // size, length or folded_width(columns),
        UNIT=size, TURNED=turned, PRECISION=precision, OUTPUTS=at_once, num_warps=8 if turned else 4,
    )


def _product(
    c: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str, folded: bool, rounded: bool, out: Tensor,
    **changed,
) -> None:
    """out = act(vec(c cᵀ) weightᵀ + bias). rounded: the weight is as products in `precision` take it."""
    (rows, columns), outputs, precision = c.shape, weight.shape[0], _precision(c, precision)
    tile = tiles("folded" if folded else "forward", c.dtype, precision, rows, outputs, **changed)
    programs = launch.cdiv(rows, tile.rows) * launch.cdiv(outputs, tile.outputs)
    count, whole = launch.cdiv(columns, tile.width), columns // tile.width
    if folded:
        if whole < count and tile.rows * tile.outputs > 2**14 and "group" not in changed:
            # The selection of a last block that is not full takes registers, too, and the operands would spill.
            tile = replace(tile, group=max(1, tile.group // 2))
        steps = pairs(count) * (BLOCK // tile.group)
        sums = [(whole == count, 0, count, splits(programs, steps // 8))]
    else:
        # The last block, if it is not full, by a launch of its own: in one kernel with the others it would keep the
        # compiler from letting their tensor core instructions run asynchronously.
        ranges = [(first, last) for first, last in ((0, whole), (whole, count)) if first < last] or [(0, 0)]
        sums = [(last <= whole, first, last, splits(programs, (last - first) * columns // 8)) for first, last in ranges]
    several, part = sum(cut for *_, cut in sums), 0
    parts = launch.empty((several, rows, outputs), _sum_dtype(c), c) if several > 1 else None
    size = unit(columns, c.itemsize) if columns else 1
    for whole, first_block, last_block, cut in sums:
        grid = launch.cdiv(rows, tile.rows), launch.cdiv(outputs, tile.outputs), cut
        kernels.forward_kernel[grid](
            c, weight, bias, out if parts is None else parts, rows, outputs, columns // size,
            first_block, last_block, part, cut,
            UNIT=size, FOLDED=folded, WHOLE=whole, SPLIT=parts is not None, ACTIVATION=activation, PRECISION=precision,
            OF_WEIGHTS="ieee" if rounded else precision, ROWS=tile.rows, OUTPUTS=tile.outputs, GROUP=tile.group,
            WIDTH=tile.width, STAGES=tile.stages, num_warps=tile.warps,
        )
        part += cut
    if parts is not None:
        _finish(parts, bias, out, activation)


def backward(
    grad: Tensor, c: Tensor, weight: Tensor, out: Tensor | None, activation: str, precision: str, folded: bool,
    grad_c: Tensor | None, grad_weight: Tensor | None, grad_bias: Tensor | None, limits: Limits | None = None,
) -> None:
    """The gradients that are not None; contiguous, of one dtype. out: of relu. RuntimeError for a folded weight."""
    if folded:
        raise RuntimeError("outer_linear_folded has no gradient: call outer_linear")
    precision = launch.products_in(precision)
    (rows, outputs), columns = grad.shape, c.shape[1]
    of_weight = tiles("grad_weight", c.dtype, precision, rows, outputs)
    depths = launch.cdiv(rows, of_weight.depth)
    stride = max(depths, 1) * of_weight.depth
    needs_c, needs_weight = (wanted is not None and wanted.numel() > 0 for wanted in (grad_c, grad_weight))
    of_c = _c_gradient(c, weight, grad_c, precision, limits or Limits()) if needs_c else None
    # One workspace for g turned and, later, g as it lies; one for c turned and, later, the folded weight.
    relu = activation != "identity"
    turned = launch.empty((max(outputs, 1), stride), grad.dtype, grad)
    second = max(columns * stride if needs_weight else 0, of_c.folded_elements if needs_c else 0)
    second = launch.empty((second,), c.dtype, c)
    rounds = _precision(c, precision) == "tf32"
    summed = grad_bias is not None and outputs > 0  # of g as it is, so that it is rounded after
    if summed or needs_weight:
        _turn(grad, out if relu else grad, turned, rows, outputs, depths * of_weight.depth, activation,
              "ieee" if summed else precision)
    if summed:
        at_once = 128 if launch.interpreted() else 4
        backwards.bias_kernel[(launch.cdiv(outputs, at_once),)](
            turned, grad_bias, outputs, depths, PRECISION="tf32" if rounds and needs_weight else "ieee",
            OUTPUTS=at_once, DEPTH=of_weight.depth, num_warps=1,
        )
    if needs_weight:
        _weight_gradient(c, turned, second, grad_weight, depths, precision, of_weight)
    if needs_c:
        if (relu or rounds) and outputs:
            _masked(grad, out, turned, activation, precision)
        of_c.launch(turned if relu or rounds else grad, second)


def _masked(grad: Tensor, out: Tensor | None, masked: Tensor, activation: str, precision: str) -> None:
    """masked = grad times the activation's derivative, as products in `precision` take it. out: of relu."""
    backwards.masked_kernel[(launch.cdiv(grad.numel(), 4096),)](
        grad, grad if out is None else out, masked, grad.numel(),
        ACTIVATION=activation, PRECISION=precision, TILE=4096, num_warps=8,
    )


def _turn(
    x: Tensor, out: Tensor, turned: Tensor, rows: int, columns: int, stride: int, activation: str,
    precision: str,
) -> None:
    """turned [columns, stride] = x [rows, columns] turned over, times the activation's derivative, as products in
    `precision` take it."""
    side = 256 if launch.interpreted() else 32
    if columns and stride:
        backwards.transpose_kernel[(launch.cdiv(stride, side), launch.cdiv(columns, side))](
            x, out, turned, rows, columns, stride, ACTIVATION=activation, PRECISION=precision, TILE=side,
            num_warps=4,
        )


def _weight_gradient(
    c: Tensor, turned: Tensor, c_turned: Tensor, grad_weight: Tensor, depths: int, precision: str, tile: Tiles
) -> None:
    rows, columns = c.shape
    outputs = grad_weight.shape[0]
    _turn(c, c, c_turned, rows, columns, depths * tile.depth, "identity", "ieee")
    size = unit(columns, c.itemsize)
    backwards.weight_kernel[(pairs(blocks(columns)), launch.cdiv(outputs, tile.outputs))](
        c_turned, turned, grad_weight, outputs, columns // size, depths,
        UNIT=size, PRECISION=_precision(c, precision), OUTPUTS=tile.outputs, DEPTH=tile.depth, STAGES=tile.stages,
        num_warps=tile.warps,
    )


def _c_gradient(c: Tensor, weight: Tensor, grad_c: Tensor, precision: str, limits: Limits) -> _CGradient | _DirectC:
    """How grad_c is computed. The weight as given is read once for few rows, where folding reads it, writes half of it
    and reads that."""
    if suits_few_rows(c, weight, precision, "direct_c", limits):
        return _DirectC(c, weight, grad_c, precision)
    return _CGradient(c, weight, grad_c, precision, limits)


class _DirectC:
    """grad_c from the weight as given."""

    folded_elements = 0

    def __init__(self, c: Tensor, weight: Tensor, grad_c: Tensor, precision: str) -> None:
        self.c, self.weight, self.grad_c, self.precision = c, weight, grad_c, precision
        (rows, columns), outputs = c.shape, weight.shape[0]
        self.tile = tiles("direct_c", c.dtype, precision, rows, outputs)
        self.blocks = launch.cdiv(columns, self.tile.width)
        # Two programs a processor, with as many groups each: of 216 groups 36 splits, not 37.
        groups = launch.cdiv(columns, self.tile.group)
        each = launch.cdiv(groups, max(1, 2 * processors_to_fill() // self.blocks))
        self.splits = launch.cdiv(groups, each)

    def launch(self, g: Tensor, folded: Tensor) -> None:
        c, tile, (rows, columns), outputs = self.c, self.tile, self.c.shape, self.weight.shape[0]
        parts = launch.empty((self.blocks + self.splits, rows, columns), torch.float32, c)
        size = unit(columns, c.itemsize)
        backwards.direct_c_kernel[(self.blocks * self.splits, launch.cdiv(rows, tile.rows))](
            c, self.weight, g, parts, rows, columns // size, outputs // tile.depth, self.blocks, self.splits,
            UNIT=size, PRECISION=self.precision, ROWS=tile.rows, GROUP=tile.group, WIDTH=tile.width, DEPTH=tile.depth,
            STAGES=tile.stages, num_warps=tile.warps,
        )
        _sum_up(parts, self.grad_c)


class _CGradient:
    """grad_c, of the weight folded some pairs of blocks at a time."""

    def __init__(self, c: Tensor, weight: Tensor, grad_c: Tensor, precision: str, limits: Limits) -> None:
        self.c, self.weight, self.grad_c, self.precision = c, weight, grad_c, _precision(c, precision)
        (rows, columns), outputs = c.shape, weight.shape[0]
        self.tile = tiles("grad_c", c.dtype, precision, rows, outputs)
        self.depths = launch.cdiv(outputs, self.tile.depth)
        self.pairs = pairs(blocks(columns))
        pair_elements = BLOCK * BLOCK * self.depths * self.tile.depth
        weight_bytes = weight.numel() * weight.itemsize
        self.at_once = limits.pairs_at_once(weight_bytes, pair_elements * c.itemsize)
        self.folded_elements = min(self.at_once, self.pairs) * pair_elements
        most = limits.parts(weight_bytes, rows * columns * _sum_dtype(c).itemsize)
        self.splits = splits(launch.cdiv(rows, self.tile.rows), min(self.at_once, self.pairs, most))

    def launch(self, g: Tensor, folded: Tensor) -> None:
        c, grad_c, tile, (rows, columns), outputs = self.c, self.grad_c, self.tile, self.c.shape, self.weight.shape[0]
        parts = grad_c
        if self.splits > 1 or grad_c.dtype != _sum_dtype(c):
            parts = launch.empty((self.splits, rows, columns), _sum_dtype(c), c)
        size, h_size = unit(columns, c.itemsize), unit(outputs, c.itemsize) if outputs else 1
        for first in range(0, self.pairs, self.at_once):
            if outputs:
                here = min(self.pairs - first, self.at_once)
                length = self.depths * tile.depth
                _fold(self.weight, folded, columns, pairs=(first, here), length=length, precision=self.precision)
            backwards.c_kernel[(launch.cdiv(rows, tile.rows), self.splits)](
                c, folded, g, parts, rows, outputs // h_size, columns // size, first, self.pairs, self.at_once,
                self.splits, self.depths,
                UNIT=size, H_UNIT=h_size, WHOLE=columns % BLOCK == 0, PRECISION=self.precision, ROWS=tile.rows,
                DEPTH=tile.depth, STAGES=tile.stages, num_warps=tile.warps,
            )
        if parts is not grad_c:
            _sum_up(parts, grad_c)


def _sum_up(parts: Tensor, grad_c: Tensor) -> None:
    at_once, tile = _sums_of()
    backwards.c_sum_kernel[(launch.cdiv(grad_c.numel(), tile),)](
        parts, grad_c, grad_c.numel(), parts.shape[0], TILE=tile, AT_ONCE=at_once, num_warps=8
    )


def _sums_of() -> tuple[int, int]:
    """(parts on their way together, elements) of a program that adds up parts: 32 numbers a thread. One part after the
    other took 19 µs for 66 parts of a forward of 128 rows on an H200."""
    return (8, 8192) if launch.interpreted() else (16, 512)


def _sum_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _precision(tensor: Tensor, precision: str) -> str:
    return precision if tensor.dtype == torch.float32 else "ieee"
