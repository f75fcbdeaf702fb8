"""The lesson's sums as an H200 executes them: their SASS, made by Triton's compiler without a GPU."""

from __future__ import annotations

import re

from kernels.inductor.machine_code import sass, tool
from lessons.n09_a_backward.sum_launch import BLOCK, ROWS
from lessons.shared.to_cubin import compiled

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);\s+/\* 0x[0-9a-f]{16} \*/\s+/\* (0x[0-9a-f]{16}) \*/")
SIZES = {"sum_rows": ("rows",), "sum_tiles": ("rows",), "sum_atomic": ("rows", "chunk"), "two_stage": ("rows", "chunk")}


def cubin_of(step: str, num_warps: int) -> bytes:
    """A kernel of sum_kernels.py, for 512 columns; pointers and sizes are multiples of 16."""
    if step not in SIZES:
        raise ValueError(f"step: expected one of {', '.join(SIZES)}; got {step!r}")
    target = "target" if step == "two_stage" else "result"
    constants = {"COLUMNS": 512, "ROWS": ROWS, "BLOCK": BLOCK}
    if step == "sum_rows":
        del constants["ROWS"]
    binary = compiled(
        f"lessons.n09_a_backward.sum_kernels.{step}",
        (("x", "*fp32"), (target, "*fp32"), *((size, "i32") for size in SIZES[step])), tuple(constants.items()),
        aligned=("x", target, *SIZES[step]), num_warps=num_warps,
    )
    return binary.cubin


def sass_of(step: str, num_warps: int) -> list[str]:
    """Its instructions."""
    return sass(cubin_of(step, num_warps))


def clocks_of_loop(step: str, num_warps: int) -> int:
    """Clocks that a warp takes for loop_of's instructions, if no load is waited for: the compiler wrote into each
    instruction, from bit 105 on, after how many clocks the next may follow (Jia et al., "Dissecting the NVIDIA Volta
    GPU Architecture via Microbenchmarking", 2018, section 2.1)."""
    listing = tool("nvdisasm", ["-hex", "-c"], cubin_of(step, num_warps))
    instructions = [(code, int(high, 16) >> 41 & 15) for code, high in INSTRUCTION.findall(listing)]
    loop, loads = [], 0
    for code, clocks in instructions:
        loop.append((clocks, "LDG" in code))
        if "BRA" in code or code == instructions[-1][0]:
            if sum(load for _, load in loop) > loads:
                most, loads = loop, sum(load for _, load in loop)
            loop = []
    return sum(clocks for clocks, _ in most)


def loop_of(step: str, num_warps: int) -> list[str]:
    """What stands between two of its branches, where the most loads are: the loop over the rows, as often as it is
    unrolled."""
    parts = "\n".join("--" if "BRA" in line else line for line in sass_of(step, num_warps)).split("--")
    return max(parts, key=lambda part: part.count("LDG")).splitlines()
