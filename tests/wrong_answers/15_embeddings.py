"""Answers to the puzzles of notebooks/15_embeddings.ipynb that must be turned down, and unusual right ones."""

# %% puzzle_row: the id is the row of the first table -> row, case 1×2×4 float32 int64: \d+ of 8 elements are wrong
@triton.jit
def my_kernel(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # i = b · F + f
    there = i < count
    id = tl.load(ids_ptr + i, there)
    row = id
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + row[:, None] * D + lanes, there[:, None])
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/row", my_kernel)

# %% puzzle_row: the offset of the table behind -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_kernel(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # i = b · F + f
    there = i < count
    id = tl.load(ids_ptr + i, there)
    row = tl.load(offsets_ptr + i % F + 1, there) + id
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + row[:, None] * D + lanes, there[:, None])
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/row", my_kernel)

# %% puzzle_row: the feature is the quotient -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_kernel(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # i = b · F + f
    there = i < count
    id = tl.load(ids_ptr + i, there)
    row = tl.load(offsets_ptr + i // F, there) + id
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + row[:, None] * D + lanes, there[:, None])
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/row", my_kernel)

# %% puzzle_row: no mask on the loads -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_kernel(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # i = b · F + f
    there = i < count
    id = tl.load(ids_ptr + i)
    row = tl.load(offsets_ptr + i % F, there) + id
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + row[:, None] * D + lanes)
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/row", my_kernel)

# %% puzzle_row: rows as far apart as they are many -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_kernel(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # i = b · F + f
    there = i < count
    id = tl.load(ids_ptr + i, there)
    row = tl.load(offsets_ptr + i % F, there) + id
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + row[:, None] * F + lanes, there[:, None])
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/row", my_kernel)

# %% puzzle_row: one lane for all columns -> elements are wrong
@triton.jit
def my_kernel(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # i = b · F + f
    there = i < count
    id = tl.load(ids_ptr + i, there)
    row = tl.load(offsets_ptr + i % F, there) + id
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + row[:, None] * D + 0 * lanes, there[:, None])
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/row", my_kernel)

# %% puzzle_row: a cheat that calls torch -> ^not yet: .*give the kernel itself
def by_torch(tables, row_offsets, ids):
    return tables[row_offsets[:-1] + ids]


check.attempt("embedding_bags/row", by_torch)

# %% puzzle_row: a launch that does nothing -> never written
@triton.jit
def my_kernel(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # i = b · F + f
    there = i < count
    id = tl.load(ids_ptr + i, there)
    row = tl.load(offsets_ptr + i % F, there) + id
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + row[:, None] * D + lanes, there[:, None])


check.attempt("embedding_bags/row", my_kernel)

# %% puzzle_row: the offset is not loaded -> not yet: .*[\s\S]*a pointer was used as a number: load it
@triton.jit
def my_kernel(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # i = b · F + f
    there = i < count
    id = tl.load(ids_ptr + i, there)
    row = offsets_ptr + i % F + id
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + row[:, None] * D + lanes, there[:, None])
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/row", my_kernel)

# %% puzzle_row: right: the table's pointer is moved, not the row
@triton.jit
def my_kernel(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # i = b · F + f
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    row = id
    lanes = tl.arange(0, D)
    rows = tl.load((tables_ptr + first * D)[:, None] + row[:, None] * D + lanes, there[:, None])
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/row", my_kernel)

# %% puzzle_outside: no check -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    end = tl.load(offsets_ptr + i % F + 1, there)
    inside = there
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + (first + id)[:, None] * D + lanes, inside[:, None], other=0.0)
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/outside", my_safe)

# %% puzzle_outside: negative ids pass -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    end = tl.load(offsets_ptr + i % F + 1, there)
    inside = there & (id < end - first)
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + (first + id)[:, None] * D + lanes, inside[:, None], other=0.0)
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/outside", my_safe)

# %% puzzle_outside: one id too many -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    end = tl.load(offsets_ptr + i % F + 1, there)
    inside = there & (id >= 0) & (id <= end - first)
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + (first + id)[:, None] * D + lanes, inside[:, None], other=0.0)
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/outside", my_safe)

# %% puzzle_outside: the row is compared, and wraps -> ids 9223372036854775807|CUDA error|ended
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    inside = there & (id >= 0) & (first + id < tl.load(offsets_ptr + i % F + 1, there))
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + (first + id)[:, None] * D + lanes, inside[:, None], other=0.0)
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/outside", my_safe)

