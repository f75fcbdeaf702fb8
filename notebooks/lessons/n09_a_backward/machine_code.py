"""The lesson's sums as an H200 executes them: their SASS, made by Triton's compiler without a GPU."""

from __future__ import annotations

from kernels.inductor.machine_code import sass
from lessons.n09_a_backward import puzzles
from lessons.shared import h200


def loop_of(step: str, num_warps: int) -> list[str]:
    """The instructions between two of its branches, where the most loads are: the loop over the rows, as often as it is
    unrolled. step: a kernel of a cell, here for 512 columns; pointers and sizes are multiples of 16."""
    kernel, constants = puzzles.lectures(step), {"COLUMNS": 512, "ROWS": 32, "BLOCK": 32}
    own = {name: value for name, value in constants.items() if name in kernel.arg_names}
    lines = sass(h200.compiled(kernel, num_warps, **own).cubin)
    parts = "\n".join("--" if "BRA" in line else line for line in lines).split("--")
    return max(parts, key=lambda part: part.count("LDG")).splitlines()
