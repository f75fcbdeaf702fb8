"""Answers to the puzzles of 16_training_tables.ipynb, a section a puzzle."""

# %% walk
@triton.jit
def my_walk(table_ptr, keys_ptr, order_ptr, grad_ptr, N, rate, D: tl.constexpr):
    i, lanes = tl.program_id(0), tl.arange(0, D)
    key = tl.load(keys_ptr + i)
    before = tl.load(keys_ptr + i - 1, i > 0, other=-1)
    if key != before:
        total = tl.zeros([D], tl.float32)
        same = key
        while same == key:
            total += tl.load(grad_ptr + tl.load(order_ptr + i) * D + lanes)
            i += 1
            same = tl.load(keys_ptr + i, i < N, other=-1)
        at = table_ptr + key * D + lanes
        tl.store(at, tl.load(at) - rate * total)


solved = puzzles.attempt("walk", my_walk)
if solved:
    check.draw_accesses(my_walk, (8,), *puzzles.SMALL, 8, 0.1, D=4)

# %% tiles
@triton.jit
def restart(new_a, a, new_b, b):
    return new_a | new_b, tl.where(new_b != 0, b, a + b)


@triton.jit
def my_tiles(
    table_ptr, keys_ptr, order_ptr, grad_ptr, heads_ptr, tails_ptr, N, rate, D: tl.constexpr, BLOCK: tl.constexpr
):
    tile, lanes = tl.program_id(0), tl.arange(0, D)
    n = tile * BLOCK + tl.arange(0, BLOCK)
    there = n < N
    key = tl.load(keys_ptr + n, there, other=-1)
    before = tl.load(keys_ptr + n - 1, there & (n > 0), other=-1)
    after = tl.load(keys_ptr + n + 1, n + 1 < N, other=-1)
    left = tl.load(keys_ptr + tile * BLOCK - 1, tile > 0, other=-1)
    position = tl.load(order_ptr + n, there)
    g = tl.load(grad_ptr + position[:, None] * D + lanes, there[:, None], other=0.0)
    new = tl.broadcast_to((key != before).to(tl.int32)[:, None], [BLOCK, D])
    _, sums = tl.associative_scan((new, g), 0, restart)
    ends, last = there & (key != after), n % BLOCK == BLOCK - 1
    part = tile * D + lanes + tl.zeros([BLOCK, 1], tl.int32)
    tl.store(heads_ptr + part, sums, (ends & (key == left))[:, None])
    tl.store(tails_ptr + part, sums, (last & (key == after))[:, None])
    at, whole = table_ptr + key[:, None] * D + lanes, (ends & (key != left))[:, None]
    tl.store(at, tl.load(at, whole) - rate * sums, whole)


solved = puzzles.attempt("tiles", my_tiles)

# %% adagrad
@triton.jit
def my_adagrad(
    table_ptr, state_ptr, keys_ptr, order_ptr, grad_ptr, heads_ptr, tails_ptr, N, rate,
    D: tl.constexpr, BLOCK: tl.constexpr,
):
    tile, lanes = tl.program_id(0), tl.arange(0, D)
    n = tile * BLOCK + tl.arange(0, BLOCK)
    there = n < N
    key = tl.load(keys_ptr + n, there, other=-1)
    before = tl.load(keys_ptr + n - 1, there & (n > 0), other=-1)
    after = tl.load(keys_ptr + n + 1, n + 1 < N, other=-1)
    left = tl.load(keys_ptr + tile * BLOCK - 1, tile > 0, other=-1)
    position = tl.load(order_ptr + n, there)
    g = tl.load(grad_ptr + position[:, None] * D + lanes, there[:, None], other=0.0)
    new = tl.broadcast_to((key != before).to(tl.int32)[:, None], [BLOCK, D])
    _, sums = tl.associative_scan((new, g), 0, restart)
    ends, last = there & (key != after), n % BLOCK == BLOCK - 1
    part = tile * D + lanes + tl.zeros([BLOCK, 1], tl.int32)
    tl.store(heads_ptr + part, sums, (ends & (key == left))[:, None])
    tl.store(tails_ptr + part, sums, (last & (key == after))[:, None])
    at, whole = key[:, None] * D + lanes, (ends & (key != left))[:, None]
    squares = tl.load(state_ptr + at, whole, other=1.0) + sums * sums
    tl.store(state_ptr + at, squares, whole)
    step = sums / (tl.sqrt(squares) + 1e-10)
    tl.store(table_ptr + at, tl.load(table_ptr + at, whole) - rate * step, whole)


solved = puzzles.attempt("adagrad", my_adagrad)
