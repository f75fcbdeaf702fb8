"""How a reduction over rows is spread over Triton programs: by the shape alone, so that sums come out the same on every
GPU. As reduce.cuh does it for threads.
"""

from . import launch

MOST_PARTS = 512  # of all rows together


def unit(columns: int, itemsize: int) -> int:
    """The most elements, a power of two and at most 16 bytes, that rows of so many columns are made of."""
    return min(columns & -columns, 16 // itemsize)


def row_tile(columns: int, accumulator_size: int = 4) -> tuple[int, int, int]:
    """(rows, columns, warps) of a program that holds whole rows; rows and columns are powers of two.

    Up to 1024 columns one warp holds 1024 elements, 32 a lane, and no barrier is needed; above, 16 a lane while there
    are warps, at most 32, so that 64 registers, all that 1024 threads have, suffice. Float64 has half as many. The
    interpreter's time goes by the program, so it gets many rows.
    """
    block = launch.next_power_of_2(columns)
    warp = 4096 // accumulator_size
    if launch.interpreted():
        return max(1, 2**16 // block), block, 1
    if block <= warp:
        return warp // block, block, 1
    return 1, block, min(32, 2 * block // warp)


def row_parts(rows: int, columns: int, block: int, few_rows: int) -> tuple[int, int]:
    """(parts of a row, blocks of `block` columns in each but the last): one part, unless rows < few_rows."""
    blocks = launch.cdiv(columns, block)
    if rows >= few_rows:
        return 1, blocks
    blocks = launch.cdiv(blocks, max(1, MOST_PARTS // rows))
    return launch.cdiv(columns, blocks * block), blocks
