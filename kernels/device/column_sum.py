"""Sums over rows without atomics, so that every run adds in the same order: the bias gradients of Triton kernels.

The rows are cut into chunks. A kernel sums one chunk of a tile of columns into workspace[chunk, column];
add_chunks_kernel adds up the chunks. With one chunk the kernel writes the result itself. As column_sum.cuh does it;
column_sum_launch.py launches it.
"""

import triton
import triton.language as tl


@triton.jit
def tile_columns(COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """The BLOCK columns from program_id(0) · BLOCK on, those beyond COLUMNS too."""
    tile = tl.program_id(0)
    if COLUMNS >= 0x80000000:
        tile = tile.to(tl.int64)
    return tile * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def add_chunks_kernel(
    workspace_ptr, result_ptr, chunks, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    columns = tile_columns(COLUMNS, BLOCK)
    rows = tl.arange(0, ROWS)[:, None]
    sums = tl.zeros([ROWS, BLOCK], workspace_ptr.dtype.element_ty)
    for first in range(0, chunks, ROWS):
        mask = (first + rows < chunks) & (columns < COLUMNS)
        sums += tl.load(workspace_ptr + (first + rows).to(tl.int64) * COLUMNS + columns, mask=mask, other=0.0)
    tl.store(result_ptr + columns, tl.sum(sums, axis=0), mask=columns < COLUMNS)

