"""Bytes of eager's kernels and of the fused one, and of a lane's accesses."""

from __future__ import annotations

from lessons.shared.records import LANES


def traffic(rows: int, columns: int) -> tuple[int, int]:
    """Bytes of sigmoid(x + 0.5 y + bias) in float32: eager's four kernels, and one that is fused."""
    numbers = rows * columns
    product, sums, activation = 2 * numbers, 3 * numbers + 2 * numbers + columns, 2 * numbers
    return 4 * (product + sums + activation), 4 * (3 * numbers + columns)


def width(block: int, warps: int, known: int) -> int:
    """Bytes that a lane moves in one instruction: neighbours in float32, at most 16 bytes; known: whether addresses and
    count are known to be multiples of 16."""
    neighbours = max(1, block // (LANES * warps))
    return 4 * min(neighbours, 4) if known else 4
