"""LoRA's kernel as a puzzle.

lora_kernel   out = relu(linear + multiplier · thin B + bias), by tiles of ROWS × COLUMNS
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from lessons.shared.puzzle.shares import SharedOut

ROWS, COLUMNS, RANK = 16, 32, 16
# Names of the cases, by their rows.
NAN, LARGE = 17, 18


def launch(
    kernel, linear: Tensor, thin: Tensor, B: Tensor, bias: Tensor, multiplier: float, out: Tensor | None = None
) -> Tensor:
    """kernel[row tiles, column tiles](linear, thin, B, bias, out, multiplier, rows, columns, RANK, ROWS, COLUMNS)."""
    rows, columns = linear.shape
    out = torch.empty_like(linear) if out is None else out
    grid = -(-rows // ROWS), -(-columns // COLUMNS)
    tile = {"RANK": RANK, "ROWS": ROWS, "COLUMNS": COLUMNS}
    kernel[grid](linear, thin, B, bias, out, multiplier, rows, columns, **tile)
    return out


def lora_tail(linear: Tensor, thin: Tensor, B: Tensor, bias: Tensor, multiplier: float) -> Tensor:
    return torch.relu(linear + multiplier * (thin @ B) + bias)


def _magnitude(linear: Tensor, thin: Tensor, B: Tensor, bias: Tensor, multiplier: float) -> Tensor:
    return linear + abs(multiplier) * (thin @ B) + bias


def _hint(rows: int, columns: int) -> str:
    if rows == NAN:
        return "Row 7 of linear has a NaN, and relu(NaN) is NaN. tl.maximum gives 0, and so does the comparison z > 0."
    if rows == LARGE:
        return "The product thin B exceeds 65,504, the largest float16: keep tl.dot's sum and all after it in float32."
    if rows % ROWS or columns % COLUMNS:
        return f"Which elements of the last tiles exist, with {rows} rows and {columns} columns? Mask each axis."
    if rows > ROWS or columns > COLUMNS:
        return (
            "In the grid, program_id(0) counts the tiles of rows and program_id(1) those of columns. A row of B or out "
            "has `columns` elements."
        )
    return (
        "The sum is linear + multiplier · thin B + bias. The multiplier scales thin B alone, and relu comes last. A "
        "row of B has `columns` elements, and each column has one bias. In tl.dot, float32 stays float32."
    )


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, columns = case.shape
    shapes = (rows, columns), (rows, RANK), (RANK, columns), (columns,)
    linear, thin, B, bias = (case.tensor(seed, device, shape) for seed, shape in enumerate(shapes, 1))
    multiplier = -0.5
    if rows == NAN:
        linear[7, 3] = math.nan
    if rows == LARGE:
        thin, B, multiplier = 8 + thin.abs(), 800 + B.abs(), 0.25
        linear, thin, B, bias = (tensor.half() for tensor in (linear, thin, B, bias))
    yield Call(
        f"{rows}×{columns}, multiplier {multiplier}, {str(linear.dtype)[6:]}", (linear, thin, B, bias), (multiplier,),
        hint=_hint(rows, columns),
    )


SHAPES = ((16, 32), (48, 64), (5, 7), (37, 45), (1, 1), (NAN, 32), (LARGE, 32))
SPEC = Spec(lora_tail, _calls, scale=Sums(magnitude=_magnitude), cases=lambda names: [*map(Case, SHAPES)])


def _looked_at() -> list[tuple[str, tuple, Tensor, int]]:
    """Four tiles, for as many programs."""
    rows, columns = 2 * ROWS, 2 * COLUMNS
    linear, thin, B, bias, out = (torch.zeros(size) for size in (
        (rows, columns), (rows, RANK), (RANK, columns), columns, (rows, columns)
    ))
    return [(f"{rows}×{columns}", (linear, thin, B, bias, 1.0, out), out, 4)]


OWN = "All programs run at the same time. Program (i, j) stores one tile: row tile i, column tile j."
PUZZLES = {"lora_kernel": SharedOut(SPEC, launch, __name__, looked_at=_looked_at, hint=OWN)}
