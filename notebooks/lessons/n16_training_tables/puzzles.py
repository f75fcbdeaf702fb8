"""The parts of the fused update as puzzles: what each must compute, and what launches a reader's kernel.

    starts      keys [N] in ascending order → starts [N]: 1 where a row's first occurrence is
    row_sums    grad [N, D], positions [N], offsets [S + 1] → sums [S, D]: of segment s, Σ grad[positions[k]] over its k
    adagrad     tables [R, D], state [R, D], rows [S], sums [S, D]: those rows updated in place
    rowwise     the same with state [R]
    whole       tables [R, D], state [R, D], ids [N], grad [N, D]: Adagrad, a function put together of the parts

The first four are solved by a kernel, which `launch_…` launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from kernels.ops.embedding_bags_update.eager import embedding_bags_adagrad_, update_
from lessons.shared.puzzle import InTriton, Judge

BLOCK = 64  # positions that a program of `starts` takes
EPS = 1e-10
ALLOWED = ("sort", "nonzero", "constant_pad_nd", "index")  # torch's operators that `whole` may call beside the kernels
LARGE = 1e8  # plus 1 it is, in float32, itself


def launch_starts(kernel, keys: Tensor) -> Tensor:
    """kernel[programs](keys, starts, N, BLOCK): a program for BLOCK positions."""
    out = torch.empty(keys.shape, dtype=torch.int32, device=keys.device)
    if len(keys):
        kernel[(-(-len(keys) // BLOCK),)](keys, out, len(keys), BLOCK=BLOCK)
    return out


def launch_sums(kernel, grad: Tensor, positions: Tensor, offsets: Tensor) -> Tensor:
    """kernel[S](grad, positions, offsets, sums, D, BLOCK): a program for a segment, BLOCK ≥ D lanes for its columns."""
    segments, width = len(offsets) - 1, grad.shape[1]
    out = torch.empty(segments, width, dtype=torch.float32, device=grad.device)
    if segments:
        kernel[(segments,)](grad, positions, offsets, out, width, BLOCK=_power_of_two(width))
    return out


def launch_update(
    kernel, tables: Tensor, state: Tensor, rows: Tensor, sums: Tensor, lr: float, eps: float = EPS
) -> None:
    """kernel[S](tables, state, rows, sums, lr, eps, D, BLOCK): a program for a row; state [R, D] or [R]."""
    if len(rows):
        width = tables.shape[1]
        kernel[(len(rows),)](tables, state, rows, sums, lr, eps, width, BLOCK=_power_of_two(width))


def _power_of_two(width: int) -> int:
    return max(1 << (width - 1).bit_length(), 2)


def _starts(keys: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(keys[:1]), (keys.diff() != 0).long()]).int()


def _starts_calls(case: Case, device: torch.device) -> Iterator[Call]:
    count = case.shape[0]
    keys = case.integers(1, max(count // 3, 2), device).sort().values
    hint = "compare each key with the one before. The first key has none, so what stands for it must be no key."
    yield Call(f"{count} keys", (keys,), hint=hint)
    if count > BLOCK:  # a row that fills blocks, and keys that differ above their 32nd bit alone
        hint = f"a program takes {BLOCK} keys: which key comes before its first?"
        yield Call(f"{count} keys, all 0", (torch.zeros_like(keys),), hint=hint)
        yield Call(f"{count} keys, 2^32 apart", (keys << 32,), hint="are keys compared in all of their 64 bits?")


def _sums(grad: Tensor, positions: Tensor, offsets: Tensor) -> Tensor:
    wide = torch.promote_types(grad.dtype, torch.float32)
    segment = torch.arange(len(offsets) - 1, device=grad.device).repeat_interleave(offsets.diff())
    out = torch.zeros(len(offsets) - 1, grad.shape[1], dtype=wide, device=grad.device)
    return out.index_add_(0, segment, grad[positions].to(wide))


def _sums_calls(case: Case, device: torch.device) -> Iterator[Call]:
    count, width = case.shape
    keys, positions = case.integers(2, max(count // 4, 1), device, (count,)).sort(stable=True)
    first = _starts(keys).nonzero().flatten()
    offsets = torch.cat([first, torch.tensor([count], device=device)])
    hint = f"k is a place among the sorted; positions[k] is the row of grad, {width} numbers wide."
    yield Call(str(case), (case.tensor(1, device), positions, offsets), hint=hint)
    if count > BLOCK:  # two rows, their occurrences by turns
        numbers = torch.tensor([[LARGE, LARGE, -LARGE, -LARGE, 1, 2]], dtype=torch.float32, device=device).T
        tensors = (numbers.repeat(1, width), *(torch.tensor(v, device=device) for v in ([0, 2, 4, 1, 3, 5], [0, 3, 6])))
        hint = "(1e8 - 1e8) + 1 is 1, and (1 - 1e8) + 1e8 is 0: in order."
        yield Call(f"6×{width}, 1e8 - 1e8 + 1", tensors, hint=hint)


class _InOrder(Sums):
    """No error in sums of LARGE numbers, which are exact where they are added up in order."""

    def errors(self, reference: Callable, call: Call, exact: Sequence[Tensor]) -> list[Tensor]:
        errors = super().errors(reference, call, exact)
        return [error * 0 for error in errors] if call.tensors[0].abs().max() >= LARGE else errors


_SHAPES = ((1, 1), (7, 4), (40, 16), (100, 5), (300, 33))


def _adagrad(tables: Tensor, state: Tensor, rows: Tensor, sums: Tensor, lr: float, eps: float) -> None:
    update_(tables, state, rows, sums, lr, "adagrad", eps)


def _rowwise(tables: Tensor, state: Tensor, rows: Tensor, sums: Tensor, lr: float, eps: float) -> None:
    update_(tables, state, rows, sums, lr, "rowwise_adagrad", eps)


def _update_calls(state_of: Callable[[tuple], tuple], rule: str) -> Callable[[Case, torch.device], Iterator[Call]]:
    def calls(case: Case, device: torch.device) -> Iterator[Call]:
        rows, width = case.shape
        named = torch.randperm(rows, generator=torch.Generator().manual_seed(rows))[: -(-rows // 2)].to(device)
        state = case.tensor(2, device, state_of(case.shape)).abs()
        tensors = (case.tensor(1, device), state, named, case.tensor(3, device, (len(named), width)))
        hint = f"the state takes {rule}; the root is that of the new state; the row moves against the gradient."
        if (lanes := _power_of_two(width)) > width:
            hint = f"{width} columns in {lanes} lanes: what a load without `other` leaves out is undefined."
        elif rows > 1:
            hint = "rows[s] is the row of tables and state, s that of sums."
        yield Call(f"{rows}×{width}, eps {EPS}", tensors, (0.1, EPS), hint=hint)
        yield Call(f"{rows}×{width}, eps 0.5", tensors, (0.1, 0.5), hint="is eps added, and outside the root?")

    return calls


def _updating(reference: Callable, state_of: Callable[[tuple], tuple], rule: str) -> InTriton:
    cases = [Case(shape) for shape in ((1, 2), (8, 16), (9, 5), (5, 33), (1, 1))]
    calls = _update_calls(state_of, rule)
    spec = Spec(reference, calls, outputs=(), mutated=("tables", "state"), cases=lambda names: cases)
    return InTriton(spec, launch_update, __name__)


def _whole(tables: Tensor, state: Tensor, ids: Tensor, grad: Tensor, lr: float) -> None:
    bounds = torch.tensor([0, len(tables)], device=tables.device)
    embedding_bags_adagrad_(tables, state, bounds, ids[:, None], grad[:, None], lr, eps=EPS)


def _whole_calls(case: Case, device: torch.device) -> Iterator[Call]:
    count, width = case.shape
    tables, state, grad = (case.tensor(seed, device, (rows, width)) for seed, rows in ((1, 9), (2, 9), (3, count)))
    tensors = (tables, state.abs(), case.integers(4, 9, device, (count,)), grad)
    yield Call(f"{count} ids in 9 rows of {width}", tensors, (0.1,), hint="which puzzle above is not right yet?")


_COUNTS = (1, 7, 64, 129, 500)
_SUMMED = [*map(Case, _SHAPES), Case((2000, 1), torch.float16), Case((40, 16), torch.float16)]
_WHOLE = [Case(shape) for shape in ((1, 4), (20, 16), (200, 5))]
PUZZLES = {
    "starts": InTriton(
        Spec(_starts, _starts_calls, ("starts",), cases=lambda names: [Case((count,)) for count in _COUNTS]),
        launch_starts, __name__,
    ),
    "row_sums": InTriton(
        Spec(_sums, _sums_calls, ("sums",), scale=_InOrder(k=4), cases=lambda names: _SUMMED), launch_sums, __name__
    ),
    "adagrad": _updating(_adagrad, lambda shape: shape, "g²"),
    "rowwise": _updating(_rowwise, lambda shape: shape[:1], "the mean of g² over D"),
    "whole": InTriton(
        Spec(_whole, _whole_calls, (), ("tables", "state"), cases=lambda names: _WHOLE),
        None, __name__, (launch_starts, launch_sums, launch_update), operators=ALLOWED,
    ),
}
attempt = Judge(PUZZLES).attempt
