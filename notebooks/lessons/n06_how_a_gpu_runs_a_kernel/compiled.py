"""copy_kernel compiled for a GPU that need not be here: a thread's registers, and which numbers it reads at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernels.inductor.machine_code import registers, sass
from lessons.shared.compiled import compiled


@dataclass(frozen=True)
class Copy:
    """registers: of a thread. neighbours: numbers that a thread reads in one instruction. loads: such instructions."""

    block: int
    registers: int
    neighbours: int
    loads: int


def copy(block: int) -> Copy:
    """copy_kernel with this BLOCK and four warps, for an H200."""
    made = compiled(
        "lessons.n06_how_a_gpu_runs_a_kernel.memory_kernels.copy_kernel",
        (("x", "*fp32"), ("out", "*fp32"), ("n", "i32")),
        (("BLOCK", block),),
        aligned=("x", "out", "n"),
    )
    (per_thread,) = set(re.findall(r"#blocked\d* = #ttg.blocked<\{sizePerThread = \[(\d+)\]", made.ttgir))
    loads = sum("LDG." in line for line in sass(made.cubin))
    return Copy(block, registers(made.cubin), int(per_thread), loads)