# %% puzzle_outside: the height of all tables up to this one -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    end = tl.load(offsets_ptr + i % F + 1, there)
    inside = there & (id >= 0) & (id < end)
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + (first + id)[:, None] * D + lanes, inside[:, None], other=0.0)
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/outside", my_safe)

# %% puzzle_outside: the id is made narrow first -> int64, ids \+ 2\^32: .*are wrong[\s\S]*keep 64
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there).to(tl.int32)
    first = tl.load(offsets_ptr + i % F, there)
    end = tl.load(offsets_ptr + i % F + 1, there)
    inside = there & (id >= 0) & (id < end - first)
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + (first + id)[:, None] * D + lanes, inside[:, None], other=0.0)
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/outside", my_safe)

# %% puzzle_outside: multiplied by the mask -> special int64, .*are wrong.*got nan[\s\S]*0 · Inf
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    end = tl.load(offsets_ptr + i % F + 1, there)
    inside = there & (id >= 0) & (id < end - first)
    lanes = tl.arange(0, D)
    row = tl.where(inside, first + id, 0)
    rows = tl.load(tables_ptr + row[:, None] * D + lanes, there[:, None]) * inside[:, None].to(tl.float32)
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/outside", my_safe)

# %% puzzle_outside: clamped to the table's last row -> elements are wrong
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    end = tl.load(offsets_ptr + i % F + 1, there)
    inside = there & (id >= 0) & (id < end - first)
    lanes = tl.arange(0, D)
    row = tl.minimum(tl.maximum(first + id, first), end - 1)
    rows = tl.load(tables_ptr + row[:, None] * D + lanes, there[:, None])
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/outside", my_safe)

# %% puzzle_outside: misses are not written -> never written
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    end = tl.load(offsets_ptr + i % F + 1, there)
    inside = there & (id >= 0) & (id < end - first)
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + (first + id)[:, None] * D + lanes, inside[:, None], other=0.0)
    tl.store(out_ptr + i[:, None] * D + lanes, rows, inside[:, None])


check.attempt("embedding_bags/outside", my_safe)

# %% puzzle_outside: a cheat that calls torch -> ^not yet: .*give the kernel itself
def by_torch(tables, row_offsets, ids):
    return kernels.embedding_bags(tables, row_offsets, ids, out_of_range="zero")


check.attempt("embedding_bags/outside", by_torch)

# %% puzzle_outside: a launch that does nothing -> never written
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    end = tl.load(offsets_ptr + i % F + 1, there)
    inside = there & (id >= 0) & (id < end - first)
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + (first + id)[:, None] * D + lanes, inside[:, None], other=0.0)


check.attempt("embedding_bags/outside", my_safe)

# Those lanes' ids are undefined: any number under the watched interpreter, and 0 as Triton 3.7 compiles it.
# %% puzzle_outside: the lanes behind the last id are not left out -> out of bounds|CUDA error|ended|passed on cuda
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    end = tl.load(offsets_ptr + i % F + 1, there)
    inside = (id >= 0) & (id < end - first)
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + (first + id)[:, None] * D + lanes, inside[:, None], other=0.0)
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/outside", my_safe)

# %% puzzle_outside: right: row 0 is read for a miss, and selected away
@triton.jit
def my_safe(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    id = tl.load(ids_ptr + i, there)
    first = tl.load(offsets_ptr + i % F, there)
    end = tl.load(offsets_ptr + i % F + 1, there)
    inside = there & (id >= 0) & (id < end - first)
    lanes = tl.arange(0, D)
    row = tl.where(inside, first + id, 0)
    rows = tl.load(tables_ptr + row[:, None] * D + lanes, there[:, None])
    rows = tl.where(inside[:, None], rows, 0.0)
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


check.attempt("embedding_bags/outside", my_safe)

# %% puzzle_bag: an empty bag is 0 / 0 -> case 2×8 float32, .*elements are wrong.*got nan[\s\S]*is empty
@triton.jit
def my_bag(table_ptr, ids_ptr, offsets_ptr, out_ptr, D: tl.constexpr):
    bag = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + bag), tl.load(offsets_ptr + bag + 1)
    lanes = tl.arange(0, D)
    pooled = tl.zeros([D], tl.float32)
    for k in range(begin, end):
        id = tl.load(ids_ptr + k)
        pooled += tl.load(table_ptr + id * D + lanes)
    pooled /= (end - begin).to(tl.float32)
    tl.store(out_ptr + bag * D + lanes, pooled)


