"""Which kernels compute outer_linear and its gradients, with which tiles and splits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.device import launch
from kernels.device.reduce import unit
from kernels.ops.outer_linear.folding import BLOCK, blocks, folded_width, pairs

kernels = launch.triton_functions("kernels.ops.outer_linear.triton_kernel")
backwards = launch.triton_functions("kernels.ops.outer_linear.triton_backward")

PROGRAMS = 132  # an H200's processors, each of which has room for one of these programs
INTERPRETED = 4  # in place of it: the interpreter runs one after the other


@dataclass(frozen=True)
class Tiles:
    """Of the forward: rows × outputs of a program, group · width products a step. Of the backward: outputs × depth rows
    a step (of grad_weight), rows × depth outputs (of grad_c). stages: steps whose operands are on their way or here.
    """

    rows: int = 0
    outputs: int = 0
    group: int = 1
    width: int = BLOCK
    depth: int = 0
    stages: int = 3
    warps: int = 8


@dataclass(frozen=True)
class Limits:
    """Where one way of computing gives way to another.

    fold_from: rows from which on float32 weights are folded on the way, `fold_outputs` at a time, so that the workspace
        is a small part of the weight. Folding moves the weight once and halves the products: at 4.3 TB/s and 400
        TFLOP/s it pays from some 560 rows on, in full float32 (67 TFLOP/s) from 100. Halves are not folded, for that
        would round the folded weight.
    """

    fold_from: int = 512
    fold_from_ieee: int = 128
    fold_outputs: int = 64


def tiles(part: str, dtype: torch.dtype, precision: str, rows: int, outputs: int, /, **changed) -> Tiles:
    """What a program of `part` (forward, folded, grad_weight, grad_c) takes. changed: other values for some of it.

    A right operand of OUTPUTS · step numbers is read from the L2 for ROWS · OUTPUTS · step products, so a program must
    have 256 rows for 1024 products a clock to be fed with 16 bytes: 132 processors then take 3.7 TB/s of the L2's 5.5.
    256 × 128 sums are half of the registers; the rest has room for two of the operands that are formed. Few rows are
    bound by the memory instead: of a weight as given 256 bytes of a row at a time, and stages for 160 KB on their way.
    Where a block may have less shared memory than an H200's, there are fewer stages, or shorter steps.
    """
    folded = part == "folded"
    if launch.interpreted():  # whose time goes by the program and by the step, not by the element
        height, width = launch.next_power_of_2(rows), launch.next_power_of_2(outputs)
        found = Tiles(
            rows=max(16, min(1024, height)), outputs=max(16, min(128, width)), group=BLOCK if folded else 1,
            width=BLOCK if folded else 64, depth=max(64, min(1024, height)), stages=1, warps=4,
        )  # fmt: skip
        if part == "grad_c":
            found = replace(found, depth=found.outputs)
    elif dtype == torch.float64 or (dtype == torch.float32 and precision == "ieee"):
        # Without tensor cores the operands of a step are in registers, too.
        narrow = 64 if dtype == torch.float32 and part in ("forward", "folded") else 32
        found = Tiles(rows=narrow, outputs=narrow, depth=16)
    else:
        wide = 4 // dtype.itemsize  # halves: steps of as many bytes
        most = 256 if rows > 128 else 128 if rows > 64 else 64
        few = 64 if outputs <= 64 else 128
        if part == "grad_weight":
            found = Tiles(outputs=64, depth=64 * wide, stages=4)
        elif part == "grad_c":
            found = Tiles(rows=min(most, 128), depth=16 * wide)
        elif folded:
            found = Tiles(most, few, group=(2 if most == 256 and few == 128 else 4) * wide, stages=5)
        else:
            found = Tiles(most, few, width=(32 if most == 256 else 64) * wide, stages=5)
    if launch.interpreted():
        return replace(found, **changed)
    return _fitted(part, replace(found, **changed), dtype.itemsize)


def shared_bytes(part: str, tile: Tiles, itemsize: int, arch: int) -> int:
    """Bytes of shared memory that a program of `part` takes, at most.

    Right operands, for as many steps as are on their way or here: `stages` where wgmma reads them, from sm_90 on, else
    one less. Of the forward also c, and the products of a block that is not full; of the others the sums, or a step's
    weight, on their way to another layout. On sm_100, where left operands go through shared memory too, the tiles of
    grad_weight take up to 64 KB more than this says, and those that are chosen still fit.
    """
    arriving = max(tile.stages - 1, 1)
    held = tile.stages if arch >= 90 else arriving
    square = BLOCK * BLOCK
    if part == "grad_weight":
        steps = (held * tile.outputs + arriving * 2 * BLOCK) * tile.depth * itemsize
        return max(steps, square * tile.outputs * max(itemsize, 4))
    if part == "grad_c":
        weights = 2 * square if tile.stages > 1 else 0  # of a pair of blocks; without stages they come in registers
        return (arriving * weights + held * tile.rows + square) * tile.depth * itemsize
    deep = tile.group * tile.width
    c = tile.rows * (64 if part == "folded" else 16)
    return max((held * tile.outputs + tile.rows) * deep * itemsize + c, 4 * min(tile.rows * tile.outputs, 64 * 64))


def _fitted(part: str, tile: Tiles, itemsize: int) -> Tiles:
    """The tile, or the first with fewer stages, down to 3, or else shorter steps, that a block has memory for."""
    step = {"forward": "width", "folded": "group"}.get(part, "depth")
    least = 1 if part == "folded" else BLOCK
    shorter = [tile]
    while getattr(shorter[-1], step) > least:
        shorter.append(replace(shorter[-1], **{step: getattr(shorter[-1], step) // 2}))
    tiles = [
        replace(each, stages=stages)
        for fewest in (3, 1)
        for each in shorter
        for stages in range(each.stages, min(fewest, each.stages) - 1, -1)
    ]
    arch, available = launch.architecture(), launch.shared_memory()
    return next((each for each in tiles if shared_bytes(part, each, itemsize, arch) <= available), tiles[-1])


def splits(programs: int, most: int) -> int:
    """Into how many parts a sum is cut, so that `programs` for each fill the processors; by the shape and the tile
    alone, so that sums come out the same on every GPU of as much shared memory. Each part costs a little, for its share
    of the workspace."""
    processors = INTERPRETED if launch.interpreted() else PROGRAMS

    def time(parts: int) -> float:
        return launch.cdiv(programs * parts, processors) / parts + 3e-5 * parts

    return min(range(1, max(1, min(most, max(4, processors // programs))) + 1), key=time)


def forward(
    c: Tensor, weight: Tensor, bias: Tensor, activation: str, precision: str, folded: bool, out: Tensor,
    limits: Limits | None = None, **changed,
) -> None:  # fmt: skip
    """out = act(vec(c cᵀ) weightᵀ + bias), or with a folded weight; contiguous, of one dtype."""
    if out.numel() == 0:
        return
    limits = limits or Limits()
    rows, columns = c.shape
    outputs = weight.shape[0]
    from_row = limits.fold_from_ieee if precision == "ieee" else limits.fold_from
    if folded or not columns or weight.dtype.itemsize < 4 or rows < from_row:
        product = _Product(c, bias, activation, precision, folded, out, outputs, changed)
        product.launch(weight, 0, outputs)
        return
    several, count = min(outputs, limits.fold_outputs), pairs(blocks(columns))
    part = launch.empty((several, folded_width(columns)), weight.dtype, weight)
    product = _Product(c, bias, activation, precision, True, out, several, changed)
    size, at_once = unit(columns, weight.itemsize), 16
    for first in range(0, outputs, several):
        here = min(outputs - first, several)
        kernels.fold_kernel[(count, launch.cdiv(here, at_once))](
            weight, part, first, here, columns // size, count, UNIT=size, OUTPUTS=at_once, num_warps=4
        )
        product.launch(part, first, here)


class _Product:
    """The forward for so many outputs at a time, with a workspace for all of these times."""

    def __init__(
        self, c: Tensor, bias: Tensor, activation: str, precision: str, folded: bool, out: Tensor, outputs: int,
        changed: dict,
    ) -> None:  # fmt: skip
        self.c, self.bias, self.out, self.activation, self.folded = c, bias, out, activation, folded
        self.precision = _precision(c, precision)
        rows, columns = c.shape
        tile = self.tile = tiles("folded" if folded else "forward", c.dtype, precision, rows, outputs, **changed)
        programs = launch.cdiv(rows, tile.rows) * launch.cdiv(outputs, tile.outputs)
        count, whole = launch.cdiv(columns, tile.width), columns // tile.width
        if folded:
            steps = pairs(count) * (BLOCK // tile.group)
            self.sums = [(whole == count, 0, count, splits(programs, steps // 8))]
        else:
            # The last block, if it is not full, by a launch of its own: in one kernel with the others it would keep
            # the compiler from letting their tensor core instructions run asynchronously.
            ranges = [(first, last) for first, last in ((0, whole), (whole, count)) if first < last] or [(0, 0)]
            self.sums = [
                (last <= whole, first, last, splits(programs, (last - first) * columns // 8)) for first, last in ranges
            ]
        several = sum(cut for *_, cut in self.sums)
        self.parts = launch.empty((several, rows, outputs), _sum_dtype(c), c) if several > 1 else None

    def launch(self, weight: Tensor, first: int, outputs: int) -> None:
        """The columns of out from `first` on, from as many rows of this weight."""
        tile, (rows, columns), split = self.tile, self.c.shape, self.parts is not None
        size, length = unit(columns, self.c.itemsize) if columns else 1, self.out.shape[1]
        place = (0, outputs) if split else (first, length)
        part = 0
        for whole, first_block, last_block, cut in self.sums:
            grid = launch.cdiv(rows, tile.rows), launch.cdiv(outputs, tile.outputs), cut
            kernels.forward_kernel[grid](
                self.c, weight, self.bias, self.parts if split else self.out, rows, outputs, columns // size,
                first_block, last_block, part, cut, *place,
                UNIT=size, FOLDED=self.folded, WHOLE=whole, SPLIT=split, ACTIVATION=self.activation,
                PRECISION=self.precision, ROWS=tile.rows, OUTPUTS=tile.outputs, GROUP=tile.group, WIDTH=tile.width,
                STAGES=tile.stages, num_warps=tile.warps,
            )  # fmt: skip
            part += cut
        if split:
            height, width = (256, 64) if launch.interpreted() else (16, 64)
            kernels.finish_kernel[(launch.cdiv(rows, height), launch.cdiv(outputs, width))](
                self.parts, self.bias, self.out, rows, outputs, part, first, length,
                ACTIVATION=self.activation, ROWS=height, OUTPUTS=width, num_warps=4,
            )  # fmt: skip


def backward(
    grad: Tensor, c: Tensor, weight: Tensor, out: Tensor | None, activation: str, precision: str, folded: bool,
    grad_c: Tensor | None, grad_weight: Tensor | None, grad_bias: Tensor | None, most_splits: int = PROGRAMS,
) -> None:  # fmt: skip
    """The gradients that are not None; contiguous, of one dtype. out: of relu. RuntimeError for a folded weight."""
    if folded:
        raise RuntimeError("outer_linear_folded has no gradient: call outer_linear")
    rows, outputs = grad.shape
    of_weight = tiles("grad_weight", c.dtype, precision, rows, outputs)
    depths = launch.cdiv(rows, of_weight.depth)
    # One workspace for g turned and, later, g as it lies.
    relu = activation != "identity"
    turned = launch.empty((max(outputs, 1), max(depths, 1) * of_weight.depth), grad.dtype, grad)
    if grad_bias is not None or grad_weight is not None:
        _turn(grad, out if relu else grad, turned, rows, outputs, depths * of_weight.depth, activation)
    if grad_bias is not None and outputs:
        at_once = 128 if launch.interpreted() else 4
        backwards.bias_kernel[(launch.cdiv(outputs, at_once),)](
            turned, grad_bias, outputs, depths, OUTPUTS=at_once, DEPTH=of_weight.depth, num_warps=1
        )
    if grad_weight is not None and grad_weight.numel():
        _weight_gradient(c, turned, grad_weight, depths, precision, of_weight)
    if grad_c is not None and grad_c.numel():
        if relu and outputs:
            backwards.masked_kernel[(launch.cdiv(grad.numel(), 4096),)](
                grad, out, turned, grad.numel(), ACTIVATION=activation, TILE=4096, num_warps=8
            )
        _c_gradient(c, weight, turned if relu else grad, grad_c, precision, most_splits)


def _turn(x: Tensor, out: Tensor, turned: Tensor, rows: int, columns: int, stride: int, activation: str) -> None:
    """turned [columns, stride] = x [rows, columns] turned over, times the activation's derivative."""
    side = 256 if launch.interpreted() else 32
    if columns and stride:
        backwards.transpose_kernel[(launch.cdiv(stride, side), launch.cdiv(columns, side))](
            x, out, turned, rows, columns, stride, ACTIVATION=activation, TILE=side, num_warps=4
        )


