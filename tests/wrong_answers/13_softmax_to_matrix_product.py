"""Wrong answers to the puzzles of 13_softmax_to_matrix_product.ipynb, and unusual right ones: see test_puzzles.py."""

# %% online: the old sum is not scaled -> ^not yet: [\s\S]*case two blocks, 2×32[\s\S]*rises
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < columns, -float("inf"))
        higher = tl.maximum(maximum, tl.max(z))
        total = total + tl.sum(tl.exp(z - higher))
        maximum = higher
    tl.store(out + tl.program_id(0), maximum + tl.log(total))


solved = check.attempt("softmax/online", online_kernel)

# %% online: scaled the wrong way round -> ^not yet: [\s\S]*case (one|two) block
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < columns, -float("inf"))
        higher = tl.maximum(maximum, tl.max(z))
        total = total * tl.exp(higher - maximum) + tl.sum(tl.exp(z - higher))
        maximum = higher
    tl.store(out + tl.program_id(0), maximum + tl.log(total))


solved = check.attempt("softmax/online", online_kernel)

# %% online: the block's own maximum -> ^not yet: [\s\S]*case (two blocks|a falling row), 2×
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < columns, -float("inf"))
        higher = tl.max(z)
        total = total + tl.sum(tl.exp(z - higher))
        maximum = higher
    tl.store(out + tl.program_id(0), maximum + tl.log(total))


solved = check.attempt("softmax/online", online_kernel)

# %% online: new terms by the old maximum -> ^not yet: [\s\S]*case one block, 3×16[\s\S]*nothing has been
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < columns, -float("inf"))
        higher = tl.maximum(maximum, tl.max(z))
        total = total * tl.exp(maximum - higher) + tl.sum(tl.exp(z - maximum))
        maximum = higher
    tl.store(out + tl.program_id(0), maximum + tl.log(total))


solved = check.attempt("softmax/online", online_kernel)

# %% online: no maximum at all -> ^not yet: [\s\S]*case large numbers, 2×48[\s\S]*maximum off
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < columns, -float("inf"))
        higher = tl.maximum(maximum, tl.max(z))
        total = total + tl.sum(tl.exp(z))
        maximum = higher
    tl.store(out + tl.program_id(0), tl.log(total))


solved = check.attempt("softmax/online", online_kernel)

# %% online: everything is scaled -> ^not yet: [\s\S]*case (one|two) block
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < columns, -float("inf"))
        higher = tl.maximum(maximum, tl.max(z))
        total = (total + tl.sum(tl.exp(z - higher))) * tl.exp(maximum - higher)
        maximum = higher
    tl.store(out + tl.program_id(0), maximum + tl.log(total))


solved = check.attempt("softmax/online", online_kernel)

# %% online: no mask -> ^not yet: [\s\S]*case a width of 41[\s\S]*mask
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i)
        higher = tl.maximum(maximum, tl.max(z))
        total = total * tl.exp(maximum - higher) + tl.sum(tl.exp(z - higher))
        maximum = higher
    tl.store(out + tl.program_id(0), maximum + tl.log(total))


solved = check.attempt("softmax/online", online_kernel)

# %% online: zeros beyond the row -> ^not yet: [\s\S]*case (one number|a width of 41)
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < columns, 0.0)
        higher = tl.maximum(maximum, tl.max(z))
        total = total * tl.exp(maximum - higher) + tl.sum(tl.exp(z - higher))
        maximum = higher
    tl.store(out + tl.program_id(0), maximum + tl.log(total))


solved = check.attempt("softmax/online", online_kernel)

# %% online: a NaN is left out -> ^not yet: [\s\S]*case a NaN, 2×32[\s\S]*left out
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < columns, -float("inf"))
        higher = tl.maximum(maximum, tl.max(z))
        total = total * tl.exp(maximum - higher) + tl.sum(tl.where(z == z, tl.exp(z - higher), 0.0))
        maximum = higher
    tl.store(out + tl.program_id(0), maximum + tl.log(total))


solved = check.attempt("softmax/online", online_kernel)

# %% online: nothing is stored -> ^not yet: [\s\S]*case one block[\s\S]*nothing was stored
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < columns, -float("inf"))
        higher = tl.maximum(maximum, tl.max(z))
        total = total * tl.exp(maximum - higher) + tl.sum(tl.exp(z - higher))
        maximum = higher


