"""A problem on the way to softmax of long rows: the row's maximum and its sum in one pass ("online", arXiv:1805.02867).

online   x [rows, columns] → out [rows] = log Σ e^x, by a program a row, BLOCK columns at a time
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec
from lessons.shared.puzzle import InTriton

BLOCK, LARGE_BLOCK = 16, 4096  # columns at a time; of a long row
# name → rows, columns, and what is done to the normal numbers of x.
DRAWN = {
    "one block": (3, 16, lambda x: x),
    "a falling row": (2, 64, lambda x: x.sort(descending=True).values),
    "two blocks": (2, 32, lambda x: x),
    "a rising row": (2, 64, lambda x: 4 * x.sort().values),
    "large numbers": (2, 48, lambda x: 200 + 50 * x),
    "very negative numbers": (2, 48, lambda x: 50 * x - 300),
    "a width of 41": (3, 41, lambda x: x),
    "one number": (1, 1, lambda x: x),
    "a NaN": (2, 32, lambda x: x.where(x < x.max(), math.nan)),
    "far below zero": (2, 41, lambda x: 1e30 * (x - 6)),
    "a long row": (1, 66_000, lambda x: x),
}
HINTS = {
    "one block": "each program has a row of its own, and here it is one block: Σ e^(z - maximum) of that; nothing has "
    "been added up before it.",
    "a long row": "there are 66,000 columns: a place in the row needs more than 16 bits.",
    "a falling row": "total and maximum belong together: when the maximum is replaced, what is total a sum of?",
    "large numbers": "e^200 is more than float32 has: take a maximum off each number first.",
    "very negative numbers": "e^-300 is 0 in float32: from which maximum on is the distance taken?",
    "a width of 41": "what lies beyond the row is read as -Inf, whose e^ is 0: is it taken off a maximum of numbers?",
    "far below zero": "a row's numbers may be as low as -1e30: what is read beyond its end must be lower than any.",
    "a NaN": "a row with a NaN has a NaN for its sum: what have you left out?",
}
HINT = "total is a sum of e^(z - maximum). If the maximum rises, each of its terms changes by e^(maximum - higher)."


def launch(kernel, x: Tensor) -> Tensor:
    """kernel[rows](x, out, columns, BLOCK)."""
    out = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=BLOCK if x.shape[1] < LARGE_BLOCK else LARGE_BLOCK)
    return out


def online(x: Tensor) -> Tensor:
    return torch.logsumexp(x, 1)


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    number, *_ = case.shape
    name = list(DRAWN)[number - 1]
    rows, columns, change = DRAWN[name]
    x = change(torch.randn(rows, columns, generator=torch.Generator().manual_seed(number))).to(device)
    yield Call(f"{name}, {rows}×{columns}", (x,), hint=HINTS.get(name, HINT))


SPEC = Spec(online, _calls, cases=lambda names: [Case((number,)) for number in range(1, len(DRAWN) + 1)])
PUZZLES = {"online": InTriton(SPEC, launch, __name__)}
