"""What nvcc makes of the lesson's kernels, for an H200 that need not be here: registers, instructions, in which order a
thread loads and stores. `count()` needs nvcc and the disassembler of Triton's wheel; what it found is in
traces/compiled.

Counted as executed is one way through the machine code: the shortest that stores what the kernel has to store. A thread
of a full block takes this way, unless its numbers need a function's slow path.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import deque
from pathlib import Path

from kernels import runtime
from kernels.runtime import KERNELS

HERE = Path(__file__).resolve().parent
SAVED = KERNELS.parent / "traces" / "compiled" / "cuda_steps.json"
STEPS = {"scalar": 1, "strided": 16, "coalesced": 16, "early": 16, "wide": 16}  # numbers a thread
STORES = {"strided": 16, "coalesced": 16, "early": 16, "wide": 4}  # that a thread executes, if more than one
WAYS = ("by_index int", "by_index long long", "by_row long long")
DTYPES = {"f": "float32", "13__nv_bfloat16": "bfloat16"}  # as C++ mangles them
INDICES = {"i": "int", "x": "long long"}
LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", re.M)
FUNCTION = re.compile(r"Function : (\S+)")


def functions(sass: str) -> dict[str, list[tuple[int, str]]]:
    """{kernel: its instructions, with their addresses} of what cuobjdump prints, without what fills up the end."""
    found = {}
    for name, text in zip(*[iter(FUNCTION.split(sass)[1:])] * 2, strict=True):
        lines = [(int(address, 16), code) for address, code in LINE.findall(text)]
        while lines and opcode(lines[-1][1]) in ("NOP", "BRA"):
            lines.pop()
        found[plain(name)] = lines
    return found


def plain(name: str) -> str:
    """_Z4widePKfS0_Pfii → wide; _Z8by_indexIfxEvPKT_… → by_index long long float32."""
    if template := re.match(r"_Z\d+(\w+?)I(f|13__nv_bfloat16)([ix])Ev", name):
        return f"{template[1]} {INDICES[template[3]]} {DTYPES[template[2]]}"
    mangled = re.match(r"_Z(\d+)(\w+)", name)
    return mangled[2][: int(mangled[1])] if mangled else name


def opcode(instruction: str) -> str:
    """Without predicate, operands and what follows its first dot."""
    return re.sub(r"^@\S+\s+", "", instruction).split()[0].partition(".")[0]


def executed(lines: list[tuple[int, str]], stores: int = 1) -> list[str]:
    """The shortest way from the first instruction to an end that stores so often."""
    place = {address: number for number, (address, _) in enumerate(lines)}
    start = (0, 0)
    came: dict[tuple[int, int], tuple[int, int] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = number, stored = waiting.popleft()
        code = lines[number][1]
        name, conditional = opcode(code), code.startswith("@")
        if name == "EXIT" and stored == stores:
            way = []
            while state is not None:
                way.append(lines[state[0]][1])
                state = came[state]
            return way[::-1]
        target = re.search(r"\b0x([0-9a-f]+)\s*$", code) if name in ("BRA", "CALL") else None
        following = []
        if target and name == "BRA":
            following.append(place.get(int(target[1], 16)))
        if name not in ("BRA", "EXIT", "RET", "CALL") or conditional:
            following.append(number + 1)
        for each in following:
            if each is None or each >= len(lines):
                continue
            state_next = each, stored + (name == "STG")
            if state_next[1] <= stores and state_next not in came:
                came[state_next] = state
                waiting.append(state_next)
    raise ValueError("no way through the code stores so often")


def order(lines: list[tuple[int, str]]) -> str:
    """The accesses to memory as they stand: L for a load, S for a store."""
    marks = {"LDG": "L", "STG": "S"}
    return "".join(marks.get(opcode(code), "") for _, code in lines)


def disassembled(cubin: Path) -> tuple[str, dict[str, int]]:
    """(SASS, {kernel: registers of a thread})"""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = [
        subprocess.run([tool, option, cubin], capture_output=True, text=True, check=True).stdout
        for option in ("-sass", "--dump-resource-usage")
    ]
    registers = dict(re.findall(r"Function (\S+?):\s+REG:(\d+)", said[1]))
    return said[0], {plain(name): int(number) for name, number in registers.items()}


def count() -> dict:
    """Of each kernel of steps.cu for sm_90: registers, instructions that stand there, those that execute, the order of
    its accesses. RuntimeError: no nvcc."""
    if not runtime.nvcc():
        raise RuntimeError("nvcc is not here, and nothing else compiles CUDA C++ for a GPU")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "steps.cubin"
        command = [runtime.nvcc(), "-O3", "-std=c++17", "-arch=sm_90", "-cubin", HERE / "steps.cu", "-o", cubin]
        subprocess.run(command, check=True)
        sass, registers = disassembled(cubin)
    kernels = {}
    for name, lines in functions(sass).items():
        way = executed(lines, STORES.get(name, 1))
        kernels[name] = {"registers": registers[name], "standing": len(lines), "executed": len(way),
                         "order": order(lines)}
    said = subprocess.run([runtime.nvcc(), "--version"], capture_output=True, text=True, check=True).stdout
    return {"nvcc": re.search(r"release ([\d.]+)", said)[1], "kernels": kernels}


def save(found: dict) -> str:
    SAVED.write_text(json.dumps(found, indent=1) + "\n")
    return str(SAVED.relative_to(KERNELS.parent))
