"""copy_kernel compiled for a GPU that need not be here: how Triton spreads a tile over threads, and a thread's
registers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernels.inductor.machine_code import registers, sass
from lessons.shared.to_cubin import compiled


@dataclass(frozen=True)
class Copy:
    """layout: the compiler's own line. elements: that a thread reads in one instruction. loads: such instructions of a
    thread, for a tile. registers: of a thread."""

    layout: str
    elements: int
    loads: int
    registers: int


def copy(block: int, num_warps: int = 4) -> Copy:
    """copy_kernel with this BLOCK, for an H200; pointers and n are divisible by 16."""
    binary = compiled(
        "lessons.n06_how_a_gpu_runs_a_kernel.memory_kernels.copy_kernel",
        (("x", "*fp32"), ("out", "*fp32"), ("n", "i32")), (("BLOCK", block),),
        aligned=("x", "out", "n"), num_warps=num_warps,
    )
    layout, elements = re.search(r"(#ttg\.blocked<\{sizePerThread = \[(\d+)\][^\n]*)", binary.ttgir).groups()
    return Copy(layout, int(elements), sum("LDG." in line for line in sass(binary.cubin)), registers(binary.cubin))
