"""A reader's kernel compiled for an H200 that need not be here, in a second process: here Triton may interpret."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels.check.isolated import source_of
from kernels.inductor import fake_gpu
from kernels.inductor.compile import define
from kernels.inductor.machine_code import registers
from lessons.shared.to_cubin import ARCH

# What the lessons call sizes: integers. An argument of another name is a tensor.
SIZES = {"n", "rows", "columns", "chunk", "xnumel", "ks0"}


@dataclass(frozen=True)
class Made:
    """What Triton made of a kernel; registers: of a thread, None where there is no cuobjdump."""

    ptx: str
    cubin: bytes
    registers: int | None


def compiled(kernel: Callable, num_warps: int, *, dtype: str = "fp32", odd: bool = False, **constants: object) -> Made:
    """The kernel with these constexprs. An argument is a 32-bit integer if it is called as in SIZES, a float32 if it is
    called `multiplier`, and else a tensor of this dtype, in Triton's words; addresses are multiples of 16, and so are
    the sizes unless they are odd.

    Raises:
        TypeError: a constexpr is missing, or there is none of this name. RuntimeError: Triton's error.
    """
    name, text = source_of(kernel)
    parameters = getattr(kernel, "fn", kernel).__annotations__
    expected = {name for name, kind in parameters.items() if "constexpr" in str(kind)}
    if expected != constants.keys():
        raise TypeError(f"{name}: expected {', '.join(sorted(expected))}; got {', '.join(sorted(constants)) or 'none'}")
    return fake_gpu.ask(_compile, name, text, constants, num_warps, dtype, odd)


def _compile(name: str, text: str, constants: dict, num_warps: int, dtype: str, odd: bool) -> Made:
    """In the second process."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = define(text, name, {"__name__": name})
    signature = {
        argument: "constexpr" if argument in constants else "i32" if argument in SIZES
        else "fp32" if argument == "multiplier" else f"*{dtype}"
        for argument in kernel.arg_names
    }
    known = {"constexpr", "fp32"} | ({"i32"} if odd else set())
    divisible = {
        (place,): [["tt.divisibility", 16]] for place, kind in enumerate(signature.values()) if kind not in known
    }
    binary = triton.compile(
        ASTSource(kernel, signature, constants, divisible),
        target=GPUTarget("cuda", ARCH, 32), options={"num_warps": num_warps},
    )
    return Made(binary.asm["ptx"], binary.asm["cubin"], registers(binary.asm["cubin"]))
