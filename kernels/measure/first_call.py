"""What the first call of a fresh process costs, beyond importing torch and loading the core.

What it needs is on disk by then: nothing is compiled, and Triton is not imported. Where compiling is what is measured,
the process has an empty folder for the cubins of generated source, and must have filled it.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from .. import runtime
from ..dispatch import build, core, cubin, find, nvrtc
from ..runtime import KERNELS
from .cells import FirstCall, Row, describe, public, reference

BUILT = (build.EXTENSIONS, cubin.CUBINS)


def measure_first_call(
    cell: FirstCall, *, built: tuple[Path, ...] = BUILT, run: Callable[[FirstCall, str], dict] | None = None
) -> list[Row]:
    """A row for each backend, call_us of one call. On a machine where it builds what it needs, the next one counts."""
    rows = []
    for backend in cell.implementations:
        row = Row(cell.op, cell.part, cell.form, backend, cell.labels)
        try:
            for _ in range(2):
                before = _files(built)
                result = (run or _in_fresh_process)(cell, backend)
                compiled = sorted(path.name for path in _files(built) - before)
                if not compiled:
                    break
        except (subprocess.SubprocessError, ValueError) as error:
            rows.append(replace(row, match=f"FAILED: {describe(error)}"))
            continue
        why = "Triton was imported" if result["triton"] else f"compiled {', '.join(compiled)}" if compiled else ""
        why = why or ("compiled nothing" if cell.compiles and not result["compiled"] else "")
        before_it = (f"{what} {result[f'{what}_ms']:.0f} ms" for what in ("torch", "kernels", "core"))
        row = replace(row, note=f"loaded before it: {', '.join(before_it)}")
        rows.append(replace(row, match=f"FAILED: {why}") if why else replace(row, call_us=result["us"]))
    return rows


def _files(folders: tuple[Path, ...]) -> set[Path]:
    return {path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


_CODE = """
import sys, time
a = time.perf_counter()
import torch
b = time.perf_counter()
import kernels
c = time.perf_counter()
from kernels.measure.first_call import call
call(*sys.argv[1:], {"torch_ms": 1e3 * (b - a), "kernels_ms": 1e3 * (c - b)})
"""


def _in_fresh_process(cell: FirstCall, backend: str) -> dict:
    how = "compiles" if cell.compiles else "finds"
    command = [sys.executable, "-c", _CODE, cell.op, backend, how, json.dumps(dict(cell.labels))]
    done = subprocess.run(command, cwd=KERNELS.parent, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise ValueError(f"exit status {done.returncode}: {' | '.join(done.stderr.splitlines()[-2:])}")
    return json.loads(done.stdout.splitlines()[-1])


def asked(op: str, labels: dict) -> FirstCall:
    """The op's first call that has these labels. A bench has first_calls where `cells` would import Triton on the way,
    which no first call may find imported."""
    bench = importlib.import_module(f"kernels.ops.{find(op).folder}.bench")
    if hasattr(bench, "first_calls"):
        cells = bench.first_calls()
    else:
        cells = (cell for quick in (True, False) for cell in bench.cells(quick) if isinstance(cell, FirstCall))
    return next(cell for cell in cells if dict(cell.labels) == labels)


def call(op: str, backend: str, how: str, labels: str, imports: dict[str, float]) -> None:
    """What the fresh process does: make the call of these labels, and print what came of it.

    how: whether it "compiles" what it needs, or "finds" it. The result must match as in any other row.
    """
    from .match import Match
    from .runs import generators

    calls = asked(op, json.loads(labels)).calls
    tensors = calls.inputs(*generators(calls.dtype, runtime.device()))
    variables = dict(zip(calls.names, tensors, strict=True)) | {op: public(op), "eager": reference(op)}
    torch.cuda.synchronize()
    start = time.perf_counter()
    core.load_core()
    loaded = time.perf_counter()
    with torch.no_grad(), tempfile.TemporaryDirectory() as empty:
        if how == "compiles":
            nvrtc.CUBINS = Path(empty)
        output = eval(calls.statements[backend], variables)
        torch.cuda.synchronize()
        end = time.perf_counter()
        triton, compiled = "triton" in sys.modules, any(Path(empty).glob("*.cubin"))
        Match(calls, tensors).check(output)
    result = {"us": 1e6 * (end - loaded), "core_ms": 1e3 * (loaded - start), "triton": triton, "compiled": compiled}
    print(json.dumps(result | imports))
