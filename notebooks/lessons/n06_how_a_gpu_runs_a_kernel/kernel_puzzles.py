"""A fixed number of programs, each of which takes several tiles of BLOCK numbers.

double   x[i] = 2 x[i], in place
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec
from lessons.shared.puzzle import InTriton

# Numbers → programs, BLOCK.
LAUNCHES = {64: (4, 16), 192: (4, 16), 256: (4, 16), 70: (4, 16), 7: (4, 16), 205: (4, 16), 288: (3, 32), 100: (5, 8)}


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
        hint = f"here there are {programs} programs, and BLOCK is {block}: tl.num_programs(0) and BLOCK say so."
    elif n % block:
        hint = f"the last tile has {n % block} numbers: which of its places are inside?"
    elif tiles <= programs:
        hint = f"{programs} programs, a tile each: where does program 1 begin? Each number is doubled once."
    else:
        hint = f"{tiles} tiles for {programs} programs: program 0 takes tiles 0, {programs}, {2 * programs}, …"
    yield Call(f"{n} numbers", (case.tensor(1, device),), hint=hint)


SPEC = Spec(double, _calls, outputs=(), mutated=("x",), cases=lambda names: [Case((n,)) for n in LAUNCHES])
PUZZLES = {"double": InTriton(SPEC, launch, __name__)}
