"""Calls of which the host is a part: what a caller waits for, measured in a cell.

    times = waited("18", "fp32", [1, 2048], requests, {"eager": eager, "in C++": program}, right=eager, off=1e-5)
    times.compare("in C++", "eager", 1)

As those of `measure`, rows are kept by `lecture.py NN --record`, in lecture_NN.json, and shown elsewhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor, allclose

from kernels import runtime
from kernels.measure import records
from kernels.measure.clock import percentiles
from lessons.shared.experiment import PERCENTILES, VERSIONS, WRONG, failure
from lessons.shared.measure import FOLDER, Times, _keep
from model.profiling.recording import today

BATCHES = 10  # of calls, by turns
US = tuple(f"us_{name}" for name in PERCENTILES)


def waited(
    notebook: str, part: str, sizes: Iterable[int], inputs: Callable[[int], Sequence[Tensor]],
    ways: Mapping[str, Callable[..., Tensor]], right: Callable[..., Tensor], *, off: float, unit: str = "rows",
    calls: int = 2000,
) -> Times:
    """Time what a caller waits for, on a machine with a GPU: so many calls of each way, by turns, from tensors of the
    CPU to a tensor of the CPU. Without a GPU print what was recorded.

    inputs(size) → a new set of tensors: each way is called with one, and judged and timed with another. right: the
    right result; a way's may be `off` by so much. A way with a method `us` is a program of its own, which says what its
    calls took when it was called: (p20, p50, p80).
    """
    sizes = [*sizes]
    recorded = _recorded(notebook, part, sizes, ways, unit)
    if runtime.device().type != "cuda":
        recorded.show()
        return recorded
    measured = [row for size in sizes for row in _rows(part, size, inputs, ways, right, off, calls)]
    keeps = bool(os.environ.get(FOLDER))
    head = {name: runtime.versions()[name] for name in VERSIONS} | {"date": today()}
    rows = _keep(notebook, part, head, measured) if keeps else measured
    times = Times(rows, _about("MEASURED here", head), unit)
    times.show(recorded if recorded.rows and not keeps else None)
    return times


def _rows(
    part: str, size: int, inputs: Callable, ways: Mapping[str, Callable], right: Callable, off: float, calls: int
) -> list[dict]:
    """A row for each way."""
    rows, samples, first, arguments = [], {}, inputs(size), inputs(size)
    want = right(*arguments)
    for name, way in ways.items():
        row = {"part": part, "size": size, "name": name, "match": "ok"}
        rows.append(row)
        try:
            for _ in range(0 if hasattr(way, "us") else 5):  # compiles, captures
                way(*first)
            answer = way(*arguments)
            if answer.shape != want.shape or not allclose(answer, want, rtol=0.0, atol=off):
                row["match"] = WRONG
            elif hasattr(way, "us"):
                row |= dict(zip(US, way.us(), strict=True))
            else:
                samples[name] = row, []
        except Exception as error:  # the other ways are measured all the same
            row["match"] = failure(error)
    for _ in range(BATCHES):
        for name, (_, own) in samples.items():
            for _ in range(calls // BATCHES):
                start = time.perf_counter()
                ways[name](*arguments)
                own.append(1e6 * (time.perf_counter() - start))
    for row, own in samples.values():
        row |= dict(zip(US, percentiles(own), strict=True))
    return rows


def _recorded(notebook: str, part: str, sizes: Sequence[int], ways: Mapping, unit: str) -> Times:
    """What was kept of these ways at these sizes, the H200's or, if it has none, another GPU's."""
    paths = records.recorded_files(f"lecture_{notebook}.json")
    for path in sorted(paths, key=lambda path: path.parent.name != records.README_GPU):
        record = records.read(path)
        rows = [row for row in record["rows"] if row["part"] == part and not row["match"].startswith("FAILED")]
        if rows := [row for row in rows if row["size"] in sizes and row["name"] in ways]:
            return Times(rows, _about("RECORDED on", record), unit)
    return Times((), f"{part}: not recorded yet. On a GPU this cell measures it.", unit)


def _about(how: str, head: Mapping) -> str:
    versions = ", ".join(f"{name} {head[name]}" for name in ("torch", "triton", "CUDA"))
    what = "µs that the caller waits: median (20th to 80th percentile)"
    return f"{how}: {head['GPU']}, {head['date']}, {versions}. {what}"
