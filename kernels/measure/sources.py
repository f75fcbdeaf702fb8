"""What an op was built from, tested with and measured by, as hashes: a record keeps them, and so knows its age.

sources: what its kernels are built of: their text, the device code that they include and import, what chooses and
    launches them, the compiler's options. How a call comes to its launcher (dispatch/) is no part of a kernel.
dispatch: that way, which is every op's: a call's cost from Python is of it, and no time on the GPU.
bench: what is measured, and how: the cells, what makes their inputs, the clock, the match. What judges, stores and
    prints a row comes after it, and is not reached from what is run.
tests: the op's tests, its spec, and the checker. How exact a result must be stands there, too: that lets a row pass or
    fail, and changes none of its times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ..runtime import KERNELS
from .reached import Name, cpp, python, reached

BUILT_FROM = ("op.py", "triton_launch.py", "cuda_launch.py", "cuda.cu", "cpu.cpp")
COMPILER_OPTIONS = (("dispatch/core.py", "NVCC_FLAGS"), ("dispatch/nvrtc.py", "OPTIONS"))
# What a launch is handed to, and whether Triton interprets it: of the machine, and none of a kernel's.
OF_THE_MACHINE = (("device/launch.py", "triton_functions"), ("device/launch.py", "interpreted"))
BENCH = ("cells", "sweep", "first_calls")  # of an op's bench.py: what gives its cells
# What measures cells of a kind; a bench without them does not hang on it.
KINDS = {
    "Calls": ("measuring.py", "measure_calls"), "FirstCall": ("first_call.py", "measure_first_call", "call"),
    "Latency": ("latency.py", "measure_latency"), "Lengths": ("lengths.py", "measure_lengths"),
}


def ops() -> list[str]:
    """All ops: the folders that have an op.py."""
    return sorted(path.parent.name for path in KERNELS.glob("ops/*/op.py"))


def code(op: str, what: str) -> set[str]:
    """What is hashed of an op: "sources", "dispatch", "bench" or "tests".

    Raises:
        ValueError: an unknown op.
    """
    folder, measure = KERNELS / "ops" / op, KERNELS / "measure"
    if not folder.is_dir():
        raise ValueError(f"unknown op {op!r}: expected one of {', '.join(ops())}")
    if what == "dispatch":
        return {*map(of_file, _in(KERNELS / "dispatch"))}
    if what == "tests":
        checker = (*_in(KERNELS / "check"), *_in(KERNELS / "check" / "host"))
        return {*map(of_file, (*folder.glob("test_*"), *folder.glob("spec.py"), *checker))}
    own = (Name(folder / name) for name in BUILT_FROM if (folder / name).is_file())
    options = [Name(KERNELS / file, name) for file, name in COMPILER_OPTIONS]
    machine = {Name(KERNELS / file, name) for file, name in OF_THE_MACHINE}
    sources = reached(own, (KERNELS / "ops", KERNELS / "device"), machine) | reached(options, (KERNELS / "dispatch",))
    if what == "sources":
        return sources
    within, met = (measure, KERNELS / "ops", KERNELS / "check" / "comparison.py"), set()
    cells = reached([Name(folder / "bench.py", name) for name in BENCH], within, met)
    spec = Name(folder / "spec.py")
    # The clock comes as an argument, whose class stands in annotations alone.
    roots, stops = [Name(measure / "bench.py", "measured"), Name(measure / "clock.py")], set()
    for kind, (file, *names) in KINDS.items():
        own, kind = [Name(measure / file, name) for name in names], Name(measure / "cells.py", kind)
        if kind in met:
            roots += own
        else:
            stops |= {kind, *own}
    return (cells | reached(roots, within, stops)) - sources - reached([spec], (spec.file,))


def sha256(op: str, what: str) -> str:
    """SHA-256 of the `code`."""
    return hashlib.sha256("\0".join(sorted(code(op, what))).encode()).hexdigest()


def hashes(op: str, *whats: str) -> dict[str, str]:
    """{"sources_sha256": …, …}: what a record keeps."""
    return {f"{what}_sha256": sha256(op, what) for what in whats}


def changed(op: str, entry: dict, *whats: str) -> str:
    """"sources and tests changed since" the entry was recorded, or "". A hash that the entry lacks has changed."""
    names = [what for what in whats if entry.get(f"{what}_sha256") != sha256(op, what)]
    return f"{' and '.join(names)} changed since" if names else ""


def of_file(path: Path) -> str:
    """All of a file's code."""
    return (python if path.suffix == ".py" else cpp)(path.read_text())


def _in(folder: Path) -> Iterable[Path]:
    return (path for path in folder.iterdir() if path.suffix in (".py", ".cpp", ".cu", ".cuh", ".h"))
