"""Sums over the rows of x [rows, COLUMNS], float32, one change a step, as the cells have them (a test compares).

sum_rows     a program has BLOCK columns, and adds one row after the other
sum_tiles    it reads ROWS rows at once
sum_atomic   the rows are cut into chunks, and each chunk's program adds its sums to the result, which must be 0 before
"""

import triton
import triton.language as tl


@triton.jit
def sum_rows(x, result, rows, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for row in range(rows):
        sums += tl.load(x + row * COLUMNS + column, column < COLUMNS, other=0.0)
    tl.store(result + column, sums, column < COLUMNS)


@triton.jit
def sum_tiles(x, result, rows, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * COLUMNS + column, (row < rows) & (column < COLUMNS), other=0.0)
    tl.store(result + column, tl.sum(sums, axis=0), column < COLUMNS)


@triton.jit
def sum_atomic(x, result, rows, chunk, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start = tl.program_id(1) * chunk
    end = tl.minimum(start + chunk, rows)
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * COLUMNS + column, (row < end) & (column < COLUMNS), other=0.0)
    tl.atomic_add(result + column, tl.sum(sums, axis=0), column < COLUMNS, sem="relaxed")
