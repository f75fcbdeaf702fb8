"""Wrong answers to the puzzles of 06_how_a_gpu_runs_a_kernel.ipynb, and unusual right ones: see test_puzzles.py."""

# %% sectors: always as many as the bytes fill -> ^not yet: [\s\S]*(case stride 2: .*expected 8, got 4[\s\S]*Half of)
def sectors(addresses):  # 32 byte addresses, one a lane
    return 32 * 4 // 32


solved = puzzles.attempt("sectors", sectors)

# %% sectors: first to last address -> ^not yet: [\s\S]*(case stride 16: .*expected 32, got 63[\s\S]*between)
def sectors(addresses):  # 32 byte addresses, one a lane
    return max(addresses) // 32 - min(addresses) // 32 + 1


solved = puzzles.attempt("sectors", sectors)

# %% sectors: a sector for each lane -> ^not yet: [\s\S]*(case stride 1: .*expected 4, got 32[\s\S]*once)
def sectors(addresses):  # 32 byte addresses, one a lane
    return len(set(addresses))


solved = puzzles.attempt("sectors", sectors)

# %% sectors: lines of 128 bytes -> ^not yet: [\s\S]*(case stride 1: .*expected 4, got 1[\s\S]*32 to 63)
def sectors(addresses):  # 32 byte addresses, one a lane
    return len({address // 128 for address in addresses})


solved = puzzles.attempt("sectors", sectors)

# %% sectors: counted where the sector changes -> ^not yet: [\s\S]*(case shuffled: .*expected 4, got \d+[\s\S]*once)
def sectors(addresses):  # 32 byte addresses, one a lane
    import itertools

    return 1 + sum(a // 32 != b // 32 for a, b in itertools.pairwise(addresses))


solved = puzzles.attempt("sectors", sectors)

# %% sectors: from the first address on -> ^not yet: [\s\S]*(case from byte 20 on: .*expected 5, got 4[\s\S]*within)
def sectors(addresses):  # 32 byte addresses, one a lane
    return len({(address - addresses[0]) // 32 for address in addresses})


solved = puzzles.attempt("sectors", sectors)

# %% sectors: the lesson's own is called -> ^not yet: [\s\S]*(machine.sectors was called)
def sectors(addresses):  # 32 byte addresses, one a lane
    from model.gpu import machine

    return machine.sectors(addresses)


solved = puzzles.attempt("sectors", sectors)

# %% sectors: as numbers in NumPy
def sectors(addresses):  # 32 byte addresses, one a lane
    import numpy as np

    return np.unique(np.array(addresses) >> 5).size


solved = puzzles.attempt("sectors", sectors)

# %% loop: every program takes everything -> ^not yet: [\s\S]*(case 64 numbers: .*expected[\s\S]*doubled once)
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    first, step = 0, BLOCK
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


solved = check.attempt("add_relu/double", double_kernel)

# %% loop: one tile each -> ^not yet: [\s\S]*(case 192 numbers: .*expected[\s\S]*12 tiles for 4 programs)
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    first, step = tl.program_id(0) * BLOCK, n
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


solved = check.attempt("add_relu/double", double_kernel)

# %% loop: the program's number is no place -> ^not yet: [\s\S]*(case 64 numbers: .*expected[\s\S]*doubled once)
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    first, step = tl.program_id(0), tl.num_programs(0) * BLOCK
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


solved = check.attempt("add_relu/double", double_kernel)

# %% loop: the next tile at once -> ^not yet: [\s\S]*(case 64 numbers: .*expected[\s\S]*doubled once)
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    first, step = tl.program_id(0) * BLOCK, BLOCK
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


solved = check.attempt("add_relu/double", double_kernel)

# %% loop: steps of as many numbers as programs -> ^not yet: [\s\S]*(case 64 numbers: .*expected[\s\S]*doubled once)
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    first, step = tl.program_id(0) * BLOCK, tl.num_programs(0)
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


solved = check.attempt("add_relu/double", double_kernel)

# %% loop: a stretch for each, cut too short -> ^not yet: [\s\S]*(case (70|7|205) numbers: .*expected[\s\S]*last tile)
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    first = tl.program_id(0) * (n // tl.num_programs(0))
    step = BLOCK
    n = first + n // tl.num_programs(0)
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


solved = check.attempt("add_relu/double", double_kernel)

# %% loop: no mask -> ^not yet: [\s\S]*(out of bounds[\s\S]*[Mm]ask|were overwritten)
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    first, step = tl.program_id(0) * BLOCK, tl.num_programs(0) * BLOCK
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i))


solved = check.attempt("add_relu/double", double_kernel)

# %% loop: torch doubles -> ^not yet: [\s\S]*(give the kernel itself)
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    first, step = tl.program_id(0) * BLOCK, tl.num_programs(0) * BLOCK
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


solved = check.attempt("add_relu/double", lambda x: x.mul_(2))

# %% loop: program 0 takes the last tiles
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    programs = tl.num_programs(0)
    first, step = (programs - 1 - tl.program_id(0)) * BLOCK, programs * BLOCK
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


solved = check.attempt("add_relu/double", double_kernel)

# %% rate: what is written is left out -> ^not yet: [\s\S]*(case one program: .*expected[\s\S]*writes as many)
def rate(programs, block, latency_ns, limit):  # GB/s, which is bytes a ns
    return min(limit, 132 * programs * block * 4 / latency_ns)


solved = puzzles.attempt("rate", rate)

# %% rate: numbers for bytes -> ^not yet: [\s\S]*(case one program: .*expected[\s\S]*4 bytes)
def rate(programs, block, latency_ns, limit):  # GB/s, which is bytes a ns
    return min(limit, 2 * 132 * programs * block / latency_ns)


solved = puzzles.attempt("rate", rate)

# %% rate: one SM -> ^not yet: [\s\S]*(case one program: .*expected[\s\S]*every SM)
def rate(programs, block, latency_ns, limit):  # GB/s, which is bytes a ns
    return min(limit, 2 * programs * block * 4 / latency_ns)


solved = puzzles.attempt("rate", rate)

# %% rate: no limit -> ^not yet: [\s\S]*(case more than the memory gives: .*expected 4000[\s\S]*limit)
def rate(programs, block, latency_ns, limit):  # GB/s, which is bytes a ns
    return 2 * 132 * programs * block * 4 / latency_ns


solved = puzzles.attempt("rate", rate)

# %% rate: one program -> ^not yet: [\s\S]*(case four programs: .*expected)
def rate(programs, block, latency_ns, limit):  # GB/s, which is bytes a ns
    return min(limit, 2 * 132 * block * 4 / latency_ns)


solved = puzzles.attempt("rate", rate)

# %% rate: the longer, the more -> ^not yet: [\s\S]*(case one program: .*expected)
def rate(programs, block, latency_ns, limit):  # GB/s, which is bytes a ns
    return min(limit, 2 * 132 * programs * block * 4 * latency_ns)


solved = puzzles.attempt("rate", rate)

# %% rate: the lesson's own is called -> ^not yet: [\s\S]*(machine.copy_rate was called)
def rate(programs, block, latency_ns, limit):  # GB/s, which is bytes a ns
    from model.gpu import machine

    return machine.copy_rate(programs, block, latency_ns, limit)


solved = puzzles.attempt("rate", rate)

# %% rate: the time of a round
def rate(programs, block, latency_ns, limit):  # GB/s, which is bytes a ns
    moved = 2 * 132 * programs * block * 4
    round_ns = max(latency_ns, moved / limit)
    return moved / round_ns


solved = puzzles.attempt("rate", rate)

# %% room: registers are left out -> ^not yet: [\s\S]*(case 96 registers: .*expected 5, got 16[\s\S]*shared)
def room(threads, registers):  # of a program, of a thread
    return min(2048 // threads, 32)


solved = puzzles.attempt("room", room)

# %% room: registers of one thread for all -> ^not yet: [\s\S]*(case 96 registers: .*expected 5, got 16[\s\S]*shared)
def room(threads, registers):  # of a program, of a thread
    return min(2048 // threads, 65536 // registers, 32)


solved = puzzles.attempt("room", room)

# %% room: parts of programs -> ^not yet: [\s\S]*(case 96 registers: .*expected 5, got 5\.\d+[\s\S]*part of a program)
def room(threads, registers):  # of a program, of a thread
    return min(2048 / threads, 65536 / (threads * registers), 32)


solved = puzzles.attempt("room", room)

# %% room: any number of programs -> ^not yet: [\s\S]*(case small programs: .*expected 32, got 64[\s\S]*32 programs)
def room(threads, registers):  # of a program, of a thread
    registers = (registers + 7) // 8 * 8
    return min(2048 // threads, 65536 // (threads * registers))


solved = puzzles.attempt("room", room)

# %% room: not by eights -> ^not yet: [\s\S]*(case 41 registers: .*expected 5, got 6[\s\S]*eights)
def room(threads, registers):  # of a program, of a thread
    return min(2048 // threads, 65536 // (threads * registers), 32)


solved = puzzles.attempt("room", room)

# %% room: the lesson's own is called -> ^not yet: [\s\S]*(machine.programs_an_sm was called)
def room(threads, registers):  # of a program, of a thread
    from model.gpu import machine

    return machine.programs_an_sm(threads, registers)


solved = puzzles.attempt("room", room)

# %% room: one program after the other
def room(threads, registers):  # of a program, of a thread
    taken = (registers + 7) // 8 * 8 * threads
    fit = 0
    while fit < 32 and (fit + 1) * threads <= 2048 and (fit + 1) * taken <= 65536:
        fit += 1
    return fit


solved = puzzles.attempt("room", room)

# %% sectors: first to last address, or one for each lane -> ^not yet: [\s\S]*(case two places: .*expected 4, got 32)
def sectors(addresses):  # 32 byte addresses, one a lane
    return min(32, max(addresses) // 32 - min(addresses) // 32 + 1)


solved = puzzles.attempt("sectors", sectors)

# %% loop: four are assumed -> ^not yet: [\s\S]*(case 288 numbers: .*expected[\s\S]*3 programs, and BLOCK is 32)
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    first, step = tl.program_id(0) * BLOCK, 4 * BLOCK
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


solved = check.attempt("add_relu/double", double_kernel)

# %% loop: tiles of 16 are assumed -> ^not yet: [\s\S]*(case 288 numbers: .*expected[\s\S]*3 programs, and BLOCK is 32)
@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    first, step = tl.program_id(0) * 16, tl.num_programs(0) * 16
    for start in range(first, n, step):
        i = start + tl.arange(0, BLOCK)
        tl.store(x + i, 2 * tl.load(x + i, i < n), i < n)


solved = check.attempt("add_relu/double", double_kernel)

# %% rate: the limit is a number -> ^not yet: [\s\S]*(case a slower memory: .*expected 3000, got 4000[\s\S]*whatever)
def rate(programs, block, latency_ns, limit):  # GB/s, which is bytes a ns
    return min(4000, 2 * 132 * programs * block * 4 / latency_ns)


solved = puzzles.attempt("rate", rate)

# %% room: odd counts alone are rounded up -> ^not yet: [\s\S]*(case 42 registers: .*expected 5, got 6[\s\S]*eights)
def room(threads, registers):  # of a program, of a thread
    return min(2048 // threads, 65536 // (threads * (registers + registers % 2 * 7)), 32)


solved = puzzles.attempt("room", room)

# %% room: one at least -> ^not yet: [\s\S]*(case no room: .*expected 0, got 1[\s\S]*launch fails)
def room(threads, registers):  # of a program, of a thread
    registers = (registers + 7) // 8 * 8
    return max(1, min(2048 // threads, 65536 // (threads * registers), 32))


solved = puzzles.attempt("room", room)
