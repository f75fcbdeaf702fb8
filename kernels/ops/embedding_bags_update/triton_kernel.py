"""The rows of embedding tables updated by their gradients        tables [R, D], grad [bags, D], keys and positions [N]

    g[r] = Σ over the occurrences n of row r, as they are sorted, of weight[n] / length[n] · grad[bag of n]
    sgd               tables[r] -= lr · g[r]
    adagrad           state[r] += g[r]²                    tables[r] -= lr · g[r] / (√state[r] + eps)
    rowwise adagrad   state[r] += mean over D of g[r]²     tables[r] -= lr · g[r] / (√state[r] + eps)

for each row of a key 2 · row + 1 (what an even key is of names no row). Bytes: keys and positions in, the gradient in
once an occurrence, each distinct row and its state in and out. No gradient of a table is ever in memory, and no sum is
made by atomics: the order of every sum hangs on keys, N and D alone.

The sorted occurrences are cut into tiles of CHUNK, and a program takes each. A scan down the tile, which starts anew
where a row begins, leaves a row's gradient where the row ends. What a program has of a row is one of three:

    the row begins and ends in the tile           walk updates it
    it came from the tile before, and ends here   its sum is the tile's head
    it goes on in the next tile                   its sum so far is the tile's tail, wherever it began

finish takes a program a tile, too: where a row that came ends, it adds the head and the tails before it, PARTS at once,
and updates the row. So a row of 60,000 occurrences, which tables of three rows have, is the work of 938 programs of
walk, and of 16 columns 15 steps of finish.
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
    """The rule for the rows [·] that are mine, of which g [·, D] is the gradient. rows are distinct.

    Where a tile has fewer numbers than the program has threads, several threads of several warps hold the same number
    of the state, and one of them stores it: the others must have read it before.
    """
    rows = rows.to(tl.int64)
    offsets = rows[:, None] * WIDTH + columns
    here = mine[:, None] & mask
    step = g
    if RULE == "adagrad":
        total = tl.load(state_ptr + offsets, here, other=1.0) + g * g
        tl.debug_barrier()
        tl.store(state_ptr + offsets, total, here)
        step = g / (tl.sqrt(total) + eps)
    if RULE == "rowwise_adagrad":
        squares = tl.sum(tl.where(mask, g * g, 0.0), axis=1) / WIDTH
        total = tl.load(state_ptr + rows, mine, other=1.0) + squares
        tl.debug_barrier()
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
    heads_ptr, tails_ptr, count,
    RULE: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    line = tl.arange(0, CHUNK)
    n = tile * CHUNK + line
    key = tl.load(keys_ptr + n, n < count, other=-1)
    before = tl.load(keys_ptr + n - 1, (n > 0) & (n <= count), other=-1)
    after = tl.load(keys_ptr + n + 1, n + 1 < count, other=-1)
    left = tl.load(keys_ptr + tile * CHUNK - 1, tile > 0, other=-1)
    mine = key % 2 == 1
    columns = tl.arange(0, BLOCK)[None, :]
    mask = columns < WIDTH
    g = _gradients(
        grad_ptr, positions_ptr, bags_ptr, lengths_ptr, weights_ptr, n, mine, columns, mask, WIDTH=WIDTH
    )
    starts = tl.broadcast_to((key != before).to(tl.int32)[:, None], [CHUNK, BLOCK])
    _, g = tl.associative_scan((starts, g), 0, _restart)
    ends = mine & (key != after)
    updates, heads, tails = ends & (key != left), ends & (key == left), mine & (line == CHUNK - 1) & (key == after)
    _update(tables_ptr, state_ptr, key // 2, g, updates, columns, mask, learning_rate, eps, RULE=RULE, WIDTH=WIDTH)
    part = tile * WIDTH + columns + tl.zeros([CHUNK, 1], tl.int32)
    tl.store(heads_ptr + part, g, heads[:, None] & mask)
    tl.store(tails_ptr + part, g, tails[:, None] & mask)


@triton.jit(do_not_specialize=["count"])
def finish(
    tables_ptr, state_ptr, keys_ptr, heads_ptr, tails_ptr, learning_rate, eps, count,
    RULE: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):
    """For the tile in which a row of several ends: the sums of the row's tiles."""
    tile = tl.program_id(0).to(tl.int64) + 1
    next_tile = (tile + 1) * CHUNK
    key = tl.load(keys_ptr + tile * CHUNK)
    before = tl.load(keys_ptr + tile * CHUNK - 1)
    after = tl.load(keys_ptr + next_tile, next_tile < count, other=-1)
    if (key % 2 == 1) & (key == before) & (key != after):  # the row came, and does not go on
        columns = tl.arange(0, BLOCK)[None, :]
        mask = columns < WIDTH
        total = tl.load(heads_ptr + tile * WIDTH + columns, mask, other=0.0)
        more = True
        while more:
            part = tile - 1 - tl.arange(0, PARTS)
            same = tl.load(keys_ptr + (part + 1) * CHUNK - 1, part >= 0, other=-1) == key
            parts = tl.load(tails_ptr + part[:, None] * WIDTH + columns, same[:, None] & mask, other=0.0)
            total += tl.sum(parts, axis=0, keep_dims=True)
            tile -= PARTS
            more = tl.min(same.to(tl.int32), axis=0) == 1
        one = tl.full([1], 1, tl.int32) == 1
        row = tl.full([1], 0, tl.int64) + key // 2
        _update(tables_ptr, state_ptr, row, total, one, columns, mask, learning_rate, eps, RULE=RULE, WIDTH=WIDTH)
