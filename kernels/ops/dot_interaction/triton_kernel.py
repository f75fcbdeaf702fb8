"""out = [t_0, t_i · t_j for j < i, zeros]    t_0: dense [rows, columns], t_1 …: sparse [rows, features, columns]

The pairs go row by row through the strictly lower triangle of T Tᵀ, T = [dense; sparse]; out [rows, WIDTH]. The
backward, with G the strictly lower triangular matrix of the pairs' gradients:

    grad_T = (G + Gᵀ) T, and the gradient of out's first columns is added to that of t_0

Bytes, V = features + 1: rows · (V · columns + WIDTH) · itemsize, and in the backward V · columns more. FLOPs: a program
multiplies whole blocks of VECTORS by VECTORS, of which the pairs are less than half: 2 · VECTORS² · columns a row and
block, for 27 vectors 2.9 times what the pairs need; in the backward 1.5 times. float32 is multiplied in float32, which
takes no tensor cores: at 16 columns 32768 FLOPs a row are 0.5 ns of an H200, the bytes 0.75 ns. So its forward goes
vector by vector, not block by block (row_kernel), where columns are few: triton_launch.py says how many.

Tensor cores can do it by three products in tf32 (input_precision="tf32x3"), in a quarter of the time on an H200 and
about as exactly, but not of all numbers: rounded to tf32 the largest are Inf, the smallest 0, and of small ones the
second part of the number loses its bits. So that is no full float32: test_dot_interaction.py shows where it fails.
"""

import triton
import triton.language as tl

from ...runtime import triton_mode

INTERPRETED = tl.constexpr(triton_mode() == "interpreted")  # where products of bfloat16 are wrong


@triton.jit
def _operand(x):
    return x.to(tl.float32) if INTERPRETED and x.dtype != tl.float64 else x


@triton.jit
def _place(dense_ptr, sparse_ptr, row, vector, column, FEATURES: tl.constexpr, COLUMNS: tl.constexpr):
    """Where element `column` of vector `vector` of a row is; row has 64 bits."""
    in_dense = dense_ptr + row * COLUMNS + column
    in_sparse = sparse_ptr + (row * FEATURES + vector - 1) * COLUMNS + column
    return tl.where(vector == 0, in_dense, in_sparse)


@triton.jit
def _vectors(
    dense_ptr, sparse_ptr, row, exists, vector, start,
    FEATURES: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):
    """Columns [start, start + DEPTH) of vectors [ROWS, VECTORS]; zeros for what does not exist."""
    column = start + tl.arange(0, DEPTH)[None, None, :]
    mask = exists & (vector <= FEATURES) & (column < COLUMNS)
    place = _place(dense_ptr, sparse_ptr, row, vector, column, FEATURES, COLUMNS)
    return _operand(tl.load(place, mask, other=0.0))


