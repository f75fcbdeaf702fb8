"""Wrong answers to the puzzles of 09_a_backward.ipynb, and unusual right ones: see test_puzzles.py."""

# %% traffic: only what is kept -> ^not yet: [\s\S]*(case out, float32: .*expected[\s\S]*two gradients)
def traffic(way, itemsize):  # bytes a number: of the forward, of the backward
    forward = 3 * itemsize + (0, 0, itemsize, 1)[way]
    return forward, (itemsize, 2 * itemsize, itemsize, 1)[way]


solved = puzzles.attempt("traffic", traffic)

# %% traffic: one gradient is written -> ^not yet: [\s\S]*(case out, float32: .*expected 16, got 12[\s\S]*two gradients)
def traffic(way, itemsize):  # bytes a number: of the forward, of the backward
    forward = 3 * itemsize + (0, 0, itemsize, 1)[way]
    return forward, 2 * itemsize + (itemsize, 2 * itemsize, itemsize, 1)[way]


solved = puzzles.attempt("traffic", traffic)

# %% traffic: the forward writes no more -> ^not yet: [\s\S]*(the derivative, float32: .*expected 16[\s\S]*of its own)
def traffic(way, itemsize):  # bytes a number: of the forward, of the backward
    return 3 * itemsize, 3 * itemsize + (itemsize, 2 * itemsize, itemsize, 1)[way]


solved = puzzles.attempt("traffic", traffic)

# %% traffic: a mask as wide as a number -> ^not yet: [\s\S]*(a mask, float32: .*expected 13[\s\S]*one byte)
def traffic(way, itemsize):  # bytes a number: of the forward, of the backward
    forward = 3 * itemsize + (0, 0, itemsize, itemsize)[way]
    return forward, 3 * itemsize + (itemsize, 2 * itemsize, itemsize, itemsize)[way]


solved = puzzles.attempt("traffic", traffic)

# %% traffic: always float32 -> ^not yet: [\s\S]*(case out, bfloat16: .*expected 8, got 16[\s\S]*two bytes)
def traffic(way, itemsize):  # bytes a number: of the forward, of the backward
    return 12 + (0, 0, 4, 1)[way], 12 + (4, 8, 4, 1)[way]


solved = puzzles.attempt("traffic", traffic)

# %% traffic: z from x alone -> ^not yet: [\s\S]*(x and y, float32: .*expected 20, got 16[\s\S]*two tensors)
def traffic(way, itemsize):  # bytes a number: of the forward, of the backward
    forward = 3 * itemsize + (0, 0, itemsize, 1)[way]
    return forward, 3 * itemsize + (itemsize, itemsize, itemsize, 1)[way]


solved = puzzles.attempt("traffic", traffic)

# %% traffic: a mask of a bit -> ^not yet: [\s\S]*(a mask, float32: .*expected 13[\s\S]*one byte)
def traffic(way, itemsize):  # bytes a number: of the forward, of the backward
    forward = 3 * itemsize + (0, 0, itemsize, 1 / 8)[way]
    return forward, 3 * itemsize + (itemsize, 2 * itemsize, itemsize, 1 / 8)[way]


solved = puzzles.attempt("traffic", traffic)

# %% traffic: the lesson's own is called -> ^not yet: [\s\S]*(facts.traffic was called)
def traffic(way, itemsize):  # bytes a number: of the forward, of the backward
    from model.backward import facts

    return facts.traffic(way, itemsize)


solved = puzzles.attempt("traffic", traffic)

# %% traffic: by cases
def traffic(way, itemsize):  # bytes a number: of the forward, of the backward
    moved = sum([itemsize] * 3)
    if way == 1:
        return moved, moved + itemsize + itemsize
    own = 1 if way == 3 else itemsize
    return (moved if way == 0 else moved + own), moved + own


solved = puzzles.attempt("traffic", traffic)

