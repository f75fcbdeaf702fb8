"""The lesson's sums as an H200 executes them: their SASS, made by Triton's compiler without a GPU."""

from __future__ import annotations

from kernels.inductor.machine_code import sass
from lessons.n09_a_backward.sum_launch import BLOCK, ROWS
from lessons.shared.compiled import compiled

SIZES = {"sum_rows": ("rows",), "sum_tiles": ("rows",), "sum_atomic": ("rows", "chunk"), "two_stage": ("rows", "chunk")}


def sass_of(step: str, num_warps: int) -> list[str]:
    """The instructions of a kernel of sum_kernels.py, for 512 columns; pointers and sizes are multiples of 16."""
    if step not in SIZES:
        raise ValueError(f"step: expected one of {', '.join(SIZES)}; got {step!r}")
    target = "target" if step == "two_stage" else "result"
    constants = {"COLUMNS": 512, "ROWS": ROWS, "BLOCK": BLOCK}
    if step == "sum_rows":
        del constants["ROWS"]
    made = compiled(
        f"lessons.n09_a_backward.sum_kernels.{step}",
        (("x", "*fp32"), (target, "*fp32"), *((size, "i32") for size in SIZES[step])), tuple(constants.items()),
        aligned=("x", target, *SIZES[step]), num_warps=num_warps,
    )
    return sass(made.cubin)


def loop_of(step: str, num_warps: int) -> list[str]:
    """What stands between two of its branches, where the most loads are: the loop over the rows, as often as it is
    unrolled."""
    parts = "\n".join("--" if "BRA" in line else line for line in sass_of(step, num_warps)).split("--")
    return max(parts, key=lambda part: part.count("LDG")).splitlines()
