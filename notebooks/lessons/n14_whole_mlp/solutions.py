"""Answers to the puzzles of 14_whole_mlp.ipynb, a section a puzzle."""

# %% chained
@triton.jit
def chained_kernel(
    x, w1, b1, w2, b2, out, B, N1, K: tl.constexpr, N2: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr
):
    row, k, n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, K), tl.arange(0, N2)
    x_rows = tl.load(x + row * K + k[None, :], row < B, 0.0)
    sums = tl.zeros([ROWS, N2], tl.float32)
    for first in range(0, N1, CHUNK):
        j = first + tl.arange(0, CHUNK)
        w1_chunk = tl.load(w1 + j[None, :] * K + k[:, None], (j < N1)[None, :], 0.0)
        w2_chunk = tl.load(w2 + n[None, :] * N1 + j[:, None], (j < N1)[:, None], 0.0)
        h = tl.dot(x_rows, w1_chunk, input_precision="ieee") + tl.load(b1 + j, j < N1, 0.0)[None, :]
        h = tl.where(h < 0, 0.0, h)
        sums = tl.dot(h, w2_chunk, sums, input_precision="ieee")
    z = sums + tl.load(b2 + n)[None, :]
    tl.store(out + row * N2 + n[None, :], tl.sigmoid(z), row < B)


solved = puzzles.attempt("chained", chained_kernel)

# %% mlp
@triton.jit
def mlp_kernel(
    x, w1, b1, w2, b2, w3, b3, w4, b4, out, M, K: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, N3: tl.constexpr,
    N4: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):
    row, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, K)
    n2, n3, n4 = tl.arange(0, N2), tl.arange(0, N3), tl.arange(0, N4)
    x_rows = tl.load(x + row * K + k[None, :], row < M, 0.0)
    sums = tl.zeros([ROWS, N2], tl.float32)
    for first in range(0, N1, CHUNK):
        j = first + tl.arange(0, CHUNK)
        w1_chunk = tl.load(w1 + j[None, :] * K + k[:, None])
        w2_chunk = tl.load(w2 + n2[None, :] * N1 + j[:, None])
        h = tl.dot(x_rows, w1_chunk, input_precision=PRECISION) + tl.load(b1 + j)[None, :]
        h = tl.where(h < 0, 0.0, h).to(x.dtype.element_ty)
        sums = tl.dot(h, w2_chunk, sums, input_precision=PRECISION)
    w3_whole = tl.load(w3 + n3[None, :] * N2 + n2[:, None])
    w4_whole = tl.load(w4 + n4[None, :] * N3 + n3[:, None])
    h = sums + tl.load(b2 + n2)[None, :]
    h = tl.where(h < 0, 0.0, h).to(x.dtype.element_ty)
    h = tl.dot(h, w3_whole, input_precision=PRECISION) + tl.load(b3 + n3)[None, :]
    h = tl.where(h < 0, 0.0, h).to(x.dtype.element_ty)
    h = tl.dot(h, w4_whole, input_precision=PRECISION) + tl.load(b4 + n4)[None, :]
    tl.store(out + row * N4 + n4[None, :], tl.where(h < 0, 0.0, h), row < M)


solved = puzzles.attempt("mlp", mlp_kernel)

# %% least
def least(rows, ROWS, sms, weights, product):
    tiles = triton.cdiv(rows, ROWS)
    return triton.cdiv(tiles, sms) * (weights + ROWS * product)


solved = puzzles.attempt("least", least)
