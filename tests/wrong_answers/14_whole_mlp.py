"""Wrong answers to the puzzles of 14_whole_mlp.ipynb, and unusual right ones; format: tests/test_puzzles.py."""

# %% layer: relu of each step's sum -> ^not yet: .*(case 16 rows of 16-32: .*expected)
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
        sums = tl.maximum(sums, 0.0)
    sums += tl.load(bias + column, column < N, other=0.0)
    tl.store(out + row * N + column, tl.maximum(sums, 0.0), (row < B) & (column < N))


check.attempt("fused_mlp/layer", layer_kernel)

# %% layer: as in the sketch -> ^not yet: .*(case 16 rows of 48-32: .*expected[\s\S]*of which sum)
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
        sums = tl.maximum(sums, 0.0)
    tl.store(out + row * N + column, tl.maximum(sums, 0.0), (row < B) & (column < N))


check.attempt("fused_mlp/layer", layer_kernel)

# %% layer: the bias in each step -> ^not yet: .*(case 16 rows of 48-32: .*expected[\s\S]*of which sum)
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
    tl.store(out + row * N + column, tl.maximum(sums, 0.0), (row < B) & (column < N))


check.attempt("fused_mlp/layer", layer_kernel)

# %% layer: the last step alone -> ^not yet: .*(case 16 rows of 48-32: .*expected)
@triton.jit
def layer_kernel(x, weight, bias, out, B, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, K, STEP):
        k = first + tl.arange(0, STEP)
        x_tile = tl.load(x + row * K + k[None, :], (row < B) & (k < K)[None, :], other=0.0)
        w_tile = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], other=0.0)
        sums = tl.dot(x_tile, w_tile, input_precision="ieee")
    sums += tl.load(bias + column, column < N, other=0.0)
    tl.store(out + row * N + column, tl.maximum(sums, 0.0), (row < B) & (column < N))


check.attempt("fused_mlp/layer", layer_kernel)

# %% layer: bias behind relu -> ^not yet: .*(case 16 rows of 16-32: .*expected)
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
    sums = tl.maximum(sums, 0.0) + tl.load(bias + column, column < N, other=0.0)
    tl.store(out + row * N + column, sums, (row < B) & (column < N))


check.attempt("fused_mlp/layer", layer_kernel)

# %% layer: no bias -> ^not yet: .*(case 16 rows of 16-32: .*expected)
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
    tl.store(out + row * N + column, tl.maximum(sums, 0.0), (row < B) & (column < N))


check.attempt("fused_mlp/layer", layer_kernel)

# %% layer: the whole tile is stored -> ^not yet: .*(out of bounds|beside|expected)
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
    tl.store(out + row * N + column, tl.maximum(sums, 0.0))


check.attempt("fused_mlp/layer", layer_kernel)

# %% layer: rows are COLUMNS apart -> ^not yet: .*(out of bounds|beside|expected|never written)
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
    tl.store(out + row * COLUMNS + column, tl.maximum(sums, 0.0), (row < B) & (column < N))


check.attempt("fused_mlp/layer", layer_kernel)

# %% layer: the bias goes by the row -> ^not yet: .*(out of bounds|expected)
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
    sums += tl.load(bias + row, row < N, other=0.0)
    tl.store(out + row * N + column, tl.maximum(sums, 0.0), (row < B) & (column < N))


check.attempt("fused_mlp/layer", layer_kernel)

# %% layer: torch computes -> ^not yet: .*give the kernel itself
def by_torch(x, weights, biases, *options):
    return torch.relu(x @ weights[0].T + biases[0])


check.attempt("fused_mlp/layer", by_torch)