check.attempt("embedding_bags/bag", my_bag)

# %% puzzle_bag: the sum -> case 1×4 float32, .*elements are wrong
@triton.jit
def my_bag(table_ptr, ids_ptr, offsets_ptr, out_ptr, D: tl.constexpr):
    bag = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + bag), tl.load(offsets_ptr + bag + 1)
    lanes = tl.arange(0, D)
    pooled = tl.zeros([D], tl.float32)
    for k in range(begin, end):
        id = tl.load(ids_ptr + k)
        pooled += tl.load(table_ptr + id * D + lanes)
    tl.store(out_ptr + bag * D + lanes, pooled)


check.attempt("embedding_bags/bag", my_bag)

# %% puzzle_bag: one id too many -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_bag(table_ptr, ids_ptr, offsets_ptr, out_ptr, D: tl.constexpr):
    bag = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + bag), tl.load(offsets_ptr + bag + 1)
    lanes = tl.arange(0, D)
    pooled = tl.zeros([D], tl.float32)
    for k in range(begin, end + 1):
        id = tl.load(ids_ptr + k)
        pooled += tl.load(table_ptr + id * D + lanes)
    pooled /= tl.maximum(end - begin, 1)
    tl.store(out_ptr + bag * D + lanes, pooled)


check.attempt("embedding_bags/bag", my_bag)

# %% puzzle_bag: the last id is left out -> case 1×4 float32, .*elements are wrong
@triton.jit
def my_bag(table_ptr, ids_ptr, offsets_ptr, out_ptr, D: tl.constexpr):
    bag = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + bag), tl.load(offsets_ptr + bag + 1)
    lanes = tl.arange(0, D)
    pooled = tl.zeros([D], tl.float32)
    for k in range(begin, end - 1):
        id = tl.load(ids_ptr + k)
        pooled += tl.load(table_ptr + id * D + lanes)
    pooled /= tl.maximum(end - begin, 1)
    tl.store(out_ptr + bag * D + lanes, pooled)


check.attempt("embedding_bags/bag", my_bag)

# %% puzzle_bag: positions for ids -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_bag(table_ptr, ids_ptr, offsets_ptr, out_ptr, D: tl.constexpr):
    bag = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + bag), tl.load(offsets_ptr + bag + 1)
    lanes = tl.arange(0, D)
    pooled = tl.zeros([D], tl.float32)
    for k in range(begin, end):
        id = k
        pooled += tl.load(table_ptr + id * D + lanes)
    pooled /= tl.maximum(end - begin, 1)
    tl.store(out_ptr + bag * D + lanes, pooled)


check.attempt("embedding_bags/bag", my_bag)

# %% puzzle_bag: an id is not times the width -> elements are wrong
@triton.jit
def my_bag(table_ptr, ids_ptr, offsets_ptr, out_ptr, D: tl.constexpr):
    bag = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + bag), tl.load(offsets_ptr + bag + 1)
    lanes = tl.arange(0, D)
    pooled = tl.zeros([D], tl.float32)
    for k in range(begin, end):
        id = tl.load(ids_ptr + k)
        pooled += tl.load(table_ptr + id + lanes)
    pooled /= tl.maximum(end - begin, 1)
    tl.store(out_ptr + bag * D + lanes, pooled)


check.attempt("embedding_bags/bag", my_bag)

# %% puzzle_bag: added up in half precision -> float16, .*are wrong[\s\S]*Convert to float32
@triton.jit
def my_bag(table_ptr, ids_ptr, offsets_ptr, out_ptr, D: tl.constexpr):
    bag = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + bag), tl.load(offsets_ptr + bag + 1)
    lanes = tl.arange(0, D)
    pooled = tl.zeros([D], table_ptr.dtype.element_ty)
    for k in range(begin, end):
        id = tl.load(ids_ptr + k)
        pooled = (pooled + tl.load(table_ptr + id * D + lanes)).to(table_ptr.dtype.element_ty)
    pooled /= tl.maximum(end - begin, 1)
    tl.store(out_ptr + bag * D + lanes, pooled)


check.attempt("embedding_bags/bag", my_bag)

