"""What a compiled kernel is made of: its accesses to memory in PTX, its instructions in SASS, its registers."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

OPCODE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")


def accesses(ptx: str) -> dict[str, dict[int, int]]:
    """{"ld": {bytes that a lane moves in one instruction: such instructions}, "st": the same}, of global memory."""
    counts = {"ld": Counter(), "st": Counter()}
    for kind, rest in re.findall(r"\b(ld|st)\.global((?:\.[\w:]+)*)", ptx):
        vector, bits = re.search(r"\.v(\d)", rest), re.search(r"\.[busf](\d+)$", rest)
        counts[kind][int(vector[1] if vector else 1) * int(bits[1]) // 8] += 1
    return {kind: dict(widths) for kind, widths in counts.items()}


def sass(cubin: bytes) -> list[str] | None:
    """The instructions of a cubin's kernel in text, in order, without what fills up its end; None: no nvdisasm here."""
    text = tool("nvdisasm", ["-c"], cubin)
    if text is None:
        return None
    lines = [line for line in text.splitlines() if OPCODE.match(line)]
    while lines and OPCODE.match(lines[-1])[1] in ("NOP", "BRA"):
        lines.pop()
    return [re.sub(r"\s*/\*[0-9a-f]{4,}\*/\s*", "", line).strip() for line in lines]


def opcodes(lines: list[str]) -> dict[str, int]:
    """{opcode without what follows its first dot: how many} of sass()'s lines, in order of their number."""
    counts = Counter(re.sub(r"^@\S+\s+", "", line).partition(" ")[0].partition(".")[0].rstrip(";") for line in lines)
    return dict(counts.most_common())


def registers(cubin: bytes) -> int | None:
    """How many registers a thread has; None where there is no cuobjdump."""
    match = re.search(r"REG:(\d+)", tool("cuobjdump", ["--dump-resource-usage"], cubin) or "")
    return int(match[1]) if match else None


def tool(name: str, options: list[str], cubin: bytes) -> str | None:
    """What a tool that comes with Triton says of the cubin; None if it is not there, or fails."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    if not program.exists():
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([program, *options, file.name], capture_output=True, text=True, check=False)
        return None if done.returncode else done.stdout
