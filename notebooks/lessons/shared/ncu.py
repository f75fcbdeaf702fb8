"""Nsight Compute, where it is: the program, and what is kept of its lines."""

from __future__ import annotations

import os
import re
import shutil


def find_ncu() -> str | None:
    """ncu on PATH or beside nvcc's usual place."""
    return shutil.which("ncu", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin")))


def ncu_lines(text: str) -> dict:
    """lines and why, of what ncu printed: from the first kernel on, what is measured; before it, what went wrong."""
    lines = [each.rstrip() for each in text.splitlines() if each.strip() and not each.startswith("==PROF==")]
    lines = [re.sub(r"\[\d+\] python\S*@\S+", "python", each) for each in lines]
    errors = [each for each in lines if "ERR" in each]
    measured = any("dram__bytes_read.sum" in each for each in lines)
    return {"lines": lines if measured else [], "why": "" if measured else " ".join(errors)[:500] or "no metric came"}