solved = check.attempt("softmax/online", online_kernel)

# %% online: torch computes it -> ^not yet: [\s\S]*give the kernel itself
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


solved = check.attempt("softmax/online", lambda x: torch.logsumexp(x, 1))

# %% online: one of the two factors is 1
@triton.jit
def online_kernel(x, out, columns, BLOCK: tl.constexpr):  # a program a row
    x, maximum, total = x + tl.program_id(0) * columns, -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        z = tl.load(x + i, i < columns, -float("inf"))
        higher = tl.maximum(maximum, tl.max(z))
        shrink, grow = tl.exp(tl.minimum(maximum - higher, 0.0)), tl.exp(z - higher)
        total = tl.sum(grow, axis=0) + shrink * total
        maximum = higher
    tl.store(out + tl.program_id(0), maximum + tl.log(total))


solved = check.attempt("softmax/online", online_kernel)

# %% sums: the first step again and again -> ^not yet: [\s\S]*case 16 rows of 48-32[\s\S]*of this step
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = tl.arange(0, STEP)
        a = tl.load(x + row * K + k[None, :], (row < M) & (k < K)[None, :], 0.0)
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], 0.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% sums: x without K's mask -> ^not yet: [\s\S]*case 16 rows of 40-32[\s\S]*count as 0
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row * K + k[None, :], row < M, 0.0)
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], 0.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% sums: x without its rows' mask -> ^not yet: [\s\S]*case 5 rows of 16-7[\s\S]*mask
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row * K + k[None, :], (k < K)[None, :], 0.0)
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], 0.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% sums: no masks on x -> ^not yet: [\s\S]*case 5 rows of 16-7[\s\S]*mask
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row * K + k[None, :])
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], 0.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% sums: a mask that is one too long -> ^not yet: [\s\S]*case 16 rows of 40-32[\s\S]*count as 0
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row * K + k[None, :], (row < M) & (k <= K)[None, :], 0.0)
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k <= K)[:, None], 0.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% sums: K's mask from the step's start -> ^not yet: [\s\S]*case 16 rows of 40-32[\s\S]*count as 0
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row * K + k[None, :], (row < M) & (start < K), 0.0)
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], 0.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% sums: ones beyond K -> ^not yet: [\s\S]*case 16 rows of 40-32[\s\S]*count as 0
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row * K + k[None, :], (row < M) & (k < K)[None, :], 1.0)
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], 1.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% sums: x's places as one row -> ^not yet: [\s\S]*case 20 rows of 40-32[\s\S]*for row 6
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row * K + k[None, :], row * K + k[None, :] < M * K, 0.0)
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], 0.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% sums: x's rows N apart -> ^not yet: [\s\S]*case 16 rows of (16-32|48-32)
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(x + row * N + k[None, :], (row < M) & (k < K)[None, :], 0.0)
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], 0.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% sums: steps that overlap -> ^not yet: [\s\S]*case 16 rows of 48-32[\s\S]*of this step
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = start // 2 + tl.arange(0, STEP)
        a = tl.load(x + row * K + k[None, :], (row < M) & (k < K)[None, :], 0.0)
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], 0.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% sums: nothing is stored -> ^not yet: [\s\S]*nothing was stored
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


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% sums: torch computes it -> ^not yet: [\s\S]*give the kernel itself
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


solved = check.attempt("fused_mlp/sums", lambda x, weight: x @ weight.T)

# %% sums: masked by a product, and places that stay inside
@triton.jit
def sums_kernel(x, weight, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, K, STEP):
        k = tl.minimum(start + tl.arange(0, STEP), K - 1)
        a = tl.load(x + row * K + k[None, :], row < M, 0.0) * (start + tl.arange(0, STEP) < K)[None, :]
        b = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], 0.0)  # [STEP, COLUMNS]
        sums = tl.dot(a, b, sums, input_precision="ieee")
    tl.store(out + row * N + column, sums, (row < M) & (column < N))


solved = check.attempt("fused_mlp/sums", sums_kernel)

