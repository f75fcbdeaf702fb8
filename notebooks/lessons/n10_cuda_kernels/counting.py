"""What compilers make of the kernels, for an H200 that need not be here: registers, instructions, and how many of these
a thread executes. `count()` needs nvcc and what comes with Triton's wheel; what it found is in traces/compiled.

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
from kernels.inductor.machine_code import accesses
from kernels.runtime import KERNELS
from lessons.shared.compiled import compiled

HERE = Path(__file__).resolve().parent
SAVED = KERNELS.parent / "traces" / "compiled" / "cuda_steps.json"
STEPS = {"scalar": 1, "strided": 16, "coalesced": 16, "wide": 16}  # numbers a thread
STORES = {"strided": 16, "coalesced": 16, "wide": 4}  # that a thread executes, if more than one
VARIANTS = ("base", "hint", "remainder", "bits64", "expf")
SHOWN = ("base_float32", "triton_float32", "expf_float32")  # kernels whose way is kept as text
WIDTH = {"float32": 4, "bfloat16": 8}  # numbers a thread, 16 bytes
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
    """_Z4widePKfS0_Pfii → wide."""
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


def kinds(way: list[str]) -> dict[str, int]:
    """How many of the instructions are of which kind."""
    found: dict[str, int] = {}
    for code in way:
        bare = re.sub(r"^@\S+\s+", "", code).split()[0]
        kind = next(kind for kind, form in KINDS.items() if re.match(form, bare))
        found[kind] = found.get(kind, 0) + 1
    return found


KINDS = {
    "16-byte loads": r"LDG\.E.*\.128",
    "4-byte loads": r"LDG",
    "16-byte stores": r"STG\.E.*\.128",
    "4-byte stores": r"STG",
    "2^x": r"MUFU\.EX2",
    "1/x": r"MUFU\.RCP",
    "floating point": r"FFMA|FADD|FMUL|FSET|FSEL|FMNMX|FCHK|F2F|HFMA2|HADD2|PRMT",
    "integers": r"IMAD|IADD|ISETP|LEA|LOP3|SHF|SEL|U[ILSP]|VI|I2F|F2I|IABS|I2FP|SHL|R2UR|UMOV",
    "parameters": r"U?LDC|S2R|S2UR|CS2R|MOV",
    "ends and branches": r"BRA|EXIT|BSSY|BSYNC|CALL|RET|WARPSYNC|NOP",
    "other": r"",
}


# ---------------------------------------------------------------------------------------------------------- compilers


def compiled_by_nvcc(folder: Path) -> tuple[str, bytes]:
    """(PTX, cubin) of steps.cu for sm_90. RuntimeError: no nvcc."""
    if not runtime.nvcc():
        raise RuntimeError("nvcc is not here, and nothing else compiles CUDA C++ for a GPU")
    made = {}
    for kind in ("ptx", "cubin"):
        command = [runtime.nvcc(), "-O3", "-std=c++17", "-arch=sm_90", f"-{kind}", HERE / "steps.cu", f"-I{KERNELS}"]
        subprocess.run([*command, "-o", folder / kind], check=True)
        made[kind] = (folder / kind).read_bytes()
    return made["ptx"].decode(), made["cubin"]


def compiled_by_triton(dtype: str) -> tuple[str, bytes]:
    """(PTX, cubin) of add_mul_activation's Triton kernel for sm_90, sigmoid, 512 columns."""
    kind = {"float32": "*fp32", "bfloat16": "*bf16"}[dtype]
    pointers = ("x_ptr", "bias_ptr", "y_ptr", "out_ptr")
    made = compiled(
        "kernels.ops.add_mul_activation.triton_kernel.general",
        (*((pointer, kind) for pointer in pointers), ("multiplier", "fp32"), ("elements", "i32")),
        (("COLUMNS", 512), ("ACTIVATION", "sigmoid"), ("WIDE", False), ("BLOCK", 128 * WIDTH[dtype])),
        aligned=(*pointers, "elements"),
    )
    return made.ptx, made.cubin


def disassembled(cubin: bytes) -> tuple[str, dict[str, int]]:
    """(SASS, {kernel: registers of a thread})"""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = [
            subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("-sass", "--dump-resource-usage")
        ]
    registers = dict(re.findall(r"Function (\S+?):\s+REG:(\d+)", said[1]))
    return said[0], {plain(name): int(number) for name, number in registers.items()}


def instructions_of(cubin: bytes, suffix: str = "") -> dict[str, dict]:
    """{kernel: registers, instructions that stand there, those that execute, their kinds and text}"""
    sass, registers = disassembled(cubin)
    found = {}
    for name, lines in functions(sass).items():
        way = executed(lines, STORES.get(name, 1))
        found[name + suffix] = {"registers": registers[name], "standing": len(lines), "executed": len(way),
                                "kinds": kinds(way), "way": way}
    return found


def count() -> dict:
    """instructions_of all kernels of steps.cu and for Triton's twins of base_*, and their accesses in PTX."""
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = compiled_by_nvcc(Path(folder))
    found = {"kernels": instructions_of(cubin), "accesses": {}}
    for text in re.findall(r"\.entry\s+(\w+)\((.*?)\n\}", ptx, re.S):
        found["accesses"][plain(text[0])] = accesses(text[1])
    for dtype in WIDTH:
        ptx, cubin = compiled_by_triton(dtype)
        found["kernels"] |= {f"triton_{dtype}": kernel for kernel in instructions_of(cubin).values()}
        found["accesses"][f"triton_{dtype}"] = accesses(ptx)
    said = subprocess.run([runtime.nvcc(), "--version"], capture_output=True, text=True, check=True).stdout
    for name, kernel in found["kernels"].items():
        if name not in SHOWN:
            del kernel["way"]
    return {"nvcc": re.search(r"release ([\d.]+)", said)[1], "triton": runtime.versions()["triton"], **found}


def save(found: dict) -> str:
    SAVED.write_text(json.dumps(found, indent=1) + "\n")
    return str(SAVED.relative_to(KERNELS.parent))
