"""Wrong answers to the puzzles of 16_training_tables.ipynb, and unusual right ones; format: tests/test_puzzles.py."""

# %% starts: reads in front of the first key -> not yet: .*out of bounds
@triton.jit
def starts_kernel(keys, starts, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + i, i < N)
    before = tl.load(keys + i - 1, i < N)
    tl.store(starts + i, (key != before).to(tl.int32), i < N)


check.attempt("embedding_bags_update/starts", starts_kernel)

# %% starts: the first key is compared with 0 -> not yet: .*At \[0\]: expected 1, got 0
@triton.jit
def starts_kernel(keys, starts, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + i, i < N)
    before = tl.load(keys + i - 1, (i > 0) & (i < N), other=0)
    tl.store(starts + i, (key != before).to(tl.int32), i < N)


check.attempt("embedding_bags_update/starts", starts_kernel)

# %% starts: nothing is said of the key before the first -> not yet: .*At \[0\]: expected 1, got 0
@triton.jit
def starts_kernel(keys, starts, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + i, i < N)
    before = tl.load(keys + i - 1, (i > 0) & (i < N))
    tl.store(starts + i, (key != before).to(tl.int32), i < N)


check.attempt("embedding_bags_update/starts", starts_kernel)

# %% starts: marks ends -> not yet: \S+/starts, case 7 keys.*expected
@triton.jit
def starts_kernel(keys, starts, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + i, i < N)
    before = tl.load(keys + i + 1, i + 1 < N, other=-1)
    tl.store(starts + i, (key != before).to(tl.int32), i < N)


check.attempt("embedding_bags_update/starts", starts_kernel)

# %% starts: each block begins a row -> not yet: .*At \[64\]: expected 0, got 1
@triton.jit
def starts_kernel(keys, starts, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + i, i < N)
    before = tl.load(keys + i - 1, (i % BLOCK > 0) & (i < N), other=-1)
    tl.store(starts + i, (key != before).to(tl.int32), i < N)


check.attempt("embedding_bags_update/starts", starts_kernel)

# %% starts: compares 32 bits -> not yet: .*2\^32 apart
@triton.jit
def starts_kernel(keys, starts, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + i, i < N)
    before = tl.load(keys + i - 1, (i > 0) & (i < N), other=-1)
    tl.store(starts + i, (key.to(tl.int32) != before.to(tl.int32)).to(tl.int32), i < N)


check.attempt("embedding_bags_update/starts", starts_kernel)

# %% starts: stores beyond the end -> not yet: .*(out of bounds|beside)
@triton.jit
def starts_kernel(keys, starts, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + i, i < N)
    before = tl.load(keys + i - 1, (i > 0) & (i < N), other=-1)
    tl.store(starts + i, (key != before).to(tl.int32))


check.attempt("embedding_bags_update/starts", starts_kernel)

# %% starts: torch computes -> ^not yet: .*give the kernel itself
def by_torch(keys):
    return (keys.diff(prepend=keys[:1] - 1) != 0).int()


check.attempt("embedding_bags_update/starts", by_torch)

