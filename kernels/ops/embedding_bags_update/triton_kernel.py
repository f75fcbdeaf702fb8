"""The rows of embedding tables updated by their gradients        tables [R, D], grad [bags, D], keys and positions [N]

    g[r] = Σ over the occurrences n of row r, as they are sorted, of weight[n] / length[n] · grad[bag of n]
    sgd               tables[r] -= lr · g[r]
    adagrad           state[r] += g[r]²                    tables[r] -= lr · g[r] / (√state[r] + eps)
    rowwise adagrad   state[r] += mean over D of g[r]²     tables[r] -= lr · g[r] / (√state[r] + eps)

for each row of a key 2 · row + 1 (what an even key is of names no row). Bytes: keys and positions in, the gradient in
once an occurrence, each distinct row and its state in and out. No gradient of a table is ever in memory, and no sum is
made by atomics: the order of every sum hangs on keys, N and D alone.

The sorted occurrences are cut into chunks of CHUNK; a program takes a chunk and the next one, [2 · CHUNK, D], for a row
that begins in a chunk is finished by its program. A scan down the tile, which starts anew where a row begins, leaves a
row's gradient where the row ends. The names are those of kernel.cuh, whose header has a table of who sums what: a
chunk is within a row that began before the chunk and fills it. The program of such a chunk stores the chunk's sum as a
part of the row, and so does the program of the chunk in which the row begins, if the next one is within it. finish
adds the parts up, in order, and after them the row's occurrences behind its last whole chunk. Of those the CUDA kernel
makes a part too (previous_within).
"""

import triton
import triton.language as tl

from ...device.scalar import scalar


@triton.jit
def _gradients(
    grad_ptr, positions_ptr, bags_ptr, lengths_ptr, weights_ptr, n, mine, columns, mask,
    WIDTH: tl.constexpr,
):
    """The occurrences' gradients [·, D], each times its weight and over its bag's length; zeros where not mine."""
    position = tl.load(positions_ptr + n, mine, other=0)
    bag = position
    if bags_ptr is not None:
        bag = tl.load(bags_ptr + position, mine, other=0)
    values = tl.load(grad_ptr + bag.to(tl.int64)[:, None] * WIDTH + columns, mine[:, None] & mask, other=0.0)
    values = values.to(tl.float32)
    if weights_ptr is not None:
        values *= tl.load(weights_ptr + position, mine, other=0.0).to(tl.float32)[:, None]
    if lengths_ptr is not None:
        values /= tl.load(lengths_ptr + position, mine, other=1).to(tl.float32)[:, None]
    return values


@triton.jit
def _update(
    tables_ptr, state_ptr, rows, g, mine, columns, mask, learning_rate, eps, RULE: tl.constexpr, WIDTH: tl.constexpr
):
    """The rule for the rows [·] that are mine, of which g [·, D] is the gradient. rows are distinct."""
    rows = rows.to(tl.int64)
    offsets = rows[:, None] * WIDTH + columns
    here = mine[:, None] & mask
    step = g
    if RULE == "adagrad":
        total = tl.load(state_ptr + offsets, here, other=1.0) + g * g
        tl.store(state_ptr + offsets, total, here)
        step = g / (tl.sqrt(total) + eps)
    if RULE == "rowwise_adagrad":
        squares = tl.sum(tl.where(mask, g * g, 0.0), axis=1) / WIDTH
        total = tl.load(state_ptr + rows, mine, other=1.0) + squares
        tl.store(state_ptr + rows, total, mine)
        step = g / (tl.sqrt(total) + eps)[:, None]
    before = tl.load(tables_ptr + offsets, here, other=0.0).to(tl.float32)
    tl.store(tables_ptr + offsets, before - scalar(learning_rate, tl.float32) * step, here)


@triton.jit
def _restart(starts_a, a, starts_b, b):
    """Sums that start anew: what is before a start does not count."""
    return starts_a | starts_b, tl.where(starts_b != 0, b, a + b)


