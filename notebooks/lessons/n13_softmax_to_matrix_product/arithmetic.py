"""The arithmetic of a tiled product: bytes that its programs load, the order of its tiles, banks, rounded sums."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lessons.shared.records import LANES, sms

SQUARE = 4096


def resident() -> int:
    """Programs of tiles of 128 by 128 that are there at once: an SM has registers and shared memory for two."""
    return 2 * sms()


def read_gb(rows: int, columns: int, size: int = SQUARE, itemsize: int = 2) -> float:
    """GB that all programs together load, in a product of squares, each for a tile of so many rows and columns."""
    return (size // rows) * (size // columns) * (rows + columns) * size * itemsize / 1e9


def place(program: int, rows: int, columns: int, group: int) -> tuple[int, int]:
    """The tile that a program takes: `group` rows of tiles at a time, down first, then to the right."""
    first = program // (group * columns) * group
    high = min(group, rows - first)
    inside = program % (group * columns)
    return first + inside % high, inside // high


def strips(order: Callable, rows: int, columns: int, group: int, programs: int | None = None) -> tuple[int, int]:
    """How many rows of tiles, and how many columns of them, the first programs need: strips of x and of the weight."""
    tiles = [order(program, rows, columns, group) for program in range(min(programs or resident(), rows * columns))]
    return len({row for row, _ in tiles}), len({column for _, column in tiles})


def bank(number: int) -> int:
    """The bank of shared memory, one of 32, that a number of 4 bytes lies in."""
    return number % LANES


def ways(apart: int) -> int:
    """How many of a warp's lanes ask one bank, if lane k reads number k · apart: as many turns it takes."""
    asked = [bank(lane * apart) for lane in range(LANES)]
    return max(map(asked.count, asked))


def sum_of_ones(count: int, dtype: torch.dtype) -> float:
    """1 + 1 + …, each sum rounded to the dtype."""
    total = torch.zeros((), dtype=dtype)
    for _ in range(count):
        total += 1
    return float(total)
