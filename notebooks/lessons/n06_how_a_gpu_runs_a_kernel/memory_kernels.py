"""Kernels that show one thing each, as the notebook's cells have them: the time of a read, where it is served from,
what a stride costs, how many bytes are in flight. A test compares them with the cells."""

import triton
import triton.language as tl


@triton.jit
def chase_kernel(next_place, out, steps):  # each read gives the place of the next, so the next must wait
    place = 0
    for _ in range(steps):
        place = tl.load(next_place + place)
    tl.store(out, place)


@triton.jit
def reread_kernel(x, out, tiles, count, OWN: tl.constexpr, CACHE: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    first, step = program * tiles // tl.num_programs(0), 1  # in step: each program goes on to the next tile
    if OWN:  # own: each program has its own start and step
        first, step = 7919 * program, 2 * program + 1
    sums = tl.zeros([BLOCK], tl.float32)
    for k in range(count):
        tile = (first + k * step) & (tiles - 1)  # tiles is a power of two, so an odd step reaches every tile
        sums += tl.load(x + tile * BLOCK + tl.arange(0, BLOCK), cache_modifier=CACHE)
    tl.store(out + program, tl.sum(sums))


@triton.jit(do_not_specialize=["stride"])  # a known stride of 1 would change the loads too
def strided_kernel(x, out, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i * stride)
    tl.store(out + tl.program_id(0), tl.sum(values))


@triton.jit
def copy_kernel(x, out, n, BLOCK: tl.constexpr):  # a program takes every num_programs-th tile
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, i < n), i < n)
