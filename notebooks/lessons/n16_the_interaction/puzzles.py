"""The puzzles of 16_the_interaction.ipynb, each an empty kernel: the launches, and what they must give.

    row    dense [B, D], sparse [B, F, D] → [B, D + F (F + 1) / 2]: the dense vector, then t_i · t_j for j < i, row by
           row, with t_0 the dense vector and t_1 … t_F the sparse ones; a program a row
    rows   the same; a program takes ROWS rows, and tl.dot multiplies
    ids    the same of t_f = tables[row_offsets[f - 1] + ids[b, f - 1]]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from kernels.inductor.compile import define
from kernels.ops.dot_interaction.eager import dot_interaction, width
from kernels.ops.lookup_interact.eager import lookup_interact
from lessons.shared import answers
from lessons.shared.far import FAR, behind, has_room
from lessons.shared.puzzle import Judge
from lessons.shared.puzzle.shares import SharedOut

ROWS = 4  # of a program of `rows` and `ids`
HEIGHTS = (3, 1, 7, 2, 5)  # of the tables, over and over
FEW = (5, 3, 2)  # the case whose first table also has FAR rows more, in half precision: a GPU has room
# What the pictures of `row` and `ids` draw: dense, sparse, out; dense, tables, row_offsets, ids, out.
SMALL = torch.zeros(2, 2), torch.zeros(2, 3, 2), torch.zeros(2, 8)
SMALL_IDS = (
    torch.zeros(4, 2), torch.zeros(8, 2), torch.tensor([0, 3, 4, 8]),
    torch.tensor([[2, 0, 1], [0, 0, 3], [1, 0, 0], [0, 0, 2]]), torch.zeros(4, 8),
)


def blocks(features: int, columns: int, least: int = 1) -> dict[str, int]:
    """VECTORS and COLUMNS, the powers of two that hold a row's vectors and a vector's columns; tl.dot needs 16."""
    return {
        "VECTORS": max(least, triton.next_power_of_2(features + 1)),
        "COLUMNS": max(least, triton.next_power_of_2(columns)),
    }


def launch_row(kernel, dense: Tensor, sparse: Tensor, out: Tensor | None = None) -> Tensor:
    """kernel[B](dense, sparse, out, F, D, W, VECTORS, COLUMNS)."""
    (B, F, D), W = sparse.shape, width(*sparse.shape[1:])
    out = dense.new_empty(B, W) if out is None else out
    kernel[(B,)](dense, sparse, out, F, D, W, **blocks(F, D))
    return out


def launch_rows(kernel, dense: Tensor, sparse: Tensor, out: Tensor | None = None) -> Tensor:
    """kernel[B / ROWS](dense, sparse, out, B, F, D, W, ROWS, VECTORS, COLUMNS, PRECISION)."""
    (B, F, D), W = sparse.shape, width(*sparse.shape[1:])
    out = dense.new_empty(B, W) if out is None else out
    grid = (triton.cdiv(B, ROWS),)
    kernel[grid](dense, sparse, out, B, F, D, W, ROWS=ROWS, PRECISION="ieee", **blocks(F, D, 16))
    return out


def launch_ids(
    kernel, dense: Tensor, tables: Tensor, row_offsets: Tensor, ids: Tensor, first: int = 0, out: Tensor | None = None
) -> Tensor:
    """kernel[B / ROWS](dense, tables, row_offsets, ids, out, B, F, D, W, ROWS, VECTORS, COLUMNS, PRECISION).

    first: rows that the first table has more than `tables`; its ids and row_offsets know of them.
    """
    (B, F), D = ids.shape, dense.shape[1]
    W = width(F, D)
    out = dense.new_empty(B, W) if out is None else out
    tensors = dense, behind(tables, first), row_offsets, ids, out
    kernel[(triton.cdiv(B, ROWS),)](*tensors, B, F, D, W, ROWS=ROWS, PRECISION="ieee", **blocks(F, D, 16))
    return out


def interact(dense: Tensor, sparse: Tensor) -> Tensor:
    """The reference of `row` and `rows`."""
    return dot_interaction(dense, sparse)


def look_up_and_interact(dense: Tensor, tables: Tensor, row_offsets: Tensor, ids: Tensor, first: int = 0) -> Tensor:
    """The reference of `ids`."""
    if first:
        ids, row_offsets = ids - first * (torch.arange(ids.shape[1], device=ids.device) == 0), row_offsets - first
        row_offsets[0] = 0
    return lookup_interact(dense, tables, row_offsets, ids)


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, features, columns = (*case.shape, 1, 1)[:3]
    tensors = case.tensor(1, device, (rows, columns)), case.tensor(2, device, (rows, features, columns))
    hint = f"(1, 0), (2, 0), (2, 1), (3, 0), …: how many pairs come before those of i? And D = {columns} elements "
    hint += "before all pairs."
    if columns == 10:
        hint = f"a vector has {columns} elements, and a line of the block 16: what do the masks say of the others?"
    elif rows == 5:
        hint = f"there are {rows} rows, and the last program of several has fewer: what do the masks say of the others?"
    yield Call(f"{case}", tensors, hint=hint)


def _id_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, features, columns = (*case.shape, 1, 1)[:3]
    heights = torch.tensor([HEIGHTS[f % len(HEIGHTS)] for f in range(features)])
    row_offsets = torch.tensor([0, *accumulate(heights.tolist())], device=device)
    dense, tables = case.tensor(1, device, (rows, columns)), case.tensor(2, device, (int(heights.sum()), columns))
    ids = (Case((rows, features)).integers(2, 2**31, shape=(rows, features)) % heights).to(device)
    hint = "vector i is a row of table i - 1. ids is [B, F]: which place has the id of row b and table i - 1, and in "
    hint += f"which row of `tables` does that table begin? row_offsets is {row_offsets.tolist()[:6]}."
    yield Call(f"{case}", (dense, tables, row_offsets, ids), hint=hint)
    if case.shape == FEW and has_room(device, tables.half()):
        more = FAR * (torch.arange(features, device=device) == 0)
        far = dense.half(), tables.half(), torch.cat([row_offsets[:1], row_offsets[1:] + FAR]), ids + more
        hint = f"the first table has {FAR:,} rows more: an id and its row's place need all of their 64 bits."
        yield Call(f"{case}, rows beyond 2^32", far, (FAR,), hint)


SHAPES = ((1, 1, 16), (2, 2, 16), (3, 5, 10), (5, 26, 16), (2, 31, 40), (72, 30, 2))
# NaN and Inf, in nearly every vector and in few; halves.
OTHERS = [Case((3, 5, 16), values="special"), Case((9, 5, 2), values="special"), Case((6, 5, 16), torch.float16)]
CASES = [*map(Case, SHAPES), *OTHERS]
CASES_OF_IDS = [*map(Case, SHAPES), *OTHERS, Case(FEW)]


def _shared(reference: Callable, calls: Callable, launch: Callable, cases: list[Case], *small: object) -> SharedOut:
    """The puzzle, whose programs each store their own rows. small: the tensors of a launch of 4 programs."""
    rows, features, columns = len(small[0]), 3, small[0].shape[1]
    out = torch.zeros(rows, width(features, columns))
    return SharedOut(
        Spec(reference, calls, scale=Sums(k=8), cases=lambda names: cases), launch, __name__,
        looked_at=lambda: [("of 4 programs", (*small, out), out, 4)],
        hint="Each program stores its own rows of the output, each element once, and nothing of another's.",
    )


_MANY = torch.zeros(4 * ROWS, 2), torch.zeros(4 * ROWS, 3, 2)
_IDS = _MANY[0], torch.zeros(3, 2), torch.arange(4), torch.zeros(4 * ROWS, 3, dtype=torch.int64), 0
PUZZLES = {
    "triangle": _shared(interact, _calls, launch_row, CASES, torch.zeros(4, 2), torch.zeros(4, 3, 2)),
    "rows": _shared(interact, _calls, launch_rows, CASES, *_MANY),
    "ids": _shared(look_up_and_interact, _id_calls, launch_ids, CASES_OF_IDS, *_IDS),
}
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt


def solution(name: str) -> Callable:
    """The reader's kernel of this puzzle if it has passed, or else the lesson's."""
    if name in JUDGE.solved:
        return JUDGE.solved[name]
    text = re.sub(r"^(solved = )?puzzles\..*", "", answers.solutions(Path(__file__).parent)[name].source, flags=re.M)
    kernel = re.search(r"^def (\w+)", text, re.M)[1]
    return define(text, kernel, {"triton": triton, "tl": tl, "__name__": kernel})