# %% epilogue: the bias along the rows -> ^not yet: [\s\S]*case 16 rows of 16-32[\s\S]*belongs to the columns
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z + tl.load(bias + row)[:, None])
    tl.store(out + row[:, None] * N + column[None, :], z, (row < M)[:, None] & (column < N)[None, :])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: relu before the bias -> ^not yet: [\s\S]*case 16 rows of 16-32[\s\S]*relu comes last
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z) + tl.load(bias + column, column < N, 0.0)[None, :]
    tl.store(out + row[:, None] * N + column[None, :], z, (row < M)[:, None] & (column < N)[None, :])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: the store without a mask -> ^not yet: [\s\S]*case 16 rows of 48-7[\s\S]*(written|bounds)[\s\S]*mask
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z + tl.load(bias + column, column < N, 0.0)[None, :])
    tl.store(out + row[:, None] * N + column[None, :], z)


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: the store with the rows' mask alone -> ^not yet: [\s\S]*case 16 rows of 48-7[\s\S]*which places
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z + tl.load(bias + column, column < N, 0.0)[None, :])
    tl.store(out + row[:, None] * N + column[None, :], z, (row < M)[:, None])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: the store without the rows' mask -> ^not yet: [\s\S]*case 5 rows of 16-32[\s\S]*mask
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z + tl.load(bias + column, column < N, 0.0)[None, :])
    tl.store(out + row[:, None] * N + column[None, :], z, (column < N)[None, :])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: the bias without a mask -> ^not yet: [\s\S]*case 16 rows of 48-7[\s\S]*out of bounds[\s\S]*mask
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z + tl.load(bias + column)[None, :])
    tl.store(out + row[:, None] * N + column[None, :], z, (row < M)[:, None] & (column < N)[None, :])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: a mask that is one too long -> ^not yet: [\s\S]*case 16 rows of 48-7[\s\S]*which places
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z + tl.load(bias + column, column < N, 0.0)[None, :])
    tl.store(out + row[:, None] * N + column[None, :], z, (row < M)[:, None] & (column <= N)[None, :])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: the transposed place -> ^not yet: [\s\S]*case 16 rows of (16-32|48-7)
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z + tl.load(bias + column, column < N, 0.0)[None, :])
    tl.store(out + column[None, :] * M + row[:, None], z, (row < M)[:, None] & (column < N)[None, :])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: the bias left out -> ^not yet: [\s\S]*case 16 rows of 16-32[\s\S]*belongs to the columns
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z)
    tl.store(out + row[:, None] * N + column[None, :], z, (row < M)[:, None] & (column < N)[None, :])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: relu makes 0 of NaN -> ^not yet: [\s\S]*case 20 rows of 16-32[\s\S]*relu\(NaN\) is NaN
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z += tl.load(bias + column, column < N, 0.0)[None, :]
    tl.store(out + row[:, None] * N + column[None, :], tl.where(z > 0, z, 0.0), (row < M)[:, None] & (column < N))


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: tl.maximum, which leaves NaN out -> ^not yet: [\s\S]*case 20 rows of 16-32[\s\S]*relu\(NaN\) is NaN
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = tl.maximum(z + tl.load(bias + column, column < N, 0.0)[None, :], 0.0)
    tl.store(out + row[:, None] * N + column[None, :], z, (row < M)[:, None] & (column < N)[None, :])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: the same numbers of the bias in each tile -> ^not yet: [\s\S]*case 33 rows of 40-45[\s\S]*which places
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z + tl.load(bias + tl.arange(0, COLUMNS), tl.arange(0, COLUMNS) < N, 0.0)[None, :])
    tl.store(out + row[:, None] * N + column[None, :], z, (row < M)[:, None] & (column < N)[None, :])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: nothing is stored -> ^not yet: [\s\S]*nothing was stored
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z + tl.load(bias + column, column < N, 0.0)[None, :])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% epilogue: torch computes it -> ^not yet: [\s\S]*give the kernel itself
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z = relu(z + tl.load(bias + column, column < N, 0.0)[None, :])
    tl.store(out + row[:, None] * N + column[None, :], z, (row < M)[:, None] & (column < N)[None, :])


solved = check.attempt("fused_mlp/epilogue", lambda x, w, b, *_: torch.relu(x @ w[0].T + b[0]))

# %% epilogue: the bias is added by pointers of a tile, relu is a maximum
@triton.jit
def layer_kernel(x, weight, bias, out, M, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    z = tile_sums(x, weight, row, column, M, N, K, ROWS, COLUMNS, STEP, "ordinary")  # [ROWS, COLUMNS]
    z += tl.load(bias + (column + 0 * row[:, None]), (column < N)[None, :])
    z = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + row[:, None] * N + column[None, :], z, (row < M)[:, None] & (column < N)[None, :])


