"""The puzzles of 18_training_tables.ipynb: kernels that add up each row's gradients, and update the row.

    walk     SGD, a program for each place: that of a run's first adds up the run
    tiles    SGD, a program for a tile of BLOCK places; what a run of several tiles has in one goes to heads and tails
    adagrad  the same by Adagrad

table, state [R, D]; keys [N] row numbers, sorted; order [N] where each stood; grad [N, D]. D is a power of two.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.check import Call, Case, Spec
from kernels.inductor.compile import define
from kernels.ops.embedding_bags_update import eager
from kernels.ops.embedding_bags_update.spec import SPECS
from lessons.shared import answers
from lessons.shared.far import FAR, behind, has_room, late_programs
from lessons.shared.puzzle import Judge
from lessons.shared.puzzle.reader import plain
from lessons.shared.puzzle.shares import SharedOut

BLOCK, EPS, RATE = 16, 1e-10, 0.1
EXACT = SPECS["embedding_bags_update"].scale
FEW = (40, 2)  # the shape of the case whose rows, of the table or of grad, also lie FAR
MANY = 2**16  # places before it, whose numbers 16 bits do not hold
# What a picture of `walk` draws: table, keys, order, grad.
SMALL = (
    torch.zeros(8, 4), torch.tensor([0, 0, 2, 2, 5, 7, 7, 7]), torch.tensor([3, 7, 1, 5, 4, 0, 2, 6]), torch.ones(8, 4)
)


def launch_walk(
    kernel, table: Tensor, keys: Tensor, order: Tensor, grad: Tensor, rate: float, first: int = 0, row: int = 0,
    still: int = 0,
) -> None:
    """kernel[N](table, keys, order, grad, N, rate, D). first, row: rows before table and grad, of which keys and order
    know. still: places in front whose programs change nothing."""
    larger = behind(table, first)
    with late_programs(still, len(keys) - still) as grid:
        kernel[grid](larger, keys, order, behind(grad, row), len(keys), rate, D=table.shape[1])
    table.copy_(larger[first:])


def launch_tiles(
    kernel, tables: Sequence[Tensor], keys: Tensor, order: Tensor, grad: Tensor, rate: float, first: int = 0,
    row: int = 0, still: int = 0, parts: Sequence[Tensor] | None = None,
) -> None:
    """kernel[tiles](*tables, keys, order, grad, heads, tails, N, rate, D, BLOCK), of one table or of table and state;
    the runs of several tiles are then finished in PyTorch. parts: heads and tails, to look at."""
    larger = [behind(table, first) for table in tables]
    count, (_, width) = -(-len(keys) // BLOCK), grad.shape
    heads, tails = parts or (grad.new_empty(count, width), grad.new_empty(count, width))
    with late_programs(still // BLOCK, count - still // BLOCK) as grid:
        kernel[grid](*larger, keys, order, behind(grad, row), heads, tails, len(keys), rate, D=width, BLOCK=BLOCK)
    for table, all_rows in zip(tables, larger, strict=True):
        table.copy_(all_rows[first:])
    rows, sums = finished(keys.tolist(), heads, tails)
    if rows:
        rows = torch.tensor(rows, device=keys.device) - first
        table, state = (*tables, None)[:2]
        eager.update_(table, state, rows, torch.stack(sums), rate, "sgd" if state is None else "adagrad", EPS)


def finished(keys: list[int], heads: Tensor, tails: Tensor) -> tuple[list[int], list[Tensor]]:
    """The rows whose runs lie in several tiles, and their sums: a head, and the tails before it."""
    rows, sums = [], []
    for tile in range(1, len(heads)):
        begin, key = tile, keys[tile * BLOCK]
        while begin and keys[begin * BLOCK - 1] == key:
            begin -= 1
        if begin < tile and key not in keys[(tile + 1) * BLOCK : (tile + 1) * BLOCK + 1]:
            rows.append(key), sums.append(heads[tile] + tails[begin:tile].sum(0))
    return rows, sums


def by_sgd(
    table: Tensor, keys: Tensor, order: Tensor, grad: Tensor, rate: float, first: int = 0, row: int = 0, still: int = 0
) -> None:
    """The reference of `walk` and `tiles`."""
    state = table.new_empty(0)
    eager.embedding_bags_update(table, state, 2 * (keys - first) + 1, order - row, grad, *3 * [None], rate, "sgd")


def by_adagrad(
    table: Tensor, state: Tensor, keys: Tensor, order: Tensor, grad: Tensor, rate: float, first: int = 0, row: int = 0,
    still: int = 0,
) -> None:
    """The reference of `adagrad`."""
    keys, order = 2 * (keys - first) + 1, order - row
    eager.embedding_bags_update(table, state, keys, order, grad, *3 * [None], rate, "adagrad", EPS)


@dataclass(frozen=True)
class _AsTheOp:
    """As exact as the op must be."""

    rule: str

    def errors(self, reference: Callable, call: Call, exact: Sequence[Tensor]) -> list[Tensor]:
        *tables, keys, order, grad = call.tensors
        rate, first, row = (*call.options, 0, 0)[:3]
        table, state = (*tables, tables[0].new_empty(0))[:2]
        given = (table, state, 2 * (keys - first) + 1, order - row, grad, None, None, None)
        both = [*exact, state.double()][:2]
        return EXACT.errors(reference, Call("", given, (rate, self.rule, EPS, 0)), both)[: len(exact)]


def _runs(case: Case) -> Iterator[tuple[str, Tensor, str]]:
    """(what the ids are, sorted rows [N] of a table of N, a hint) of a case of shape (N, D)."""
    count = case.shape[0]
    yield "few rows", case.integers(2, max(count // 4, 1), shape=(count,)).sort().values, (
        "a run begins where a key differs from the one before, and ends where it differs from the next. order says "
        "which row of grad each is of."
    )
    if count > 1:
        yield "each row once", torch.arange(count), (
            "each run has one element, and its row is updated all the same; order says which gradient it is."
        )
    if count > 2 * BLOCK:
        yield "one row", torch.full((count,), count // 2), (
            "all keys are alike: which program is to update the row, and what adds up what it has not?"
        )
        yield "runs of a tile", torch.arange(count) // BLOCK, (
            f"each run fills a tile of {BLOCK} places: it begins and ends there, and goes on in no other."
        )
        yield "runs that begin in one tile and end in the next", (torch.arange(count) + BLOCK // 2) // BLOCK, (
            "heads[tile] is the sum of the run that came from the tile before, and ends in this one; tails[tile] that "
            "of the run that goes on in the next."
        )


def _calls(stateful: bool, update: str) -> Callable[[Case, torch.device], Iterator[Call]]:
    def calls(case: Case, device: torch.device) -> Iterator[Call]:
        count, width = case.shape
        table, grad = (case.tensor(seed, device, (count, width)) for seed in (1, 3))
        tables = (table, case.tensor(4, device, (count, width)).abs()) if stateful else (table,)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(count)).to(device)
        for what, keys, hint in _runs(case):
            keys, last = keys.to(device), f"{hint} {update}" if what == "each row once" else hint
            yield Call(f"{count}×{width}, {what}", (*tables, keys, order, grad), (RATE,), last)
            if case.shape != FEW or what != "few rows":
                continue
            if stateful:
                hint = "it is √state + eps, eps outside of the root: without it a state and a sum of 0 give 0 / 0, NaN."
                small = 1e-9 * grad.masked_fill(torch.arange(count, device=device)[:, None] % 3 == 0, 0.0)
                new = table, torch.zeros_like(table), torch.arange(count, device=device), order, small
                yield Call(f"{count}×{width}, a state of zeros, sums of 0 and 1e-9", new, (RATE,), hint)
            if has_room(device, *tables):
                hint = f"the table has {FAR:,} rows more: a key, and its row's place, need all of their 64 bits."
                yield Call(f"{count}×{width}, rows beyond 2^32", (*tables, keys + FAR, order, grad), (RATE, FAR), hint)
            if has_room(device, grad):
                hint = f"grad has {FAR:,} rows more: order, and what it names, need all of their 64 bits."
                more = (*tables, keys, order + FAR, grad)
                yield Call(f"{count}×{width}, gradients beyond 2^32", more, (RATE, 0, FAR), hint)
            yield _behind_many(f"{count}×{width}, behind {MANY:,} places", tables, keys, order, grad)

    return calls


def _behind_many(name: str, tables: Sequence[Tensor], keys: Tensor, order: Tensor, grad: Tensor) -> Call:
    """The call behind MANY places, of a row each, whose gradients are zero."""
    before = torch.arange(MANY, device=keys.device)
    rows = [torch.cat([torch.ones_like(table[:1]).expand(MANY, -1), table]) for table in tables]
    keys, order = torch.cat([before, keys + MANY]), torch.cat([before, order + MANY])
    grad = torch.cat([torch.zeros_like(grad[:1]).expand(MANY, -1), grad])
    hint = f"there are {len(keys):,} places: their numbers need more than 16 bits."
    return Call(name, (*rows, keys, order, grad), (RATE, 0, 0, MANY), hint)


def _cases(names: tuple[str, ...]) -> list[Case]:
    shapes = (1, 4), (7, 2), (BLOCK, 4), (BLOCK + 1, 1), (6 * BLOCK, 4), (5 * BLOCK - 3, 2), FEW
    return [*map(Case, shapes), Case((3 * BLOCK + 1, 4), values="special")]


class InOrder(SharedOut):
    """A puzzle whose sums are added in one order, and whose rows have one writer each. Where two runs by atomics happen
    to give the same bits, as few occurrences may on a GPU, the kernel's text tells."""

    def judge(self, name: str, answer: object) -> str:
        text = super().judge(name, answer)
        if used := [called for called in plain(answer).__code__.co_names if called.startswith("atomic_")]:
            raise AssertionError(
                f"{name}: right here, but tl.{used[0]} adds in the order in which programs arrive\n"
                "Hint: One program alone updates a row, so a load and a store will do."
            )
        return text


