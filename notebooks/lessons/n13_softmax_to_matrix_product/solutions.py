"""Answers to the puzzles of 13_softmax_to_matrix_product.ipynb, a section a puzzle."""

# %% flash
@triton.jit
def flash_kernel(z, v, out, columns, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # a program a row of z
    z, wide = z + tl.program_id(0) * columns, tl.arange(0, WIDTH)
    maximum, total, sums = -float("inf"), 0.0, tl.zeros([WIDTH], tl.float32)
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        scores = tl.load(z + i, i < columns, -float("inf"))
        values = tl.load(v + i[:, None] * WIDTH + wide[None, :], (i < columns)[:, None], 0.0)  # [BLOCK, WIDTH]
        higher = tl.maximum(maximum, tl.max(scores))
        powers = tl.exp(scores - higher)
        total = total * tl.exp(maximum - higher) + tl.sum(powers)
        sums = sums * tl.exp(maximum - higher) + tl.sum(powers[:, None] * values, axis=0)
        maximum = higher
    tl.store(out + tl.program_id(0) * WIDTH + wide, sums / total)


solved = puzzles.attempt("flash", flash_kernel)

# %% product
@triton.jit
def my_kernel(
    x, weight, bias, out, M, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr
):
    rows, columns = tl.cdiv(M, ROWS), tl.cdiv(N, COLUMNS)
    first = tl.program_id(0) // (GROUP * columns) * GROUP
    inside = tl.program_id(0) % (GROUP * columns)
    high = tl.minimum(rows - first, GROUP)
    row = (first + inside % high) * ROWS + tl.arange(0, ROWS)
    column = inside // high * COLUMNS + tl.arange(0, COLUMNS)
    in_rows, in_columns = (row < M)[:, None], (column < N)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row[:, None] * K + k[None, :], in_rows & (k < K)[None, :], 0.0)
        b = tl.load(weight + column[None, :] * K + k[:, None], in_columns & (k < K)[:, None], 0.0)
        sums = tl.dot(a, b, sums, input_precision="ieee")
    z = sums + tl.load(bias + column, column < N, 0.0)[None, :]
    z = tl.where(z < 0, 0.0, z)
    tl.store(out + row[:, None] * N + column[None, :], z, in_rows & in_columns)


solved = puzzles.attempt("product", my_kernel)
