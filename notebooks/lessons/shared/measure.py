"""A measurement in a cell: on a GPU the functions are timed there; elsewhere the rows that were kept are shown.

    times = measure("15", "look_ups", [2048, 65536], inputs, {"eager": eager, "yours": look_up}, moved=bytes_of)
    times.compare("yours", "eager", 65536)

`lecture.py NN --record` keeps what the cells of a notebook measure, in traces/results/<gpu>/lecture_NN.json.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from kernels import runtime
from kernels.measure import records as files
from lessons.shared.experiment import PERCENTILES, VERSIONS, Experiment, Outputs, Way, tensors
from lessons.shared.records import apart, gb_per_s, tflop_per_s
from model.profiling.recording import today

FOLDER = "LECTURE_RECORD"  # the variable in which lecture.py --record says where rows are kept
COPY = "copy"  # the name of the yardstick's row
LEAST_SETS = 4  # of inputs, each with a call in the graph: a replay of one short call is mostly the replay's own time
Function = Callable[..., Outputs]


@dataclass(frozen=True)
class Times:
    """The rows of one measurement: size, name, match and, if it was timed, us_p20, us_p50, us_p80. about: where
    and when they were measured. unit: what a size counts."""

    rows: Sequence[Mapping]
    about: str
    unit: str

    def one(self, name: str, size: object) -> Mapping | None:
        """The row of a way at a size; None if it was not timed."""
        found = [row for row in self.rows if (row["name"], row["size"]) == (name, size) and "us_p50" in row]
        return found[0] if found else None

    def compare(self, name: str, other: str, size: object) -> None:
        """Print which of two ways is faster at a size, and how many times; neither if the spreads, from the 20th to the
        80th percentile, overlap or if the medians differ by less than 3 %."""
        what, rows = f"{_shown(size)} {self.unit}: ", (self.one(name, size), self.one(other, size))
        if None in rows:
            print(f"{what}{name} and {other}: not timed yet")
            return
        (fast, low), (slow, high) = sorted(zip((name, other), rows, strict=True), key=lambda pair: pair[1]["us_p50"])
        ratio = f"{high['us_p50'] / low['us_p50']:.2f} ×"
        if apart(low, high):
            print(f"{what}{fast} is faster than {slow}, {ratio}, beyond the spread of both")
        else:
            print(f"{what}neither {name} nor {other} is faster: {ratio}, within their spread or 3 %")

    def show(self, beside: Times | None = None) -> None:
        """Print a line for each row. beside: recorded rows, whose µs stand next to those of the same way and size."""
        print(self.about)
        copies = [row for row in self.rows if row["name"] == COPY]
        size, width = None, max((len(row["name"]) for row in self.rows), default=0)
        for row in (row for row in self.rows if row["name"] != COPY):
            if row["size"] != size:
                size = row["size"]
                print(f"{_shown(size)} {self.unit}")
            timed = "us_p50" in row
            p20, p50, p80 = (row.get(f"us_{name}", 0.0) for name in PERCENTILES)
            cells = [f"{p50:,.1f} µs ({p20:,.1f} to {p80:,.1f})" if timed else row["match"]]
            if beside:
                known = beside.one(row["name"], size)
                cells.append(f"recorded {known['us_p50']:,.1f} µs" if known else "not recorded")
            if timed and "flops" in row:
                cells.append(f"{tflop_per_s(row):.1f} TFLOP/s")
            if timed and "bytes" in row:
                cells.append(f"{gb_per_s(row) / 1e3:.2f} TB/s")
                cells += [f"{100 * gb_per_s(row) / gb_per_s(copy):.0f} % of a copy's" for copy in copies]
            print(f"  {row['name']:<{width}}  {'  '.join(cells)}")
        for row in copies:
            print(f"a copy of 1 GiB: {gb_per_s(row) / 1e3:.2f} TB/s")


class _Cell(Experiment):
    """Measures what a cell asks for, and prints nothing meanwhile."""

    NAME, PARTS = "lecture", ()

    def show(self, row: Mapping) -> None:
        pass


@cache
def _cell() -> _Cell:
    return _Cell(runtime.device())


def measure(
    notebook: str, part: str, sizes: Iterable | Mapping, inputs: Callable[..., Sequence[Tensor]],
    ways: Mapping[str, Function], *, moved: Callable[..., int] | None = None, flops: Callable[..., int] | None = None,
    right: Function | None = None, tolerance: float = 0.0, unit: str = "rows", small: object = None,
) -> Times:
    """Time ways to one result at each size, on the GPU: replays of CUDA graphs by turns, the L2 swept before each, a
    graph's calls on different sets of inputs. Without a GPU print what was recorded of these ways at these sizes.

    notebook, part: its number, and this measurement's name in it. A size is a number or a word; of a mapping, its name
    and what `inputs` gets. inputs(size) → a new set of tensors; what the sets share, a table say, it returns each time.
    ways: name → function(*tensors) → what it wrote, what torch.compile returned among them.
    moved, flops: of a set of tensors the bytes that must move, and the FLOPs: rates stand beside the times then.
    right: function(*tensors) → the right result; without it the first way's. tolerance: a part of the largest number.
    small: the size at which, without a GPU, each way runs once, uncompiled, and must be right (AssertionError).

    A way that fails, or gives a wrong result, is a row that says so, without a time.
    """
    sizes = dict(sizes) if isinstance(sizes, Mapping) else {size: size for size in sizes}
    right, recorded = right or next(iter(ways.values())), _recorded(notebook, part, sizes, ways, unit)
    if runtime.device().type != "cuda":
        if small is not None:
            judge = _judge(right, arguments := inputs(small), tolerance)
            for name, way in ways.items():
                way = getattr(way, "_orig_mod", getattr(way, "_torchdynamo_orig_callable", way))
                assert judge(way(*arguments)), f"{name}: the result is wrong"
        recorded.show()
        return recorded
    cell = _cell()
    cell.rows.clear()
    for size, argument in sizes.items():
        with cell.caught(part, name="inputs", size=size):
            if "torch._dynamo" in sys.modules:
                torch._dynamo.reset()  # each size is compiled by itself
            first = inputs(argument)
            counts = {name: int(of(*first)) for name, of in (("bytes", moved), ("flops", flops)) if of}
            judge = _judge(right, first, tolerance)
            count = max(LEAST_SETS, cell.sets(counts.get("bytes") or sum(tensor.nbytes for tensor in first)))
            sets = [first, *(inputs(argument) for _ in range(count - 1))]
            calls = {name: [partial(way, *each) for each in sets] for name, way in ways.items()}
            cell.compare(part, [Way({"name": name}, calls[name], judge) for name in ways], size=size, **counts)
    if moved:
        cell.copy()
        cell.rows[-1] |= {"part": part, "name": COPY, "size": None}
    keeps = bool(os.environ.get(FOLDER))
    head = {name: runtime.versions()[name] for name in VERSIONS} | {"date": today()}
    rows = _keep(notebook, part, head, cell.rows) if keeps else list(cell.rows)
    times = Times(rows, _about("MEASURED here", head), unit)
    times.show(recorded if recorded.rows and not keeps else None)
    return times


def _recorded(notebook: str, part: str, sizes: Mapping, ways: Mapping, unit: str) -> Times:
    """What was kept of these ways at these sizes, the H200's or, if it has none, another GPU's."""
    paths = files.recorded_files(f"lecture_{notebook}.json")
    for path in sorted(paths, key=lambda path: path.parent.name != files.README_GPU):
        record = files.read(path)
        rows = [row for row in record["rows"] if row["part"] == part and not row["match"].startswith("FAILED")]
        if not rows:
            continue
        about = [_about("RECORDED on", record)]
        for wanted, label in ((sizes, "size"), (ways, "name")):
            known = dict.fromkeys(row[label] for row in rows if row["name"] != COPY)
            if missing := [_shown(each) for each in wanted if each not in known]:
                about.append(f"not recorded: {', '.join(missing)}; recorded: {', '.join(map(_shown, known))}")
        rows = [row for row in rows if row["name"] == COPY or (row["size"] in sizes and row["name"] in ways)]
        return Times(rows, "\n".join(about), unit)
    return Times((), f"{part}: not recorded yet. On a GPU this cell measures it.", unit)


def _about(how: str, head: Mapping) -> str:
    versions = ", ".join(f"{name} {head[name]}" for name in ("torch", "triton", "CUDA"))
    return f"{how}: {head['GPU']}, {head['date']}, {versions}. µs on the GPU: median (20th to 80th percentile)"


def _keep(notebook: str, part: str, head: Mapping, rows: Sequence[Mapping]) -> list[dict]:
    """Add the rows to this run's record of the notebook, and give them back as they are kept."""
    folder = Path(os.environ[FOLDER])
    path = folder / files.slug(head["GPU"]) / f"lecture_{notebook}.json"
    others = [row for row in files.read(path)["rows"] if row["part"] != part] if path.exists() else []
    path.unlink(missing_ok=True)  # a record with a row that FAILED does not replace one without
    command = f"python notebooks/lecture.py {notebook} --record --store"
    files.save({"op": path.stem, "command": command, **head, "rows": [*others, *rows]}, folder)
    return [row for row in files.read(path)["rows"] if row["part"] == part]


def _judge(right: Function, arguments: Sequence[Tensor], tolerance: float) -> Callable[[Outputs], bool]:
    """What says whether a way's outputs on these arguments are right."""
    expected = [output.clone() for output in tensors(right(*arguments))]
    bounds = [tolerance * float(output.abs().max()) if output.numel() else 0.0 for output in expected]

    def judge(outputs: Outputs) -> bool:
        return all(
            output.shape == wanted.shape and torch.allclose(output.double(), wanted.double(), rtol=0.0, atol=bound)
            for output, wanted, bound in zip(tensors(outputs), expected, bounds, strict=True)
        )

    return judge


def _shown(size: object) -> str:
    return f"{size:,}" if isinstance(size, int) else str(size)
