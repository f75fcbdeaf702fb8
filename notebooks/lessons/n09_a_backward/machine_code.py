"""The lesson's sums as an H200 executes them: their SASS, made by Triton's compiler without a GPU."""

from __future__ import annotations

from kernels.inductor.machine_code import sass
from lessons.shared.to_cubin import compiled

SIZES = {"sum_rows": ("rows",), "sum_tiles": ("rows",), "sum_atomic": ("rows", "chunk")}


def loop_of(step: str, num_warps: int) -> list[str]:
    """The instructions between two of its branches, where the most loads are: the loop over the rows, as often as it is
    unrolled. step: a kernel of sum_kernels.py, here for 512 columns; pointers and sizes are multiples of 16."""
    if step not in SIZES:
        raise ValueError(f"step: expected one of {', '.join(SIZES)}; got {step!r}")
    types = (("x", "*fp32"), ("result", "*fp32"), *((size, "i32") for size in SIZES[step]))
    constants = (("COLUMNS", 512), *[("ROWS", 32)] * (step != "sum_rows"), ("BLOCK", 32))
    aligned = tuple(name for name, _ in types)
    binary = compiled(f"lessons.n09_a_backward.sum_kernels.{step}", types, constants, aligned, num_warps)
    parts = "\n".join("--" if "BRA" in line else line for line in sass(binary.cubin)).split("--")
    return max(parts, key=lambda part: part.count("LDG")).splitlines()