@triton.jit
def _write_columns(
    dense_ptr, out_ptr, rows,
    FEATURES: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
):
    """What is no pair: the dense vector before them, the zeros behind."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    for start in range(0, COLUMNS, DEPTH):
        column = start + tl.arange(0, DEPTH)[None, :]
        mask = (row < rows) & (column < COLUMNS)
        tl.store(out_ptr + row * WIDTH + column, tl.load(dense_ptr + row * COLUMNS + column, mask), mask)
    for start in range(COLUMNS + FEATURES * (FEATURES + 1) // 2, WIDTH, DEPTH):
        column = start + tl.arange(0, DEPTH)[None, :]
        tl.store(out_ptr + row * WIDTH + column, 0.0, (row < rows) & (column < WIDTH))


@triton.jit(do_not_specialize=["rows", "features"])
def row_kernel(
    dense_ptr, sparse_ptr, out_ptr, rows, features,
    FEATURES: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, VECTORS: tl.constexpr, DEPTH: tl.constexpr,
    COPIES: tl.constexpr,
):
    """A row, whose vectors [VECTORS, DEPTH] are held in registers: each vector times all before it. For float32, which
    tensor cores do not multiply. On an H200 the same in lecture_16.json takes 164 µs of 65536 rows of 26 features and
    16 columns, and forward_kernel's products of blocks 355."""
    row = tl.program_id(0).to(tl.int64)
    vector, column = tl.arange(0, VECTORS), tl.arange(0, DEPTH)[None, :]
    place = _place(dense_ptr, sparse_ptr, row, vector[:, None], column, FEATURES, COLUMNS)
    vectors = tl.load(place, (vector <= FEATURES)[:, None] & (column < COLUMNS), other=0.0)
    sparse = sparse_ptr + row * FEATURES * COLUMNS + column
    pairs = out_ptr + row * WIDTH + COLUMNS + vector
    # The number is no constant, of which the compiler would make as many copies of what follows.
    for i in tl.range(1, features + 1, loop_unroll_factor=COPIES):
        one = tl.load(sparse + (i - 1) * COLUMNS, column < COLUMNS, other=0.0)
        tl.store(pairs + i * (i - 1) // 2, tl.sum(vectors * one, axis=1), vector < i)
    _write_columns(dense_ptr, out_ptr, rows, FEATURES, COLUMNS, WIDTH, 1, DEPTH)


@triton.jit(do_not_specialize=["rows"])
def forward_kernel(
    dense_ptr, sparse_ptr, out_ptr, rows,
    FEATURES: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, VECTORS: tl.constexpr, DEPTH: tl.constexpr,
):
    """ROWS rows; of their pairs the block of VECTORS by VECTORS that program_id(1) counts, row by row."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    of_block = tl.arange(0, ROWS)[:, None, None]
    row = first + of_block
    exists = of_block < tl.minimum(rows - first, ROWS).to(tl.int32)
    left, right = 0, tl.program_id(1)
    while right > left:
        left += 1
        right -= left
    i = left * VECTORS + tl.arange(0, VECTORS)
    j = right * VECTORS + tl.arange(0, VECTORS)
    products = tl.zeros([ROWS, VECTORS, VECTORS], tl.float64 if out_ptr.dtype.element_ty == tl.float64 else tl.float32)
    for start in range(0, COLUMNS, DEPTH):
        a = _vectors(dense_ptr, sparse_ptr, row, exists, i[None, :, None], start, FEATURES, COLUMNS, DEPTH)
        if FEATURES < VECTORS:
            b = a
        else:
            b = _vectors(dense_ptr, sparse_ptr, row, exists, j[None, :, None], start, FEATURES, COLUMNS, DEPTH)
        products = tl.dot(a, tl.permute(b, (0, 2, 1)), products, input_precision="ieee", out_dtype=products.dtype)
    i, j = i[None, :, None], j[None, None, :]
    tl.store(out_ptr + row * WIDTH + COLUMNS + i * (i - 1) // 2 + j, products, exists & (j < i) & (i <= FEATURES))
    if tl.program_id(1) == 0:
        _write_columns(dense_ptr, out_ptr, rows, FEATURES, COLUMNS, WIDTH, ROWS, DEPTH)


@triton.jit(do_not_specialize=["rows"])
def backward_kernel(
    grad_ptr, dense_ptr, sparse_ptr, grad_dense_ptr, grad_sparse_ptr, rows,
    FEATURES: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, VECTORS: tl.constexpr, DEPTH: tl.constexpr,
):
    """ROWS rows; of their vectors' gradients VECTORS, of these DEPTH columns. A gradient that is None is not needed."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    of_block = tl.arange(0, ROWS)[:, None, None]
    row = first + of_block
    exists = of_block < tl.minimum(rows - first, ROWS).to(tl.int32)
    start = tl.program_id(2) * DEPTH
    i = (tl.program_id(1) * VECTORS + tl.arange(0, VECTORS))[None, :, None]
    column = start + tl.arange(0, DEPTH)[None, None, :]
    sums = tl.zeros([ROWS, VECTORS, DEPTH], tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32)
    for other in range(0, FEATURES + 1, VECTORS):
        j = other + tl.arange(0, VECTORS)
        across = j[None, None, :]
        larger, smaller = tl.maximum(i, across), tl.minimum(i, across)
        # The diagonal's zero makes NaN of a vector's own NaN, as eager does.
        pair = grad_ptr + row * WIDTH + COLUMNS + larger * (larger - 1) // 2 + smaller
        weights = _operand(tl.load(pair, exists & (i != across) & (larger <= FEATURES), other=0.0))
        vectors = _vectors(dense_ptr, sparse_ptr, row, exists, j[None, :, None], start, FEATURES, COLUMNS, DEPTH)
        sums = tl.dot(weights, vectors, sums, input_precision="ieee", out_dtype=sums.dtype)
    mask = exists & (i <= FEATURES) & (column < COLUMNS)
    if grad_dense_ptr is not None:
        direct = tl.load(grad_ptr + row * WIDTH + column + 0 * i, mask & (i == 0), other=0.0)
        tl.store(grad_dense_ptr + row * COLUMNS + column + 0 * i, sums + direct.to(sums.dtype), mask & (i == 0))
    if grad_sparse_ptr is not None:
        tl.store(grad_sparse_ptr + (row * FEATURES + i - 1) * COLUMNS + column, sums, mask & (i > 0))