# %% layer: the bias is where the sum begins
@triton.jit
def layer_kernel(x, weight, bias, out, B, K, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    sums += tl.load(bias + column, column < N, other=0.0)
    for first in range(0, K, STEP):
        k = first + tl.arange(0, STEP)
        x_tile = tl.load(x + row * K + k[None, :], (row < B) & (k < K)[None, :], other=0.0)
        w_tile = tl.load(weight + column * K + k[:, None], (column < N) & (k < K)[:, None], other=0.0)
        sums = tl.dot(x_tile, w_tile, sums, input_precision="ieee")
    tl.store(out + row * N + column, tl.maximum(sums, 0.0), (row < B) & (column < N))


check.attempt("fused_mlp/layer", layer_kernel)

# %% chained: layer 1's relu is missing -> ^not yet: .*(case 16 rows of 16-16-16: .*expected)
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
        h = (tl.dot(x_rows, w1_chunk, input_precision="ieee") + b1_chunk)
        sums = tl.dot(h, w2_chunk, sums, input_precision="ieee")
    z = sums + tl.load(b2 + n)[None, :]
    tl.store(out + row * N2 + n[None, :], tl.sigmoid(z), row < B)


check.attempt("fused_mlp/chained", chained_kernel)

# %% chained: b2 in each chunk -> ^not yet: .*(case 16 rows of 16-48-32: .*expected[\s\S]*chunks)
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
        h = tl.maximum(tl.dot(x_rows, w1_chunk, input_precision="ieee") + b1_chunk, 0.0)
        sums = tl.dot(h, w2_chunk, sums, input_precision="ieee")
        sums += tl.load(b2 + n)[None, :]
    tl.store(out + row * N2 + n[None, :], tl.sigmoid(sums), row < B)


check.attempt("fused_mlp/chained", chained_kernel)

# %% chained: the sigmoid in each chunk -> ^not yet: .*(case 16 rows of 16-48-32: .*expected[\s\S]*chunks)
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
        h = tl.maximum(tl.dot(x_rows, w1_chunk, input_precision="ieee") + b1_chunk, 0.0)
        z = tl.dot(h, w2_chunk, input_precision="ieee") + tl.load(b2 + n)[None, :]
        sums += tl.sigmoid(z)
    tl.store(out + row * N2 + n[None, :], sums, row < B)


check.attempt("fused_mlp/chained", chained_kernel)

# %% chained: the last chunk alone -> ^not yet: .*(case 16 rows of 16-48-32: .*expected[\s\S]*chunks)
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
        h = tl.maximum(tl.dot(x_rows, w1_chunk, input_precision="ieee") + b1_chunk, 0.0)
        sums = tl.dot(h, w2_chunk, input_precision="ieee")
    z = sums + tl.load(b2 + n)[None, :]
    tl.store(out + row * N2 + n[None, :], tl.sigmoid(z), row < B)


check.attempt("fused_mlp/chained", chained_kernel)

# %% chained: no b1 -> ^not yet: .*(case 16 rows of 16-16-16: .*expected)
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
        h = tl.maximum(tl.dot(x_rows, w1_chunk, input_precision="ieee"), 0.0)
        sums = tl.dot(h, w2_chunk, sums, input_precision="ieee")
    z = sums + tl.load(b2 + n)[None, :]
    tl.store(out + row * N2 + n[None, :], tl.sigmoid(z), row < B)


check.attempt("fused_mlp/chained", chained_kernel)

# %% chained: relu of layer 2's sum -> ^not yet: .*(case 16 rows of 16-16-16: .*expected)
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
        h = tl.maximum(tl.dot(x_rows, w1_chunk, input_precision="ieee") + b1_chunk, 0.0)
        sums = tl.dot(h, w2_chunk, sums, input_precision="ieee")
        sums = tl.maximum(sums, 0.0)
    z = sums + tl.load(b2 + n)[None, :]
    tl.store(out + row * N2 + n[None, :], tl.sigmoid(z), row < B)


check.attempt("fused_mlp/chained", chained_kernel)

# %% chained: rows beyond B are stored -> ^not yet: .*(out of bounds|beside|expected)
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
        h = tl.maximum(tl.dot(x_rows, w1_chunk, input_precision="ieee") + b1_chunk, 0.0)
        sums = tl.dot(h, w2_chunk, sums, input_precision="ieee")
    z = sums + tl.load(b2 + n)[None, :]
    tl.store(out + row * N2 + n[None, :], tl.sigmoid(z))


check.attempt("fused_mlp/chained", chained_kernel)

# %% chained: torch computes -> ^not yet: .*give the kernel itself
def by_torch(x, weights, biases, *options):
    return kernels.fused_mlp(x, weights, biases, *options)


check.attempt("fused_mlp/chained", by_torch)

# %% chained: b2 first, and the sigmoid written out
@triton.jit
def chained_kernel(
    x, w1, b1, w2, b2, out, B, N1, K: tl.constexpr, N2: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr
):
    row, k, n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, K), tl.arange(0, N2)
    x_rows = tl.load(x + row * K + k[None, :], row < B, other=0.0)
    sums = tl.zeros([ROWS, N2], tl.float32) + tl.load(b2 + n)[None, :]
    for first in range(0, N1, CHUNK):
        j = first + tl.arange(0, CHUNK)
        w1_chunk = tl.load(w1 + j[None, :] * K + k[:, None], (j < N1)[None, :], other=0.0)  # [K, CHUNK]
        b1_chunk = tl.load(b1 + j, j < N1, other=0.0)[None, :]
        w2_chunk = tl.load(w2 + n[None, :] * N1 + j[:, None], (j < N1)[:, None], other=0.0)  # [CHUNK, N2]
        h = tl.maximum(tl.dot(x_rows, w1_chunk, input_precision="ieee") + b1_chunk, 0.0)
        sums = tl.dot(h, w2_chunk, sums, input_precision="ieee")
    z = sums
    tl.store(out + row * N2 + n[None, :], 1 / (1 + tl.exp(-z)), row < B)


