"""A fixed number of programs, each of which takes several tiles of BLOCK numbers.

double   x[i] = 2 x[i], in place
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec
from lessons.shared.puzzle.shares import SharedOut

# Numbers → programs, BLOCK.
LAUNCHES = {64: (4, 16), 192: (4, 16), 256: (4, 16), 70: (4, 16), 7: (4, 16), 205: (4, 16), 288: (3, 32), 100: (5, 8)}
SHARED = 192  # elements, of the launch whose tiles are counted


def launch(kernel, x: Tensor) -> None:
    """kernel[programs](x, n, BLOCK)."""
    programs, block = LAUNCHES[x.numel()]
    kernel[(programs,)](x, x.numel(), BLOCK=block)


def double(x: Tensor) -> None:
    x.mul_(2)


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    n = case.shape[0]
    programs, block = LAUNCHES.get(n, (4, 16))
    tiles = -(-n // block)
    if (programs, block) != (4, 16):
        hint = (
            f"This launch has {programs} programs, and BLOCK is {block}. "
            "The kernel gets them as tl.num_programs(0) and BLOCK."
        )
    elif n % block:
        hint = f"The last tile has only {n % block} elements. Which of its indices are inside x?"
    elif tiles <= programs:
        hint = (
            f"There are {programs} programs, with one tile each. Where does program 1 begin? "
            "Double each element exactly once."
        )
    else:
        hint = (
            f"There are {tiles} tiles for {programs} programs. "
            f"Program 0 can take tiles 0, {programs}, {2 * programs} and so on."
        )
    yield Call(f"{n} elements", (case.tensor(1, device),), hint=hint)


def _looked_at() -> list[tuple[str, tuple, Tensor, int]]:
    x = torch.zeros(SHARED)
    return [(f"{SHARED} elements", (x,), x, LAUNCHES[SHARED][0])]


HINT = "All 4 programs run at the same time. Each takes 3 of the 12 tiles."
SPEC = Spec(double, _calls, outputs=(), mutated=("x",), cases=lambda names: [Case((n,)) for n in LAUNCHES])
PUZZLES = {"double": SharedOut(SPEC, launch, __name__, looked_at=_looked_at, hint=HINT)}
