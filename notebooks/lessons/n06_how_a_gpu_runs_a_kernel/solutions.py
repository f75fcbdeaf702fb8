"""Answers to the puzzles of 06_how_a_gpu_runs_a_kernel.ipynb, a section a puzzle."""

# %% sectors
def sectors(addresses):  # addresses in bytes, one for each of 32 lanes
    return len({address // 32 for address in addresses})


solved = puzzles.attempt("sectors", sectors)

# %% double
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    first, step = tl.program_id(0) * BLOCK, tl.num_programs(0) * BLOCK
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


solved = puzzles.attempt("double", double_kernel)

# %% room
def room(threads, registers):  # threads per program, registers per thread
    registers = (registers + 7) // 8 * 8
    warps = 4 * (16384 // (32 * registers))  # a warp lives in one quarter of the SM
    return min(2048 // threads, warps // (threads // 32), 32)


solved = puzzles.attempt("room", room)
room = puzzles.passed("room")  # yours; the lecture's until yours passes
