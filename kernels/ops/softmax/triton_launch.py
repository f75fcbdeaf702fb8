"""Which of triton_kernel.py's kernels computes a softmax or its gradient, with which grid and constants."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...device import launch
from ...device.reduce import MOST_PARTS, row_parts, row_tile, unit

kernels = launch.triton_functions(f"{__package__}.triton_kernel")


@dataclass(frozen=True)
class Limits:
    """Where one way of computing gives way to another.

    held: columns of the longest row that a program holds: 32 elements for each of 1024 threads, which in the forward
        take 51 of their 64 registers. The backward holds two rows and would spill, so half of it; float64, again half.
    block: columns that a program reads at once of a longer row: 16 for each thread of 8 warps; float64 half.
    few_rows: fewer longer rows than this are cut into parts: with a program each they would leave many of a GPU's
        processors (132 on an H200) without work.
    """

    held: int = 32768
    block: int = 4096
    few_rows: int = 256


def forward(x: Tensor, out: Tensor, limits: Limits | None = None) -> None:
    """out = softmax(x) over the last dimension; contiguous, of one dtype; out may be x."""
    _launch("forward", (x,), out, 2, limits or Limits())  # a part leaves its maximum and its sum


def backward(grad: Tensor, out: Tensor, grad_x: Tensor, limits: Limits | None = None) -> None:
    """grad_x = out · (grad - Σ grad · out) over the last dimension; contiguous, of one dtype."""
    _launch("backward", (grad, out), grad_x, 1, limits or Limits())  # a part leaves its Σ grad · out


def _launch(direction: str, inputs: tuple[Tensor, ...], output: Tensor, workspaces: int, limits: Limits) -> None:
    if output.numel() == 0:
        return
    columns = output.shape[-1]
    rows = output.numel() // columns
    accumulator = torch.float64 if output.dtype == torch.float64 else torch.float32
    wide = accumulator.itemsize // 4
    whole = unit(columns, output.itemsize)
    if columns * len(inputs) * wide <= limits.held:
        row_block, column_block, warps = row_tile(columns, accumulator.itemsize)
        kernel = getattr(kernels, f"rows_{direction}")[(launch.cdiv(rows, row_block),)]
        constants = dict(UNIT=whole, ROWS=row_block, BLOCK=column_block, num_warps=warps)
        kernel(*inputs, output, rows, columns // whole, **constants)
        return
    constants = dict(UNIT=whole, BLOCK=limits.block // wide, num_warps=8)
    parts, blocks = row_parts(rows, columns, constants["BLOCK"], limits.few_rows)
    if parts == 1:
        getattr(kernels, f"long_{direction}")[(rows,)](*inputs, output, columns // whole, **constants)
        return
    found = [launch.empty((rows, parts), accumulator, output) for _ in range(workspaces)]
    part, finish = (getattr(kernels, f"{pass_}_{direction}")[(parts, rows)] for pass_ in ("part", "finish"))
    part(*inputs, *found, columns // whole, blocks, **constants)
    finish(*inputs, *found, output, columns // whole, blocks, PARTS=MOST_PARTS, **constants)
