"""Problems on the way to the bias gradient: sums over rows, by programs of COLUMNS columns that read ROWS rows at once.

bias_gradient   result[c] = the sum over r of grad[r, c], or of 0 where out[r, c] <= 0: where it is NaN the gradient
                passes, as in PyTorch; one program for each COLUMNS columns
two_stage       result[c] = the sum over r of x[r, c]: the kernel is launched for each chunk of the rows, which it
                leaves in a workspace [chunks, columns], and once more, on the workspace; both are compared
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from lessons.shared.puzzle import InTriton

ROWS, COLUMNS = 4, 16


def launch_bias_gradient(kernel, grad: Tensor, out: Tensor, result: Tensor) -> None:
    """kernel[tiles](grad, out, result, rows, columns, ROWS, COLUMNS)."""
    rows, columns = grad.shape
    kernel[(-(-columns // COLUMNS),)](grad, out, result, rows, columns, ROWS=ROWS, COLUMNS=COLUMNS)


def bias_gradient(grad: Tensor, out: Tensor, result: Tensor) -> None:
    result.copy_(torch.where(out <= 0, 0, grad).sum(0))


def launch_two_stage(kernel, x: Tensor, result: Tensor, workspace: Tensor, chunk: int) -> None:
    """kernel[tiles, chunks](x, workspace, rows, columns, chunk, ROWS, COLUMNS), and again from workspace to result."""
    rows, columns = x.shape
    tiles, chunks = -(-columns // COLUMNS), len(workspace)
    kernel[(tiles, chunks)](x, workspace, rows, columns, chunk, ROWS=ROWS, COLUMNS=COLUMNS)
    kernel[(tiles, 1)](workspace, result, chunks, columns, chunks, ROWS=ROWS, COLUMNS=COLUMNS)


def two_stage(x: Tensor, result: Tensor, workspace: Tensor, chunk: int) -> None:
    for row, part in zip(workspace, x.split(chunk), strict=True):
        row.copy_(part.sum(0))
    result.copy_(x.sum(0))


def _gradient_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, columns = case.shape
    grad, out, result = (case.tensor(n, device, shape) for n, shape in enumerate((*2 * (case.shape,), (columns,))))
    name = f"{rows}×{columns}"
    if case.values == "special":
        grad, out = case.tensor(0, device), Case(case.shape).tensor(1, device)
        grad[grad.isnan()] = torch.inf
        yield Call(f"{name}, grad with Inf", (grad, out.relu(), result.clone()))  # hints.VALUES says what to think of
        grad, out = Case(case.shape).tensor(0, device), out.clone()
        out[2, 3] = torch.nan
        name, hint = f"{name}, out with NaN", ""
    elif rows % ROWS:
        hint = f"{rows} rows, {ROWS} at once: the mask leaves out the last {-rows % ROWS}, too."
    elif columns % COLUMNS:
        hint = f"{columns} columns, {COLUMNS} a program: the mask leaves out the columns beyond the last."
    else:
        hint = "relu passes no gradient on where out <= 0; a column's sum goes over all rows, axis 0 of the tile."
    yield Call(name, (grad, out.relu(), result), hint=hint)


def _sum_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, columns = case.shape
    x, result = case.tensor(0, device), case.tensor(1, device, (columns,))
    for chunk in dict.fromkeys((rows, max(1, rows // 2), 5)):
        chunks = -(-rows // chunk)
        if chunks == 1:
            hint = "one chunk: are all of its rows added?"
        elif rows % chunk:
            hint = f"{chunks} chunks of {chunk} rows: the last has {rows % chunk}, and ends where the rows do."
        else:
            hint = (f"{chunks} chunks of {chunk} rows: program_id(1) is the chunk; it begins where the chunk before "
                    "ends, and has a row of target for itself.")
        workspace = x.new_full((chunks, columns), torch.nan)
        yield Call(f"{rows}×{columns}, chunks of {chunk}", (x, result, workspace), (chunk,), hint=hint)


def _puzzle(
    reference: Callable, calls: Callable, launch: Callable, mutated: tuple[str, ...], shapes: Sequence[tuple[int, int]],
    special: Sequence[Case] = (),
) -> InTriton:
    cases = [*map(Case, shapes), *special]
    spec = Spec(reference, calls, outputs=(), mutated=mutated, scale=Sums(), cases=lambda names: cases)
    return InTriton(spec, launch, __name__)


PUZZLES = {
    "bias_gradient": _puzzle(
        bias_gradient, _gradient_calls, launch_bias_gradient, ("result",),
        ((8, 16), (4, 48), (12, 20), (7, 16), (9, 21), (1, 5)), [Case((8, 16), values="special")],
    ),
    "two_stage": _puzzle(
        two_stage, _sum_calls, launch_two_stage, ("result", "workspace"),
        ((8, 16), (24, 32), (20, 21), (37, 16), (1, 5)),
    ),
}
