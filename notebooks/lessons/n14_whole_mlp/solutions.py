"""Answers to the puzzles of 14_whole_mlp.ipynb, a section a puzzle."""

# %% layer
@triton.jit
def layer_kernel(x, weight, bias, out, B, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, K, STEP):
        k = first + tl.arange(0, STEP)
        x_tile = tl.load(x + row * K + k[None, :], (row < B) & (k < K)[None, :], other=0.0)
        w_tile = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], other=0.0)
        sums = tl.dot(x_tile, w_tile, sums, input_precision="ieee")
    sums += tl.load(bias + column, column < N, other=0.0)
    tl.store(out + row * N + column, tl.where(sums < 0, 0.0, sums), (row < B) & (column < N))


solved = puzzles.attempt("layer", layer_kernel)

# %% chained
@triton.jit
def chained_kernel(
    x, w1, b1, w2, b2, out, B, N1, K: tl.constexpr, N2: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr
):
    row, k, n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, K), tl.arange(0, N2)
    x_rows = tl.load(x + row * K + k[None, :], row < B, other=0.0)
    sums = tl.zeros([ROWS, N2], tl.float32)
    for first in range(0, N1, CHUNK):
        j = first + tl.arange(0, CHUNK)
        w1_chunk = tl.load(w1 + j[None, :] * K + k[:, None], (j < N1)[None, :], other=0.0)  # [K, CHUNK]
        b1_chunk = tl.load(b1 + j, j < N1, other=0.0)[None, :]
        w2_chunk = tl.load(w2 + n[None, :] * N1 + j[:, None], (j < N1)[:, None], other=0.0)  # [CHUNK, N2]
        h = tl.dot(x_rows, w1_chunk, input_precision="ieee") + b1_chunk
        h = tl.where(h < 0, 0.0, h)
        sums = tl.dot(h, w2_chunk, sums, input_precision="ieee")
    z = sums + tl.load(b2 + n)[None, :]
    tl.store(out + row * N2 + n[None, :], tl.sigmoid(z), row < B)


solved = puzzles.attempt("chained", chained_kernel)

# %% pair_place
@triton.jit
def place_kernel(vectors, out, V, W, D: tl.constexpr, BLOCK: tl.constexpr):
    b, j, d = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, D)
    t = vectors + b * V * D
    all_t = tl.load(t + j[:, None] * D + d[None, :], (j < V)[:, None], other=0.0)
    tl.store(out + b * W + d, tl.load(t + d))
    for i in range(1, V):
        pairs = tl.sum(all_t * tl.load(t + i * D + d)[None, :], 1)
        tl.store(out + b * W + D + i * (i - 1) // 2 + j, pairs, j < i)


solved = puzzles.attempt("pair_place", place_kernel)

# %% operand
@triton.jit
def operand_kernel(c, weight, out, B, H, C, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr):
    b, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, OUTPUTS)[None, :]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in range(0, C * C, STEP):
        k = first + tl.arange(0, STEP)
        w = tl.load(weight + h * C * C + k[:, None], (h < H) & (k < C * C)[:, None], other=0.0)
        i, j = k // C, k % C
        inside = (b < B) & (k < C * C)[None, :]
        ci = tl.load(c + b * C + i[None, :], inside, other=0.0)
        cj = tl.load(c + b * C + j[None, :], inside, other=0.0)
        sums = tl.dot(ci * cj, w, sums, input_precision="ieee")
    tl.store(out + b * H + h, sums, (b < B) & (h < H))


solved = puzzles.attempt("operand", operand_kernel)