@triton.jit(do_not_specialize=["count"])
def walk(
    tables_ptr, state_ptr, keys_ptr, positions_ptr, grad_ptr, bags_ptr, lengths_ptr, weights_ptr, learning_rate, eps,
    partials_ptr, count,
    RULE: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):
    number = tl.program_id(0)
    first = number.to(tl.int64) * CHUNK
    last = tl.minimum(first + CHUNK, count) - 1
    next_last = tl.minimum(last + CHUNK, count - 1)
    before = tl.load(keys_ptr + first - 1, first > 0, other=-1)
    tail = tl.load(keys_ptr + last)
    within = before == tail
    next_within = (next_last > last) & (tl.load(keys_ptr + next_last) == tail)
    n = first + tl.arange(0, 2 * CHUNK)
    key = tl.load(keys_ptr + n, n < count, other=-1)
    following = tl.load(keys_ptr + n + 1, n + 1 < count, other=-1)
    previous = tl.load(keys_ptr + n - 1, (n > 0) & (n - 1 < count), other=-1)
    of_chunk = (n <= last) & (within | (key != before))
    of_next = (n > last) & (n <= next_last) & (key == tail) & ~(within | next_within)
    mine = (key % 2 == 1) & (of_chunk | of_next)
    columns = tl.arange(0, BLOCK)[None, :]
    mask = columns < WIDTH
    g = _gradients(
        grad_ptr, positions_ptr, bags_ptr, lengths_ptr, weights_ptr, n, mine, columns, mask, WIDTH=WIDTH
    )
    starts = tl.broadcast_to((key != previous).to(tl.int32)[:, None], [2 * CHUNK, BLOCK])
    _, g = tl.associative_scan((starts, g), 0, _restart)
    updates = mine & (key != following) & ~within
    _update(tables_ptr, state_ptr, key // 2, g, updates, columns, mask, learning_rate, eps, RULE=RULE, WIDTH=WIDTH)
    keeps_part = (n == last) & (tail % 2 == 1) & (within | next_within)
    offsets = number.to(tl.int64) * WIDTH + columns + tl.zeros([2 * CHUNK, 1], tl.int32)
    tl.store(partials_ptr + offsets, g, keeps_part[:, None] & mask)


@triton.jit(do_not_specialize=["count", "chunks"])
def finish(
    tables_ptr, state_ptr, keys_ptr, positions_ptr, grad_ptr, bags_ptr, lengths_ptr, weights_ptr, learning_rate, eps,
    partials_ptr, count, chunks,
    RULE: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):
    """For the chunk whose last row fills the next chunk: the sums of that row's chunks, and what is behind them."""
    number = tl.program_id(0).to(tl.int64)
    first = number * CHUNK
    last = tl.minimum(first + CHUNK, count) - 1
    next_last = tl.minimum(last + CHUNK, count - 1)
    tail = tl.load(keys_ptr + last)
    within = tl.load(keys_ptr + first - 1, first > 0, other=-1) == tail
    if (tail % 2 == 1) & (next_last > last) & (tl.load(keys_ptr + next_last) == tail) & ~within:
        columns = tl.arange(0, BLOCK)[None, :]
        mask = columns < WIDTH
        g = tl.zeros([CHUNK, BLOCK], tl.float32)
        chunk = number
        more = True
        while more:
            j = chunk + tl.arange(0, CHUNK)
            ends = tl.minimum(j * CHUNK + CHUNK, count) - 1
            holds = (j < chunks) & (tl.load(keys_ptr + ends, j < chunks, other=-1) == tail)
            g += tl.load(partials_ptr + j[:, None] * WIDTH + columns, holds[:, None] & mask, other=0.0)
            held = tl.sum(holds.to(tl.int32), axis=0)
            chunk += held
            more = held == CHUNK
        n = chunk * CHUNK + tl.arange(0, CHUNK)
        mine = (n < count) & (tl.load(keys_ptr + n, n < count, other=-1) == tail)
        g += _gradients(
            grad_ptr, positions_ptr, bags_ptr, lengths_ptr, weights_ptr, n, mine, columns, mask, WIDTH=WIDTH
        )
        total = tl.sum(g, axis=0, keep_dims=True)
        one = tl.full([1], 1, tl.int32) == 1
        row = tl.full([1], 0, tl.int64) + tail // 2
        _update(tables_ptr, state_ptr, row, total, one, columns, mask, learning_rate, eps, RULE=RULE, WIDTH=WIDTH)
