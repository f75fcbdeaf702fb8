"""What a backward moves, and what the order of a float32 sum changes."""

from __future__ import annotations

import numpy as np

ROWS, COLUMNS = 65536, 512
NUMBERS = ROWS * COLUMNS
WAYS = ("out", "x and y", "the derivative", "a mask")  # what is kept for the backward
KEPT = {"relu": "out", "sigmoid": "out", "gelu": "x and y"}  # by our kernels
COMPILER = {"relu": "a mask", "sigmoid": "out", "gelu": "the derivative"}  # by torch.compile


def traffic(way: int, itemsize: int) -> tuple[int, int]:
    """Bytes a number that the forward moves, and the backward; way: which of WAYS is kept."""
    written = (0, 0, itemsize, 1)[way]
    read = (itemsize, 2 * itemsize, itemsize, 1)[way]
    return 3 * itemsize + written, 3 * itemsize + read


def backward_bytes(name: str, activation: str, itemsize: int) -> int:
    """Bytes a number that the backward moves: ours, or torch.compile's, whose sum reads grad_x again."""
    if name == "torch.compile":
        return traffic(WAYS.index(COMPILER[activation]), itemsize)[1] + itemsize
    return traffic(WAYS.index(KEPT[activation]), itemsize)[1]


# ---------------------------------------------------------------------------------------------------- order of a sum


def ones(rows: int, programs: int) -> int:
    """What float32 makes of so many ones: each program adds its share one after the other, then the programs' sums are
    added; both are powers of two."""
    return programs * min(rows // programs, 2**24)


def draw(rows: int = ROWS, columns: int = 64) -> np.ndarray:
    """Normal float32 numbers, the same on every machine."""
    return np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)


def one_after_another(x: np.ndarray) -> np.ndarray:
    """Sums over the rows in float32, in their order."""
    return np.cumsum(x, axis=0, dtype=np.float32)[-1]


def in_chunks(x: np.ndarray, chunk: int = 128) -> np.ndarray:
    """The same, first those of each chunk of rows."""
    return one_after_another(np.cumsum(x.reshape(-1, chunk, x.shape[1]), axis=1, dtype=np.float32)[:, -1])


def orders(count: int, chunk: int = 128) -> list[float]:
    """One column's sum, count times: its chunks' sums added in an order that is drawn anew each time."""
    x = draw(columns=1).reshape(-1, chunk)
    sums, generator = np.cumsum(x, axis=1, dtype=np.float32)[:, -1], np.random.default_rng(1)
    return [float(np.cumsum(generator.permutation(sums), dtype=np.float32)[-1]) for _ in range(count)]
