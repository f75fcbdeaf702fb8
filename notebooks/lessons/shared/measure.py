"""A measurement in a cell: on a GPU the functions are timed there; elsewhere the rows that were kept are shown.

    times = measure("17", "look_ups", [2048, 65536], inputs, {"eager": eager, "yours": look_up}, moved=bytes_of)
    times.compare("yours", "eager", 65536)

`waited` is for calls of which the host is a part: what a caller waits for.
`lecture.py NN --record` keeps what the cells of a notebook measure, in traces/results/<gpu>/lecture_NN.json.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from kernels import runtime
from kernels.measure import records as files
from kernels.measure.clock import percentiles
from lessons.shared.experiment import PERCENTILES, VERSIONS, WRONG, Experiment, Outputs, Way, failure, tensors
from lessons.shared.records import apart, gb_per_s, tflop_per_s
from model.profiling.recording import today

FOLDER = "LECTURE_RECORD"  # the variable in which lecture.py --record says where rows are kept
COPY = "copy"  # the name of the yardstick's row
BATCHES = 15  # of calls from Python
LEAST_SETS = 4  # of inputs, each with a call in the graph: a replay of one short call is mostly the replay's own time
ON_GPU, WAITED = "on the GPU", "that the caller waits"  # what a time is
US = tuple(f"us_{name}" for name in PERCENTILES)
Function = Callable[..., Outputs]
Changes = Callable[..., Sequence[tuple[Tensor, Tensor]]]


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
    _hide_choices()
    return _Cell(runtime.device())


def _hide_choices() -> None:
    """Inductor does not tell on stderr of each product that max-autotune tries."""
    from torch._inductor import config, select_algorithm

    select_algorithm.PRINT_AUTOTUNE = config.max_autotune_report_choices_stats = False
    logging.getLogger(select_algorithm.__name__).setLevel(logging.CRITICAL)


def measure(
    notebook: str, part: str, sizes: Iterable | Mapping, inputs: Callable[..., Sequence[Tensor]],
    ways: Mapping[str, Function], *, moved: Callable[..., int] | None = None, flops: Callable[..., int] | None = None,
    right: Function | None = None, tolerance: float = 0.0, unit: str = "rows", small: object = None,
    changes: Changes | None = None, calls: int = 0,
) -> Times:
    """Time ways to one result at each size, on the GPU: replays of CUDA graphs by turns, the L2 swept before each, a
    graph's calls on different sets of inputs. Without a GPU print what was recorded of these ways at these sizes.

    notebook, part: its number, and this measurement's name in it. A size is a number or a word; of a mapping, its name
    and what `inputs` gets. inputs(size) → a new set of tensors; what the sets share, a table say, it returns each time.
    ways: name → function(*tensors) → what it wrote, what torch.compile returned among them.
    moved, flops: of a set of tensors the bytes that must move, and the FLOPs: rates stand beside the times then.
    right: function(*tensors) → the right result; without it the first way's. tolerance: a part of the largest number.
    small: the size at which, without a GPU, each way runs once, uncompiled, and must be right (AssertionError).
    changes: of ways that write into their tensors: function(*tensors) → (a tensor, which of its rows change) for each.
        What is judged is these rows, which are put back before.
    calls: in place of replays, time calls from Python on one set of inputs: so many in a row, of which the last is
        waited for.

    A way that fails, or gives a wrong result, is a row that says so, without a time.
    """
    sizes = dict(sizes) if isinstance(sizes, Mapping) else {size: size for size in sizes}
    what = {0: ON_GPU, 1: "from call to result"}.get(calls, "a call from Python")
    right, recorded = right or next(iter(ways.values())), _recorded(notebook, part, sizes, ways, unit, what)
    if runtime.device().type != "cuda":
        if small is not None:
            rows = _Rows(changes, arguments := inputs(small))
            judge = _judge(rows.of(right), arguments, tolerance)
            for name, way in ways.items():
                way = getattr(way, "_orig_mod", getattr(way, "_torchdynamo_orig_callable", way))
                assert judge(rows.of(way)(*arguments)), f"{name}: the result is wrong"
        recorded.show()
        return recorded
    cell = _cell()
    cell.rows.clear()
    for size, argument in sizes.items():
        # What is kept is stored too, and a traceback or a warning has this machine's paths.
        elsewhere = redirect_stderr(sys.__stderr__) if os.environ.get(FOLDER) else nullcontext()
        with elsewhere, cell.caught(part, name="inputs", size=size):
            if "torch._dynamo" in sys.modules:
                torch._dynamo.reset()  # each size is compiled by itself
            first = inputs(argument)
            counts = {name: int(of(*first)) for name, of in (("bytes", moved), ("flops", flops)) if of}
            rows = _Rows(changes, first)
            judge = _judge(rows.of(right), first, tolerance)
            count = max(LEAST_SETS, cell.sets(counts.get("bytes") or sum(tensor.nbytes for tensor in first)))
            sets = [first, *(inputs(argument) for _ in range(0 if calls else count - 1))]
            timed = [
                Way({"name": name}, [partial(rows.timed(way), *each) for each in sets], rows.judged(judge, way))
                for name, way in ways.items()
            ]
            clock = partial(cell.call_times, calls=calls, count=BATCHES) if calls else None
            cell.compare(part, timed, captured=not calls, clock=clock, size=size, **counts)
            rows.put_back()
    if moved:
        cell.copy()
        cell.rows[-1] |= {"part": part, "name": COPY, "size": None}
    return _told(notebook, part, cell.rows, recorded, what)


def waited(
    notebook: str, part: str, sizes: Iterable, inputs: Callable[..., Sequence[Tensor]], ways: Mapping[str, Function],
    right: Function, *, off: float, unit: str = "rows", calls: int = 500,
) -> Times:
    """Time what a caller waits for, on a machine with a GPU: so many calls of each way, by turns, from tensors of the
    CPU to a tensor of the CPU. Without a GPU print what was recorded.

    inputs(size) → a new set of tensors: each way is called with one, and judged and timed with another. right: the
    right result; a way's may be `off` by so much. A way with a method `us` is a program of its own, which says what its
    calls took when it was called: (p20, p50, p80).
    """
    recorded = _recorded(notebook, part, dict.fromkeys(sizes), ways, unit, WAITED)
    if runtime.device().type != "cuda":
        recorded.show()
        return recorded
    rows, batches = [], 10
    for size in sizes:
        first, arguments, samples = inputs(size), inputs(size), {}
        want = right(*arguments)
        for name, way in ways.items():
            row = {"part": part, "size": size, "name": name, "match": "ok"}
            rows.append(row)
            try:
                for _ in range(0 if hasattr(way, "us") else 5):  # compiles, captures
                    way(*first)
                answer = way(*arguments)
                if answer.shape != want.shape or not torch.allclose(answer, want, rtol=0.0, atol=off):
                    row["match"] = WRONG
                elif hasattr(way, "us"):
                    row |= dict(zip(US, way.us(), strict=True))
                else:
                    samples[name] = row, []
            except Exception as error:  # the other ways are measured all the same
                row["match"] = failure(error)
        for _ in range(batches):
            for name, (_, own) in samples.items():
                for _ in range(calls // batches):
                    start = time.perf_counter()
                    ways[name](*arguments)
                    own.append(1e6 * (time.perf_counter() - start))
        for row, own in samples.values():
            row |= dict(zip(US, percentiles(own), strict=True))
    return _told(notebook, part, rows, recorded, WAITED)


def _told(notebook: str, part: str, measured: Sequence[Mapping], recorded: Times, what: str) -> Times:
    """What was measured here, which is kept if it is to be, and shown."""
    keeps = bool(os.environ.get(FOLDER))
    head = {name: runtime.versions()[name] for name in VERSIONS} | {"date": today()}
    rows = _keep(notebook, part, head, measured) if keeps else list(measured)
    times = Times(rows, _about("MEASURED here", head, what), recorded.unit)
    times.show(recorded if recorded.rows and not keeps else None)
    return times


class _Rows:
    """What ways change of the tensors that they are given, if they return nothing."""

    def __init__(self, changes: Changes | None, arguments: Sequence[Tensor]):
        self.arguments, self.places = arguments, changes and changes(*arguments)
        self.before = [tensor[rows] for tensor, rows in self.places or ()]

    def of(self, way: Function) -> Function:
        """The way as a function of the arguments that returns the rows that it changed."""
        if self.places is None:
            return way

        def changed(*arguments: Tensor) -> list[Tensor]:
            self.put_back()
            way(*arguments)
            return [tensor[rows] for tensor, rows in self.places]

        return changed

    def put_back(self) -> None:
        for (tensor, rows), values in zip(self.places or (), self.before, strict=True):
            tensor[rows] = values

    def timed(self, way: Function) -> Function:
        """The way; no outputs of one that changes its tensors, which are not to be poisoned."""
        return way if self.places is None else lambda *arguments: (way(*arguments), ())[1]

    def judged(self, judge: Callable[[Outputs], bool], way: Function) -> Callable[[Outputs], bool]:
        return judge if self.places is None else lambda _: judge(self.of(way)(*self.arguments))


def _recorded(notebook: str, part: str, sizes: Mapping, ways: Mapping, unit: str, what: str) -> Times:
    """What was kept of these ways at these sizes, the H200's or, if it has none, another GPU's."""
    paths = files.recorded_files(f"lecture_{notebook}.json")
    for path in sorted(paths, key=lambda path: path.parent.name != files.README_GPU):
        record = files.read(path)
        rows = [row for row in record["rows"] if row["part"] == part and not row["match"].startswith("FAILED")]
        if not rows:
            continue
        about = [_about("RECORDED on", record, what)]
        for wanted, label in ((sizes, "size"), (ways, "name")):
            known = dict.fromkeys(row[label] for row in rows if row["name"] != COPY)
            if missing := [_shown(each) for each in wanted if each not in known]:
                about.append(f"not recorded: {', '.join(missing)}; recorded: {', '.join(map(_shown, known))}")
        rows = [row for row in rows if row["name"] == COPY or (row["size"] in sizes and row["name"] in ways)]
        return Times(rows, "\n".join(about), unit)
    return Times((), f"{part}: not recorded yet. On a GPU this cell measures it.", unit)


def _about(how: str, head: Mapping, what: str) -> str:
    versions = ", ".join(f"{name} {head[name]}" for name in ("torch", "triton", "CUDA"))
    return f"{how}: {head['GPU']}, {head['date']}, {versions}. µs {what}: median (20th to 80th percentile)"


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