def _looked_at(names: Sequence[str], tables: int) -> list[tuple[str, tuple, Tensor, int]]:
    """A launch for each of the tensors that a kernel writes: the tables and, by tiles, heads and tails. Runs of 5, 20,
    3 and 20 places lie in three tiles; a walk is looked at on SMALL."""
    table, keys, order, grad = SMALL
    if len(names) > tables:
        keys = torch.repeat_interleave(torch.tensor([5, 20, 3, 20]))
        order, grad = torch.arange(len(keys)), torch.ones(len(keys), 4)
    launches = []
    for i, name in enumerate(names):
        written = [torch.ones_like(table) for _ in range(tables)]
        parts = [torch.zeros(3, 4) for _ in names[tables:]]
        rest = (0, 0, 0, parts) if parts else ()
        arguments = *written, keys, order, grad, RATE, *rest
        launches.append((f"of small runs, {name}", arguments, [*written, *parts][i], 0))
    return launches


def _puzzle(launch: Callable, reference: Callable, rule: str, update: str, parts: Sequence[str] = ()) -> InOrder:
    mutated = ("table", "state") if rule == "adagrad" else ("table",)
    calls = _calls(rule == "adagrad", update)
    spec = Spec(reference, calls, outputs=(), mutated=mutated, scale=_AsTheOp(rule), cases=_cases)
    return InOrder(
        spec, launch, __name__, looked_at=lambda: _looked_at((*mutated, *parts), len(mutated)),
        hint="Programs, and the lanes of one store, come in any order: let one alone store, which has the run's sum.",
    )


