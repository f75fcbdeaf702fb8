"""Which tiles and splits outer_linear's kernels get, and which of them few rows take."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...device import launch
from .folding import BLOCK, folded_width

PROGRAMS = 132  # an H200's processors, each of which has room for one of these programs
INTERPRETED = 4  # in place of it: the interpreter runs one after the other


@dataclass(frozen=True)
class Tiles:
    """What a program takes, and how much of it in a step:

        forward      rows × outputs; group · width products a step
        grad_weight  outputs; depth rows a step
        grad_c       rows; depth outputs a step

    stages: steps whose operands are on their way or there already.
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

    fold_from: rows from which on a float32 or float64 weight is folded first, into a workspace of some half its size,
        if that leaves at most `fold_share` of its columns: to fill few up to 16 makes more of them. Folding moves the
        weight once, halves the products, and rounds to tf32 once for all rows: of C = 432 and H = 512 on an H200,
        454 µs for 553 of 256 rows, and 772 for 1850 of 2048. (64 outputs at a time, which takes an eighth of the
        workspace, 1070.) Halves are not folded, for that would round the folded weight.
    fold_outputs: the most that the folding kernel's grid has room for, 16 a program and 65535 programs high. A weight
        of more outputs is taken as given.
    round_from: rows from which on a folded weight is rounded to tf32 first, too: of 512 rows 302 µs for 249, of 2048
        718 for 832.
    share: of the weight, the most that each of grad_c's workspaces takes, one for a part of the folded weight, one for
        parts of the sums; but `least_pairs` pairs of blocks and `least` bytes of sums they may take in any case.
    few_rows: rows up to which the memory counts: in tf32 forward and grad_c then take the weight as given, in an order
        that suits DRAM. With 382 MB and 128 rows, on an H200, grad_c takes 202 µs instead of 344.
    """

    fold_from: int = 128
    fold_share: float = 0.75
    fold_outputs: int = 16 * 65535
    round_from: int = 1024
    share: float = 0.09
    least: int = 2**24
    least_pairs: int = 16
    few_rows: int = 128

    def folds(self, rows: int, columns: int, outputs: int) -> bool:
        """Whether a weight is folded first, for c [rows, columns]."""
        is_less = 0 < folded_width(columns) <= self.fold_share * columns**2
        return rows >= self.fold_from and is_less and outputs <= self.fold_outputs

    def pairs_at_once(self, weight_bytes: int, pair_bytes: int) -> int:
        """Pairs of blocks that grad_c folds at once: by sixteens, for then one kernel, compiled for numbers that are
        divisible by 16, takes them all."""
        several = int(self.share * weight_bytes) // max(pair_bytes, 1)
        return max(self.least_pairs, several // BLOCK * BLOCK)

    def parts(self, weight_bytes: int, part_bytes: int) -> int:
        """The most parts of grad_c's sums."""
        return max(1, max(int(self.share * weight_bytes), self.least) // max(part_bytes, 1))


def tiles(part: str, dtype: torch.dtype, precision: str, rows: int, outputs: int, /, **changed) -> Tiles:
    """What a program of `part` takes: forward, few_rows, folded, grad_weight, grad_c or direct_c. changed: other values
    for some of it.

    A right operand of OUTPUTS · step numbers is read from the L2 for ROWS · OUTPUTS · step products, so a program must
    have 256 rows for 1024 products a clock to be fed with 16 bytes: 132 processors then take 3.7 TB/s of the L2's 5.5.
    256 × 128 sums are half of the registers; the rest has room for two of the operands that are formed. Few rows are
    bound by the memory instead: of a weight as given 128 bytes of a row at a time, and stages for 80 KB on their way.
    Where a block may have less shared memory than an H200's, there are fewer stages, or shorter steps.
    """
    folded = part == "folded"
    if launch.interpreted():  # whose time goes by the program and by the step, not by the element
        height, width = launch.next_power_of_2(rows), launch.next_power_of_2(outputs)
        chosen = Tiles(
            rows=max(16, min(1024, height)), outputs=max(16, min(128, width)), group=BLOCK if folded else 1,
            width=BLOCK if folded else 64, depth=max(64, min(1024, height)), stages=1, warps=4,
        )
        if part == "grad_c":
            chosen = replace(chosen, depth=max(16, min(128, width)))
        if part in ("direct_c", "few_rows"):
            chosen = replace(chosen, group=4 if part == "direct_c" else 1, width=BLOCK, depth=BLOCK)
    elif dtype == torch.float64 or (dtype == torch.float32 and precision == "ieee"):
        # Without tensor cores the operands of a step are in registers, too.
        narrow = 64 if dtype == torch.float32 and part in ("forward", "folded") else 32
        chosen = Tiles(rows=narrow, outputs=narrow, depth=16)
    else:
        wide = 4 // dtype.itemsize  # halves: steps of as many bytes
        most = 256 if rows > 128 else 128 if rows > 64 else 64
        few = 64 if outputs <= 64 else 128
        if part == "grad_weight":  # whose sums go through shared memory in the end
            room = launch.shared_memory() >= 4 * few * BLOCK**2
            chosen = Tiles(outputs=few if room else 64, depth=64 * wide, stages=4)
        elif part == "grad_c":  # 128 rows by 256 columns: half of the registers; 64, where that is more programs
            enough = rows > 128 and launch.architecture() >= 90  # before wgmma operands are in registers, too
            chosen = Tiles(rows=128 if enough else 64, depth=32 * wide, stages=4)
        elif part == "direct_c":  # two programs a processor: one multiplies while the other adds up its tile
            chosen = Tiles(rows=most, group=2, width=64, depth=32, stages=3, warps=4)
        elif part == "few_rows":  # runs of 256 bytes: of 128 it took longer; two programs a processor
            chosen = Tiles(most, 64, width=64, stages=4, warps=4)
        elif folded:
            chosen = Tiles(most, few, group=4 * wide, stages=3)
        else:
            chosen = Tiles(most, few, width=32 * wide, stages=5)
    if launch.interpreted():
        return replace(chosen, **changed)
    return _fitted(part, replace(chosen, **changed), dtype.itemsize)


def shared_bytes(part: str, tile: Tiles, itemsize: int, arch: int) -> int:
    """Bytes of shared memory that a program of `part` takes, at most.

    Right operands, for as many steps as are on their way or here: `stages` where wgmma reads them, from sm_90 on, else
    one less. The forward also has c, and the products of a block that is not full; the others the sums, or a step's
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
    if part == "direct_c":  # a step's weight goes to another layout by halves
        return ((arriving * deep + held * tile.rows) * 2 + deep) * tile.depth * itemsize // 2
    c = tile.rows * (64 if part == "folded" else 16)
    return max((held * tile.outputs + tile.rows) * deep * itemsize + c, 4 * min(tile.rows * tile.outputs, 64 * 64))


def _fitted(part: str, tile: Tiles, itemsize: int) -> Tiles:
    """The tile, or the first with fewer stages, down to 3, or else shorter steps, that a block has memory for."""
    step = {"forward": "width", "few_rows": "width", "folded": "group"}.get(part, "depth")
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


def processors_to_fill() -> int:
    """Programs of one wave, one a processor."""
    return INTERPRETED if launch.interpreted() else PROGRAMS


def splits(programs: int, most: int) -> int:
    """Into how many parts a sum is cut, so that `programs` for each fill the processors; by the shape and the tile
    alone, so that sums come out the same on every GPU of as much shared memory. Each part costs a little, for its share
    of the workspace."""
    processors = processors_to_fill()

    def time(parts: int) -> float:
        return launch.cdiv(programs * parts, processors) / parts + 3e-5 * parts

    return min(range(1, max(1, min(most, max(4, processors // programs))) + 1), key=time)


def suits_few_rows(c: Tensor, weight: Tensor, precision: str, part: str, limits: Limits) -> bool:
    """Whether the kernels for few rows are taken: they were measured on sm_90, and have no masks for a short block."""
    (rows, columns), outputs = c.shape, weight.shape[0]
    if rows > limits.few_rows or c.dtype != torch.float32 or precision != "tf32" or launch.architecture() != 90:
        return False
    tile = tiles(part, c.dtype, precision, rows, outputs)
    return columns >= tile.width and outputs > 0 and (part != "direct_c" or outputs % tile.depth == 0)
