"""The puzzles of 09_a_backward.ipynb; of a kernel's, a program has BLOCK columns and reads ROWS rows at once.

kept_traffic     what is kept for the backward, bytes of an element → bytes an element that forward and backward move
two_stage        result[c] = the sum over r of x[r, c]: the kernel is launched for each chunk of the rows, which it
                 leaves in a workspace [chunks, columns], and once more, on the workspace; both are compared
whole_backward   of relu(x + multiplier y + bias): grad_x = grad, or 0 where out <= 0 (where out is NaN the gradient
                 passes, as in PyTorch), grad_y = multiplier grad_x, and each chunk's sums of grad_x over its rows
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from kernels.inductor.compile import define
from lessons.shared import answers
from lessons.shared.puzzle import Judge, OfNumbers
from lessons.shared.puzzle.shares import SharedOut

ROWS, BLOCK = 4, 16


def traffic(way: int, itemsize: int) -> tuple[int, int]:
    """Bytes an element that the forward moves, and the backward. way: out is kept, x and y, the derivative, a mask."""
    written = (0, 0, itemsize, 1)[way]
    read = (itemsize, 2 * itemsize, itemsize, 1)[way]
    return 3 * itemsize + written, 3 * itemsize + read


_BACKWARD = "The backward reads the gradient and what was kept, and writes two gradients."
_FORWARD = "The forward reads x and y, and writes out. It also writes what is kept, unless that is out, x or y."
_MASK = "An element of the mask has one byte, whatever the dtype of out."
_HALF = "A bfloat16 element has two bytes."
# What each case is called, the arguments, and what to think of if it is the first that fails.
TRAFFIC = (
    ("out, float32", (0, 4), _BACKWARD),
    ("x and y, float32", (1, 4), f"{_BACKWARD} Here two tensors were kept."),
    ("the derivative, float32", (2, 4), _FORWARD),
    ("a mask, float32", (3, 4), _MASK),
    ("out, bfloat16", (0, 2), _HALF),
    ("x and y, bfloat16", (1, 2), _HALF),
    ("the derivative, bfloat16", (2, 2), _FORWARD),
    ("a mask, bfloat16", (3, 2), _MASK),
)


def launch_two_stage(
    kernel, x: Tensor, result: Tensor, workspace: Tensor, chunk: int, ROWS: int = ROWS, BLOCK: int = BLOCK
) -> None:
    """kernel[tiles, chunks](x, workspace, rows, chunk, COLUMNS, ROWS, BLOCK), and again from workspace to result."""
    (rows, columns), chunks = x.shape, len(workspace)
    tiles, sizes = -(-columns // BLOCK), {"COLUMNS": columns, "ROWS": ROWS, "BLOCK": BLOCK}
    kernel[(tiles, chunks)](x, workspace, rows, chunk, **sizes)
    kernel[(tiles, 1)](workspace, result, chunks, chunks, **sizes)


def two_stage(x: Tensor, result: Tensor, workspace: Tensor, chunk: int) -> None:
    for row, part in zip(workspace, x.split(chunk), strict=True):
        row.copy_(part.sum(0))
    result.copy_(x.sum(0))


def launch_whole_backward(
    kernel, grad: Tensor, out: Tensor, grad_x: Tensor, grad_y: Tensor, target: Tensor, multiplier: float, chunk: int,
    ROWS: int = ROWS, BLOCK: int = BLOCK,
) -> None:
    """kernel[tiles, chunks](grad, out, grad_x, grad_y, target, multiplier, rows, chunk, COLUMNS, ROWS, BLOCK)."""
    rows, columns = grad.shape
    sizes = {"COLUMNS": columns, "ROWS": ROWS, "BLOCK": BLOCK}
    kernel[(-(-columns // BLOCK), len(target))](grad, out, grad_x, grad_y, target, multiplier, rows, chunk, **sizes)


def whole_backward(
    grad: Tensor, out: Tensor, grad_x: Tensor, grad_y: Tensor, target: Tensor, multiplier: float, chunk: int
) -> None:
    grad_x.copy_(torch.where(out <= 0, 0, grad))
    grad_y.copy_(multiplier * grad_x)
    for row, part in zip(target, grad_x.split(chunk), strict=True):
        row.copy_(part.sum(0))


def _unset(like: Tensor, *shape: int) -> Tensor:
    """What holds NaN until it is written."""
    return like.new_full(shape or like.shape, torch.nan)


def _sum_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, columns = case.shape
    x, result = case.tensor(0, device), case.tensor(1, device, (columns,))
    for chunk in dict.fromkeys((rows, max(1, rows // 2), 5)):
        chunks = -(-rows // chunk)
        if chunks == 1:
            hint = "There is one chunk. Does the kernel add all of its rows?"
        elif rows % chunk:
            hint = f"The last of {chunks} chunks has only {rows % chunk} of {chunk} rows, and ends where the rows end."
        else:
            hint = (f"There are {chunks} chunks of {chunk} rows, and program_id(1) is the chunk's number. A chunk "
                    "begins where the one before it ends, and has a row of target to itself.")
        workspace = _unset(x, chunks, columns)
        yield Call(f"{rows}×{columns}, chunks of {chunk}", (x, result, workspace), (chunk,), hint=hint)


def _backward_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, columns = case.shape
    grad, out = case.tensor(0, device), Case(case.shape).tensor(1, device).relu()
    chunk = {4: 4, 8: 4}.get(rows, 5)
    name = f"{rows}×{columns}, chunks of {chunk}"
    if case.values == "special":
        grad[grad.isnan()] = torch.inf
        yield _call(f"{name}, grad with Inf", grad, out, 0.5, chunk, "")  # check's own hint says what to think of
        grad, out = Case(case.shape).tensor(0, device), out.clone()
        out[2, 3] = torch.nan
        name, hint = f"{name}, out with NaN", ""
    elif rows == 4:
        hint = ("Where out <= 0, grad_x is 0; elsewhere it is grad. A row of target has the sums of grad_x over a "
                "chunk's rows.")
        yield _call(name, grad, out, 1.0, chunk, hint)
        name, hint = f"{name}, multiplier 0.5", "Here the multiplier is 0.5, and grad_y is multiplier · grad_x."
    elif rows == 8:
        hint = ("There are 2 chunks of 4 rows, and program_id(1) is the chunk's number. A chunk has its own rows, and "
                "a row of target to itself.")
    elif columns % BLOCK:
        hint = f"With {columns} columns and {BLOCK} per program, the mask must exclude the columns beyond the last."
    else:
        hint = (f"A chunk has {chunk} rows, and a program reads {ROWS} at once. So the mask must exclude the rows "
                "beyond the chunk. The last chunk ends where the rows end.")
    yield _call(name, grad, out, 0.5, chunk, hint)


def _call(name: str, grad: Tensor, out: Tensor, multiplier: float, chunk: int, hint: str) -> Call:
    rows, columns = grad.shape
    tensors = (grad, out, _unset(grad), _unset(grad), _unset(grad, -(-rows // chunk), columns))
    return Call(name, tensors, (multiplier, chunk), hint=hint)


OWN = "All programs run at the same time. Program (i, k) stores its own BLOCK columns, for the rows of chunk k alone."


def _kernel(
    reference: Callable, calls: Callable, launch: Callable, mutated: tuple[str, ...], cases: Sequence[Case], stored: int
) -> SharedOut:
    """stored: which of the tensors of the call that is looked at, whose programs have equally much to store."""
    spec = Spec(reference, calls, outputs=(), mutated=mutated, scale=Sums(), cases=lambda names: [*cases])

    def looked_at() -> list[tuple[str, tuple, Tensor, int]]:
        call = next(call for call in calls(Case((8, 48)), torch.device("cpu")) if "chunks of 4" in call.name)
        return [(call.name, call.arguments(), call.tensors[stored], 3 * 2)]

    return SharedOut(spec, launch, __name__, looked_at=looked_at, hint=OWN)


PUZZLES = {
    "kept_traffic": OfNumbers(traffic, TRAFFIC, unit="bytes"),
    "two_stage": _kernel(
        two_stage, _sum_calls, launch_two_stage, ("result", "workspace"),
        [*map(Case, ((8, 16), (24, 32), (20, 21), (37, 16), (1, 5)))], stored=2,
    ),
    "whole_backward": _kernel(
        whole_backward, _backward_calls, launch_whole_backward, ("grad_x", "grad_y", "target"),
        [*map(Case, ((4, 16), (8, 48), (12, 16), (23, 21))), Case((8, 16), values="special")], stored=2,
    ),
}
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt


def passed(name: str) -> Callable:
    """The reader's function or kernel, if it passed when it was last tried; else the lecture's."""
    return JUDGE.solved.get(name) or (traffic if name == "kept_traffic" else _lectures(name))


@functools.cache  # a call that is timed is not to read it anew
def _lectures(name: str) -> Callable:
    text = answers.solutions(Path(__file__).parent)[name].source.partition("\n\n\nsolved")[0]
    return define(text, name, {"triton": triton, "tl": tl, "__name__": name})