def _of_table(kernel, table, *rest) -> None:
    launch_tiles(kernel, (table,), *rest)


def _of_state(kernel, table, state, *rest) -> None:
    launch_tiles(kernel, (table, state), *rest)


PARTS = ("heads", "tails")
PUZZLES = {
    "walk": _puzzle(launch_walk, by_sgd, "sgd", "The row moves against the gradient, by rate times it."),
    "tiles": _puzzle(_of_table, by_sgd, "sgd", "The row moves against the gradient, by rate times it.", PARTS),
    "adagrad": _puzzle(
        _of_state, by_adagrad, "adagrad",
        "The state takes the square of a run's sum; the root is that of the new state, and eps is added to it.", PARTS,
    ),
}
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt


def solution(name: str) -> Callable:
    """The reader's kernel of this puzzle if it has passed, or else the lesson's."""
    if name in JUDGE.solved:
        return JUDGE.solved[name]
    return _lessons(name)


@functools.cache  # a call that is timed is not to read it anew
def _lessons(name: str) -> Callable:
    right = answers.solutions(Path(__file__).parent)
    text = "\n\n\n".join(right[each].source.partition("\n\n\nsolved")[0] for each in ("tiles", name))
    kernel = re.findall(r"^def (\w+)", text, re.M)[-1]
    return define(text, kernel, {"triton": triton, "tl": tl, "__name__": kernel})
