"""Answers to the puzzles of 09_a_backward.ipynb, a section a puzzle."""

# %% kept_traffic
def traffic(way, itemsize):  # bytes per element: of the forward, of the backward
    forward = 3 * itemsize + (0, 0, itemsize, 1)[way]
    backward = 3 * itemsize + (itemsize, 2 * itemsize, itemsize, 1)[way]
    return forward, backward


solved = puzzles.attempt("kept_traffic", traffic)
traffic = puzzles.passed("kept_traffic")  # yours; the lecture's until yours passes

# %% two_stage
@triton.jit
def two_stage(x, target, rows, chunk, COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start = tl.program_id(1) * chunk
    end = tl.minimum(start + chunk, rows)
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * COLUMNS + column, (row < end) & (column < COLUMNS), other=0.0)
    tl.store(target + tl.program_id(1) * COLUMNS + column, tl.sum(sums, axis=0), column < COLUMNS)


solved = puzzles.attempt("two_stage", two_stage)

# %% whole_backward
@triton.jit
def whole_backward(
    grad, out, grad_x, grad_y, target, multiplier, rows, chunk,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start = tl.program_id(1) * chunk
    end = tl.minimum(start + chunk, rows)
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * COLUMNS + column, (row < end) & (column < COLUMNS)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        dx = tl.where(o <= 0, 0.0, g)
        tl.store(grad_x + at, dx, mask)
        tl.store(grad_y + at, multiplier * dx, mask)
        sums += dx
    tl.store(target + tl.program_id(1) * COLUMNS + column, tl.sum(sums, axis=0), column < COLUMNS)


solved = puzzles.attempt("whole_backward", whole_backward)
