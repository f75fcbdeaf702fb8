"""The puzzles of 09_a_backward.ipynb; a kernel's programs have BLOCK columns, and read some rows at once.

kept_traffic     what is kept for the backward, bytes of an element → bytes an element that forward and backward move
two_stage        result[c] = the sum over r of x[r, c]: the kernel is launched for each chunk of the rows, which it
                 leaves in a workspace [chunks, columns], and once more, on the workspace; both are compared
whole_backward   of relu(x + multiplier y + bias): grad_x = grad, or 0 where out <= 0 (where out is NaN the gradient
                 passes, as in PyTorch), grad_y = multiplier grad_x, and each chunk's sums of grad_x over its rows
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
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

ROOM = Path(__file__).resolve().parent
NOTEBOOK = ROOM.parents[1] / f"{ROOM.name.removeprefix('n')}.ipynb"
BLOCK = 16
UNSET = 1000.0  # what target has before: in NaN it would not show that a kernel adds to it


def traffic(way: int, itemsize: int) -> tuple[int, int]:
    """Bytes an element that the forward moves, and the backward. way: out is kept, x and y, the derivative, a mask."""
    written = (0, 0, itemsize, 1)[way]
    read = (itemsize, 2 * itemsize, itemsize, 1)[way]
    return 3 * itemsize + written, 3 * itemsize + read


_BACKWARD = "The backward reads the gradient and what was kept, and writes two gradients."
# What is kept, and what to think of if such a case is the first that fails.
HINTS = (
    ("out", _BACKWARD),
    ("x and y", f"{_BACKWARD} Here two tensors were kept."),
    ("the derivative", "The forward reads x and y, and writes out. It also writes what is kept if that is another."),
    ("a mask", "An element of the mask has one byte, whatever the dtype of out."),
)
TRAFFIC = [
    (f"{what}, {dtype}", (way, size), hint if size == 4 or way > 1 else "A bfloat16 element has two bytes.")
    for dtype, size in (("float32", 4), ("bfloat16", 2)) for way, (what, hint) in enumerate(HINTS)
]


def at_once(rows: int) -> int:
    """Rows that a program reads at once where there are so many: a kernel must work with any number."""
    return 8 if rows > 20 else 4


def launch_two_stage(
    kernel, x: Tensor, result: Tensor, workspace: Tensor, chunk: int, ROWS: int = 0, BLOCK: int = BLOCK
) -> None:
    """kernel[tiles, chunks](x, workspace, rows, chunk, COLUMNS, ROWS, BLOCK), and again from workspace to result."""
    (rows, columns), chunks = x.shape, len(workspace)
    tiles, sizes = -(-columns // BLOCK), {"COLUMNS": columns, "ROWS": ROWS or at_once(rows), "BLOCK": BLOCK}
    kernel[(tiles, chunks)](x, workspace, rows, chunk, **sizes)
    kernel[(tiles, 1)](workspace, result, chunks, chunks, **sizes)


def two_stage(x: Tensor, result: Tensor, workspace: Tensor, chunk: int) -> None:
    workspace.copy_(torch.stack([part.sum(0) for part in x.split(chunk)]))
    result.copy_(x.sum(0))


def launch_whole_backward(
    kernel, grad: Tensor, out: Tensor, grad_x: Tensor, grad_y: Tensor, target: Tensor, multiplier: float, chunk: int,
    ROWS: int = 0, BLOCK: int = BLOCK,
) -> None:
    """kernel[tiles, chunks](grad, out, grad_x, grad_y, target, multiplier, rows, chunk, COLUMNS, ROWS, BLOCK)."""
    rows, columns = grad.shape
    sizes = {"COLUMNS": columns, "ROWS": ROWS or at_once(rows), "BLOCK": BLOCK}
    kernel[(-(-columns // BLOCK), len(target))](grad, out, grad_x, grad_y, target, multiplier, rows, chunk, **sizes)


def whole_backward(
    grad: Tensor, out: Tensor, grad_x: Tensor, grad_y: Tensor, target: Tensor, multiplier: float, chunk: int
) -> None:
    grad_x.copy_(torch.where(out <= 0, 0, grad))
    grad_y.copy_(multiplier * grad_x)
    two_stage(grad_x, torch.empty_like(grad_x[0]), target, chunk)


def _sum_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, columns = case.shape
    x, result = case.tensor(0, device), case.tensor(1, device, (columns,))
    for chunk in dict.fromkeys((rows, max(1, rows // 2), 5)):
        chunks = -(-rows // chunk)
        if chunks == 1:
            hint = "There is one chunk. Does the kernel add all of its rows?"
            hint += " Here ROWS is 8, not 4." * (at_once(rows) == 8)
        elif rows % chunk:
            hint = f"The last of {chunks} chunks has only {rows % chunk} of {chunk} rows, and ends where the rows end."
        else:
            hint = (f"There are {chunks} chunks of {chunk} rows, and program_id(1) is the chunk's number. A chunk "
                    "begins where the one before it ends, and has a row of target to itself.")
        workspace = x.new_full((chunks, columns), UNSET)
        yield Call(f"{rows}×{columns}, chunks of {chunk}", (x, result, workspace), (chunk,), hint=hint)


def _backward_calls(case: Case, device: torch.device) -> Iterator[Call]:
    (rows, columns), chunk = case.shape, 4 if case.shape[0] in (4, 8) else 5
    grad, out = case.tensor(0, device), Case(case.shape).tensor(1, device).relu()

    def call(what: str, hint: str, multiplier: float = 0.5) -> Call:
        unset, target = grad.new_full((2, rows, columns), torch.nan), grad.new_full((-(-rows // chunk), columns), UNSET)
        tensors = grad, out, *unset, target
        return Call(f"{rows}×{columns}, chunks of {chunk}{what}", tensors, (multiplier, chunk), hint=hint)

    if case.values == "special":
        grad[grad.isnan()] = torch.inf
        yield call(", grad with Inf", "")  # check's own hint says what to think of
        grad, out = Case(case.shape).tensor(0, device), out.clone()
        out[2, 3] = torch.nan
        yield call(", out with NaN", "")
    elif rows == 4:
        hint = "Where out <= 0, grad_x is 0; elsewhere it is grad. A row of target has the sums of grad_x over a "
        yield call("", hint + "chunk's rows.", 1.0)
        yield call(", multiplier 0.5", "Here the multiplier is 0.5, and grad_y is multiplier · grad_x.")
    elif rows == 8:
        hint = "There are 2 chunks of 4 rows, and program_id(1) is the chunk's number. A chunk has its own rows, and "
        yield call("", hint + "a row of target to itself.")
    elif columns % BLOCK:
        hint = f"With {columns} columns and {BLOCK} per program, the mask must exclude the columns beyond the last."
        yield call("", hint)
    else:
        hint = f"A chunk has {chunk} rows, and a program reads {at_once(rows)} at once. So the mask must exclude the "
        yield call("", hint + "rows beyond the chunk. The last chunk ends where the rows end.")


OWN = "All programs run at the same time. Program (i, k) stores its own BLOCK columns, for the rows of chunk k alone."


def _kernel(reference: Callable, calls: Callable, launch: Callable, mutated: tuple, *cases: Case) -> SharedOut:
    """Of the call that is looked at, the third tensor is shared out: to all programs equally much."""
    spec = Spec(reference, calls, outputs=(), mutated=mutated, scale=Sums(), cases=lambda names: [*cases])

    def looked_at() -> list[tuple[str, tuple, Tensor, int]]:
        call = next(call for call in calls(Case((8, 48)), torch.device("cpu")) if "chunks of 4" in call.name)
        return [(call.name, call.arguments(), call.tensors[2], 3 * 2)]

    return SharedOut(spec, launch, __name__, looked_at=looked_at, hint=OWN)


PUZZLES = {
    "kept_traffic": OfNumbers(traffic, TRAFFIC, unit="bytes"),
    "two_stage": _kernel(
        two_stage, _sum_calls, launch_two_stage, ("result", "workspace"),
        *map(Case, ((8, 16), (24, 32), (20, 21), (37, 16), (1, 5))),
    ),
    "whole_backward": _kernel(
        whole_backward, _backward_calls, launch_whole_backward, ("grad_x", "grad_y", "target"),
        *map(Case, ((4, 16), (8, 48), (12, 16), (23, 21))), Case((8, 16), values="special"),
    ),
}
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt


def passed(name: str) -> Callable:
    """The reader's function or kernel, if it passed when it was last tried; else the lecture's."""
    return JUDGE.solved.get(name) or (traffic if name == "kept_traffic" else lectures(name))


@functools.cache  # a call that is timed is not to read it anew
def lectures(name: str) -> Callable:
    """The lecture's kernel of this name: a puzzle's answer, or that of a cell. ValueError: there is none."""
    for text in (*(answer.source for answer in answers.solutions(ROOM).values()), *cells()):
        if found := re.search(rf"^@triton.jit\ndef {name}\(.*?(?=\n\n\n|\Z)", text, flags=re.M | re.S):
            return define(found[0], name, {"triton": triton, "tl": tl, "__name__": name})
    raise ValueError(f"there is no kernel {name!r} in {NOTEBOOK.name}")


def cells() -> list[str]:
    """The notebook's code."""
    entries = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in entries if cell["cell_type"] == "code"]
