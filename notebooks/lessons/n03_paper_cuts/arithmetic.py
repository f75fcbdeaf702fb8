"""Bytes of the tables, and how often a step with dense gradients goes through them."""

from __future__ import annotations

from collections.abc import Sequence

from data.synthetic import FULL, SyntheticConfig

SMALL = SyntheticConfig().cardinalities  # of the preset small's steps
KAGGLE = SyntheticConfig(FULL).cardinalities
WIDTH = 16  # of the tables, float32


def table_bytes(cardinalities: Sequence[int] = KAGGLE) -> int:
    return 4 * WIDTH * sum(size + 1 for size in cardinalities)


def sweeps(rule: str) -> dict[str, int]:
    """How many times a step with dense gradients reads or writes all tables, operation by operation (torch's foreach
    kernels, no weight decay)."""
    if rule == "sgd":
        return {"fill the gradient with 0": 1, "update: row, gradient → row": 3}
    return {
        "fill the gradient with 0": 1, "sum += g²": 3, "sqrt(sum)": 2, "+ eps": 2, "-rate · g": 2,
        "update: row, -rate · g, root → row": 4,
    }


# What zero_grad(set_to_none=False) adds: a fill, and a gradient that is added to the filled one.
KEPT = {"fill the kept gradient with 0": 1, "kept + new → kept": 3}
