"""The puzzles of 13_softmax_to_matrix_product.ipynb.

flash     flash_puzzle.py
product   the capstone: x [M, K], weight [N, K], bias [N] → relu(x weightᵀ + bias), a tile a program, tiles in groups
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessons.n13_softmax_to_matrix_product import flash_puzzle
from lessons.shared import layer_puzzles
from lessons.shared.layer_puzzles import COLUMNS, ROWS, STEP, height
from lessons.shared.puzzle import InTriton, Judge
from lessons.shared.puzzle.shares import stores_of

GROUP = 2  # rows of tiles that are taken together


def launch(kernel, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *options) -> Tensor:
    """kernel[tiles](x, weight, bias, out, M, N, K, ROWS, COLUMNS, STEP, GROUP)."""
    (M, K), N = x.shape, len(biases[0])
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    grid = (-(-M // height(M)) * -(-N // COLUMNS),)
    kernel[grid](x, *weights, *biases, out, M, N, K, ROWS=height(M), COLUMNS=COLUMNS, STEP=STEP, GROUP=GROUP)
    return out


def place(program: int, rows: int, columns: int, group: int) -> tuple[int, int]:
    """The tile that a program takes: `group` rows of tiles at a time, down first, then to the right."""
    first = program // (group * columns) * group
    high = min(group, rows - first)
    inside = program % (group * columns)
    return first + inside % high, inside // high


@dataclass(frozen=True)
class Grouped(InTriton):
    """A puzzle whose programs take the tiles in groups."""

    def hold(self, name: str, answer: Callable, device: torch.device) -> str:
        text = super().hold(name, answer, device)
        rows, columns = 5, 3
        x, weight = torch.zeros(rows * ROWS, STEP), torch.zeros(columns * COLUMNS, STEP)
        out = torch.empty(len(x), len(weight))
        constants = {"ROWS": ROWS, "COLUMNS": COLUMNS, "STEP": STEP, "GROUP": GROUP}
        arguments = (x, weight, torch.zeros(len(weight)), out, len(x), len(weight), STEP)
        stores = stores_of(answer, lambda kernel: kernel[(rows * columns,)](*arguments, **constants), out)
        took = {program: divmod(min(offsets), len(weight)) for program, offsets in reversed(stores) if offsets}
        for program in range(rows * columns):
            row, column = took[program]
            tile, expected = (row // ROWS, column // COLUMNS), place(program, rows, columns, GROUP)
            if tile != expected:
                raise AssertionError(
                    f"{name}: the result is right, but of {rows}×{columns} tiles in groups of {GROUP} rows program "
                    f"{program} takes tile {tile}, not {expected}\nHint: In a group programs go down first. A group "
                    "has GROUP · columns tiles; the last one may have fewer rows: go down as many, not GROUP."
                )
        return text


PUZZLES = flash_puzzle.PUZZLES | {"product": Grouped(layer_puzzles.PUZZLES["layer"].spec, launch, __name__)}
attempt = Judge(PUZZLES).attempt
