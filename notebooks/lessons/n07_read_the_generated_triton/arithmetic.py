"""Bytes of eager's kernels and of the fused one, of a lane's accesses, and in flight; µs of reads and writes."""

from __future__ import annotations

from lessons.shared import records
from lessons.shared.occupancy import programs_an_sm
from lessons.shared.records import LANES


def traffic(rows: int, columns: int) -> tuple[int, int]:
    """Bytes of sigmoid(x + 0.5 y + bias) in float32: eager's four kernels, and one that is fused."""
    elements = rows * columns
    product, sums, activation = 2 * elements, 3 * elements + 2 * elements + columns, 2 * elements
    return 4 * (product + sums + activation), 4 * (3 * elements + columns)


def width(block: int, warps: int) -> int:
    """Bytes that a lane moves in one instruction, where addresses and sizes are known to be multiples of 16."""
    return 4 * min(4, max(1, block // (LANES * warps)))


def in_flight(block: int, warps: int, registers: int) -> float:
    """KB that an SM's programs have asked for at most: two tensors, 4 bytes an element."""
    return programs_an_sm(LANES * warps, registers) * block * 2 * 4 / 1024


def mixed_us(read: float, written: float) -> float:
    """µs of these bytes, at the rate of reads alone, and at what a copy's rate then leaves for its writes."""
    reads, copy = records.memory_tb_per_s(), records.yardstick()
    writes = 1 / (2 / copy - 1 / reads)  # of a copy, half of the bytes are reads
    return (read / reads + written / writes) / 1e6