check.attempt("fused_mlp/chained", chained_kernel)

# %% place: a row of the triangle with the diagonal -> ^not yet: .*(expected|out of bounds|beside|never written)
@triton.jit
def place_kernel(vectors, out, V, W, D: tl.constexpr, BLOCK: tl.constexpr):
    b, j, d = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, D)
    t = vectors + b * V * D
    all_t = tl.load(t + j[:, None] * D + d[None, :], (j < V)[:, None], other=0.0)
    tl.store(out + b * W + d, tl.load(t + d))
    for i in range(1, V):
        pairs = tl.sum(all_t * tl.load(t + i * D + d)[None, :], 1)
        tl.store(out + b * W + D + i * (i + 1) // 2 + j, pairs, j < i)


check.attempt("dot_interaction/place", place_kernel)

# %% place: as in the full square -> ^not yet: .*(expected|out of bounds|beside|never written)
@triton.jit
def place_kernel(vectors, out, V, W, D: tl.constexpr, BLOCK: tl.constexpr):
    b, j, d = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, D)
    t = vectors + b * V * D
    all_t = tl.load(t + j[:, None] * D + d[None, :], (j < V)[:, None], other=0.0)
    tl.store(out + b * W + d, tl.load(t + d))
    for i in range(1, V):
        pairs = tl.sum(all_t * tl.load(t + i * D + d)[None, :], 1)
        tl.store(out + b * W + D + i * V + j, pairs, j < i)


check.attempt("dot_interaction/place", place_kernel)