# %% bias_gradient: the rows without a mask -> ^not yet: [\s\S]*(out of bounds[\s\S]*mask)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, column < columns
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o <= 0, 0.0, g)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: the columns without a mask -> ^not yet: [\s\S]*(12×20[\s\S]*columns beyond the last)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, row < rows
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o <= 0, 0.0, g)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: a product -> ^not yet: [\s\S]*(grad with Inf: [\s\S]*0 · Inf is NaN)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += g * (o > 0)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: relu's derivative left out -> ^not yet: [\s\S]*(case 8×16: .*expected[\s\S]*out <= 0)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        sums += tl.load(grad + at, mask, other=0.0)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: only the last rows -> ^not yet: [\s\S]*(case 8×16: .*expected[\s\S]*all rows)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums = tl.where(o <= 0, 0.0, g)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: the store without a mask -> ^not yet: [\s\S]*(12×20[\s\S]*mask)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o <= 0, 0.0, g)
    tl.store(result + column, tl.sum(sums, axis=0))


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: the rows' mask is one too far -> ^not yet: [\s\S]*(out of bounds[\s\S]*mask)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row <= rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o <= 0, 0.0, g)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: the tile's first row in the mask -> ^not yet: [\s\S]*(7×16: .*out of bounds[\s\S]*mask)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (first < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o <= 0, 0.0, g)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: the other axis -> ^not yet: [\s\S]*case 8×16: .*incompatible
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o <= 0, 0.0, g)
    tl.store(result + column, tl.sum(sums, axis=1), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: the gradient's own sign -> ^not yet: [\s\S]*(case 8×16: .*expected[\s\S]*out <= 0)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(g > 0, g, 0.0)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: where out is 0, too -> ^not yet: [\s\S]*(case 8×16: .*expected[\s\S]*out <= 0)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o >= 0, g, 0.0)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: what the mask leaves out is 1 -> ^not yet: [\s\S]*(7×16: .*expected[\s\S]*leaves out)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=1.0), tl.load(out + at, mask, other=1.0)
        sums += tl.where(o <= 0, 0.0, g)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: by what is not 0
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o != 0, g, 0.0)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: a NaN does not pass -> ^not yet: [\s\S]*(out with NaN: .*expected[\s\S]*comparison with NaN)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o > 0, g, 0.0)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: loads without other -> ^not yet: [\s\S]*(case \d+×\d+: .*got nan[\s\S]*leaves out)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask), tl.load(out + at, mask)
        sums += tl.where(o <= 0, 0.0, g)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: without other, and a NaN does not pass -> ^not yet: [\s\S]*(out with NaN: .*expected)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask), tl.load(out + at, mask)
        sums += tl.where(o > 0, g, 0.0)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: atomics on what was there -> ^not yet: [\s\S]*(case 8×16: )
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o <= 0, 0.0, g)
    tl.atomic_add(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: whole tiles of rows alone -> ^not yet: [\s\S]*(7×16: .*expected[\s\S]*leaves out)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows // ROWS * ROWS, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o <= 0, 0.0, g)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: in half precision -> ^not yet: [\s\S]*(case 8×16: .*expected)
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float16)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        at, mask = row * columns + column, (row < rows) & (column < columns)
        g, o = tl.load(grad + at, mask, other=0.0), tl.load(out + at, mask, other=0.0)
        sums += tl.where(o <= 0, 0.0, g).to(tl.float16)
    tl.store(result + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: it does nothing -> ^not yet: [\s\S]*(case 8×16: )
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    pass


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% bias_gradient: torch computes it -> ^not yet: [\s\S]*(give the kernel itself)
solved = check.attempt("add_relu/bias_gradient", lambda g, o, result: result.copy_((g * (o > 0)).sum(0)))

# %% bias_gradient: a row at a time, and no tile
@triton.jit
def bias_gradient(grad, out, result, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < columns
    total = tl.zeros([COLUMNS], tl.float32)
    for row in range(rows):
        at = row * columns + column
        blocked = tl.load(out + at, mask, other=0.0) <= 0
        total += tl.load(grad + at, mask & ~blocked, other=0.0)
    tl.store(result + column, total, mask)


solved = check.attempt("add_relu/bias_gradient", bias_gradient)

# %% two_stage: every chunk writes to the first row -> ^not yet: [\s\S]*(chunks of 4: [\s\S]*row of target)
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = tl.minimum(start + chunk, rows)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (column < columns), other=0.0)
    tl.store(target + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: each chunk has all rows -> ^not yet: [\s\S]*(chunks of 4: .*expected[\s\S]*begins where)
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < rows) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: the last chunk goes on beyond the rows -> ^not yet: [\s\S]*(out of bounds[\s\S]*mask)
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = start + chunk
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: a mask of all rows, not of the chunk -> ^not yet: [\s\S]*(chunks of 5: .*expected)
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = tl.minimum(start + chunk, rows)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < rows) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: atomics -> ^not yet: [\s\S]*(case 8×16, chunks of 8: )
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = tl.minimum(start + chunk, rows)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (column < columns), other=0.0)
    tl.atomic_add(target + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: the chunk's number in place of its row -> ^not yet: [\s\S]*(case [\s\S]*(row of target|mask))
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = tl.minimum(start + chunk, rows)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: the first program has all rows -> ^not yet: [\s\S]*(of 4: workspace: .*expected[\s\S]*begins where)
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * rows
    end = rows
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: chunks that overlap by a row -> ^not yet: [\s\S]*(chunks of 4: .*expected[\s\S]*begins where)
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = tl.minimum(start + chunk + 1, rows)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: a chunk starts at ROWS times its number -> ^not yet: [\s\S]*(chunks of 5: .*expected)
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * ROWS
    end = tl.minimum(start + chunk, rows)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: a row of target as wide as the tile -> ^not yet: [\s\S]*(case 24×32, .*expected[\s\S]*row of target)
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = tl.minimum(start + chunk, rows)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * COLUMNS + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: both masks, and no minimum
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = start + chunk
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (row < rows) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: the store without a mask -> ^not yet: [\s\S]*(20×21|1×5)
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = start + chunk
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (row < rows) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0))


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: loads without other -> ^not yet: [\s\S]*got nan
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = start + chunk
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (row < rows) & (column < columns))
    tl.store(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: a chunk by the number of programs -> ^not yet: [\s\S]*chunks of 5: .*expected
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * (rows // tl.num_programs(1))
    end = start + rows // tl.num_programs(1)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (row < rows) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: the greatest, not the sum -> ^not yet: [\s\S]*case 8×16, chunks of 8: .*expected
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = start + chunk
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (row < rows) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, tl.max(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: the programs the other way about -> ^not yet: [\s\S]*case 8×16
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(0) * chunk
    end = start + chunk
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (row < rows) & (column < columns), other=0.0)
    tl.store(target + tl.program_id(0) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: atomics on a row of its own -> ^not yet: [\s\S]*case 8×16, chunks of 8:
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = start + chunk
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(start, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (row < rows) & (column < columns), other=0.0)
    tl.atomic_add(target + tl.program_id(1) * columns + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: x and target moved to the chunk
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    start = tl.program_id(1) * chunk
    end = tl.minimum(chunk, rows - start)
    x += start * columns
    target += tl.program_id(1) * columns
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, end, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        sums += tl.load(x + row * columns + column, (row < end) & (column < columns), other=0.0)
    tl.store(target + column, tl.sum(sums, axis=0), column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: it does nothing -> ^not yet: [\s\S]*(case 8×16, chunks of 8: )
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    pass


solved = check.attempt("add_relu/two_stage", two_stage)

# %% two_stage: the last rows first, each by itself
@triton.jit
def two_stage(x, target, rows, columns, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for k in range(chunk):
        row = tl.program_id(1) * chunk + chunk - 1 - k
        total += tl.load(x + row * columns + column, (column < columns) & (row < rows), other=0.0)
    tl.store(target + tl.program_id(1) * columns + column, total, column < columns)


solved = check.attempt("add_relu/two_stage", two_stage)

# %% ones: as whole numbers add up -> ^not yet: [\s\S]*(2\^25 ones, one program: .*expected[\s\S]*changes nothing)
def ones(rows, programs):  # what float32 makes of their sum
    return rows


solved = puzzles.attempt("ones", ones)

# %% ones: all programs stop together -> ^not yet: [\s\S]*(case 2\^25 ones, two programs: .*expected[\s\S]*own sum)
def ones(rows, programs):  # what float32 makes of their sum
    return min(rows, 2**24)


solved = puzzles.attempt("ones", ones)

# %% ones: one program's share -> ^not yet: [\s\S]*(case 2\^25 ones, two programs: .*expected[\s\S]*add up)
def ones(rows, programs):  # what float32 makes of their sum
    return min(rows // programs, 2**24)


solved = puzzles.attempt("ones", ones)

# %% ones: 23 bits -> ^not yet: [\s\S]*(case 2\^24 ones, one program: .*expected[\s\S]*every whole number)
def ones(rows, programs):  # what float32 makes of their sum
    return programs * min(rows // programs, 2**23)


solved = puzzles.attempt("ones", ones)

# %% ones: bfloat16's 8 bits -> ^not yet: [\s\S]*(case 1024 ones, one program: .*expected[\s\S]*exactly)
def ones(rows, programs):  # what float32 makes of their sum
    return programs * min(rows // programs, 2**8)


solved = puzzles.attempt("ones", ones)

# %% ones: the largest of 24 bits -> ^not yet: [\s\S]*(case 2\^24 ones, .*expected[\s\S]*every whole number)
def ones(rows, programs):  # what float32 makes of their sum
    return programs * min(rows // programs, 2**24 - 1)


solved = puzzles.attempt("ones", ones)

# %% ones: one more is still added -> ^not yet: [\s\S]*(case 2\^25 ones, one program: .*expected[\s\S]*changes nothing)
def ones(rows, programs):  # what float32 makes of their sum
    return programs * min(rows // programs, 2**24 + 1)


solved = puzzles.attempt("ones", ones)

# %% ones: the programs' sums stop, too -> ^not yet: [\s\S]*(case 2\^25 ones, two programs: .*expected[\s\S]*add up)
def ones(rows, programs):  # what float32 makes of their sum
    return min(programs * min(rows // programs, 2**24), 2**24)


solved = puzzles.attempt("ones", ones)

# %% ones: the lesson's own is called -> ^not yet: [\s\S]*(facts.ones was called)
def ones(rows, programs):  # what float32 makes of their sum
    from model.backward import facts

    return facts.ones(rows, programs)


solved = puzzles.attempt("ones", ones)

# %% ones: by adding
def ones(rows, programs):  # what float32 makes of their sum
    each, total = rows // programs, 0
    for _ in range(programs):
        total += 2**24 if each > 2**24 else each
    return total


solved = puzzles.attempt("ones", ones)
