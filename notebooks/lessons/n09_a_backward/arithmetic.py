"""What a backward moves."""

from __future__ import annotations

ROWS, COLUMNS = 65536, 512
ELEMENTS = ROWS * COLUMNS
WAYS = ("out", "x and y", "the derivative", "a mask")  # what is kept for the backward
KEPT = {"relu": "out", "sigmoid": "out", "gelu": "x and y"}  # by our kernels
COMPILER = {"relu": "a mask", "sigmoid": "out", "gelu": "the derivative"}  # by torch.compile


def traffic(way: int, itemsize: int) -> tuple[int, int]:
    """Bytes an element that the forward moves, and the backward; way: which of WAYS is kept."""
    written = (0, 0, itemsize, 1)[way]
    read = (itemsize, 2 * itemsize, itemsize, 1)[way]
    return 3 * itemsize + written, 3 * itemsize + read


def backward_bytes(name: str, activation: str, itemsize: int = 4) -> int:
    """Bytes an element that the backward moves: ours, or torch.compile's, whose sum reads grad_x again."""
    if name == "torch.compile":
        return traffic(WAYS.index(COMPILER[activation]), itemsize)[1] + itemsize
    return traffic(WAYS.index(KEPT[activation]), itemsize)[1]