# %% place: the pair with itself too -> ^not yet: .*(out of bounds|expected|beside|different bits)
@triton.jit
def place_kernel(vectors, out, V, W, D: tl.constexpr, BLOCK: tl.constexpr):
    b, j, d = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, D)
    t = vectors + b * V * D
    all_t = tl.load(t + j[:, None] * D + d[None, :], (j < V)[:, None], other=0.0)
    tl.store(out + b * W + d, tl.load(t + d))
    for i in range(1, V):
        pairs = tl.sum(all_t * tl.load(t + i * D + d)[None, :], 1)
        tl.store(out + b * W + D + i * (i - 1) // 2 + j, pairs, j <= i)


check.attempt("dot_interaction/place", place_kernel)

# %% place: the dense vector is overwritten -> ^not yet: .*(expected)
@triton.jit
def place_kernel(vectors, out, V, W, D: tl.constexpr, BLOCK: tl.constexpr):
    b, j, d = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, D)
    t = vectors + b * V * D
    all_t = tl.load(t + j[:, None] * D + d[None, :], (j < V)[:, None], other=0.0)
    tl.store(out + b * W + d, tl.load(t + d))
    for i in range(1, V):
        pairs = tl.sum(all_t * tl.load(t + i * D + d)[None, :], 1)
        tl.store(out + b * W + i * (i - 1) // 2 + j, pairs, j < i)


check.attempt("dot_interaction/place", place_kernel)

# %% place: column by column -> ^not yet: .*(never written|expected)
@triton.jit
def place_kernel(vectors, out, V, W, D: tl.constexpr, BLOCK: tl.constexpr):
    b, j, d = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, D)
    t = vectors + b * V * D
    all_t = tl.load(t + j[:, None] * D + d[None, :], (j < V)[:, None], other=0.0)
    tl.store(out + b * W + d, tl.load(t + d))
    for i in range(1, V):
        pairs = tl.sum(all_t * tl.load(t + i * D + d)[None, :], 1)
        tl.store(out + b * W + D + j * (2 * V - 1 - j) // 2 + i - j - 1, pairs, j < i)


check.attempt("dot_interaction/place", place_kernel)

# %% place: rows are W - D apart -> ^not yet: .*(expected|never written)
@triton.jit
def place_kernel(vectors, out, V, W, D: tl.constexpr, BLOCK: tl.constexpr):
    b, j, d = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, D)
    t = vectors + b * V * D
    all_t = tl.load(t + j[:, None] * D + d[None, :], (j < V)[:, None], other=0.0)
    tl.store(out + b * W + d, tl.load(t + d))
    for i in range(1, V):
        pairs = tl.sum(all_t * tl.load(t + i * D + d)[None, :], 1)
        tl.store(out + b * (W - D) + D + i * (i - 1) // 2 + j, pairs, j < i)


check.attempt("dot_interaction/place", place_kernel)

# %% place: no mask -> ^not yet: .*(out of bounds|beside|expected|different bits)
@triton.jit
def place_kernel(vectors, out, V, W, D: tl.constexpr, BLOCK: tl.constexpr):
    b, j, d = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, D)
    t = vectors + b * V * D
    all_t = tl.load(t + j[:, None] * D + d[None, :], (j < V)[:, None], other=0.0)
    tl.store(out + b * W + d, tl.load(t + d))
    for i in range(1, V):
        pairs = tl.sum(all_t * tl.load(t + i * D + d)[None, :], 1)
        tl.store(out + b * W + D + i * (i - 1) // 2 + j, pairs)


check.attempt("dot_interaction/place", place_kernel)

# %% place: torch computes -> ^not yet: .*give the kernel itself
def by_torch(vectors):
    return kernels.dot_interaction(vectors[:, 0], vectors[:, 1:])


check.attempt("dot_interaction/place", by_torch)

# %% place: a counter of the pairs before
@triton.jit
def place_kernel(vectors, out, V, W, D: tl.constexpr, BLOCK: tl.constexpr):
    b, j, d = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, D)
    t = vectors + b * V * D
    all_t = tl.load(t + j[:, None] * D + d[None, :], (j < V)[:, None], other=0.0)
    tl.store(out + b * W + d, tl.load(t + d))
    before = 0
    for i in range(1, V):
        pairs = tl.sum(all_t * tl.load(t + i * D + d)[None, :], 1)
        tl.store(out + b * W + D + before + j, pairs, j < i)
        before += i


check.attempt("dot_interaction/place", place_kernel)

# %% operand: i and j by STEP -> ^not yet: .*(expected|out of bounds)
@triton.jit
def operand_kernel(c, weight, out, B, H, C, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr):
    b, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, OUTPUTS)[None, :]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in range(0, C * C, STEP):
        k = first + tl.arange(0, STEP)
        w = tl.load(weight + h * C * C + k[:, None], (h < H) & (k < C * C)[:, None], other=0.0)
        i, j = k // STEP, k % STEP
        inside = (b < B) & (k < C * C)[None, :]
        ci = tl.load(c + b * C + i[None, :], inside, other=0.0)
        cj = tl.load(c + b * C + j[None, :], inside, other=0.0)
        sums = tl.dot(ci * cj, w, sums, input_precision="ieee")
    tl.store(out + b * H + h, sums, (b < B) & (h < H))


check.attempt("outer_linear/operand", operand_kernel)

# %% operand: c_i squared -> ^not yet: .*(case 16 rows of 4: .*expected)
@triton.jit
def operand_kernel(c, weight, out, B, H, C, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr):
    b, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, OUTPUTS)[None, :]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in range(0, C * C, STEP):
        k = first + tl.arange(0, STEP)
        w = tl.load(weight + h * C * C + k[:, None], (h < H) & (k < C * C)[:, None], other=0.0)
        i, j = k // C, k // C
        inside = (b < B) & (k < C * C)[None, :]
        ci = tl.load(c + b * C + i[None, :], inside, other=0.0)
        cj = tl.load(c + b * C + j[None, :], inside, other=0.0)
        sums = tl.dot(ci * cj, w, sums, input_precision="ieee")
    tl.store(out + b * H + h, sums, (b < B) & (h < H))


check.attempt("outer_linear/operand", operand_kernel)

# %% operand: no mask of k -> ^not yet: .*(out of bounds|expected)
@triton.jit
def operand_kernel(c, weight, out, B, H, C, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr):
    b, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, OUTPUTS)[None, :]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in range(0, C * C, STEP):
        k = first + tl.arange(0, STEP)
        w = tl.load(weight + h * C * C + k[:, None], (h < H) & (k < C * C)[:, None], other=0.0)
        i, j = k // C, k % C
        inside = b < B
        ci = tl.load(c + b * C + i[None, :], inside, other=0.0)
        cj = tl.load(c + b * C + j[None, :], inside, other=0.0)
        sums = tl.dot(ci * cj, w, sums, input_precision="ieee")
    tl.store(out + b * H + h, sums, (b < B) & (h < H))


