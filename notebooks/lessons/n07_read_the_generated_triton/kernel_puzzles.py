"""A problem on the way to add_mul_activation: the kernel as torch.compile generates it, for any size and multiplier.

open   out = sigmoid(x + multiplier y + bias), by programs of XBLOCK elements each
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec
from lessons.shared.puzzle import look_beside
from lessons.shared.puzzle.shares import SharedOut

XBLOCK = 64


def launch(kernel, x: Tensor, y: Tensor, bias: Tensor, out: Tensor, multiplier: float) -> None:
    """kernel[grid](x, y, bias, out, multiplier, columns, elements, XBLOCK)."""
    grid = (-(-x.numel() // XBLOCK),)
    if out.is_cuda and tuple(x.shape) == BESIDE:
        zeros = [torch.zeros(tensor.shape) for tensor in (x, y, bias, out)]
        look_beside(kernel, grid, *zeros, multiplier, x.shape[1], x.numel(), XBLOCK=XBLOCK)
    parameters = inspect.signature(getattr(kernel, "fn", kernel)).parameters.values()
    known = [
        parameter.name for parameter in parameters
        if "constexpr" in str(parameter.annotation) and parameter.name != "XBLOCK"
    ]
    if known:
        raise AssertionError(f"{', '.join(known)}: as a constexpr, each value needs a compilation of its own")
    kernel[grid](x, y, bias, out, multiplier, x.shape[1], x.numel(), XBLOCK=XBLOCK)


def open_sizes(x: Tensor, y: Tensor, bias: Tensor, out: Tensor, multiplier: float) -> None:
    out.copy_(torch.sigmoid(x + multiplier * y + bias))


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, columns = case.shape
    elements = rows * columns
    if elements % XBLOCK:
        hint = f"x has {elements} elements, {XBLOCK} per program. Which indices of the last program are inside x?"
    else:
        hint = (
            f"With {columns} column{'s' * (columns > 1)}, element {columns} is the first of row 1. "
            "Its bias is bias[0]. The sum is x + multiplier · y + bias, in float32."
        )
    tensors = [case.tensor(number, device, shape) for number, shape in
               enumerate((case.shape, case.shape, (columns,), case.shape))]
    for multiplier in (0.5, -1.25):
        again = "The argument multiplier is not always 0.5." if multiplier != 0.5 else hint
        yield Call(f"{rows}×{columns}, multiplier {multiplier}", tuple(tensors), (multiplier,), hint=again)


BESIDE = (5, 7)  # the shape whose accesses are looked at on a GPU: the last program has less than a block
SHAPES = ((2, 512), (8, 16), (4, 48), (64, 1), (5, 7), (7, 9), (5, 13), (3, 513))  # one less than a block, one more
SPEC = Spec(open_sizes, _calls, outputs=(), mutated=("out",), cases=lambda names: [*map(Case, SHAPES)])


def _looked_at() -> list[tuple[str, tuple, Tensor, int]]:
    """A launch whose last program has a rest, and one without."""
    launches = []
    for shape, programs in ((BESIDE, 0), ((8, 16), 2)):
        x, y, bias, out = (torch.zeros(size) for size in (shape, shape, shape[1], shape))
        launches.append((f"{shape[0]}×{shape[1]}", (x, y, bias, out, 0.5), out, programs))
    return launches


HINT = "Program p stores elements p · XBLOCK to p · XBLOCK + XBLOCK - 1, as far as they are inside x: xmask says which."
PUZZLES = {"open": SharedOut(SPEC, launch, __name__, looked_at=_looked_at, hint=HINT)}
