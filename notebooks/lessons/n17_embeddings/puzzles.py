"""The puzzles of 17_embeddings.ipynb, each a kernel with a hole: the launches, and what they must give.

    row      out[b, f] = tables[row_offsets[f] + ids[b, f]]     every id is one of its table
    outside  the same, and zeros for an id that its table does not have
    bag      out[b] = the mean of the rows ids[offsets[b] : offsets[b + 1]] of one table, zeros of an empty bag
    bags     out[b, f] = the sum of the rows of table f that bag f B + b names, for all tables; several bags a program

Dimensions are powers of two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from kernels.check.comparison import Pointwise
from kernels.inductor.compile import define
from kernels.ops.embedding_bags.eager import embedding_bags
from lessons.shared import answers
from lessons.shared.far import FAR, behind, has_room
from lessons.shared.puzzle import Judge
from lessons.shared.puzzle.shares import SharedOut

BLOCK, LARGE = 32, 4096  # look-ups of a program; where there are MANY
BAGS = 4  # of a program
MANY = 2**16  # ids, whose numbers 16 bits do not hold
TABLES = 300  # whose numbers 8 bits do not hold
WIDE = (520, 128)  # the shape of the bags whose means 16 bits do not count
FEW = (5, 3, 2)  # the shape of the case that also lies FAR in its buffer, there in half precision: a GPU has room
HEIGHTS = (3, 1, 7, 2, 5)  # of the tables, over and over
LENGTHS = (2, 0, 1, 5, 0, 66)  # of the bags, over and over
OF_TABLES = f"there are {TABLES} tables: their numbers need more than 8 bits."
FAR_IDS = f"ids has {FAR:,} elements more: begin, end and k need all of their 64 bits."
# What the pictures of `row` and `bags` draw: tables, row_offsets, ids, of bags offsets, the output.
SMALL_ROWS = (
    torch.zeros(8, 4), torch.tensor([0, 3, 4, 8]), torch.tensor([[2, 0, 1], [0, 0, 3]]), torch.zeros(2, 3, 4)
)
SMALL_BAGS = (
    torch.zeros(10, 4), torch.tensor([0, 5, 10]), torch.tensor([4, 1, 2, 0, 2, 2, 3]),
    torch.tensor([0, 2, 2, 3, 6, 6, 7]), torch.zeros(3, 2, 4),
)


class Copies(Pointwise):
    """A look-up copies: there is nothing to round."""

    def errors(self, reference: Callable, call: Call, exact: Sequence[Tensor]) -> list[Tensor]:
        return [torch.zeros_like(result) for result in exact]


def look_up(
    kernel, tables: Tensor, row_offsets: Tensor, ids: Tensor, first: int = 0, out: Tensor | None = None
) -> Tensor:
    """Launch a kernel on tables [R, D], row_offsets [F + 1], ids [B, F] → [B, F, D]; a program takes `block` ids.

    first: rows that the first table has more than `tables`; its ids and row_offsets know of them.
    """
    (rows, features), dim = ids.shape, tables.shape[1]
    out = tables.new_empty(rows, features, dim) if out is None else out
    block = BLOCK if ids.numel() < MANY else LARGE
    grid = (triton.cdiv(ids.numel(), block),)
    kernel[grid](behind(tables, first), row_offsets, ids, out, ids.numel(), F=features, D=dim, BLOCK=block)
    return out


def pool(
    kernel, table: Tensor, ids: Tensor, offsets: Tensor, row: int = 0, position: int = 0, out: Tensor | None = None
) -> Tensor:
    """Launch a kernel on table [V, D], ids [N], offsets [B + 1] → [B, D]; a program takes a bag.

    row, position: rows before the table and ids before `ids`; ids and offsets know of them.
    """
    bags, dim = len(offsets) - 1, table.shape[1]
    out = table.new_empty(bags, dim) if out is None else out
    kernel[(bags,)](behind(table, row), behind(ids, position), offsets, out, D=dim)
    return out


def pool_all(
    kernel, tables: Tensor, row_offsets: Tensor, ids: Tensor, offsets: Tensor, first: int = 0, position: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Launch a kernel on tables [R, D], row_offsets [F + 1], ids [N], offsets [F B + 1] → [B, F, D]; a program takes
    `block` bags.

    first: rows that the first table has more than `tables`; its ids and row_offsets know of them. position: as pool's.
    """
    bags, features, dim = len(offsets) - 1, len(row_offsets) - 1, tables.shape[1]
    out = tables.new_empty(bags // features, features, dim) if out is None else out
    block = BAGS if bags < MANY else LARGE
    kernel[(triton.cdiv(bags, block),)](
        behind(tables, first), row_offsets, behind(ids, position), offsets, out, bags, bags // features, F=features,
        D=dim, BAGS=block,
    )
    return out


def rows_or_zeros(tables: Tensor, row_offsets: Tensor, ids: Tensor, first: int = 0) -> Tensor:
    """The reference of `row` and `outside`."""
    if first:
        ids, row_offsets = ids - first * (torch.arange(ids.shape[1], device=ids.device) == 0), row_offsets - first
        row_offsets[0] = 0
    return embedding_bags(tables, row_offsets, ids, out_of_range="zero")


def means(table: Tensor, ids: Tensor, offsets: Tensor, row: int = 0, position: int = 0) -> Tensor:
    """The reference of `bag`."""
    return F.embedding_bag(ids - row, table, offsets - position, mode="mean", include_last_offset=True)


def sums(
    tables: Tensor, row_offsets: Tensor, ids: Tensor, offsets: Tensor, first: int = 0, position: int = 0
) -> Tensor:
    """The reference of `bags`."""
    offsets = offsets - position
    if first:
        ids, row_offsets = ids.clone(), row_offsets - first
        ids[: int(offsets[(len(offsets) - 1) // (len(row_offsets) - 1)])] -= first
        row_offsets[0] = 0
    return embedding_bags(tables, row_offsets, ids, offsets)


def _tables(case: Case, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(tables, row_offsets, heights) of a case of shape (rows, features, dimension)."""
    _, features, dim = (1, *case.shape)[-3:]
    heights = torch.tensor([HEIGHTS[f % len(HEIGHTS)] for f in range(features)])
    row_offsets = torch.tensor([0, *accumulate(heights.tolist())], device=device)
    return case.tensor(1, device, (int(heights.sum()), dim)), row_offsets, heights


def _row_calls(case: Case, device: torch.device) -> Iterator[Call]:
    tables, row_offsets, heights = _tables(case, device)
    ids = (Case(case.shape[:2]).integers(2, 2**31, shape=case.shape[:2]) % heights).to(device)
    features = ids.shape[1]
    hint = f"ids is [{len(ids)}, {features}], row after row: which table does id number i belong to, and in which row "
    hint += f"of the buffer does that table begin? row_offsets is {row_offsets.tolist()[:27]}."
    if features == TABLES:
        hint = OF_TABLES
    for dtype in _dtypes(ids):
        yield Call(f"{case} {_name(dtype)}", (tables, row_offsets, ids.to(dtype)), hint=_hint_of_many(ids) or hint)
    if case.shape == FEW:
        yield from _far(case, "", tables.half(), row_offsets, ids)


def _dtypes(ids: Tensor) -> tuple[torch.dtype, ...]:
    return (torch.int64, torch.int32) if ids.numel() < MANY else (torch.int64,)


def _hint_of_many(ids: Tensor) -> str:
    return "" if ids.numel() < MANY else f"there are {ids.numel():,} ids: i and its places need more than 16 bits."


def _far(case: Case, kind: str, tables: Tensor, row_offsets: Tensor, ids: Tensor) -> Iterator[Call]:
    """The call with FAR rows more in front, of the first table; none where there is no room."""
    first = FAR * (torch.arange(ids.shape[1], device=ids.device) == 0)
    hint = f"the first table has {FAR:,} rows more: ids, rows and places need all of their 64 bits."
    tensors = tables, torch.cat([row_offsets[:1], row_offsets[1:] + FAR]), ids + first
    if has_room(ids.device, tables):
        yield Call(f"{case}{kind}, rows beyond 2^32", tensors, (FAR,), hint)


def _outside_calls(case: Case, device: torch.device) -> Iterator[Call]:
    """Every seventh id is outside, in one way a call; 7 and the number of features have no common divisor."""
    tables, row_offsets, heights = _tables(case, device)
    inside = Case(case.shape[:2]).integers(2, 2**31, shape=case.shape[:2]) % heights
    chosen = torch.arange(inside.numel()).view(inside.shape) % 7 == min(1, inside.numel() - 1)
    for dtype in _dtypes(inside):
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        bits = torch.iinfo(dtype).bits
        kinds = {
            "ids -1": (
                -1,
                "id -1 lies in front of its table. The mask is `there`, and more; what it leaves out, other=0.0 fills.",
            ),
            "ids behind the last": (heights, "a table of 3 rows has ids 0, 1 and 2: what tells the mask 3?"),
            f"ids {most}": (most, f"first + id does not fit into {bits} bits: let the mask compare id alone."),
        }
        if dtype is torch.int64:
            kinds["ids + 2^32"] = (inside + 2**32, "cut to 32 bits it passes the mask: keep 64.")
        kinds[f"ids {least}"] = (least, "a negative id is in no table: the mask must leave it out.")
        many = _hint_of_many(inside)
        for kind, (value, hint) in [*kinds.items()][: 1 if many else None]:
            ids = torch.where(chosen, torch.as_tensor(value), inside).to(dtype).to(device)
            yield Call(f"{case} {_name(dtype)}, {kind}", (tables, row_offsets, ids), hint=many or hint)
            if case.shape == FEW and value is heights and dtype is torch.int64:
                yield from _far(case, f" {kind}", tables.half(), row_offsets, ids)


def _bag_calls(case: Case, device: torch.device) -> Iterator[Call]:
    bags, dim = case.shape
    lengths = [LENGTHS[b % len(LENGTHS)] if case.shape != WIDE else b % 2 for b in range(bags)]
    offsets = torch.tensor([0, *accumulate(lengths)], device=device)
    ids = Case(case.shape).integers(2, 11, device, (int(offsets[-1]),))
    table = case.tensor(1, device, (11, dim))
    hint = "the bag is ids[begin:end]: what lies there says which rows to add. Divide by the bag's own length."
    if lengths == [2, 0]:
        hint = "the second bag is empty: what is divided by what there?"
    if case.shape == WIDE:
        hint = f"out has {bags * dim:,} elements: their places need more than 16 bits."
    yield Call(f"{case}, bags of {lengths[:6]}", (table, ids, offsets), hint=hint)
    if case.shape != FEW[1:]:
        return
    if has_room(device, table := table.half()):
        hint = f"the table has {FAR:,} rows more: an id and its row's place need all of their 64 bits."
        yield Call(f"{case}, rows beyond 2^32", (table, ids + FAR, offsets), (FAR,), hint)
    if has_room(device, ids.int()):
        yield Call(f"{case}, ids beyond the 2^32-nd", (table, ids.int(), offsets + FAR), (0, FAR), FAR_IDS)


def _bags_calls(case: Case, device: torch.device) -> Iterator[Call]:
    tables, row_offsets, heights = _tables(case, device)
    batch, features = case.shape[:2]
    bags = batch * features
    lengths = [LENGTHS[bag % len(LENGTHS)] if bags < MANY else bag % 2 for bag in range(bags)]
    offsets = torch.tensor([0, *accumulate(lengths)], device=device)
    of = torch.repeat_interleave(torch.arange(features), torch.tensor(lengths).view(features, batch).sum(1))
    ids = (Case(case.shape).integers(2, 2**31, shape=(len(of),)) % heights[of]).to(device)
    hint = f"bag is f · B + b, with B = {batch} here: f says which table it is, and out is [B, F, D]. A bag that has "
    hint += "ended reads nothing more, while longer ones of its program go on."
    many = f"there are {bags:,} bags: their numbers need more than 16 bits." if bags >= MANY else ""
    many = OF_TABLES if features == TABLES else many
    yield Call(f"{case}, bags of {lengths[:6]}", (tables, row_offsets, ids, offsets), hint=many or hint)
    if case.shape == FEW and has_room(device, tables.half()):
        more = FAR * (of == 0).to(device)
        hint = f"the first table has {FAR:,} rows more: ids, rows and places need all of their 64 bits."
        far = tables.half(), torch.cat([row_offsets[:1], row_offsets[1:] + FAR]), ids + more, offsets
        yield Call(f"{case}, rows beyond 2^32", far, (FAR,), hint)
    if case.shape == FEW and has_room(device, ids.int()):
        far = tables, row_offsets, ids.int(), offsets + FAR
        yield Call(f"{case}, ids beyond the 2^32-nd", far, (0, FAR), FAR_IDS)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cases_of_rows(names: tuple[str, ...]) -> list[Case]:
    shapes = (1, 1, 4), (2, 1, 8), (1, 2, 4), (5, 3, 4), (13, 5, 16), (6, 26, 4), (1, TABLES, 2), (MANY // 4 + 9, 4, 2)
    return [*map(Case, shapes), Case((6, 4, 4), values="special"), Case((6, 4, 8), torch.float16), Case(FEW)]


def _cases_of_bags(names: tuple[str, ...]) -> list[Case]:
    shapes = [(1, 4), (2, 8), (6, 16), (15, 4), WIDE]
    return [*map(Case, shapes), Case((12, 8), torch.float16), Case((6, 4), values="special"), Case(FEW[1:])]


def _cases_of_all_bags(names: tuple[str, ...]) -> list[Case]:
    shapes = [(1, 1, 4), (4, 1, 8), (1, 2, 4), (3, 5, 16), (2, 26, 4), (1, TABLES, 1), (MANY // 4 + 9, 4, 1)]
    return [*map(Case, shapes), Case((6, 4, 4), values="special"), Case((6, 4, 8), torch.float16), Case(FEW)]


def _shared(spec: Spec, launch: Callable, *small: object, out: Tensor) -> SharedOut:
    """The puzzle, whose programs each store their own part. small, out: of a launch of 4 programs without a rest."""
    return SharedOut(
        spec, launch, __name__, looked_at=lambda: [("of 4 programs", (*small, out), out, 4)],
        hint="Each program stores its own part of the output, and nothing of another's.",
    )


_ZEROS = torch.zeros(BLOCK, 4, dtype=torch.int64)  # ids
_LOOK_UPS = torch.zeros(4, 2), torch.arange(5), _ZEROS, 0
_BAG = torch.zeros(4, 2), _ZEROS[0], torch.arange(5), 0, 0
_BAGS = torch.zeros(4, 2), torch.arange(3), _ZEROS.flatten(), torch.arange(4 * BAGS + 1), 0, 0
_ROWS = Spec(rows_or_zeros, _row_calls, scale=Copies(), cases=_cases_of_rows)
PUZZLES = {
    "row": _shared(_ROWS, look_up, *_LOOK_UPS, out=torch.zeros(BLOCK, 4, 2)),
    "outside": _shared(replace(_ROWS, calls=_outside_calls), look_up, *_LOOK_UPS, out=torch.zeros(BLOCK, 4, 2)),
    "bag": _shared(Spec(means, _bag_calls, scale=Sums(), cases=_cases_of_bags), pool, *_BAG, out=torch.zeros(4, 2)),
    # Where a table has one row, a bag's terms are all alike, and so are their roundings: they add up.
    "bags": _shared(
        Spec(sums, _bags_calls, scale=Sums(k=16), cases=_cases_of_all_bags), pool_all, *_BAGS,
        out=torch.zeros(2 * BAGS, 2, 2),
    ),
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
