"""Triton kernels compiled for a GPU that need not be here, in a second process: in this one Triton may interpret."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass

from kernels.inductor import fake_gpu

ARCH = 90  # of an H100 and an H200


@dataclass(frozen=True)
class Compiled:
    """What Triton made of a kernel; shared: bytes of shared memory a block. error: Triton's, "" if it compiles."""

    ttgir: str = ""
    ptx: str = ""
    cubin: bytes = b""
    shared: int = 0
    error: str = ""


@functools.cache
def compiled(
    kernel: str,
    types: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, object], ...],
    aligned: tuple[str, ...] = (),
    num_warps: int = 4,
    num_stages: int = 3,
    arch: int = ARCH,
) -> Compiled:
    """A kernel, as "module.name", for sm_<arch>. types: of the arguments that are no constants, as Triton writes them
    ("*fp32"). aligned: arguments that are divisible by 16."""
    return fake_gpu.ask(_compile, kernel, types, constants, aligned, num_warps, num_stages, arch)


def _compile(
    kernel: str, types: tuple, constants: tuple, aligned: tuple, num_warps: int, num_stages: int, arch: int
) -> Compiled:
    """In the second process."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, _, name = kernel.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    signature = dict(types) | dict.fromkeys(dict(constants), "constexpr")
    divisible = {(function.arg_names.index(argument),): [["tt.divisibility", 16]] for argument in aligned}
    options = {"num_warps": num_warps, "num_stages": num_stages}
    try:
        binary = triton.compile(
            ASTSource(function, signature, dict(constants), divisible),
            target=GPUTarget("cuda", arch, 32), options=options,
        )
    except triton.CompilationError as error:
        return Compiled(error=str(error.__cause__ or error).strip())
    return Compiled(binary.asm["ttgir"], binary.asm["ptx"], binary.asm["cubin"], binary.metadata.shared)