solved = check.attempt("fused_mlp/epilogue", layer_kernel)

# %% place: along the rows -> ^not yet: [\s\S]*case the second: [\s\S]*down first
def place(program, rows, columns, group):
    return program // columns, program % columns


solved = puzzles.attempt("place", place)

# %% place: down all rows -> ^not yet: [\s\S]*case the third: [\s\S]*next column
def place(program, rows, columns, group):
    return program % rows, program // rows


solved = puzzles.attempt("place", place)

# %% place: the last group is as high as all -> ^not yet: [\s\S]*case a last group of one row
def place(program, rows, columns, group):
    first = program // (group * columns) * group
    inside = program % (group * columns)
    return first + inside % group, inside // group


solved = puzzles.attempt("place", place)

# %% place: all groups as high as the last -> ^not yet: [\s\S]*case a full group above[\s\S]*only the last
def place(program, rows, columns, group):
    high = rows % group or group
    inside = program % (group * columns)
    return program // (group * columns) * group + inside % high, inside // high


solved = puzzles.attempt("place", place)

# %% place: groups that divide the rows -> ^not yet: [\s\S]*case a full group above[\s\S]*only the last
def place(program, rows, columns, group):
    while rows % group:
        group -= 1
    inside = program % (group * columns)
    return program // (group * columns) * group + inside % group, inside // group


solved = puzzles.attempt("place", place)

# %% place: groups follow as if each had one column -> ^not yet: [\s\S]*case the third
def place(program, rows, columns, group):
    return program // group * group + program % group, program // group


solved = puzzles.attempt("place", place)

# %% place: within a group along the row -> ^not yet: [\s\S]*case the second: [\s\S]*down first
def place(program, rows, columns, group):
    first = program // (group * columns) * group
    inside = program % (group * columns)
    return first + inside // columns, inside % columns


solved = puzzles.attempt("place", place)

# %% place: two rows are assumed -> ^not yet: [\s\S]*case groups of 3: [\s\S]*`group` is 3
def place(program, rows, columns, group):
    first = program // (2 * columns) * 2
    high = min(2, rows - first)
    inside = program % (2 * columns)
    return first + inside % high, inside // high


solved = puzzles.attempt("place", place)

# %% place: row and column exchanged -> ^not yet: [\s\S]*case the second: .*expected 1, got 0
def place(program, rows, columns, group):
    first = program // (group * columns) * group
    high = min(group, rows - first)
    inside = program % (group * columns)
    return inside // high, first + inside % high


solved = puzzles.attempt("place", place)

# %% place: nothing is returned -> ^not yet: [\s\S]*must return a number
def place(program, rows, columns, group):
    pass


solved = puzzles.attempt("place", place)

# %% place: the lesson's own is called -> ^not yet: [\s\S]*facts.place was called
def place(program, rows, columns, group):
    return facts.place(program, rows, columns, group)


solved = puzzles.attempt("place", place)

# %% place: a height for each program -> ^not yet: [\s\S]*case the very last: [\s\S]*same for all
def place(program, rows, columns, group):
    first = program // (group * columns) * group
    high = min(group, rows - program // columns)
    inside = program % (group * columns)
    return first + inside % high, inside // high


solved = puzzles.attempt("place", place)

# %% place: counted from the grid's begin -> ^not yet: [\s\S]*(does not divide|last group of)[\s\S]*
def place(program, rows, columns, group):
    first = program // (group * columns) * group
    high = min(group, rows - first)
    return first + program % high, program % (group * columns) // high


solved = puzzles.attempt("place", place)

# %% place: groups as large as this one -> ^not yet: [\s\S]*does not divide[\s\S]*from its first
def place(program, rows, columns, group):
    first = program // (group * columns) * group
    high = min(group, rows - first)
    inside = program % (high * columns)
    return first + inside % high, inside // high


solved = puzzles.attempt("place", place)

# %% place: all tiles in a list
def place(program, rows, columns, group):
    tiles = []
    for first in range(0, rows, group):
        high = range(first, min(first + group, rows))
        tiles += [(row, column) for column in range(columns) for row in high]
    return tiles[program]


solved = puzzles.attempt("place", place)