check.attempt("outer_linear/operand", operand_kernel)

# %% operand: no mask of b -> ^not yet: .*(out of bounds|expected)
@triton.jit
def operand_kernel(c, weight, out, B, H, C, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr):
    b, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, OUTPUTS)[None, :]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in range(0, C * C, STEP):
        k = first + tl.arange(0, STEP)
        w = tl.load(weight + h * C * C + k[:, None], (h < H) & (k < C * C)[:, None], other=0.0)
        i, j = k // C, k % C
        inside = (k < C * C)[None, :]
        ci = tl.load(c + b * C + i[None, :], inside, other=0.0)
        cj = tl.load(c + b * C + j[None, :], inside, other=0.0)
        sums = tl.dot(ci * cj, w, sums, input_precision="ieee")
    tl.store(out + b * H + h, sums, (b < B) & (h < H))


check.attempt("outer_linear/operand", operand_kernel)

# %% operand: what is masked is undefined -> ^not yet: .*(case (5 rows of 8|33 rows of 7): .*(got nan|expected))
@triton.jit
def operand_kernel(c, weight, out, B, H, C, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr):
    b, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, OUTPUTS)[None, :]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in range(0, C * C, STEP):
        k = first + tl.arange(0, STEP)
        w = tl.load(weight + h * C * C + k[:, None], (h < H) & (k < C * C)[:, None], other=0.0)
        i, j = k // C, k % C
        inside = (b < B) & (k < C * C)[None, :]
        ci = tl.load(c + b * C + i[None, :], inside)
        cj = tl.load(c + b * C + j[None, :], inside)
        sums = tl.dot(ci * cj, w, sums, input_precision="ieee")
    tl.store(out + b * H + h, sums, (b < B) & (h < H))


check.attempt("outer_linear/operand", operand_kernel)

# %% operand: k is masked by C -> ^not yet: .*(expected)
@triton.jit
def operand_kernel(c, weight, out, B, H, C, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr):
    b, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, OUTPUTS)[None, :]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in range(0, C * C, STEP):
        k = first + tl.arange(0, STEP)
        w = tl.load(weight + h * C * C + k[:, None], (h < H) & (k < C * C)[:, None], other=0.0)
        i, j = k // C, k % C
        inside = (b < B) & (k < C)[None, :]
        ci = tl.load(c + b * C + i[None, :], inside, other=0.0)
        cj = tl.load(c + b * C + j[None, :], inside, other=0.0)
        sums = tl.dot(ci * cj, w, sums, input_precision="ieee")
    tl.store(out + b * H + h, sums, (b < B) & (h < H))


check.attempt("outer_linear/operand", operand_kernel)

# %% operand: the last step alone -> ^not yet: .*(case 16 rows of 8: .*expected[\s\S]*earlier)
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
        sums = tl.dot(ci * cj, w, input_precision="ieee")
    tl.store(out + b * H + h, sums, (b < B) & (h < H))


check.attempt("outer_linear/operand", operand_kernel)

# %% operand: torch computes -> ^not yet: .*give the kernel itself
def by_torch(c, weight):
    return torch.einsum('bi,bj,hij->bh', c, c, weight.view(len(weight), c.shape[1], -1))


check.attempt("outer_linear/operand", by_torch)

# %% operand: indices are clamped, and the products selected
@triton.jit
def operand_kernel(c, weight, out, B, H, C, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr):
    b, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, OUTPUTS)[None, :]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in range(0, C * C, STEP):
        k = first + tl.arange(0, STEP)
        w = tl.load(weight + h * C * C + k[:, None], (h < H) & (k < C * C)[:, None], other=0.0)
        i, j = tl.minimum(k // C, C - 1), k % C
        at = c + tl.minimum(b, B - 1) * C
        products = tl.load(at + i[None, :]) * tl.load(at + j[None, :])
        products = tl.where((k < C * C)[None, :], products, 0.0)
        sums = tl.dot(products, w, sums, input_precision="ieee")
    tl.store(out + b * H + h, sums, (b < B) & (h < H))


check.attempt("outer_linear/operand", operand_kernel)