# %% puzzle_bag: the mean of all bags so far -> elements are wrong
@triton.jit
def my_bag(table_ptr, ids_ptr, offsets_ptr, out_ptr, D: tl.constexpr):
    bag = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + bag), tl.load(offsets_ptr + bag + 1)
    lanes = tl.arange(0, D)
    pooled = tl.zeros([D], tl.float32)
    for k in range(begin, end):
        id = tl.load(ids_ptr + k)
        pooled += tl.load(table_ptr + id * D + lanes)
    pooled /= tl.maximum(end, 1)
    tl.store(out_ptr + bag * D + lanes, pooled)


check.attempt("embedding_bags/bag", my_bag)

# %% puzzle_bag: a cheat that calls torch -> ^not yet: .*give the kernel itself
def by_torch(table, ids, offsets):
    return torch.nn.functional.embedding_bag(ids, table, offsets, mode='mean', include_last_offset=True)


check.attempt("embedding_bags/bag", by_torch)

# %% puzzle_bag: a launch that does nothing -> never written
@triton.jit
def my_bag(table_ptr, ids_ptr, offsets_ptr, out_ptr, D: tl.constexpr):
    bag = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + bag), tl.load(offsets_ptr + bag + 1)
    lanes = tl.arange(0, D)
    pooled = tl.zeros([D], tl.float32)
    for k in range(begin, end):
        id = tl.load(ids_ptr + k)
        pooled += tl.load(table_ptr + id * D + lanes)
    pooled /= tl.maximum(end - begin, 1)


check.attempt("embedding_bags/bag", my_bag)

# %% puzzle_bag: right: a while loop, and each term divided
@triton.jit
def my_bag(table_ptr, ids_ptr, offsets_ptr, out_ptr, D: tl.constexpr):
    bag = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + bag), tl.load(offsets_ptr + bag + 1)
    lanes = tl.arange(0, D)
    pooled = tl.zeros([D], tl.float32)
    k, part = begin, 1.0 / tl.maximum(end - begin, 1)
    while k < end:
        pooled += part * tl.load(table_ptr + tl.load(ids_ptr + k) * D + lanes)
        k += 1
    tl.store(out_ptr + bag * D + lanes, pooled)


check.attempt("embedding_bags/bag", my_bag)

# %% puzzle_select: the table alone -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_choice(ids_ptr, table_ptr, indices_ptr, image_ptr, out_ptr, table_rows, image_rows, token, H: tl.constexpr):
    i = tl.program_id(0)
    id, index = tl.load(ids_ptr + i), tl.load(indices_ptr + i)
    source = table_ptr
    row = tl.where(id == token, index, id)
    height = tl.where(id == token, image_rows, table_rows)
    lanes = tl.arange(0, H)
    values = tl.load(source + row * H + lanes, (row >= 0) & (row < height), other=0.0)
    tl.store(out_ptr + i * H + lanes, values)


check.attempt("vocabulary/select", my_choice)

# %% puzzle_select: the image's row is the id -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_choice(ids_ptr, table_ptr, indices_ptr, image_ptr, out_ptr, table_rows, image_rows, token, H: tl.constexpr):
    i = tl.program_id(0)
    id, index = tl.load(ids_ptr + i), tl.load(indices_ptr + i)
    source = tl.where(id == token, image_ptr, table_ptr)
    row = id
    height = tl.where(id == token, image_rows, table_rows)
    lanes = tl.arange(0, H)
    values = tl.load(source + row * H + lanes, (row >= 0) & (row < height), other=0.0)
    tl.store(out_ptr + i * H + lanes, values)


check.attempt("vocabulary/select", my_choice)

# %% puzzle_select: no mask -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_choice(ids_ptr, table_ptr, indices_ptr, image_ptr, out_ptr, table_rows, image_rows, token, H: tl.constexpr):
    i = tl.program_id(0)
    id, index = tl.load(ids_ptr + i), tl.load(indices_ptr + i)
    source = tl.where(id == token, image_ptr, table_ptr)
    row = tl.where(id == token, index, id)
    height = tl.where(id == token, image_rows, table_rows)
    lanes = tl.arange(0, H)
    values = tl.load(source + row * H + lanes)
    tl.store(out_ptr + i * H + lanes, values)


check.attempt("vocabulary/select", my_choice)

# %% puzzle_select: the table's height for both -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_choice(ids_ptr, table_ptr, indices_ptr, image_ptr, out_ptr, table_rows, image_rows, token, H: tl.constexpr):
    i = tl.program_id(0)
    id, index = tl.load(ids_ptr + i), tl.load(indices_ptr + i)
    source = tl.where(id == token, image_ptr, table_ptr)
    row = tl.where(id == token, index, id)
    height = table_rows
    lanes = tl.arange(0, H)
    values = tl.load(source + row * H + lanes, (row >= 0) & (row < height), other=0.0)
    tl.store(out_ptr + i * H + lanes, values)


