"""A puzzle on the way to FlashAttention: an accumulator that is rescaled when the maximum rises ("online",
arXiv:1805.02867; arXiv:2205.14135).

flash   z [rows, columns], v [columns, WIDTH] → out [rows, WIDTH] = softmax(z) v, by a program a row, BLOCK columns at a
        time
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from lessons.shared.puzzle import InTriton

WIDTH = 8
BLOCK, LARGE_BLOCK = 16, 4096  # columns at a time; of a long row
# name → rows, columns, and what is done to the normal numbers of z.
DRAWN = {
    "one block": (3, 16, lambda z: z),
    "a falling row": (2, 64, lambda z: z.sort(descending=True).values),
    "two blocks": (2, 32, lambda z: z),
    "a rising row": (2, 64, lambda z: 4 * z.sort().values),
    "large numbers": (2, 48, lambda z: 200 + 50 * z),
    "very negative numbers": (2, 48, lambda z: 50 * z - 300),
    "a width of 41": (3, 41, lambda z: z),
    "one number": (1, 1, lambda z: z),
    "a NaN": (2, 32, lambda z: z.where(z < z.max(), math.nan)),
    "far below zero": (2, 41, lambda z: 1e30 * (z - 6)),
    "a long row": (1, 66_000, lambda z: z),
}
HINTS = {
    "one block": "each program has a row of z of its own, and here it is one block: out is Σ e^(z - maximum) v over "
    "Σ e^(z - maximum).",
    "a long row": "there are 66,000 columns: a place in the row, or in v, needs more than 16 bits.",
    "a falling row": "total, sums and maximum belong together: when the maximum is replaced, what are they sums of?",
    "large numbers": "e^200 is more than float32 has: take a maximum off each score first.",
    "very negative numbers": "e^-300 is 0 in float32: from which maximum on is the distance taken?",
    "a width of 41": "what lies beyond the row is read as -Inf, whose e^ is 0: is it taken off a maximum of scores?",
    "far below zero": "scores may be as low as -1e30: what is read beyond the row's end must be lower than any.",
    "a NaN": "a row with a NaN has NaN for its result: what have you left out?",
}
HINT = "If the maximum rises, each term of total and of sums changes by e^(maximum - higher)."


def launch(kernel, z: Tensor, v: Tensor) -> Tensor:
    """kernel[rows](z, v, out, columns, WIDTH, BLOCK)."""
    (rows, columns), width = z.shape, v.shape[1]
    out = torch.empty(rows, width, dtype=z.dtype, device=z.device)
    kernel[(rows,)](z, v, out, columns, WIDTH=width, BLOCK=BLOCK if columns < LARGE_BLOCK else LARGE_BLOCK)
    return out


def flash(z: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(z, 1) @ v


def _largest(z: Tensor, v: Tensor) -> Tensor:
    """A weighted mean is no larger than the largest value."""
    return v.amax(0).expand(len(z), -1)


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    number, *_ = case.shape
    name = list(DRAWN)[number - 1]
    rows, columns, change = DRAWN[name]
    generator = torch.Generator().manual_seed(number)
    z = change(torch.randn(rows, columns, generator=generator)).to(device)
    v = torch.randn(columns, WIDTH, generator=generator).to(device)
    yield Call(f"{name}, {rows}×{columns}", (z, v), hint=HINTS.get(name, HINT))


SPEC = Spec(
    flash, _calls, scale=Sums(k=16.0, magnitude=_largest),
    cases=lambda names: [Case((number,)) for number in range(1, len(DRAWN) + 1)],
)
PUZZLES = {"flash": InTriton(SPEC, launch, __name__)}
