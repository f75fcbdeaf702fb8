"""copy_kernel compiled for a GPU that need not be here: a thread's registers, and which numbers it reads at a time."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Copy:
    """registers: of a thread. neighbours: numbers that a thread reads in one instruction. loads: such instructions."""

    block: int
    registers: int
    neighbours: int
    loads: int


@functools.cache
def copies(*blocks: int, warps: int = 4, arch: int = 90) -> tuple[Copy, ...]:
    """copy_kernel with each BLOCK for sm_<arch>: compiled in a process in which Triton does not interpret."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as here; here._print({blocks}, {warps}, {arch})"],
        stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).resolve().parents[2],
        env=os.environ | {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    return tuple(Copy(**each) for each in json.loads(done.stdout.splitlines()[-1]))


def copy(block: int) -> Copy:
    (made,) = copies(block)
    return made


# ------------------------------------------------------------------------------------------------------------------
# In the second process.


def _print(blocks: tuple[int, ...], warps: int, arch: int) -> None:
    print(json.dumps([asdict(_compile(block, warps, arch)) for block in blocks]))


def _compile(block: int, warps: int, arch: int) -> Copy:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from model.gpu.kernels import copy_kernel

    aligned = {(argument,): [["tt.divisibility", 16]] for argument in range(3)}
    types = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    made = triton.compile(
        ASTSource(copy_kernel, types, {"BLOCK": block}, aligned),
        target=GPUTarget("cuda", arch, 32),
        options={"num_warps": warps},
    )
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = [
            subprocess.run([tools / tool, option, file.name], capture_output=True, text=True, check=True).stdout
            for tool, option in (("cuobjdump", "--dump-resource-usage"), ("nvdisasm", "-c"))
        ]
    (per_thread,) = set(re.findall(r"#blocked\d* = #ttg.blocked<\{sizePerThread = \[(\d+)\]", made.asm["ttgir"]))
    return Copy(block, int(re.search(r"REG:(\d+)", said[0])[1]), int(per_thread), len(re.findall(r"\bLDG\.", said[1])))
