"""compute-sanitizer over the CMake tests' binaries and over the tests marked `sanitizer`."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from .. import runtime
from ..measure import sources
from . import commands
from .commands import Outcome

TOOLS = ("memcheck", "racecheck", "initcheck")


def compute_sanitizer() -> str | None:
    """compute-sanitizer: on PATH, or beside nvcc."""
    beside = str(nvcc.parent) if (nvcc := runtime.nvcc()) else ""
    return shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ.get("PATH", os.defpath), beside)))


def run(count: int, limit: float) -> list[Outcome]:
    """Every tool on every binary of the CMake tests, and memcheck on each op's marked tests; `count` at a time.

    limit: the seconds that one of them may take.
    """
    sanitizer = compute_sanitizer()
    if sanitizer is None:
        return [Outcome("sanitizer", skipped=["compute-sanitizer is not installed; it comes with the CUDA toolkit"])]
    files = (commands.ROOT / "build" / "cmake").glob("*_test")
    binaries = sorted(path for path in files if os.access(path, os.X_OK) and not path.name.startswith("broken_"))

    def job(tool: str, name: str, arguments: list[str | Path], *options: str) -> Callable[[], Outcome]:
        return lambda: _sanitize([sanitizer, "--tool", tool, *options], f"{tool} {name}", arguments, limit)

    jobs = []
    for op in sources.ops():
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "sanitizer", f"kernels/ops/{op}"]
        # PyTorch asks the driver for things that some do not have, on purpose: those errors are not the kernels'.
        jobs.append(job("memcheck", f"pytest {op}", tests, "--report-api-errors", "no"))
    jobs += [job(tool, binary.name, [binary, "--quick"]) for binary in binaries for tool in TOOLS]
    outcomes = commands.at_once(jobs, count)
    if not binaries:
        outcomes.append(Outcome("sanitizer", failed=["no binaries in build/cmake: the step build comes first"]))
    return outcomes


def _sanitize(sanitizer: list[str], name: str, arguments: list[str | Path], limit: float) -> Outcome:
    # Without PyTorch's cache each tensor is an allocation of its own, so that an access beyond its end shows.
    outcome, output = commands.command(
        name,
        [*sanitizer, "--error-exitcode", "86", *arguments],
        limit,
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
        OMP_NUM_THREADS="1",
        TORCHINDUCTOR_COMPILE_THREADS="1",
    )
    summaries = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", output)
    passed = re.findall(r"^\d+ passed.*", output, re.MULTILINE)
    outcome.counts = "; ".join(summaries + passed)
    if outcome.code == 5 and not re.search("[1-9][0-9]* error", outcome.counts):  # pytest's, of no test
        outcome.counts, outcome.failed, outcome.skipped = "", [], ["none of its tests is marked `sanitizer`"]
    elif outcome.ended and not summaries:
        outcome.failed.append("compute-sanitizer printed no summary")
    return outcome
