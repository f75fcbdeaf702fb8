"""Sums over rows without atomics, so that every run adds in the same order: the bias gradients of Triton kernels.

The rows are cut into chunks. A kernel sums one chunk of a tile of columns into workspace[chunk, column]; `add_chunks`
adds up the chunks. With one chunk the kernel writes the result itself. As column_sum.cuh does it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def row_chunks(rows: int, columns: int) -> tuple[int, int]:
    """(chunks, rows in each but the last), by the shape alone, so that sums come out the same on every GPU.

    A chunk has at least 16 rows, so that the workspace stays small beside what was read.
    """
    chunks = max(1, min(rows * columns >> 14, rows // 16, 512))
    return chunks, triton.cdiv(rows, chunks)


def tile_shape(columns: int, itemsize: int) -> tuple[int, int]:
    """(rows, columns) of what a program reads at once, powers of two: 16 bytes for each of 128 threads."""
    elements = 128 * 16 // itemsize
    column_block = min(triton.next_power_of_2(columns), 32 * 16 // itemsize)
    return elements // column_block, column_block


def sum_target(result: Tensor, chunks: int) -> Tensor:
    """What a kernel writes its sums to: the result [N] itself, or a workspace [chunks, N]."""
    if chunks == 1:
        return result
    accumulator = torch.float64 if result.dtype == torch.float64 else torch.float32
    return torch.empty(chunks, len(result), dtype=accumulator, device=result.device)


@triton.jit
def tile_columns(COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The BLOCK columns from program_id(0) · BLOCK on, those beyond COLUMNS too."""
    tile = tl.program_id(0)
    if COLUMNS >= 0x80000000:
        tile = tile.to(tl.int64)
    return tile * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _add_chunks_kernel(
    workspace_ptr, result_ptr, chunks, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    columns = tile_columns(COLUMNS, BLOCK)
    rows = tl.arange(0, ROWS)[:, None]
    sums = tl.zeros([ROWS, BLOCK], workspace_ptr.dtype.element_ty)
    for first in range(0, chunks, ROWS):
        mask = (first + rows < chunks) & (columns < COLUMNS)
        sums += tl.load(workspace_ptr + (first + rows).to(tl.int64) * COLUMNS + columns, mask=mask, other=0.0)
    tl.store(result_ptr + columns, tl.sum(sums, axis=0), mask=columns < COLUMNS)


def add_chunks(target: Tensor, result: Tensor) -> None:
    """result [N] = target [chunks, N] summed over the chunks, unless target is the result itself."""
    if target is not result:
        grid = (triton.cdiv(len(result), 32),)
        _add_chunks_kernel[grid](target, result, len(target), COLUMNS=len(result), ROWS=32, BLOCK=32, num_warps=8)