check.attempt("vocabulary/select", my_choice)

# %% puzzle_select: negative rows pass -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_choice(ids_ptr, table_ptr, indices_ptr, image_ptr, out_ptr, table_rows, image_rows, token, H: tl.constexpr):
    i = tl.program_id(0)
    id, index = tl.load(ids_ptr + i), tl.load(indices_ptr + i)
    source = tl.where(id == token, image_ptr, table_ptr)
    row = tl.where(id == token, index, id)
    height = tl.where(id == token, image_rows, table_rows)
    lanes = tl.arange(0, H)
    values = tl.load(source + row * H + lanes, (row < height), other=0.0)
    tl.store(out_ptr + i * H + lanes, values)


check.attempt("vocabulary/select", my_choice)

# %% puzzle_select: an id behind the table is the image's -> out of bounds|are wrong|CUDA error|ended
@triton.jit
def my_choice(ids_ptr, table_ptr, indices_ptr, image_ptr, out_ptr, table_rows, image_rows, token, H: tl.constexpr):
    i = tl.program_id(0)
    id, index = tl.load(ids_ptr + i), tl.load(indices_ptr + i)
    source = tl.where(id >= table_rows, image_ptr, table_ptr)
    row = tl.where(id >= table_rows, index, id)
    height = tl.where(id >= table_rows, image_rows, table_rows)
    lanes = tl.arange(0, H)
    values = tl.load(source + row * H + lanes, (row >= 0) & (row < height), other=0.0)
    tl.store(out_ptr + i * H + lanes, values)


check.attempt("vocabulary/select", my_choice)

# %% puzzle_select: multiplied by the mask -> special token 4: .*are wrong.*got nan
@triton.jit
def my_choice(ids_ptr, table_ptr, indices_ptr, image_ptr, out_ptr, table_rows, image_rows, token, H: tl.constexpr):
    i = tl.program_id(0)
    id, index = tl.load(ids_ptr + i), tl.load(indices_ptr + i)
    source = tl.where(id == token, image_ptr, table_ptr)
    row = tl.where(id == token, index, id)
    height = tl.where(id == token, image_rows, table_rows)
    lanes = tl.arange(0, H)
    inside = (row >= 0) & (row < height)
    values = tl.load(source + tl.where(inside, row, 0) * H + lanes) * inside.to(tl.float32)
    tl.store(out_ptr + i * H + lanes, values)


check.attempt("vocabulary/select", my_choice)

# %% puzzle_select: a cheat that calls torch -> ^not yet: .*give the kernel itself
def by_torch(ids, table, indices, image, token):
    return kernels.embedding_lookup_multimodal(ids, table, indices, image, image_token_id=token)


check.attempt("vocabulary/select", by_torch)

# %% puzzle_select: a launch that does nothing -> never written
@triton.jit
def my_choice(ids_ptr, table_ptr, indices_ptr, image_ptr, out_ptr, table_rows, image_rows, token, H: tl.constexpr):
    i = tl.program_id(0)
    id, index = tl.load(ids_ptr + i), tl.load(indices_ptr + i)
    source = tl.where(id == token, image_ptr, table_ptr)
    row = tl.where(id == token, index, id)
    height = tl.where(id == token, image_rows, table_rows)
    lanes = tl.arange(0, H)
    values = tl.load(source + row * H + lanes, (row >= 0) & (row < height), other=0.0)


check.attempt("vocabulary/select", my_choice)

# %% puzzle_select: right: both are loaded, each where it counts, and added
@triton.jit
def my_choice(ids_ptr, table_ptr, indices_ptr, image_ptr, out_ptr, table_rows, image_rows, token, H: tl.constexpr):
    i = tl.program_id(0)
    id, index = tl.load(ids_ptr + i), tl.load(indices_ptr + i)
    text = (id != token) & (id >= 0) & (id < table_rows)
    picture = (id == token) & (index >= 0) & (index < image_rows)
    lanes = tl.arange(0, H)
    values = tl.load(table_ptr + id * H + lanes, text, other=0.0)
    values += tl.load(image_ptr + index * H + lanes, picture, other=0.0)
    tl.store(out_ptr + i * H + lanes, values)


check.attempt("vocabulary/select", my_choice)
