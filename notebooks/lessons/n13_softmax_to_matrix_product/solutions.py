"""Answers to the puzzles of 13_softmax_to_matrix_product.ipynb, a section a puzzle."""

# %% online
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < columns, -float("inf"))
        higher = tl.maximum(maximum, tl.max(z))
        total = total * tl.exp(maximum - higher) + tl.sum(tl.exp(z - higher))
        maximum = higher
    tl.store(out + tl.program_id(0), maximum + tl.log(total))


solved = puzzles.attempt("online", online_kernel)

# %% sums
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row * K + k[None, :], (row < M) & (k < K)[None, :], 0.0)
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], 0.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = puzzles.attempt("sums", sums_kernel)

# %% epilogue
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z + tl.load(bias + column, column < N, 0.0)[None, :])
    tl.store(out + row[:, None] * N + column[None, :], z, (row < M)[:, None] & (column < N)[None, :])


solved = puzzles.attempt("epilogue", layer_kernel)

# %% place
def place(program, rows, columns, group):
    first = program // (group * columns) * group
    high = min(group, rows - first)
    inside = program % (group * columns)
    return first + inside % high, inside // high


solved = puzzles.attempt("place", place)
