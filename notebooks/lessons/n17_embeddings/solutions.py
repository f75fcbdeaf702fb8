# %% row
@triton.jit
def my_kernel(tables_ptr, offsets_ptr, ids_ptr, out_ptr, count, F: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # i = b · F + f
    there = i < count
    id = tl.load(ids_ptr + i, there)
    row = tl.load(offsets_ptr + i % F, there) + id
    lanes = tl.arange(0, D)
    rows = tl.load(tables_ptr + row[:, None] * D + lanes, there[:, None])
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


puzzles.attempt("row", my_kernel)

# %% outside
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
    tl.store(out_ptr + i[:, None] * D + lanes, rows, there[:, None])


puzzles.attempt("outside", my_safe)

# %% bag
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
    tl.store(out_ptr + bag * D + lanes, pooled)


puzzles.attempt("bag", my_bag)

# %% bags
@triton.jit
def my_bags(
    tables_ptr, row_offsets_ptr, ids_ptr, offsets_ptr, out_ptr, bags, B,
    F: tl.constexpr, D: tl.constexpr, BAGS: tl.constexpr,
):
    bag = tl.program_id(0) * BAGS + tl.arange(0, BAGS)
    there = bag < bags
    f, b = bag // B, bag % B
    first = tl.load(row_offsets_ptr + f, there)
    begin, end = tl.load(offsets_ptr + bag, there, other=0), tl.load(offsets_ptr + bag + 1, there, other=0)
    lanes = tl.arange(0, D)
    pooled = tl.zeros([BAGS, D], tl.float32)
    for k in range(tl.max(end - begin, axis=0)):
        more = begin + k < end
        row = first + tl.load(ids_ptr + begin + k, more)
        pooled += tl.load(tables_ptr + row[:, None] * D + lanes, more[:, None], other=0.0)
    tl.store(out_ptr + (b * F + f)[:, None] * D + lanes, pooled, there[:, None])


puzzles.attempt("bags", my_bags)
