"""A puzzle in plain Python, place: which tile a program takes. What it must give, and attempt(), which checks it.

place   a program, the rows and columns of tiles, how many rows of tiles are a group → (row, column) of its tile
"""

from __future__ import annotations

from dataclasses import replace

import torch

from lessons.n13_softmax_to_matrix_product import arithmetic, product_kernels, softmax_puzzles
from lessons.shared import layer_puzzles
from lessons.shared.puzzle import Drawn, Judge

_DOWN = "In a group programs go down first: program 1 has the tile below program 0's."
_NEXT = "A group has group · columns tiles. After them the next group begins, `group` rows further down."
_HIGH = "A group's height is the same for all of its programs: is it here?"
_LAST = "The last group has only the rows that are left: go down as many, not `group`."
# What each case is called, the arguments, and what to think of if it is the first that fails.
CASES: tuple[tuple[str, tuple[int, int, int, int], str], ...] = (
    ("the first program", (0, 4, 5, 2), "Program 0 begins at tile (0, 0)."),
    ("the second", (1, 4, 5, 2), _DOWN),
    ("the third", (2, 4, 5, 2), "With 2 rows a group, program 2 is at the top of the next column."),
    ("the last of a group", (9, 4, 5, 2), _DOWN),
    ("the next group", (10, 4, 5, 2), _NEXT),
    ("within it", (13, 4, 5, 2), _NEXT),
    ("the very last", (19, 4, 5, 2), _HIGH),
    ("groups of 3", (7, 6, 4, 3), "`group` is 3 here."),
    ("a full group above a lower one", (3, 3, 5, 2), "This group is full: only the last is lower."),
    ("a last group of one row", (14, 3, 5, 2), _LAST),
    ("its first tile", (10, 3, 5, 2), _LAST),
    ("a last group of two rows", (45, 8, 7, 3), _LAST),
    ("after a group that its height does not divide", (15, 5, 5, 3), "A group's programs are counted from its first."),
    ("fewer rows than a group", (5, 2, 9, 8), _LAST),
    ("groups of one", (7, 4, 5, 1), "With one row a group, programs go along a row."),
)


def _drawn() -> tuple[int, int, int, int]:
    rows, columns, group = (int(torch.randint(1, most, ())) for most in (80, 80, 20))
    return int(torch.randint(rows * columns, ())), rows, columns, group


_PRODUCTS = {
    "sums": layer_puzzles.PUZZLES["sums"],
    "epilogue": replace(layer_puzzles.PUZZLES["epilogue"], allowed=(product_kernels.tile_sums, product_kernels.relu)),
}
PUZZLES = softmax_puzzles.PUZZLES | _PRODUCTS | {
    "place": Drawn(arithmetic.place, CASES, draw=_drawn, hint=f"{_NEXT} {_LAST}", index=True)
}
attempt = Judge(PUZZLES).attempt
