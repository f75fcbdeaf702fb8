"""The parts of the fused update: the launches of a reader's kernels, and what they must give."""

from __future__ import annotations

import torch
from torch import Tensor

from lessons.shared.far import behind

BLOCK, LARGE_BLOCK = 64, 4096  # positions that a program of `starts` takes; where there are MANY
MANY = 2**16  # keys, whose numbers 16 bits do not hold
EPS = 1e-10
GIVEN: dict[str, tuple[Tensor, ...]] = {}  # what each launch was last given, and gave


def launch_starts(kernel, keys: Tensor) -> Tensor:
    """kernel[programs](keys, starts, N, BLOCK): a program for BLOCK positions."""
    out = torch.empty(keys.shape, dtype=torch.int32, device=keys.device)
    GIVEN["starts"] = keys, out
    block = BLOCK if len(keys) < MANY else LARGE_BLOCK
    if len(keys):
        kernel[(-(-len(keys) // block),)](keys, out, len(keys), BLOCK=block)
    return out


def launch_sums(
    kernel, grad: Tensor, positions: Tensor, offsets: Tensor, row: int = 0, position: int = 0
) -> Tensor:
    """kernel[S](grad, positions, offsets, sums, D, BLOCK): a program for a segment, BLOCK ≥ D lanes for its columns.

    row, position: rows before grad and elements before positions; positions and offsets know of them.
    """
    segments, width = len(offsets) - 1, grad.shape[1]
    out = torch.empty(segments, width, dtype=torch.float32, device=grad.device)
    GIVEN["sums"] = grad, positions, offsets, out
    if segments:
        kernel[(segments,)](
            behind(grad, row), behind(positions, position), offsets, out, width, BLOCK=power_of_two(width)
        )
    return out


def launch_update(
    kernel, tables: Tensor, state: Tensor, rows: Tensor, sums: Tensor, lr: float, eps: float = EPS, first: int = 0
) -> None:
    """kernel[S](tables, state, rows, sums, lr, eps, D, BLOCK): a program for a row; state [R, D] or [R].

    first: rows before tables and state; `rows` knows of them.
    """
    GIVEN["update"] = rows, sums
    if len(rows):
        width = tables.shape[1]
        larger = behind(tables, first), behind(state, first)
        kernel[(len(rows),)](*larger, rows, sums, lr, eps, width, BLOCK=power_of_two(width))
        if first:
            tables.copy_(larger[0][first:]), state.copy_(larger[1][first:])


def power_of_two(width: int) -> int:
    return max(1 << (width - 1).bit_length(), 2)


def starts_of(keys: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(keys[:1]), (keys.diff() != 0).long()]).int()


def sums_of(grad: Tensor, positions: Tensor, offsets: Tensor, row: int = 0, position: int = 0) -> Tensor:
    wide = torch.promote_types(grad.dtype, torch.float32)
    segment = torch.arange(len(offsets) - 1, device=grad.device).repeat_interleave(offsets.diff())
    out = torch.zeros(len(offsets) - 1, grad.shape[1], dtype=wide, device=grad.device)
    return out.index_add_(0, segment, grad[positions - row].to(wide))
