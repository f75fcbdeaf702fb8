"""What nvcc makes of the lesson's steps, for an H200 that need not be here: registers, and the order in which a thread
loads and stores. `count()` needs nvcc and the disassembler of Triton's wheel; what it found is in traces/compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

from kernels import runtime
from kernels.inductor.machine_code import tool
from kernels.runtime import KERNELS

HERE = Path(__file__).resolve().parent
SAVED = KERNELS.parent / "traces" / "compiled" / "cuda_steps.json"
STEPS = {"scalar": 1, "strided": 16, "coalesced": 16, "early": 16, "wide": 16}  # elements a thread
STORES = {"scalar": 1, "strided": 16, "coalesced": 16, "early": 16, "wide": 4}  # that a thread executes
FUNCTION = re.compile(r"Function : (\S+)")
ACCESS = re.compile(r"\b(LDG|STG)\b")


def plain(name: str) -> str:
    """_Z4widePKfS0_Pfii → wide"""
    mangled = re.match(r"_Z(\d+)(\w+)", name)
    return mangled[2][: int(mangled[1])] if mangled else name


def order(sass: str) -> str:
    """The accesses to memory as they stand: L for a load, S for a store."""
    return "".join("L" if access == "LDG" else "S" for access in ACCESS.findall(sass))


def orders(sass: str) -> dict[str, str]:
    """{kernel: its order} of what cuobjdump prints."""
    parts = FUNCTION.split(sass)[1:]
    return {plain(name): order(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def cubin_of(text: str) -> bytes:
    """What nvcc makes of a text for sm_90. RuntimeError: no nvcc."""
    if not runtime.nvcc():
        raise RuntimeError("nvcc is not here, and nothing else compiles CUDA C++ for a GPU")
    with tempfile.TemporaryDirectory() as folder:
        file, cubin = Path(folder) / "text.cu", Path(folder) / "kernel.cubin"
        file.write_text(text)
        command = [runtime.nvcc(), "-O3", "-std=c++17", "-arch=sm_90", "-cubin", file, "-o", cubin]
        subprocess.run(command, check=True)
        return cubin.read_bytes()


def count() -> dict:
    """Of each kernel of steps.cu its registers and its order."""
    cubin = cubin_of((HERE / "steps.cu").read_text())
    sass, usage = (tool("cuobjdump", [option], cubin) for option in ("-sass", "--dump-resource-usage"))
    registers = {plain(name): int(number) for name, number in re.findall(r"Function (\S+?):\s+REG:(\d+)", usage)}
    kernels = {name: {"registers": registers[name], "order": text} for name, text in orders(sass).items()}
    output = subprocess.run([runtime.nvcc(), "--version"], capture_output=True, text=True, check=True).stdout
    return {"nvcc": re.search(r"release ([\d.]+)", output)[1], "kernels": kernels}


def save(counts: dict) -> str:
    SAVED.write_text(json.dumps(counts, indent=1) + "\n")
    return str(SAVED.relative_to(KERNELS.parent))
