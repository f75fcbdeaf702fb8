"""What is left of LoRA's change in bfloat16, by the way it is applied: every rounding by hand, in float64, so that the
numbers are the same on any machine."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from lessons.n12_lora.puzzles import kept

WIDTH, ROWS, RANK, MULTIPLIER = 256, 2048, 8, 2.0
STDS = (1e-1, 1e-2, 1e-3, 3e-4, 1e-4)  # of B
BESIDE, MERGED, ONE_PRODUCT = "beside", "merged", "one product"
WAYS = (BESIDE, MERGED, ONE_PRODUCT)


@dataclass(frozen=True)
class Kept:
    """std: of B. change: the change's size, % of W's. error, % of the wanted output change, and projection on it, by
    way. frozen: the error that rounding the frozen layer's output is alone."""

    std: float
    change: float
    error: dict[str, float]
    projection: dict[str, float]
    frozen: float


def rounded(values: Tensor) -> Tensor:
    """To bfloat16, and back to float64."""
    return values.bfloat16().double()


@functools.cache
def drawn() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, W, A, and B of std 1: drawn as LinearWithLoRA draws them, W and x in bfloat16."""
    random = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return (2 * torch.rand(shape, generator=random, dtype=torch.float64) - 1) / WIDTH**0.5

    W, A = rounded(uniform(WIDTH, WIDTH)), rounded(uniform(WIDTH, RANK))
    B, x = (torch.randn(shape, generator=random, dtype=torch.float64) for shape in ((RANK, WIDTH), (ROWS, WIDTH)))
    return rounded(x), W, A, B


def outputs(std: float) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(x Wᵀ, the wanted change of it, what comes out by each way), without bias and activation.

    beside       x Wᵀ is rounded, y = (x A) B too, and then their sum
    merged       W + the change is rounded, and x times that
    one product  x Wᵀ and (x A) B are added up in float32, within one product, and rounded once
    """
    x, W, A, unit = drawn()
    B = rounded(std * unit)
    base, change = x @ W.T, MULTIPLIER * (A @ B).T
    thin = rounded(x @ A)
    found = {
        BESIDE: rounded(rounded(base) + MULTIPLIER * rounded(thin @ B)),
        MERGED: rounded(x @ rounded(W + change).T),
        ONE_PRODUCT: rounded(base + MULTIPLIER * (thin @ B)),
    }
    return base, x @ change.T, found


@functools.cache
def kept_of(std: float) -> Kept:
    _, W, A, unit = drawn()
    change = MULTIPLIER * (A @ rounded(std * unit)).T
    base, wanted, found = outputs(std)
    both = {way: [float(value) for value in kept(wanted, found[way] - base)] for way in WAYS}
    frozen, _ = kept(wanted, wanted + rounded(base) - base)
    return Kept(
        std,
        100 * float(change.norm() / W.norm()),
        {way: 100 * both[way][0] for way in WAYS},
        {way: both[way][1] for way in WAYS},
        100 * float(frozen),
    )


def print_kept(measure=kept) -> None:
    """A line a std: error and projection, as measure(wanted, arrived) gives them, of the output's change, by way."""
    print("std of B   change, % of W   " + "   ".join(f"{way + ': error, projection':>30}" for way in WAYS))
    for std in STDS:
        base, wanted, found = outputs(std)
        cells = []
        for way in WAYS:
            error, projection = (float(value) for value in measure(wanted, found[way] - base))
            cells.append(f"{100 * error:18.3g} % {projection:9.2f}")
        print(f"{std:8g} {kept_of(std).change:16.3g}   " + "   ".join(cells))