# %% starts: one key behind the other, by a clamped address
@triton.jit
def starts_kernel(keys, starts, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(keys + i, i < N)
    before = tl.load(keys + tl.maximum(i - 1, 0), i < N)
    tl.store(starts + i, ((key != before) | (i == 0)).to(tl.int32), i < N)


check.attempt("embedding_bags_update/starts", starts_kernel)

# %% sums: the sorted place in place of the position -> not yet: .*expected
@triton.jit
def sums_kernel(grad, positions, offsets, sums, D, BLOCK: tl.constexpr):
    segment, column = tl.program_id(0), tl.arange(0, BLOCK)
    first, end = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    for k in range(first, end):
        row = k
        total += tl.load(grad + row * D + column, column < D, other=0).to(total.dtype)
    tl.store(sums + segment * D + column, total, column < D)


check.attempt("embedding_bags_update/sums", sums_kernel)

# %% sums: only the first of a segment -> not yet: .*expected
@triton.jit
def sums_kernel(grad, positions, offsets, sums, D, BLOCK: tl.constexpr):
    segment, column = tl.program_id(0), tl.arange(0, BLOCK)
    first, end = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    for k in range(first, first + 1):
        row = tl.load(positions + k)
        total += tl.load(grad + row * D + column, column < D, other=0).to(total.dtype)
    tl.store(sums + segment * D + column, total, column < D)


check.attempt("embedding_bags_update/sums", sums_kernel)

# %% sums: leaves the last out -> not yet: .*expected
@triton.jit
def sums_kernel(grad, positions, offsets, sums, D, BLOCK: tl.constexpr):
    segment, column = tl.program_id(0), tl.arange(0, BLOCK)
    first, end = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    for k in range(first, end - 1):
        row = tl.load(positions + k)
        total += tl.load(grad + row * D + column, column < D, other=0).to(total.dtype)
    tl.store(sums + segment * D + column, total, column < D)


check.attempt("embedding_bags_update/sums", sums_kernel)

# %% sums: adds in float16 -> not yet: \S+/sums, case 2000×1 float16
@triton.jit
def sums_kernel(grad, positions, offsets, sums, D, BLOCK: tl.constexpr):
    segment, column = tl.program_id(0), tl.arange(0, BLOCK)
    first, end = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    total = tl.zeros([BLOCK], grad.dtype.element_ty)
    for k in range(first, end):
        row = tl.load(positions + k)
        total += tl.load(grad + row * D + column, column < D, other=0).to(total.dtype)
    tl.store(sums + segment * D + column, total, column < D)


check.attempt("embedding_bags_update/sums", sums_kernel)

# %% sums: no mask -> not yet: .*out of bounds
@triton.jit
def sums_kernel(grad, positions, offsets, sums, D, BLOCK: tl.constexpr):
    segment, column = tl.program_id(0), tl.arange(0, BLOCK)
    first, end = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    for k in range(first, end):
        row = tl.load(positions + k)
        total += tl.load(grad + row * D + column).to(total.dtype)
    tl.store(sums + segment * D + column, total, column < D)


check.attempt("embedding_bags_update/sums", sums_kernel)

# %% sums: rows are BLOCK apart -> not yet: .*(out of bounds|expected)
@triton.jit
def sums_kernel(grad, positions, offsets, sums, D, BLOCK: tl.constexpr):
    segment, column = tl.program_id(0), tl.arange(0, BLOCK)
    first, end = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    for k in range(first, end):
        row = tl.load(positions + k)
        total += tl.load(grad + row * BLOCK + column, column < D, other=0).to(total.dtype)
    tl.store(sums + segment * D + column, total, column < D)


check.attempt("embedding_bags_update/sums", sums_kernel)

# %% sums: stores into the next segment -> not yet: .*(out of bounds|beside)
@triton.jit
def sums_kernel(grad, positions, offsets, sums, D, BLOCK: tl.constexpr):
    segment, column = tl.program_id(0), tl.arange(0, BLOCK)
    first, end = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    for k in range(first, end):
        row = tl.load(positions + k)
        total += tl.load(grad + row * D + column, column < D, other=0).to(total.dtype)
    tl.store(sums + segment * D + column, total)


check.attempt("embedding_bags_update/sums", sums_kernel)

# %% sums: torch computes -> ^not yet: .*give the kernel itself
def by_torch(grad, positions, offsets):
    return torch.segment_reduce(grad[positions].float(), "sum", offsets=offsets)


check.attempt("embedding_bags_update/sums", by_torch)

# %% sums: in reverse order -> not yet: .*1e8 - 1e8 \+ 1.*expected[\s\S]*in order
@triton.jit
def sums_kernel(grad, positions, offsets, sums, D, BLOCK: tl.constexpr):
    segment, column = tl.program_id(0), tl.arange(0, BLOCK)
    first, end = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    for k in range(first, end):
        row = tl.load(positions + first + end - 1 - k)
        total += tl.load(grad + row * D + column, column < D, other=0).to(total.dtype)
    tl.store(sums + segment * D + column, total, column < D)


check.attempt("embedding_bags_update/sums", sums_kernel)

# %% sums: a while loop, and the lanes beyond D set to 0 afterwards
@triton.jit
def sums_kernel(grad, positions, offsets, sums, D, BLOCK: tl.constexpr):
    segment, column = tl.program_id(0), tl.arange(0, BLOCK)
    first, end = tl.load(offsets + segment), tl.load(offsets + segment + 1)
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    k = first
    while k < end:
        row = tl.load(positions + k)
        total += tl.where(column < D, tl.load(grad + row * D + column, column < D), 0.0)
        k += 1
    tl.store(sums + segment * D + column, total, column < D)


check.attempt("embedding_bags_update/sums", sums_kernel)

# %% adagrad: the root of the old state -> not yet: .*tables: .*expected
@triton.jit
def adagrad_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < D, tl.load(rows + s) * D + column
    g = tl.load(sums + s * D + column, inside)
    row, total = tl.load(tables + at, inside), tl.load(state + at, inside)
    tl.store(state + at, total + g * g, inside)
    tl.store(tables + at, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/adagrad", adagrad_kernel)

# %% adagrad: eps is left out -> not yet: .*eps 0.5: tables: .*[\s\S]*is eps added, and outside the root
@triton.jit
def adagrad_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < D, tl.load(rows + s) * D + column
    g = tl.load(sums + s * D + column, inside)
    row, total = tl.load(tables + at, inside), tl.load(state + at, inside)
    total += g * g
    tl.store(state + at, total, inside)
    tl.store(tables + at, row - lr * g / tl.sqrt(total), inside)


check.attempt("embedding_bags_update/adagrad", adagrad_kernel)

# %% adagrad: eps inside the root -> not yet: .*eps 0.5: tables: .*expected
@triton.jit
def adagrad_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < D, tl.load(rows + s) * D + column
    g = tl.load(sums + s * D + column, inside)
    row, total = tl.load(tables + at, inside), tl.load(state + at, inside)
    total += g * g
    tl.store(state + at, total, inside)
    tl.store(tables + at, row - lr * g / (tl.sqrt(total + eps)), inside)


check.attempt("embedding_bags_update/adagrad", adagrad_kernel)

# %% adagrad: the state is not stored -> not yet: .*state: .*expected
@triton.jit
def adagrad_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < D, tl.load(rows + s) * D + column
    g = tl.load(sums + s * D + column, inside)
    row, total = tl.load(tables + at, inside), tl.load(state + at, inside)
    total += g * g
    tl.store(tables + at, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/adagrad", adagrad_kernel)

# %% adagrad: uphill -> not yet: .*tables: .*expected
@triton.jit
def adagrad_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < D, tl.load(rows + s) * D + column
    g = tl.load(sums + s * D + column, inside)
    row, total = tl.load(tables + at, inside), tl.load(state + at, inside)
    total += g * g
    tl.store(state + at, total, inside)
    tl.store(tables + at, row + lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/adagrad", adagrad_kernel)

# %% rowwise: the root of the old state -> not yet: .*tables: .*expected
@triton.jit
def rowwise_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, r = column < D, tl.load(rows + s)
    g = tl.load(sums + s * D + column, inside, other=0)
    row = tl.load(tables + r * D + column, inside)
    total = tl.load(state + r)
    tl.store(state + r, total + tl.sum(g * g) / D)
    tl.store(tables + r * D + column, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/rowwise", rowwise_kernel)

# %% rowwise: eps inside the root -> not yet: .*eps 0.5: tables: .*expected
@triton.jit
def rowwise_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, r = column < D, tl.load(rows + s)
    g = tl.load(sums + s * D + column, inside, other=0)
    row = tl.load(tables + r * D + column, inside)
    total = tl.load(state + r) + tl.sum(g * g) / D
    tl.store(state + r, total)
    tl.store(tables + r * D + column, row - lr * g / (tl.sqrt(total + eps)), inside)


check.attempt("embedding_bags_update/rowwise", rowwise_kernel)

# %% rowwise: the state is not stored -> not yet: .*state: .*expected
@triton.jit
def rowwise_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, r = column < D, tl.load(rows + s)
    g = tl.load(sums + s * D + column, inside, other=0)
    row = tl.load(tables + r * D + column, inside)
    total = tl.load(state + r) + tl.sum(g * g) / D
    tl.store(tables + r * D + column, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/rowwise", rowwise_kernel)

# %% rowwise: uphill -> not yet: .*tables: .*expected
@triton.jit
def rowwise_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, r = column < D, tl.load(rows + s)
    g = tl.load(sums + s * D + column, inside, other=0)
    row = tl.load(tables + r * D + column, inside)
    total = tl.load(state + r) + tl.sum(g * g) / D
    tl.store(state + r, total)
    tl.store(tables + r * D + column, row + lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/rowwise", rowwise_kernel)

# %% adagrad: row s of the table -> not yet: .*expected
@triton.jit
def adagrad_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < D, s * D + column
    g = tl.load(sums + s * D + column, inside)
    row, total = tl.load(tables + at, inside), tl.load(state + at, inside)
    total += g * g
    tl.store(state + at, total, inside)
    tl.store(tables + at, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/adagrad", adagrad_kernel)

# %% adagrad: stores beyond the row -> not yet: .*(out of bounds|beside)
@triton.jit
def adagrad_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < D, tl.load(rows + s) * D + column
    g = tl.load(sums + s * D + column, inside)
    row, total = tl.load(tables + at, inside), tl.load(state + at, inside)
    total += g * g
    tl.store(state + at, total)
    tl.store(tables + at, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/adagrad", adagrad_kernel)

# %% adagrad: torch computes -> ^not yet: .*give the kernel itself
def by_torch(*given):
    return eager.update_(*given[:5], "adagrad", given[5]) and None


check.attempt("embedding_bags_update/adagrad", by_torch)

# %% adagrad: a reciprocal root, and the product first
@triton.jit
def adagrad_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, at = column < D, tl.load(rows + s) * D + column
    g = tl.load(sums + s * D + column, inside)
    row, total = tl.load(tables + at, inside), tl.load(state + at, inside)
    total += g * g
    tl.store(state + at, total, inside)
    step = 1 / (eps + tl.sqrt(total))
    tl.store(tables + at, row - (lr * step) * g, inside)


check.attempt("embedding_bags_update/adagrad", adagrad_kernel)

# %% rowwise: a sum in place of the mean -> not yet: .*expected
@triton.jit
def rowwise_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, r = column < D, tl.load(rows + s)
    g = tl.load(sums + s * D + column, inside, other=0)
    row = tl.load(tables + r * D + column, inside)
    total = tl.load(state + r) + tl.sum(g * g)
    tl.store(state + r, total)
    tl.store(tables + r * D + column, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/rowwise", rowwise_kernel)

# %% rowwise: the mean over all lanes -> not yet: .*expected
@triton.jit
def rowwise_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, r = column < D, tl.load(rows + s)
    g = tl.load(sums + s * D + column, inside, other=0)
    row = tl.load(tables + r * D + column, inside)
    total = tl.load(state + r) + tl.sum(g * g) / BLOCK
    tl.store(state + r, total)
    tl.store(tables + r * D + column, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/rowwise", rowwise_kernel)

# %% rowwise: the square of the mean -> not yet: .*expected
@triton.jit
def rowwise_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, r = column < D, tl.load(rows + s)
    g = tl.load(sums + s * D + column, inside, other=0)
    row = tl.load(tables + r * D + column, inside)
    total = tl.load(state + r) + (tl.sum(g) / D) * (tl.sum(g) / D)
    tl.store(state + r, total)
    tl.store(tables + r * D + column, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/rowwise", rowwise_kernel)

# %% rowwise: the lanes beyond D count -> not yet: .*expected
@triton.jit
def rowwise_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, r = column < D, tl.load(rows + s)
    g = tl.load(sums + s * D + column, inside, other=1)
    row = tl.load(tables + r * D + column, inside)
    total = tl.load(state + r) + tl.sum(g * g) / D
    tl.store(state + r, total)
    tl.store(tables + r * D + column, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/rowwise", rowwise_kernel)

# What a load leaves out is undefined: NaN under the watched interpreter, and 0 as Triton 3.7 compiles it.
# %% rowwise: the lanes beyond D are left open -> got nan[\s\S]*without `other`|passed on cuda
@triton.jit
def rowwise_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, r = column < D, tl.load(rows + s)
    g = tl.load(sums + s * D + column, inside)
    row = tl.load(tables + r * D + column, inside)
    total = tl.load(state + r) + tl.sum(g * g) / D
    tl.store(state + r, total)
    tl.store(tables + r * D + column, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/rowwise", rowwise_kernel)

# %% rowwise: torch computes -> ^not yet: .*give the kernel itself
def by_torch(*given):
    return eager.update_(*given[:5], "rowwise_adagrad", given[5]) and None


check.attempt("embedding_bags_update/rowwise", by_torch)

# %% rowwise: each lane's part is divided first, the lanes beyond D are set to 0 afterwards
@triton.jit
def rowwise_kernel(tables, state, rows, sums, lr, eps, D, BLOCK: tl.constexpr):
    s, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside, r = column < D, tl.load(rows + s)
    g = tl.load(sums + s * D + column, inside)
    g = tl.where(inside, g, 0.0)
    row = tl.load(tables + r * D + column, inside)
    total = tl.load(state + r) + tl.sum(g * g / D)
    tl.store(state + r, total)
    tl.store(tables + r * D + column, row - lr * g / (tl.sqrt(total) + eps), inside)


check.attempt("embedding_bags_update/rowwise", rowwise_kernel)
