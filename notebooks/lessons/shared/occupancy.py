"""How many programs an SM has room for.

The limits are those of compute capability 9.0 (H100, H200):
https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
"""

from __future__ import annotations

from lessons.shared.records import LANES

THREADS, REGISTERS, PROGRAMS = 2048, 65536, 32  # that an SM has room for
QUARTERS = 4  # of an SM
GRANULE = 8  # a thread's registers are given out by eights


def programs_an_sm(threads: int, registers: int) -> int:
    """How many programs of so many threads, each with so many registers, an SM has room for."""
    allocated = -(-registers // GRANULE) * GRANULE
    warps = QUARTERS * (REGISTERS // QUARTERS // (LANES * allocated))  # a warp lives in one quarter of the SM
    return min(THREADS // threads, warps // -(-threads // LANES), PROGRAMS)
