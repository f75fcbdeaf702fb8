"""Three problems on the way to embedding_bags, each a kernel with a hole: the launches, and what they must give.

    row      out[b, f] = tables[row_offsets[f] + ids[b, f]]     every id is one of its table
    outside  the same, and zeros for an id that its table does not have
    bag      out[b] = the mean of the rows ids[offsets[b] : offsets[b + 1]] of one table, zeros of an empty bag

Dimensions are powers of two.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from itertools import accumulate

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from kernels.ops.embedding_bags.eager import embedding_bags
from lessons.shared.puzzle import InTriton

BLOCK = 32  # look-ups of a program
HEIGHTS = (3, 1, 7, 2, 5)  # of the tables, over and over
FAR = 2**29  # rows before the tables: of 4 numbers, 2^31 places
LENGTHS = (2, 0, 1, 5, 0, 40)  # of the bags, over and over


def look_up(kernel, tables: Tensor, row_offsets: Tensor, ids: Tensor) -> Tensor:
    """Launch a kernel on tables [R, D], row_offsets [F + 1], ids [B, F] → [B, F, D]; a program takes BLOCK ids."""
    (rows, features), dim = ids.shape, tables.shape[1]
    out = torch.empty(rows, features, dim, dtype=tables.dtype, device=tables.device)
    grid = (triton.cdiv(ids.numel(), BLOCK),)
    kernel[grid](tables, row_offsets, ids, out, ids.numel(), F=features, D=dim, BLOCK=BLOCK)
    return out


def look_up_from(kernel, tables: Tensor, row_offsets: Tensor, ids: Tensor, first: int) -> Tensor:
    """look_up, with so many rows before the tables: row_offsets begin there."""
    return look_up(kernel, _behind(tables, first) if first else tables, row_offsets, ids)


def _behind(tables: Tensor, first: int) -> Tensor:
    """The tables as the last rows of a larger one; of the others, which nobody touches, there is the address alone."""
    shape = first + len(tables), tables.shape[1]
    if tables.is_cuda:
        larger = torch.empty(shape, dtype=tables.dtype, device=tables.device)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's number
        memory = mmap.mmap(-1, math.prod(shape) * tables.itemsize, flags)
        larger = torch.frombuffer(memory, dtype=tables.dtype).view(shape)
    larger[first:] = tables
    return larger


def pool(kernel, table: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
    """Launch a kernel on table [V, D], ids [N], offsets [B + 1] → [B, D]; a program takes a bag."""
    bags, dim = len(offsets) - 1, table.shape[1]
    out = torch.empty(bags, dim, dtype=table.dtype, device=table.device)
    kernel[(bags,)](table, ids, offsets, out, D=dim)
    return out


def rows_or_zeros(tables: Tensor, row_offsets: Tensor, ids: Tensor, first: int = 0) -> Tensor:
    """The reference of `row` and `outside`."""
    return embedding_bags(tables, row_offsets - first, ids, out_of_range="zero")


def means(table: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
    """The reference of `bag`."""
    return F.embedding_bag(ids, table, offsets, mode="mean", include_last_offset=True)


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
    hint += f"of the buffer does that table begin? row_offsets is {row_offsets.tolist()}."
    for dtype in (torch.int64, torch.int32):
        yield Call(f"{case} {_name(dtype)}", (tables, row_offsets, ids.to(dtype)), (0,), hint)
    if (len(ids), features) == (5, 3) and _has_room(device):
        hint = f"the tables begin in row {FAR:,}: its place, row · {tables.shape[1]}, needs more than 32 bits."
        yield Call(f"{case}, rows beyond 2^29, places beyond 2^31", (tables, row_offsets + FAR, ids), (FAR,), hint)


def _has_room(device: torch.device) -> bool:
    return device.type == "cpu" or torch.cuda.mem_get_info()[0] > 20 * FAR


def _outside_calls(case: Case, device: torch.device) -> Iterator[Call]:
    """Every seventh id is outside, in one way a call; 7 and the number of features have no common divisor."""
    tables, row_offsets, heights = _tables(case, device)
    inside = Case(case.shape[:2]).integers(2, 2**31, shape=case.shape[:2]) % heights
    chosen = torch.arange(inside.numel()).view(inside.shape) % 7 == min(1, inside.numel() - 1)
    for dtype in (torch.int64, torch.int32):
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
        for kind, (value, hint) in kinds.items():
            ids = torch.where(chosen, torch.as_tensor(value), inside).to(dtype).to(device)
            yield Call(f"{case} {_name(dtype)}, {kind}", (tables, row_offsets, ids), hint=hint)


def _bag_calls(case: Case, device: torch.device) -> Iterator[Call]:
    bags, dim = case.shape
    lengths = [LENGTHS[b % len(LENGTHS)] for b in range(bags)]
    offsets = torch.tensor([0, *accumulate(lengths)], device=device)
    ids = Case(case.shape).integers(2, 11, device, (int(offsets[-1]),))
    hint = "k is a place in ids; what lies there says which row of the table to add. Divide by the bag's own length."
    if lengths == [2, 0]:
        hint = "the second bag is empty: what is divided by what there?"
    yield Call(f"{case}, bags of {lengths[:6]}", (case.tensor(1, device, (11, dim)), ids, offsets), hint=hint)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cases_of_rows(names: tuple[str, ...]) -> list[Case]:
    shapes = [(1, 1, 4), (2, 1, 8), (1, 2, 4), (5, 3, 4), (13, 5, 16), (6, 26, 4)]
    return [*map(Case, shapes), Case((6, 4, 4), values="special"), Case((6, 4, 8), torch.float16)]


def _cases_of_bags(names: tuple[str, ...]) -> list[Case]:
    shapes = [(1, 4), (2, 8), (6, 16), (15, 4)]
    return [*map(Case, shapes), Case((12, 8), torch.float16), Case((6, 4), values="special")]


PUZZLES = {
    "row": InTriton(Spec(rows_or_zeros, _row_calls, cases=_cases_of_rows), look_up_from, __name__),
    "outside": InTriton(Spec(rows_or_zeros, _outside_calls, cases=_cases_of_rows), look_up, __name__),
    "bag": InTriton(Spec(means, _bag_calls, scale=Sums(), cases=_cases_of_bags), pool, __name__),
}
