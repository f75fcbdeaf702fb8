"""Nsight Compute, where it is: the program, a run of it, what is kept of its lines, and what these say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from kernels.runtime import KERNELS

SECONDS = 120
METRIC = re.compile(r" {4}(\S.*?)\s{2,}(?:(\S+)\s+)?([\d,.]+)$")  # its name, its unit, the value
BYTES = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def find_ncu() -> str | None:
    """ncu on PATH or beside nvcc's usual place."""
    return shutil.which("ncu", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin")))


def run(command: list[str]) -> dict:
    """lines and why, of a command line of ncu; ncu itself is looked for."""
    ncu = find_ncu()
    if ncu is None:
        return {"lines": [], "why": "ncu is neither on PATH nor in /usr/local/cuda/bin"}
    try:
        done = subprocess.run(
            [ncu, *command[1:]], capture_output=True, text=True, errors="replace", timeout=SECONDS, cwd=KERNELS.parent,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"lines": [], "why": f"ncu did not end: {type(error).__name__}"}
    return ncu_lines(done.stdout + done.stderr)


def ncu_lines(text: str) -> dict:
    """lines and why, of what ncu printed: from the first kernel on, what is measured; before it, what went wrong."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("==PROF==")]
    lines = [re.sub(r"\[\d+\] python\S*@\S+", "python", line) for line in lines]
    errors = [line for line in lines if "ERR" in line]
    measured = any("dram__bytes_read.sum" in line for line in lines)
    return {"lines": lines if measured else [], "why": "" if measured else " ".join(errors)[:500] or "no metric came"}


def launches(lines: Sequence[str]) -> list[tuple[str, dict[str, float]]]:
    """Each launch in such lines, in order: the kernel's name, and {metric: value}, bytes without a prefix."""
    kernels: list[tuple[str, dict[str, float]]] = []
    for line in lines:
        if head := re.match(r" {2}(\w+)", line):
            kernels.append((head[1], {}))
        elif kernels and (metric := METRIC.match(line)):
            name, unit, value = metric.groups()
            kernels[-1][1][name] = float(value.replace(",", "")) * BYTES.get(unit, 1)
    return kernels
