"""The lesson's kernels, launched: sums over rows by each step and by PyTorch, and the backward in one pass."""

from __future__ import annotations

from torch import Tensor

from kernels.device.launch import cdiv
from lessons.n09_a_backward import sum_kernels

BLOCK, ROWS, WARPS = 32, 32, 4  # columns a program, rows that it reads at once
CHUNKS = 128  # of the sum alone: the best of the record for atomics, and as good as 64 in two stages
STEPS = ("sum_rows", "sum_tiles", "torch")


def launch(step: str, x: Tensor, chunks: int = CHUNKS, rows: int = ROWS, warps: int = WARPS) -> Tensor:
    """x [rows, columns] summed over its rows, float32: a kernel of sum_kernels.py, or "torch". warps: of a program;
    sum_rows has one, for a lane a column."""
    if step == "torch":
        return x.sum(0)
    count, columns = x.shape
    tiles, chunk = cdiv(columns, BLOCK), cdiv(count, chunks)
    constants = {"COLUMNS": columns, "BLOCK": BLOCK, "num_warps": warps}
    if step == "sum_rows":
        result = x.new_empty(columns)
        sum_kernels.sum_rows[(tiles,)](x, result, count, **constants | {"num_warps": 1})
    elif step == "sum_tiles":
        result = x.new_empty(columns)
        sum_kernels.sum_tiles[(tiles,)](x, result, count, ROWS=rows, **constants)
    elif step == "sum_atomic":
        result = x.new_zeros(columns)  # one launch more
        sum_kernels.sum_atomic[(tiles, cdiv(count, chunk))](x, result, count, chunk, ROWS=rows, **constants)
    else:
        result, workspace = x.new_empty(columns), x.new_empty(cdiv(count, chunk), columns)
        sum_kernels.two_stage[(tiles, len(workspace))](x, workspace, count, chunk, ROWS=rows, **constants)
        sum_kernels.two_stage[(tiles, 1)](workspace, result, len(workspace), len(workspace), ROWS=rows, **constants)
    return result


def whole_backward(
    grad: Tensor, out: Tensor, multiplier: float, chunks: int, rows: int = 4, block: int = 128
) -> tuple[Tensor, Tensor, Tensor]:
    """(grad_x, grad_bias, grad_y) of relu(x + multiplier · y + bias), by the lesson's kernel and its two_stage."""
    count, columns = grad.shape
    chunk = cdiv(count, chunks)
    grad_x, grad_y, grad_bias = grad.new_empty(grad.shape), grad.new_empty(grad.shape), grad.new_empty(columns)
    workspace = grad.new_empty(cdiv(count, chunk), columns)
    sum_kernels.whole_backward[(cdiv(columns, block), len(workspace))](
        grad, out, grad_x, grad_y, workspace, multiplier, count, chunk,
        COLUMNS=columns, ROWS=rows, BLOCK=block, num_warps=WARPS,
    )
    sum_kernels.two_stage[(cdiv(columns, BLOCK), 1)](
        workspace, grad_bias, len(workspace), len(workspace),
        COLUMNS=columns, ROWS=ROWS, BLOCK=BLOCK, num_warps=WARPS,
    )
    return grad_x, grad_bias, grad_y
