"""What an update of DLRM's tables adds up: how often a batch's rows come, in which chunks, in which order."""

from __future__ import annotations

import numpy as np

from data import population

ROWS = sum(category.cardinality for category in population.CATEGORIES.values())  # of Criteo's tables, together


def segments(batch: int) -> dict[str, np.ndarray]:
    """For each of Criteo's tables how often each id of a batch occurs; the shares of the first are real."""
    _, ranks = population.draw(population.SyntheticConfig(population.FULL), np.random.default_rng(0), batch)
    names = population.CATEGORIES
    return {name: np.unique(rank, return_counts=True)[1] for name, rank in zip(names, ranks, strict=True)}


def chunk_of(count: int, columns: int) -> int:
    """How many of so many sorted occurrences a group of the CUDA kernel walks: chunk_of of kernel.cuh."""
    chunk, enough = 4, 1 << 17 if columns < 64 else 1 << 16
    while chunk < 32 and count // chunk > enough:
        chunk *= 2
    return chunk


def sums_in_orders(count: int, orders: int) -> set[float]:
    """The float32 sums of the same random numbers, added one after the other in so many random orders."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(count).astype(np.float32)
    return {float(rng.permutation(values).cumsum(dtype=np.float32)[-1]) for _ in range(orders)}
