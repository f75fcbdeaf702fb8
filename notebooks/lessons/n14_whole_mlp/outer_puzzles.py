"""One problem on the way to the outer product's layer, a kernel with a hole: its launch, and what it must give.

    operand   c [B, C], weight [H, C·C] → [B, H]: vec(c cᵀ) weightᵀ, whose left operand is formed tile by tile
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from kernels.ops.outer_linear.eager import outer_linear
from lessons.shared.puzzle import InTriton

ROWS, OUTPUTS, STEP = 16, 16, 16


def launch(kernel, c: Tensor, weight: Tensor) -> Tensor:
    """kernel[row tiles](c, weight, out, B, H, C, ROWS, OUTPUTS, STEP); H ≤ OUTPUTS."""
    out = torch.empty(len(c), len(weight), dtype=c.dtype, device=c.device)
    grid = (-(-len(c) // ROWS),)
    kernel[grid](c, weight, out, len(c), len(weight), c.shape[1], ROWS=ROWS, OUTPUTS=OUTPUTS, STEP=STEP)
    return out


def quadratic(c: Tensor, weight: Tensor) -> Tensor:
    """The reference."""
    return outer_linear(c, weight, weight.new_zeros(len(weight)))


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, columns = case.shape
    outputs = OUTPUTS if columns % 4 == 0 else 5
    tensors = case.tensor(1, device), case.tensor(2, device, (outputs, columns**2))
    if rows > 2 * ROWS:
        tensors[0][5, 2] = torch.nan
    hint = f"k counts through C · C = {columns**2} pairs row by row: which i, and which j, is k's?"
    if columns**2 > STEP:
        hint = f"C · C = {columns**2} takes {-(-(columns**2) // STEP)} steps: where do the sums of the earlier ones go?"
    if rows % ROWS:
        hint = f"the tile has rows beyond B = {rows}, and c has no more; and k = i · C + j goes row by row."
    if columns**2 % STEP:
        hint = f"the last step has columns beyond C · C = {columns**2}; undefined · 0 may be NaN."
    yield Call(f"{rows} rows of {columns}", tensors, hint=hint)


SHAPES = ((16, 4), (16, 8), (5, 8), (33, 7), (3, 1), (16, 16))
SPEC = Spec(quadratic, _calls, scale=Sums(k=8), cases=lambda names: [*map(Case, SHAPES)])
PUZZLES = {"operand": InTriton(SPEC, launch, __name__)}
