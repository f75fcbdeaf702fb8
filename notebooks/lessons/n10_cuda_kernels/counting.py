"""What nvcc makes of the lesson's kernels, for an H200 that need not be here: registers, instructions, in which order a
thread loads and stores, and of a loop the instructions of an iteration. `count()` needs nvcc and the disassembler of
Triton's wheel; what it found is in traces/compiled. What executes is counted along the shortest way (shortest_way.py).
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
from lessons.n10_cuda_kernels.forms import FORMS, elements, together
from lessons.n10_cuda_kernels.shortest_way import Lines, executed, functions, iteration, opcode
from lessons.n10_cuda_kernels.texts import capstone_alone
from lessons.shared.to_cubin import compiled

HERE = Path(__file__).resolve().parent
SAVED = KERNELS.parent / "traces" / "compiled" / "cuda_steps.json"
STEPS = {"scalar": 1, "strided": 16, "coalesced": 16, "early": 16, "wide": 16}  # numbers a thread
STORES = {"strided": 16, "coalesced": 16, "early": 16, "wide": 4}  # that a thread executes, if more than one
LOADS = {"early": 32}  # likewise, where a way that stores may go past them
WAYS = ("by_index int", "by_index long long", "by_row long long")
DTYPES = {"f": "float32", "13__nv_bfloat16": "bfloat16"}  # as C++ mangles them
INDICES = {"i": "int", "x": "long long"}


def plain(name: str) -> str:
    """_Z4widePKfS0_Pfii → wide; _Z8by_indexIfxEvPKT_… → by_index long long float32."""
    if template := re.match(r"_Z\d+(\w+?)I(f|13__nv_bfloat16)([ix])Ev", name):
        return f"{template[1]} {INDICES[template[3]]} {DTYPES[template[2]]}"
    mangled = re.match(r"_Z(\d+)(\w+)", name)
    return mangled[2][: int(mangled[1])] if mangled else name


def order(lines: Lines) -> str:
    """The accesses to memory as they stand: L for a load, S for a store."""
    marks = {"LDG": "L", "STG": "S"}
    return "".join(marks.get(opcode(code), "") for _, code in lines)


def loads(lines: Lines) -> str:
    """Up to the last load: L for a load, + for one addition or more, which wait for the loads before them."""
    marks = {"LDG": "L", "FADD": "+", "FFMA": "+"}
    pattern = "".join(marks.get(opcode(code), "") for _, code in lines)
    return re.sub(r"\++", "+", pattern[: pattern.rindex("L") + 1]).lstrip("+")


def cubin_of(file: Path) -> bytes:
    """What nvcc makes of a file for sm_90. RuntimeError: no nvcc."""
    if not runtime.nvcc():
        raise RuntimeError("nvcc is not here, and nothing else compiles CUDA C++ for a GPU")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        command = [runtime.nvcc(), "-O3", "-std=c++17", "-arch=sm_90", "-cubin", file, "-o", cubin]
        subprocess.run(command, check=True)
        return cubin.read_bytes()


def instructions_of(text: str) -> dict[str, Lines]:
    """The instructions of a text's kernels, by name."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.cu"
        file.write_text(text)
        sass = functions(tool("cuobjdump", ["-sass"], cubin_of(file)))
    return {plain(name): lines for name, lines in sass.items()}


def count_forms() -> dict:
    """Each form of the capstone's kernel, and the Triton kernel: instructions for an element, and its loads."""
    instructions = instructions_of(together(FORMS))
    forms = {name: (instructions[f"form_{k}"], elements(text)) for k, (name, text) in enumerate(FORMS.items())}
    pointers = ("x", "bias", "y", "out")
    types = {"x": "*fp32", "bias": "*fp32", "y": "*fp32", "multiplier": "fp32", "out": "*fp32"}
    cubin = compiled(
        "lessons.n10_cuda_kernels.in_triton.in_triton", (*types.items(), ("columns", "i32"), ("n", "i32")),
        (("BLOCK", 512),), aligned=(*pointers, "columns", "n"),
    ).cubin
    (lines,) = functions(tool("cuobjdump", ["-sass"], cubin)).values()
    forms["triton, by hand"] = lines, 512 // 128  # four warps
    return {
        name: {"an_element": executed(lines, 1, 3) / per_thread, "loads": loads(lines)}
        for name, (lines, per_thread) in forms.items()
    }


def count() -> dict:
    """Each kernel of steps.cu for sm_90: registers, instructions that execute, the order of its accesses; what
    count_forms has; and the loads of the capstone's solution."""
    cubin = cubin_of(HERE / "steps.cu")
    sass, usage = (tool("cuobjdump", [option], cubin) for option in ("-sass", "--dump-resource-usage"))
    registers = {plain(name): int(number) for name, number in re.findall(r"Function (\S+?):\s+REG:(\d+)", usage)}
    kernels = {}
    for mangled, lines in functions(sass).items():
        name = plain(mangled)
        way = executed(lines, STORES.get(name, 1), LOADS.get(name, 0))
        kernels[name] = {"registers": registers[name], "executed": way, "order": order(lines)}
        if name not in STEPS:
            kernels[name]["iteration"] = iteration(lines)
    output = subprocess.run([runtime.nvcc(), "--version"], capture_output=True, text=True, check=True).stdout
    versions = {"nvcc": re.search(r"release ([\d.]+)", output)[1], "triton": runtime.versions()["triton"]}
    (answer,) = instructions_of(capstone_alone()).values()
    return {**versions, "kernels": kernels, "forms": count_forms(), "answer": loads(answer)}


def save(counts: dict) -> str:
    SAVED.write_text(json.dumps(counts, indent=1) + "\n")
    return str(SAVED.relative_to(KERNELS.parent))
