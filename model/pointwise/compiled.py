"""The lesson's kernels compiled for an H200 that need not be here: instructions, registers, accesses, PTX.

They are compiled in a process of their own, in which Triton does not interpret.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from model.pointwise import steps

ARCH = 90


@dataclass(frozen=True)
class Made:
    """registers: of a thread. instructions: of the kernel's SASS; None: no nvdisasm. loads: bytes that a lane reads in
    one instruction → such instructions of PTX. chosen_by: see `comparisons`. error: Triton's, '' if it compiles."""

    name: str
    dtype: str
    shape: str
    numbers: int
    registers: int | None
    instructions: int | None
    loads: dict[str, int]
    chosen_by: tuple[str, ...] = ()
    error: str = ""

    @property
    def a_number(self) -> float:
        """Instructions for each number of the result, where all are executed once."""
        return self.instructions * steps.LANES * steps.WARPS / self.numbers


@functools.cache
def made(*jobs: tuple[str, str, str]) -> tuple[Made, ...]:
    """Of each (name, dtype, shape): a step, a form of gelu, or of relu."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as here; here._print({jobs!r})"],
        stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    return tuple(Made(**each | {"chosen_by": tuple(each["chosen_by"])}) for each in found)


def comparisons(ptx: str) -> list[str]:
    """The opcodes that choose between a number and 0, and what follows them, once each."""
    found = re.findall(r"\b(max\.[\w.]+|setp\.\w+\.f32|selp\.[\w.]+)", ptx)
    return list(dict.fromkeys(found))


# ------------------------------------------------------------------------------------------------------------------
# In the second process.


def _print(jobs: tuple) -> None:
    print(json.dumps([asdict(_compile(*job)) for job in jobs]))


def _compile(name: str, dtype: str, shape: str) -> Made:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kernels.inductor.machine_code import accesses, registers, sass
    from model.pointwise import kernels

    if name in steps.RELUS:
        function, types = kernels.relu_forms, {"x": "*fp32", "out": "*fp32", "n": "i32"}
        fixed, numbers = {"FORM": name, "BLOCK": 512}, 512
    else:
        chosen, of = steps.step(name), steps.DTYPES[dtype]
        function, types = chosen.function, chosen.signature(of)
        fixed, numbers = chosen.fixed(steps.SHAPES[shape][1], of), chosen.numbers(of)
    even = shape == "even"
    aligned = {(function.arg_names.index(argument),): [["tt.divisibility", 16]] for argument, kind in types.items()
               if kind.startswith("*") or (even and kind == "i32")}  # fmt: skip
    source = ASTSource(function, types | dict.fromkeys(fixed, "constexpr"), fixed, aligned)
    try:
        compiled = triton.compile(source, target=GPUTarget("cuda", ARCH, 32), options={"num_warps": steps.WARPS})
    except triton.CompilationError as error:
        return Made(name, dtype, shape, numbers, None, None, {}, error=str(error.__cause__ or error).strip())
    ptx, cubin = compiled.asm["ptx"], compiled.asm["cubin"]
    lines, loads = sass(cubin), {str(width): count for width, count in accesses(ptx)["ld"].items()}
    return Made(
        name, dtype, shape, numbers, registers(cubin), len(lines) if lines else None, loads, tuple(comparisons(ptx))
    )
