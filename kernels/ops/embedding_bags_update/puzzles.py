"""The parts of the fused update as puzzles: what each must compute, and what launches a reader's kernel.

    starts      keys [N] in ascending order → starts [N]: 1 where a row's first occurrence is
    sums        grad [N, D], positions [N], offsets [S + 1] → sums [S, D]: of segment s, Σ grad[positions[k]] over its k
    adagrad     tables [R, D], state [R, D], rows [S], sums [S, D]: those rows updated in place
    rowwise     the same with state [R]

`starts(kernel)` and so on return a function of the tensors that launches the kernel, for `kernels.check.attempt` with
the spec of the same name in capitals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from kernels.ops.embedding_bags_update.eager import update_

BLOCK = 64  # positions that a program of `starts` takes


def starts(kernel) -> Callable[[Tensor], Tensor]:
    """kernel[programs](keys, starts, N, BLOCK): a program for BLOCK positions."""

    def launch(keys: Tensor) -> Tensor:
        out = torch.empty(keys.shape, dtype=torch.int32, device=keys.device)
        if len(keys):
            kernel[(-(-len(keys) // BLOCK),)](keys, out, len(keys), BLOCK=BLOCK)
        return out

    return launch


def sums(kernel) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """kernel[S](grad, positions, offsets, sums, D, BLOCK): a program for a segment, BLOCK ≥ D lanes for its columns."""

    def launch(grad: Tensor, positions: Tensor, offsets: Tensor) -> Tensor:
        segments, width = len(offsets) - 1, grad.shape[1]
        out = torch.empty(segments, width, dtype=torch.float32, device=grad.device)
        if segments:
            kernel[(segments,)](grad, positions, offsets, out, width, BLOCK=_power_of_two(width))
        return out

    return launch


def adagrad(kernel) -> Callable[..., None]:
    """kernel[S](tables, state, rows, sums, lr, eps, D, BLOCK): a program for a row."""

    def launch(tables: Tensor, state: Tensor, rows: Tensor, sums: Tensor, lr: float, eps: float) -> None:
        if len(rows):
            width = tables.shape[1]
            kernel[(len(rows),)](tables, state, rows, sums, lr, eps, width, BLOCK=_power_of_two(width))

    return launch


rowwise = adagrad  # with other memory behind `state`


def _power_of_two(width: int) -> int:
    return max(1 << (width - 1).bit_length(), 2)


def _starts(keys: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(keys[:1]), (keys.diff() != 0).long()]).int()


def _starts_calls(case: Case, device: torch.device) -> Iterator[Call]:
    count = case.shape[0]
    keys = case.integers(1, max(count // 3, 2), device).sort().values
    yield Call(f"{count} keys", (keys,))
    if count > BLOCK:  # a row that fills blocks, and keys that differ above their 32nd bit alone
        yield Call(f"{count} keys, all 0", (torch.zeros_like(keys),))
        yield Call(f"{count} keys, 2^32 apart", (keys << 32,))


STARTS = Spec(
    _starts,
    _starts_calls,
    outputs=("starts",),
    cases=lambda names: [Case((count,)) for count in (1, 7, 64, 129, 500)],
)


def _sums(grad: Tensor, positions: Tensor, offsets: Tensor) -> Tensor:
    wide = torch.promote_types(grad.dtype, torch.float32)
    segment = torch.arange(len(offsets) - 1, device=grad.device).repeat_interleave(offsets.diff())
    out = torch.zeros(len(offsets) - 1, grad.shape[1], dtype=wide, device=grad.device)
    return out.index_add_(0, segment, grad[positions].to(wide))


def _sums_calls(case: Case, device: torch.device) -> Iterator[Call]:
    count = case.shape[0]
    keys, positions = case.integers(2, max(count // 4, 1), device, (count,)).sort(stable=True)
    first = _starts(keys).nonzero().flatten()
    offsets = torch.cat([first, torch.tensor([count], device=device)])
    yield Call(str(case), (case.tensor(1, device), positions, offsets))


_SHAPES = ((1, 1), (7, 4), (40, 16), (100, 5), (300, 33))
SUMS = Spec(
    _sums,
    _sums_calls,
    outputs=("sums",),
    scale=Sums(k=4),
    cases=lambda names: [Case(s) for s in _SHAPES] + [Case((2000, 1), torch.float16), Case((40, 16), torch.float16)],
)


def _adagrad(tables: Tensor, state: Tensor, rows: Tensor, sums: Tensor, lr: float, eps: float) -> None:
    update_(tables, state, rows, sums, lr, "adagrad", eps)


def _rowwise(tables: Tensor, state: Tensor, rows: Tensor, sums: Tensor, lr: float, eps: float) -> None:
    update_(tables, state, rows, sums, lr, "rowwise_adagrad", eps)


def _update_calls(state_of: Callable[[tuple], tuple]) -> Callable[[Case, torch.device], Iterator[Call]]:
    def calls(case: Case, device: torch.device) -> Iterator[Call]:
        rows, width = case.shape
        named = torch.randperm(rows, generator=torch.Generator().manual_seed(rows))[: -(-rows // 2)].to(device)
        state = case.tensor(2, device, state_of(case.shape)).abs()
        tensors = (case.tensor(1, device), state, named, case.tensor(3, device, (len(named), width)))
        for eps in (1e-10, 0.5):
            yield Call(f"{rows}×{width}, eps {eps}", tensors, (0.1, eps))

    return calls


def _update_spec(reference: Callable, state_of: Callable[[tuple], tuple]) -> Spec:
    return Spec(
        reference,
        _update_calls(state_of),
        outputs=(),
        mutated=("tables", "state"),
        cases=lambda names: [Case(shape) for shape in ((1, 1), (8, 16), (9, 5), (5, 33))],
    )


ADAGRAD = _update_spec(_adagrad, lambda shape: shape)
ROWWISE = _update_spec(_rowwise, lambda shape: shape[:1])
