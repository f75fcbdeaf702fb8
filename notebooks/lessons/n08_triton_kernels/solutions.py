"""Answers to the puzzles of 08_triton_kernels.ipynb, a section a puzzle."""

# %% masked
@triton.jit
def any_number(x, bias, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    z = tl.load(x + i, mask) + tl.load(bias + i, mask)
    tl.store(out + i, tl.maximum(z, 0.0), mask)


solved = puzzles.attempt("masked", any_number)

# %% edge
@triton.jit
def two_ways(x, bias, out, n, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    i = start + tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        z = tl.load(x + i) + tl.load(bias + i % COLUMNS)
        tl.store(out + i, tl.maximum(z, 0.0))
    else:
        mask = i < n
        z = tl.load(x + i, mask) + tl.load(bias + i % COLUMNS, mask)
        tl.store(out + i, tl.maximum(z, 0.0), mask)


solved = puzzles.attempt("edge", two_ways)
if solved:
    check.draw_accesses(two_ways, (3,), torch.zeros(21), torch.zeros(7), torch.zeros(21), 21, COLUMNS=7, BLOCK=8)
    recorded.show_relu("two ways", "odd", us(partial(launch_relu, two_ways, *odd_size)))

# %% capstone
@triton.jit
def add_mul_block(x, bias, y, out, multiplier, i, mask, COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr):
    dtype = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    z = tl.load(x + i, mask).to(dtype) + multiplier * tl.load(y + i, mask).to(dtype)
    z += tl.load(bias + i % COLUMNS, mask).to(dtype)
    if ACTIVATION == "relu":
        z = tl.where(z < 0, 0.0, z)
    elif ACTIVATION == "sigmoid":
        z = tl.sigmoid(z)
    elif ACTIVATION == "silu":
        z = z * tl.sigmoid(z)
    elif ACTIVATION == "gelu":
        z = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    tl.store(out + i, z, mask)


@triton.jit
def add_mul_activation(
    x, bias, y, out, multiplier, n,
    COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):
    start = tl.program_id(0)
    if WIDE:  # indices beyond 2,147,483,647
        start = start.to(tl.int64)
    start = start * BLOCK
    i = start + tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        add_mul_block(x, bias, y, out, multiplier, i, None, COLUMNS, ACTIVATION)
    else:
        add_mul_block(x, bias, y, out, multiplier, i, i < n, COLUMNS, ACTIVATION)


solved = puzzles.attempt("capstone", add_mul_activation)
