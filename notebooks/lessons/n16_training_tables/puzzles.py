"""The parts of the fused update as puzzles: what each must compute, and what launches a reader's kernel.

    starts      keys [N] in ascending order → starts [N]: 1 where a row's first occurrence is
    row_sums    grad [N, D], positions [N], offsets [S + 1] → sums [S, D]: of segment s, Σ grad[positions[k]] over its k
    adagrad     tables [R, D], state [R, D], rows [S], sums [S, D]: those rows updated in place
    rowwise     the same with state [R]
    whole       tables [R, D], state [R, D], ids [N], grad [N, D]: Adagrad, a function put together of the parts

The first four are solved by a kernel, which `launch_…` launches; whole_puzzle.py has the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from kernels.ops.embedding_bags_update.eager import update_
from lessons.n16_training_tables import whole_puzzle
from lessons.n16_training_tables.update_parts import (
    BLOCK,
    EPS,
    MANY,
    launch_starts,
    launch_sums,
    launch_update,
    power_of_two,
    starts_of,
    sums_of,
)
from lessons.shared.far import FAR, has_room
from lessons.shared.puzzle import InTriton, Judge

LARGE = 1e8  # plus 1 it is, in float32, itself
FEW = (40, 2)  # the shape of the case of sums whose rows, and whose positions, also lie FAR
FEW_ROWS = (8, 2)  # the same of the updates


def _starts_calls(case: Case, device: torch.device) -> Iterator[Call]:
    count = case.shape[0]
    keys = case.integers(1, max(count // 3, 2), device).sort().values
    hint = "compare each key with the one before. The first key has none, so what stands for it must be no key."
    if count > MANY:
        hint = f"there are {count:,} keys: a place among them needs more than 16 bits."
    yield Call(f"{count} keys", (keys,), hint=hint)
    if BLOCK < count < MANY:  # a row that fills blocks, and keys that differ in their upper bits or in their last alone
        hint = f"a program takes {BLOCK} keys: which key comes before its first?"
        yield Call(f"{count} keys, all 0", (torch.zeros_like(keys),), hint=hint)
        yield Call(f"{count} keys, 2^32 apart", (keys << 32,), hint="are keys compared in all of their 64 bits?")
        hint = "are keys compared as whole numbers? A float32 has 24 bits, a float64 53."
        yield Call(f"{count} keys from 2^60 on", (keys + 2**60,), hint=hint)


def _sums_calls(case: Case, device: torch.device) -> Iterator[Call]:
    count, width = case.shape
    keys, positions = case.integers(2, max(count // 4, 1), device, (count,)).sort(stable=True)
    first = starts_of(keys).nonzero().flatten()
    offsets = torch.cat([first, torch.tensor([count], device=device)])
    grad = case.tensor(1, device)
    hint = f"k is a place among the sorted; positions[k] is the row of grad, {width} numbers wide."
    yield Call(str(case), (grad, positions, offsets), hint=hint)
    if count > BLOCK and case.dtype == torch.float32:  # two rows, their occurrences by turns
        numbers = torch.tensor([[LARGE, LARGE, -LARGE, -LARGE, 1, 2]], dtype=torch.float32, device=device).T
        tensors = (numbers.repeat(1, width), *(torch.tensor(v, device=device) for v in ([0, 2, 4, 1, 3, 5], [0, 3, 6])))
        hint = "(1e8 - 1e8) + 1 is 1, and (1 - 1e8) + 1e8 is 0: in order."
        yield Call(f"6×{width}, 1e8 - 1e8 + 1", tensors, hint=hint)
    if case.shape == FEW and has_room(device, half := grad.half()):
        hint = "positions name rows beyond 2^32: a row and its place need all of their 64 bits."
        yield Call(f"{case}, rows beyond 2^32", (half, positions + FAR, offsets), (FAR,), hint)
    if case.shape == FEW and has_room(device, positions.int()):
        hint = f"there are {FAR:,} positions more in front: first, end and k need all of their 64 bits."
        yield Call(f"{case}, positions beyond the 2^32-nd", (grad, positions.int(), offsets + FAR), (0, FAR), hint)


class _InOrder(Sums):
    """No error in sums of LARGE numbers, which are exact where they are added up in order."""

    def errors(self, reference: Callable, call: Call, exact: Sequence[Tensor]) -> list[Tensor]:
        errors = super().errors(reference, call, exact)
        in_order = LARGE <= call.tensors[0].abs().max() < math.inf
        return [error * 0 for error in errors] if in_order else errors


_SHAPES = ((1, 1), (7, 4), (40, 16), (100, 5), (300, 33))


def _reference(rule: str) -> Callable:
    def reference(
        tables: Tensor, state: Tensor, rows: Tensor, sums: Tensor, lr: float, eps: float, first: int = 0
    ) -> None:
        update_(tables, state, rows - first, sums, lr, rule, eps)

    return reference


def _update_calls(state_of: Callable[[tuple], tuple], what: str) -> Callable[[Case, torch.device], Iterator[Call]]:
    def calls(case: Case, device: torch.device) -> Iterator[Call]:
        rows, width = case.shape
        named = torch.randperm(rows, generator=torch.Generator().manual_seed(rows))[: -(-rows // 2)].to(device)
        state = case.tensor(2, device, state_of(case.shape)).abs()
        tensors = (case.tensor(1, device), state, named, case.tensor(3, device, (len(named), width)))
        hint = f"the state takes {what}; the root is that of the new state; the row moves against the gradient."
        if (lanes := power_of_two(width)) > width:
            hint = f"{width} columns in {lanes} lanes: what a load without `other` leaves out is undefined."
        elif rows > 1:
            hint = "rows[s] is the row of tables and state, s that of sums."
        yield Call(f"{rows}×{width}, eps {EPS}", tensors, (0.1, EPS), hint=hint)
        yield Call(f"{rows}×{width}, eps 0.5", tensors, (0.1, 0.5), hint="is eps added, and outside the root?")
        if case.shape == FEW_ROWS and has_room(device, *tensors[:2]):
            tensors = *tensors[:2], named + FAR, tensors[3]
            hint = "rows[s] may lie beyond 2^32: a row and its place need all of their 64 bits."
            yield Call(f"{rows}×{width}, rows beyond 2^32", tensors, (0.1, EPS, FAR), hint)

    return calls


def _updating(rule: str, state_of: Callable[[tuple], tuple], what: str) -> InTriton:
    cases = [Case(shape) for shape in ((1, 2), (8, 16), (9, 5), (5, 33), (1, 1), FEW_ROWS)]
    cases.append(Case((8, 16), values="special"))
    calls = _update_calls(state_of, what)
    spec = Spec(_reference(rule), calls, outputs=(), mutated=("tables", "state"), cases=lambda names: cases)
    return InTriton(spec, launch_update, __name__)


_COUNTS = (1, 7, 64, 129, 500, MANY + 99)
_SUMMED = [*map(Case, _SHAPES), Case((400, 1), torch.float16), Case((40, 16), torch.float16)]
_SUMMED += [Case((40, 16), values="special"), Case(FEW)]
PUZZLES = {
    "starts": InTriton(
        Spec(starts_of, _starts_calls, ("starts",), cases=lambda names: [Case((count,)) for count in _COUNTS]),
        launch_starts, __name__,
    ),
    "row_sums": InTriton(
        Spec(sums_of, _sums_calls, ("sums",), scale=_InOrder(k=4), cases=lambda names: _SUMMED), launch_sums, __name__
    ),
    "adagrad": _updating("adagrad", lambda shape: shape, "g²"),
    "rowwise": _updating("rowwise_adagrad", lambda shape: shape[:1], "the mean of g² over D"),
    "whole": whole_puzzle.WHOLE,
}
attempt = Judge(PUZZLES).attempt