def _weight_gradient(
    c: Tensor, turned: Tensor, grad_weight: Tensor, depths: int, precision: str, tile: Tiles
) -> None:
    rows, columns = c.shape
    outputs = grad_weight.shape[0]
    stride = depths * tile.depth
    c_turned = launch.empty((columns, max(stride, 1)), c.dtype, c)
    _turn(c, c, c_turned, rows, columns, stride, "identity")
    size = unit(columns, c.itemsize)
    backwards.weight_kernel[(pairs(blocks(columns)), launch.cdiv(outputs, tile.outputs))](
        c_turned, turned, grad_weight, outputs, columns // size, depths,
        UNIT=size, PRECISION=_precision(c, precision), OUTPUTS=tile.outputs, DEPTH=tile.depth, STAGES=tile.stages,
        num_warps=tile.warps,
    )  # fmt: skip


def _c_gradient(c: Tensor, weight: Tensor, g: Tensor, grad_c: Tensor, precision: str, most_splits: int) -> None:
    rows, columns = c.shape
    outputs = weight.shape[0]
    tile = tiles("grad_c", c.dtype, precision, rows, outputs)
    count = pairs(blocks(columns))
    row_tiles = launch.cdiv(rows, tile.rows)
    cut = splits(row_tiles, min(count, most_splits))
    parts = grad_c
    if cut > 1 or grad_c.dtype != _sum_dtype(c):
        parts = launch.empty((cut, rows, columns), _sum_dtype(c), c)
    size, h_size = unit(columns, c.itemsize), unit(outputs, c.itemsize) if outputs else 1
    backwards.c_kernel[(row_tiles, cut)](
        c, weight, g, parts, rows, outputs // h_size, columns // size, cut, count,
        UNIT=size, H_UNIT=h_size, PRECISION=_precision(c, precision), ROWS=tile.rows, DEPTH=tile.depth,
        STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    if parts is not grad_c:
        at_once = 8192 if launch.interpreted() else 1024
        backwards.c_sum_kernel[(launch.cdiv(grad_c.numel(), at_once),)](
            parts, grad_c, grad_c.numel(), cut, TILE=at_once, num_warps=4
        )


def _sum_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _precision(tensor: Tensor, precision: str) -> str:
    return precision if tensor.dtype == torch.float32 else "ieee"
