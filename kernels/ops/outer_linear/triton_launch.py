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
    """Of the forward: rows × outputs of a program, group · width products a step. Of grad_weight: outputs of a program,
    depth rows a step. Of grad_c: rows of a program, depth outputs a step. stages: steps whose operands are on their way
    or here.
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
    share: of the weight, the most that each of grad_c's workspaces takes, one for a part of the folded weight, one for
        parts of the sums; but `least_pairs` pairs of blocks and `least` bytes of sums they may take in any case.
    """

    fold_from: int = 512
    fold_from_ieee: int = 128
    fold_outputs: int = 64
    share: float = 0.09
    least: int = 2**24
    least_pairs: int = 16

    def pairs_at_once(self, weight_bytes: int, pair_bytes: int) -> int:
        """Pairs of blocks that grad_c folds at once: by sixteens, for then one kernel, compiled for numbers that are
        divisible by 16, takes them all."""
        several = int(self.share * weight_bytes) // max(pair_bytes, 1)
        return max(self.least_pairs, several // BLOCK * BLOCK)

    def parts(self, weight_bytes: int, part_bytes: int) -> int:
        """The most parts of grad_c's sums."""
        return max(1, max(int(self.share * weight_bytes), self.least) // max(part_bytes, 1))


def tiles(part: str, dtype: torch.dtype, precision: str, rows: int, outputs: int, /, **changed) -> Tiles:
    """What a program of `part` (forward, folded, grad_weight, grad_c) takes. changed: other values for some of it.

    A right operand of OUTPUTS · step numbers is read from the L2 for ROWS · OUTPUTS · step products, so a program must
    have 256 rows for 1024 products a clock to be fed with 16 bytes: 132 processors then take 3.7 TB/s of the L2's 5.5.
    256 × 128 sums are half of the registers; the rest has room for two of the operands that are formed. Few rows are
    bound by the memory instead: of a weight as given 128 bytes of a row at a time, and stages for 80 KB on their way.
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
            found = replace(found, depth=max(16, min(128, width)))
    elif dtype == torch.float64 or (dtype == torch.float32 and precision == "ieee"):
        # Without tensor cores the operands of a step are in registers, too.
        narrow = 64 if dtype == torch.float32 and part in ("forward", "folded") else 32
        found = Tiles(rows=narrow, outputs=narrow, depth=16)
    else:
        wide = 4 // dtype.itemsize  # halves: steps of as many bytes
        most = 256 if rows > 128 else 128 if rows > 64 else 64
        few = 64 if outputs <= 64 else 128
        if part == "grad_weight":  # whose sums go through shared memory in the end
            room = launch.shared_memory() >= 4 * few * BLOCK**2
            found = Tiles(outputs=few if room else 64, depth=64 * wide, stages=4)
        elif part == "grad_c":  # 128 rows by 256 columns: half of the registers; 64, where that is more programs
            enough = rows > 128 and launch.architecture() >= 90  # before wgmma operands are in registers, too
            found = Tiles(rows=128 if enough else 64, depth=32 * wide, stages=4)
        elif folded:
            found = Tiles(most, few, group=4 * wide, stages=3)
        else:
            found = Tiles(most, few, width=32 * wide, stages=5)
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
        return held * (tile.rows + square) * tile.depth * itemsize
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
    for first in range(0, outputs, several):
        here = min(outputs - first, several)
        _fold(weight, part, columns, outputs=(first, here), pairs=(0, count))
        product.launch(part, first, here)


def fold(weight: Tensor, columns: int, folded: Tensor) -> None:
    """folded [H, folded_width(C)] of weight [H, C²]; contiguous, of one dtype."""
    if folded.numel():
        _fold(weight, folded, columns, outputs=(0, folded.shape[0]), pairs=(0, pairs(blocks(columns))))


def _fold(
    weight: Tensor, folded: Tensor, columns: int, *, outputs: tuple[int, int], pairs: tuple[int, int], length: int = 0
) -> None:
    """Fold some outputs and pairs, each (first, how many); for grad_c with outputs innermost, in rows of `length`."""
    size = unit(columns, weight.itemsize)
    (first_output, several), (first_pair, count), turned = outputs, pairs, length > 0
    at_once = 32 if turned else 16
    if launch.interpreted():
        at_once = max(16, min(128, launch.next_power_of_2(several)))
    kernels.fold_kernel[(count, launch.cdiv(length if turned else several, at_once))](
        weight, folded, first_pair, first_output, several, columns // size, length or folded_width(columns),
        UNIT=size, TURNED=turned, OUTPUTS=at_once, num_warps=8 if turned else 4,
    )  # fmt: skip


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
            if whole < count and tile.rows * tile.outputs > 2**14 and "group" not in changed:
                # The selection of a last block that is not full takes registers, too, and the operands would spill.
                tile = self.tile = replace(tile, group=max(1, tile.group // 2))
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
    grad_c: Tensor | None, grad_weight: Tensor | None, grad_bias: Tensor | None, limits: Limits | None = None,
) -> None:  # fmt: skip
    """The gradients that are not None; contiguous, of one dtype. out: of relu. RuntimeError for a folded weight."""
    if folded:
        raise RuntimeError("outer_linear_folded has no gradient: call outer_linear")
    (rows, outputs), columns = grad.shape, c.shape[1]
    of_weight = tiles("grad_weight", c.dtype, precision, rows, outputs)
    depths = launch.cdiv(rows, of_weight.depth)
    stride = max(depths, 1) * of_weight.depth
    needs_c, needs_weight = (wanted is not None and wanted.numel() > 0 for wanted in (grad_c, grad_weight))
    of_c = _CGradient(c, weight, grad_c, precision, limits or Limits()) if needs_c else None
    # One workspace for g turned and, later, g as it lies; one for c turned and, later, the folded weight.
    relu = activation != "identity"
    turned = launch.empty((max(outputs, 1), stride), grad.dtype, grad)
    second = max(columns * stride if needs_weight else 0, of_c.folded_elements if needs_c else 0)
    second = launch.empty((second,), c.dtype, c)
    if grad_bias is not None or grad_weight is not None:
        _turn(grad, out if relu else grad, turned, rows, outputs, depths * of_weight.depth, activation)
    if grad_bias is not None and outputs:
        at_once = 128 if launch.interpreted() else 4
        backwards.bias_kernel[(launch.cdiv(outputs, at_once),)](
            turned, grad_bias, outputs, depths, OUTPUTS=at_once, DEPTH=of_weight.depth, num_warps=1
        )
    if needs_weight:
        _weight_gradient(c, turned, second, grad_weight, depths, precision, of_weight)
    if needs_c:
        if relu and outputs:
            backwards.masked_kernel[(launch.cdiv(grad.numel(), 4096),)](
                grad, out, turned, grad.numel(), ACTIVATION=activation, TILE=4096, num_warps=8
            )
        of_c.launch(turned if relu else grad, second)


def _turn(x: Tensor, out: Tensor, turned: Tensor, rows: int, columns: int, stride: int, activation: str) -> None:
    """turned [columns, stride] = x [rows, columns] turned over, times the activation's derivative."""
    side = 256 if launch.interpreted() else 32
    if columns and stride:
        backwards.transpose_kernel[(launch.cdiv(stride, side), launch.cdiv(columns, side))](
            x, out, turned, rows, columns, stride, ACTIVATION=activation, TILE=side, num_warps=4
        )


def _weight_gradient(
    c: Tensor, turned: Tensor, c_turned: Tensor, grad_weight: Tensor, depths: int, precision: str, tile: Tiles
) -> None:
    rows, columns = c.shape
    outputs = grad_weight.shape[0]
    _turn(c, c, c_turned, rows, columns, depths * tile.depth, "identity")
    size = unit(columns, c.itemsize)
    backwards.weight_kernel[(pairs(blocks(columns)), launch.cdiv(outputs, tile.outputs))](
        c_turned, turned, grad_weight, outputs, columns // size, depths,
        UNIT=size, PRECISION=_precision(c, precision), OUTPUTS=tile.outputs, DEPTH=tile.depth, STAGES=tile.stages,
        num_warps=tile.warps,
    )  # fmt: skip


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
                _fold(self.weight, folded, columns, outputs=(0, outputs), pairs=(first, here), length=length)
            backwards.c_kernel[(launch.cdiv(rows, tile.rows), self.splits)](
                c, folded, g, parts, rows, outputs // h_size, columns // size, first, self.pairs, self.at_once,
                self.splits, self.depths,
                UNIT=size, H_UNIT=h_size, WHOLE=columns % BLOCK == 0, PRECISION=self.precision, ROWS=tile.rows,
                DEPTH=tile.depth, STAGES=tile.stages, num_warps=tile.warps,
            )  # fmt: skip
        if parts is not grad_c:
            at_once = 8192 if launch.interpreted() else 1024
            backwards.c_sum_kernel[(launch.cdiv(grad_c.numel(), at_once),)](
                parts, grad_c, grad_c.numel(), self.splits, TILE=at_once, num_warps=4
            )


def _sum_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _precision(tensor: Tensor, precision: str) -> str:
    return precision if tensor.dtype == torch.float32 else "ieee"
