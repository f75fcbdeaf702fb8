"""The lesson's kernels compiled for an H200 that need not be here: instructions, registers, accesses, PTX."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernels.inductor.machine_code import accesses, registers, sass
from lessons.n08_triton_kernels import steps
from lessons.shared.compiled import compiled
from lessons.shared.records import LANES


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
    loads: dict[int, int]
    chosen_by: tuple[str, ...] = ()
    error: str = ""

    @property
    def a_number(self) -> float:
        """Instructions for each number of the result, where all are executed once."""
        return self.instructions * LANES * steps.WARPS / self.numbers


def made(name: str, dtype: str = "float32", shape: str = "even") -> Made:
    """A step, a form of gelu, or of relu."""
    if name in steps.RELUS:
        function, types = "relu_forms", {"x": "*fp32", "out": "*fp32", "n": "i32"}
        fixed, numbers = {"FORM": name, "BLOCK": 512}, 512
        module = "lessons.n08_triton_kernels.pointwise_kernels"
    else:
        step, kind = steps.step(name), steps.DTYPES[dtype]
        function, module, types = step.kernel, step.function.fn.__module__, step.signature(kind)
        fixed, numbers = step.fixed(steps.SHAPES[shape][1], kind), step.numbers(kind)
    aligned = (argument for argument, kind in types.items()
               if kind.startswith("*") or (shape == "even" and kind == "i32"))
    kernel = compiled(
        f"{module}.{function}", tuple(types.items()), tuple(fixed.items()), tuple(aligned), num_warps=steps.WARPS
    )
    if kernel.error:
        return Made(name, dtype, shape, numbers, None, None, {}, error=kernel.error)
    lines, loads = sass(kernel.cubin), accesses(kernel.ptx)["ld"]
    return Made(
        name, dtype, shape, numbers, registers(kernel.cubin), len(lines) if lines else None, loads,
        tuple(comparisons(kernel.ptx)),
    )


def comparisons(ptx: str) -> list[str]:
    """The opcodes that choose between a number and 0, and what follows them, once each."""
    found = re.findall(r"\b(max\.[\w.]+|setp\.\w+\.f32|selp\.[\w.]+)", ptx)
    return list(dict.fromkeys(found))
