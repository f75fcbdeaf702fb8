"""The lesson's sums over rows, launched: by PyTorch's own, or by the kernels of each step."""

from __future__ import annotations

from torch import Tensor

from kernels.device.launch import cdiv
from lessons.n09_a_backward import sum_kernels

BLOCK, ROWS, WARPS = 32, 32, 4  # columns a program, rows that it reads at once
CHUNKS = 512
STEPS = ("sum_rows", "sum_tiles", "sum_atomic", "sum_chunk", "torch")


def launch(step: str, x: Tensor, chunks: int = CHUNKS, rows: int = ROWS, block: int = BLOCK) -> Tensor:
    """x [rows, columns] summed over its rows, float32: a step of sum_kernels.py, or "torch"."""
    if step == "torch":
        return x.sum(0)
    count, columns = x.shape
    tiles, chunk = cdiv(columns, block), cdiv(count, chunks)
    constants = {"COLUMNS": columns, "BLOCK": block, "num_warps": WARPS if step != "sum_rows" else 1}
    if step == "sum_rows":
        result = x.new_empty(columns)
        sum_kernels.sum_rows[(tiles,)](x, result, count, **constants)
    elif step == "sum_tiles":
        result = x.new_empty(columns)
        sum_kernels.sum_tiles[(tiles,)](x, result, count, ROWS=rows, **constants)
    elif step == "sum_atomic":
        result = x.new_zeros(columns)  # one launch more
        sum_kernels.sum_atomic[(tiles, cdiv(count, chunk))](x, result, count, chunk, ROWS=rows, **constants)
    else:
        result, workspace = x.new_empty(columns), x.new_empty(cdiv(count, chunk), columns)
        sum_kernels.sum_chunk[(tiles, len(workspace))](x, workspace, count, chunk, ROWS=rows, **constants)
        sum_kernels.sum_chunk[(tiles, 1)](workspace, result, len(workspace), len(workspace), ROWS=rows, **constants)
    return result


def programs(step: str, count: int, columns: int, chunks: int = CHUNKS, block: int = BLOCK) -> int:
    """How many programs the step's first launch has."""
    tiles = cdiv(columns, block)
    return tiles if step in ("sum_rows", "sum_tiles") else tiles * chunks

