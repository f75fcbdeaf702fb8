"""Kernels that show one thing each: what a stride costs, how many bytes are in flight, where a read is served from."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["stride"])  # a known stride of 1 would change the loads too: four numbers at a time
def strided_kernel(x, out, stride, BLOCK: tl.constexpr):
    """Every stride-th number of x is read; a program adds up BLOCK of them, and writes the sum."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i * stride)
    tl.store(out + tl.program_id(0), tl.sum(values))


@triton.jit
def copy_kernel(x, out, n, BLOCK: tl.constexpr):
    """out = x, in tiles of BLOCK numbers; a program takes every num_programs-th tile, one after the other."""
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, i < n), i < n)


@triton.jit
def reread_kernel(x, out, tiles, count, BLOCK: tl.constexpr, CACHE: tl.constexpr = ""):
    """A program adds up `count` tiles of x, from a tile of its own on and round the end: x [tiles * BLOCK] is read many
    times in all, tiles being a power of two. Neighbouring programs read each other's tiles, so that some come from an
    L1 that they share; CACHE ".cg" reads past the L1."""
    first = tl.program_id(0).to(tl.int64) * tiles // tl.num_programs(0)
    sums = tl.zeros([BLOCK], tl.float32)
    for k in range(count):
        tile = (first + k) & (tiles - 1)
        sums += tl.load(x + tile * BLOCK + tl.arange(0, BLOCK), cache_modifier=CACHE)
    tl.store(out + tl.program_id(0), tl.sum(sums))


@triton.jit
def chase_kernel(next_place, out, steps):
    """One program goes from place to place: each read says where the next one is, so that none begins before the last
    has ended."""
    place = 0
    for _ in range(steps):
        place = tl.load(next_place + place)
    tl.store(out, place)
