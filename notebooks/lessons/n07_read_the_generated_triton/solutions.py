"""Answers to the puzzles of 07_read_the_generated_triton.ipynb, a section a puzzle."""

# %% traffic
def traffic(rows, columns):  # bytes that eager moves, and the fused kernel
    eager = 4 * (9 * rows * columns + columns)
    fused = 4 * (3 * rows * columns + columns)
    return eager, fused


solved = puzzles.attempt("traffic", traffic)

# %% original
def original(x, w):  # x [rows, 24], w [5] → [rows, 5, 24]
    return torch.relu(x[:, None, :] - 2 * w[:, None])


solved = puzzles.attempt("original", original)

# %% width
def width(block, warps, known):  # bytes that a lane moves in one instruction
    neighbours = max(1, block // (32 * warps)) if known else 1
    return 4 * min(4, neighbours)


solved = puzzles.attempt("width", width)

# %% open
@triton.jit
def open_kernel(in_ptr0, in_ptr1, in_ptr2, out_ptr0, multiplier, ks0, xnumel, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    xmask = xindex < xnumel
    x0 = xindex % ks0
    tmp0 = tl.load(in_ptr0 + xindex, xmask)
    tmp1 = tl.load(in_ptr1 + xindex, xmask)
    tmp2 = tl.load(in_ptr2 + x0, xmask)
    tmp3 = tmp0 + tmp1 * multiplier + tmp2
    tl.store(out_ptr0 + xindex, tl.sigmoid(tmp3), xmask)


solved = puzzles.attempt("open", open_kernel)
