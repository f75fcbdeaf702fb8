"""Answers to the puzzles of 16_the_interaction.ipynb, a section a puzzle."""

# %% triangle
@triton.jit
def my_row(dense, sparse, out, F, D, W, VECTORS: tl.constexpr, COLUMNS: tl.constexpr):
    b, j, d = tl.program_id(0).to(tl.int64), tl.arange(0, VECTORS), tl.arange(0, COLUMNS)
    t_0, t_1 = dense + b * D, sparse + b * F * D  # where vectors 0 and 1 of row b begin
    begin = tl.where(j == 0, t_0, t_1 + (j - 1) * D)[:, None]
    t = tl.load(begin + d, (j <= F)[:, None] & (d < D), other=0.0).to(tl.float32)
    tl.store(out + b * W + d, tl.load(t_0 + d, d < D), d < D)
    for i in range(1, F + 1):
        t_i = tl.load(t_1 + (i - 1) * D + d, d < D, other=0.0)
        tl.store(out + b * W + D + i * (i - 1) // 2 + j, tl.sum(t * t_i, axis=1), j < i)


solved = puzzles.attempt("triangle", my_row)

# %% rows
@triton.jit
def my_rows(
    dense, sparse, out, B, F, D, W,
    ROWS: tl.constexpr, VECTORS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None, None]
    i, d = tl.arange(0, VECTORS)[None, :, None], tl.arange(0, COLUMNS)[None, None, :]
    begin = tl.where(i == 0, dense + b * D, sparse + (b * F + i - 1) * D)  # [ROWS, VECTORS, 1]
    t = tl.load(begin + d, (b < B) & (i <= F) & (d < D), other=0.0)
    pairs = tl.dot(t, tl.permute(t, (0, 2, 1)), input_precision=PRECISION)
    j = tl.arange(0, VECTORS)[None, None, :]
    tl.store(out + b * W + D + i * (i - 1) // 2 + j, pairs, (b < B) & (i <= F) & (j < i))
    tl.store(out + b * W + d, tl.load(dense + b * D + d, (b < B) & (d < D)), (b < B) & (d < D))


solved = puzzles.attempt("rows", my_rows)

# %% ids
@triton.jit
def my_one(
    dense, tables, row_offsets, ids, out, B, F, D, W,
    ROWS: tl.constexpr, VECTORS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None, None]
    i, d = tl.arange(0, VECTORS)[None, :, None], tl.arange(0, COLUMNS)[None, None, :]
    of_table = (i > 0) & (i <= F)
    id = tl.load(ids + b * F + i - 1, (b < B) & of_table, other=0)
    row = tl.load(row_offsets + i - 1, of_table, other=0) + id
    begin = tl.where(i == 0, dense + b * D, tables + row * D)
    t = tl.load(begin + d, (b < B) & (i <= F) & (d < D), other=0.0)
    pairs = tl.dot(t, tl.permute(t, (0, 2, 1)), input_precision=PRECISION)
    j = tl.arange(0, VECTORS)[None, None, :]
    tl.store(out + b * W + D + i * (i - 1) // 2 + j, pairs, (b < B) & (i <= F) & (j < i))
    tl.store(out + b * W + d, tl.load(dense + b * D + d, (b < B) & (d < D)), (b < B) & (d < D))


solved = puzzles.attempt("ids", my_one)
