"""grad_tables[r] = Σ factor · grad_out[bag] over the ids that name row r, in ascending order of their positions;
grad_weights[p] = grad_out[bag] · tables[r]

Two atomic additions may come in either order and then give other bits, so the ids come sorted by their rows, as
embedding_bags_sort gives them: keys 2 · row + 1 (an even one names no row), and the positions, which ascend where keys
are equal. Equal rows lie side by side, and a chunk of the sorted ids at a time is summed. A run of equal rows that
crosses the ends of chunks leaves a part in each, which a second kernel adds in order.

Bytes: grad_tables is written whole, R D, which outweighs everything else. grad_out is read once an id, keys and
positions once for each tile of columns.
"""

import triton
import triton.language as tl


@triton.jit
def fill_kernel(values_ptr, count, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(values_ptr + i, tl.zeros([BLOCK], values_ptr.dtype.element_ty), i < count)


@triton.jit
def bag_of(bags_ptr, position, mask):
    """The row of grad_out of the bag that the ids at these positions lie in."""
    bag = position
    if bags_ptr is not None:
        bag = tl.load(bags_ptr + position, mask, other=0)
    return bag.to(tl.int64)


@triton.jit
def sum_kernel(
    grad_ptr, keys_ptr, positions_ptr, bags_ptr, lengths_ptr, weights_ptr, winner_ptr, grad_tables_ptr, parts_ptr,
    count,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """The sums of the runs in CHUNKS chunks. parts [chunks, 2, WIDTH]: of the run that a chunk begins in the middle
    of, and of the one that goes on behind it; a run that does both is in the first.

    lengths_ptr: of a mean how many ids count. winner_ptr: of a maximum the position it comes from, [B F, WIDTH].
    """
    dtype = tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32
    chunk = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    in_columns = column < WIDTH
    begin = chunk * CHUNK
    before = tl.load(keys_ptr + begin - 1, (begin > 0) & (begin < count), other=0)
    key = tl.load(keys_ptr + begin, begin < count, other=0)
    continued = key == before
    total = tl.zeros([CHUNKS, COLUMNS], dtype)
    for step in range(CHUNK):
        s = begin + step
        is_row = (key & 1) == 1  # behind the last id the key is 0
        row = (key >> 1).to(tl.int64)
        mask = is_row[:, None] & in_columns
        position = tl.load(positions_ptr + s, is_row, other=0)
        bag = bag_of(bags_ptr, position, is_row)
        value = tl.load(grad_ptr + bag[:, None] * WIDTH + column, mask, other=0.0).to(dtype)
        if winner_ptr is not None:
            winner = tl.load(winner_ptr + bag[:, None] * WIDTH + column, mask, other=-1)
            value = tl.where(winner == position[:, None], value, 0.0)
        elif lengths_ptr is not None:
            value = value / tl.load(lengths_ptr + position, is_row, other=1).to(dtype)[:, None]
        elif weights_ptr is not None:
            value *= tl.load(weights_ptr + position, is_row, other=0.0).to(dtype)[:, None]
        total += value
        next_ = tl.load(keys_ptr + s + 1, s + 1 < count, other=0)
        goes_on = next_ == key
        ends = is_row & ((goes_on == 0) | (step + 1 == CHUNK))
        first_part, last_part = ends & continued, ends & (continued == 0) & goes_on
        whole = ends & (continued == 0) & (goes_on == 0)
        tl.store(parts_ptr + (2 * chunk)[:, None] * WIDTH + column, total, first_part[:, None] & in_columns)
        tl.store(parts_ptr + (2 * chunk + 1)[:, None] * WIDTH + column, total, last_part[:, None] & in_columns)
        tl.store(grad_tables_ptr + row[:, None] * WIDTH + column, total, whole[:, None] & in_columns)
        continued = continued & goes_on
        total = tl.where(ends[:, None], 0.0, total)
        key = next_


@triton.jit
def finish_kernel(
    keys_ptr, parts_ptr, grad_tables_ptr, count,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """The runs that begin in one of CHUNKS chunks and go on behind it, summed from their parts."""
    chunk = tl.program_id(0).to(tl.int64) * CHUNKS + tl.arange(0, CHUNKS)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    begin, end = chunk * CHUNK, (chunk + 1) * CHUNK
    key = tl.load(keys_ptr + end - 1, end < count, other=0)
    before = tl.load(keys_ptr + begin - 1, (begin > 0) & (end < count), other=0)
    following = tl.load(keys_ptr + end, end < count, other=0)
    mine = ((key & 1) == 1) & (following == key) & (before != key)
    mask = mine[:, None] & (column < WIDTH)
    total = tl.load(parts_ptr + (2 * chunk + 1)[:, None] * WIDTH + column, mask, other=0.0)
    going, other = mine, chunk + 1
    while tl.max(going.to(tl.int32), axis=0) > 0:
        held = going[:, None] & (column < WIDTH)
        total += tl.load(parts_ptr + (2 * other)[:, None] * WIDTH + column, held, other=0.0)
        other += 1
        following = tl.load(keys_ptr + other * CHUNK, going & (other * CHUNK < count), other=0)
        going = going & (following == key)
    tl.store(grad_tables_ptr + (key >> 1).to(tl.int64)[:, None] * WIDTH + column, total, mask)


@triton.jit
def weights_kernel(
    grad_ptr, tables_ptr, keys_ptr, positions_ptr, bags_ptr, grad_weights_ptr, count,
    WIDTH: tl.constexpr, IDS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """The gradients of IDS weights. Their ids are sorted, so that ids of one row read it side by side."""
    dtype = tl.float64 if grad_ptr.dtype.element_ty == tl.float64 else tl.float32
    s = tl.program_id(0).to(tl.int64) * IDS + tl.arange(0, IDS)
    mask = s < count
    key = tl.load(keys_ptr + s, mask, other=0)
    is_row, row = (key & 1) == 1, (key >> 1).to(tl.int64)
    position = tl.load(positions_ptr + s, mask, other=0)
    bag = bag_of(bags_ptr, position, mask)
    total = tl.zeros([IDS], dtype)
    for first in range(0, WIDTH, COLUMNS):
        column = first + tl.arange(0, COLUMNS)[None, :]
        read = is_row[:, None] & (column < WIDTH)
        grad = tl.load(grad_ptr + bag[:, None] * WIDTH + column, read, other=0.0).to(dtype)
        total += tl.sum(grad * tl.load(tables_ptr + row[:, None] * WIDTH + column, read, other=0.0).to(dtype), axis=1)
    tl.store(grad_weights_ptr + position, total, mask)
