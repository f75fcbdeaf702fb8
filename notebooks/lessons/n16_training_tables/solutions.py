"""Answers to the puzzles of 16_training_tables.ipynb, a section a puzzle."""

# %% starts
@triton.jit
def starts_kernel(keys, starts, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + i, i < N)
    before = tl.load(keys + i - 1, (i > 0) & (i < N), other=-1)
    tl.store(starts + i, (key != before).to(tl.int32), i < N)


puzzles.attempt("starts", starts_kernel)

# %% row_sums
@triton.jit
def sums_kernel(grad, positions, offsets, sums, D, BLOCK: tl.constexpr):
    segment, column = tl.program_id(0), tl.arange(0, BLOCK)
    first, end = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    for k in range(first, end):
        row = tl.load(positions + k)
        total += tl.load(grad + row * D + column, column < D, other=0).to(total.dtype)
    tl.store(sums + segment * D + column, total, column < D)


puzzles.attempt("row_sums", sums_kernel)

# %% adagrad
@triton.jit
def adagrad_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < D, tl.load(rows + s) * D + column
    g = tl.load(sums + s * D + column, inside)
    row, total = tl.load(tables + at, inside), tl.load(state + at, inside)
    total += g * g
    tl.store(state + at, total, inside)
    tl.store(tables + at, row - lr * g / (tl.sqrt(total) + eps), inside)


puzzles.attempt("adagrad", adagrad_kernel)

# %% rowwise
@triton.jit
def rowwise_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, r = column < D, tl.load(rows + s)
    g = tl.load(sums + s * D + column, inside, other=0)
    row = tl.load(tables + r * D + column, inside)
    total = tl.load(state + r) + tl.sum(g * g) / D
    tl.store(state + r, total)
    tl.store(tables + r * D + column, row - lr * g / (tl.sqrt(total) + eps), inside)


puzzles.attempt("rowwise", rowwise_kernel)
