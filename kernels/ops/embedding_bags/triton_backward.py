"""grad_tables[r] = Σ factor · grad_out[bag] over the ids that name row r, in ascending order of their positions;
grad_weights[p] = grad_out[bag] · tables[r]

Two atomic additions may come in either order and then give other bits, so the ids are sorted by their rows first: by
(row, position), packed into one integer, which makes all keys distinct. The merge sort has no state: an element of one
of two sorted runs finds its place in the merged one by counting, with a binary search, what precedes it in the other.
Equal rows then lie side by side, and a chunk of the sorted ids at a time is summed. A run of equal rows that crosses
the ends of chunks leaves a part in each, which a second kernel adds in order.

Bytes: grad_tables is written whole, R D, which outweighs everything else. Sorting N keys moves 16 N bytes log2(N)
times, grad_out is read once.
"""

import triton
import triton.language as tl

from kernels.ops.embedding_bags.triton_kernel import bag_bounds, find


@triton.jit
def keys_kernel(
    first_ptr, indices_ptr, offsets_ptr, keys_ptr, outs_ptr, bags, batch, ids, rows, padding,
    FEATURES: tl.constexpr, SHIFT: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """keys[p]: the row of id p (`rows` if it has none, which sorts it to the end), and p in the lower SHIFT bits.
    outs[p]: the row of grad_out, of the bag it lies in."""
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = p < ids
    if offsets_ptr is None:
        feature, out, counts = p % FEATURES, p, mask
    else:  # the last bag that begins at p or before: the ones behind it may be empty
        low, high = tl.zeros([BLOCK], tl.int64), tl.zeros([BLOCK], tl.int64) + bags
        for _ in range(STEPS):
            middle = (low + high) // 2
            is_before = tl.load(offsets_ptr + middle, mask, other=0).to(tl.int64) <= p
            open_ = high - low > 1
            low, high = tl.where(open_ & is_before, middle, low), tl.where(open_ & (is_before == 0), middle, high)
        feature = low // batch
        out = (low - feature * batch) * FEATURES + feature
        begin, end = bag_bounds(offsets_ptr, low, mask, bags, ids, None, TELLS=False)
        counts = mask & (begin <= p) & (p < end)
    row, inside, _ = find(first_ptr, tl.load(indices_ptr + p, mask, other=-1), feature, mask, rows, padding)
    row = tl.where(inside & counts, row, rows).to(tl.int64)
    tl.store(keys_ptr + p, (row << SHIFT) | p, mask)
    tl.store(outs_ptr + p, out, mask)


@triton.jit
def merge_kernel(from_ptr, to_ptr, count, run, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """to = from with each two neighbouring sorted runs of `run` keys merged; run < 2^STEPS."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < count
    start = i // (2 * run) * (2 * run)
    middle = start + run
    in_first = i < middle
    low = tl.minimum(tl.where(in_first, middle, start), count)
    high = tl.minimum(tl.where(in_first, start + 2 * run, middle), count)
    key = tl.load(from_ptr + i, mask, other=0)
    precede = -low
    for _ in range(STEPS):
        open_ = mask & (low < high)
        half = (low + high) // 2
        is_less = tl.load(from_ptr + half, open_, other=0) < key
        low, high = tl.where(open_ & is_less, half + 1, low), tl.where(open_ & (is_less == 0), half, high)
    precede += low
    tl.store(to_ptr + start + (i - tl.where(in_first, start, middle)) + precede, key, mask)


@triton.jit
def fill_kernel(values_ptr, count, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(values_ptr + i, tl.zeros([BLOCK], values_ptr.dtype.element_ty), i < count)


@triton.jit
def sum_kernel(
    grad_ptr, keys_ptr, outs_ptr, weights_ptr, found_ptr, grad_tables_ptr, parts_ptr, count, rows,
    WIDTH: tl.constexpr, SHIFT: tl.constexpr, MODE: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The sums of the runs in CHUNKS chunks. parts [chunks, 2, WIDTH]: of the run that a chunk begins in the middle
    of, and of the one that goes on behind it; a run that does both is in the first."""
    dtype = tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32
    chunk = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    in_columns = column < WIDTH
    begin = chunk * CHUNK
    before = tl.load(keys_ptr + begin - 1, (begin > 0) & (begin < count), other=-1) >> SHIFT
    key = tl.load(keys_ptr + begin, begin < count, other=-1)
    continued = (key >> SHIFT) == before
    total = tl.zeros([CHUNKS, COLUMNS], dtype)
    for step in range(CHUNK):
        s = begin + step
        row, p = key >> SHIFT, key & ((1 << SHIFT) - 1)
        is_row = (s < count) & (row < rows)
        mask = is_row[:, None] & in_columns
        out = tl.load(outs_ptr + p, is_row, other=0)
        value = tl.load(grad_ptr + out[:, None] * WIDTH + column, mask, other=0.0).to(dtype)
        if MODE == "max":
            winner = tl.load(found_ptr + out[:, None] * WIDTH + column, mask, other=-1)
            value = tl.where(winner == p[:, None], value, 0.0)
        elif MODE == "mean":
            value = value / tl.load(found_ptr + out, is_row, other=1).to(dtype)[:, None]
        elif weights_ptr is not None:
            value *= tl.load(weights_ptr + p, is_row, other=0.0).to(dtype)[:, None]
        total += value
        key = tl.load(keys_ptr + s + 1, s + 1 < count, other=-1)
        goes_on = (key >> SHIFT) == row
        ends = is_row & ((goes_on == 0) | (step + 1 == CHUNK))
        first_part, last_part = ends & continued, ends & (continued == 0) & goes_on
        whole = ends & (continued == 0) & (goes_on == 0)
        tl.store(parts_ptr + (2 * chunk)[:, None] * WIDTH + column, total, first_part[:, None] & in_columns)
        tl.store(parts_ptr + (2 * chunk + 1)[:, None] * WIDTH + column, total, last_part[:, None] & in_columns)
        tl.store(grad_tables_ptr + row[:, None] * WIDTH + column, total, whole[:, None] & in_columns)
        continued = continued & (ends == 0)
        total = tl.where(ends[:, None], 0.0, total)


@triton.jit
def finish_kernel(
    keys_ptr, parts_ptr, grad_tables_ptr, count, rows,
    WIDTH: tl.constexpr, SHIFT: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Of CHUNKS chunks the runs that begin in them and go on behind them, from their parts."""
    chunk = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    begin, end = chunk * CHUNK, (chunk + 1) * CHUNK
    row = tl.load(keys_ptr + end - 1, end < count, other=-1) >> SHIFT
    before = tl.load(keys_ptr + begin - 1, (begin > 0) & (end < count), other=-1) >> SHIFT
    following = tl.load(keys_ptr + end, end < count, other=-1) >> SHIFT
    mine = (end < count) & (row < rows) & (following == row) & (before != row)
    mask = mine[:, None] & (column < WIDTH)
    total = tl.load(parts_ptr + (2 * chunk + 1)[:, None] * WIDTH + column, mask, other=0.0)
    going, other = mine, chunk + 1
    while tl.max(going.to(tl.int32), axis=0) > 0:
        held = going[:, None] & (column < WIDTH)
        total += tl.load(parts_ptr + (2 * other)[:, None] * WIDTH + column, held, other=0.0)
        other += 1
        following = tl.load(keys_ptr + other * CHUNK, going & (other * CHUNK < count), other=-1) >> SHIFT
        going = going & (following == row)
    tl.store(grad_tables_ptr + row[:, None] * WIDTH + column, total, mask)


@triton.jit
def weights_kernel(
    grad_ptr, tables_ptr, keys_ptr, outs_ptr, grad_weights_ptr, count, rows,
    WIDTH: tl.constexpr, SHIFT: tl.constexpr, POSITIONS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Keys as keys_kernel wrote them, not yet sorted."""
    dtype = tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32
    p = tl.program_id(0).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)
    mask = p < count
    row = tl.load(keys_ptr + p, mask, other=0) >> SHIFT
    out = tl.load(outs_ptr + p, mask, other=0)
    total = tl.zeros([POSITIONS], dtype)
    for first in range(0, WIDTH, COLUMNS):
        column = first + tl.arange(0, COLUMNS)[None, :]
        read = (mask & (row < rows))[:, None] & (column < WIDTH)
        grad = tl.load(grad_ptr + out[:, None] * WIDTH + column, read, other=0.0).to(dtype)
        total += tl.sum(grad * tl.load(tables_ptr + row[:, None] * WIDTH + column, read, other=0.0).to(dtype), axis=1)
    tl.store(grad_weights_ptr + p, total, mask)
