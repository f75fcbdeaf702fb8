"""Answers to the puzzles of 09_a_backward.ipynb, a section a puzzle."""

# %% kept_traffic
def traffic(way, itemsize):  # bytes a number: of the forward, of the backward
    forward = 3 * itemsize + (0, 0, itemsize, 1)[way]
    backward = 3 * itemsize + (itemsize, 2 * itemsize, itemsize, 1)[way]
    return forward, backward


solved = puzzles.attempt("kept_traffic", traffic)

# %% bias_gradient
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o <= 0, 0.0, g)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = puzzles.attempt("bias_gradient", bias_gradient)

# %% two_stage
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = tl.minimum(start + chunk, rows)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = puzzles.attempt("two_stage", two_stage)

# %% ones
def ones(rows, programs):  # what float32 makes of their sum
    share = min(rows // programs, 2**24)
    return programs * share


solved = puzzles.attempt("ones", ones)
