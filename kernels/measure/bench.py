"""What the ops cost on this GPU, beside their peers: `python -m kernels.measure bench [op …] [--save] [--quick]`.

GPU time: n calls on n different sets of inputs are captured into one CUDA graph; the L2 is swept before each replay, by
reading another buffer; the replay's time is divided by n. Replays of the implementations of one cell take turns, so
that a change of clock or temperature meets all of them alike. Each allocates its output, as a user's call does.
Time per call: calls from Python that are not waited for. The limit: what a copy on this GPU reaches in the same run,
before it or after it, whichever is more.

A row is timed only if its output, that of the graph's replay, agrees with float64 eager before and after.
What is measured stands in each op's bench.py, as `cells(quick)`. Without a GPU the recorded results are printed.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import os
import re
import time
import timeit
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import kernels
from kernels import runtime
from kernels.check import testing
from kernels.measure.status import KERNELS, RESULTS, recorded_files, slug, sources_sha256

if TYPE_CHECKING:
    import pandas

OURS = ("triton", "cuda")
PEERS = ("eager", "jit", "torch.compile", "as generated")
REPLAYS = 25
MOST_CALLS = 256  # in a graph: of the smallest cells, some 400 µs
INPUT_BYTES = 2e9  # what the sets of inputs of a cell take together, unless four of them take more
COPY_BYTES = 2**30


@dataclass(frozen=True)
class Cell:
    """Implementations of one op on inputs of one shape [rows, columns], measured together.

    part: what the figures are for: bandwidth | grid | max-autotune | backward.
    form: functional | in place | backward.
    inputs: gives one set of tensors, made by the function draw(*shape) that it is called with.
    implementations: name → a function without arguments that builds f(*tensors) → output (in place: the first tensor).
    options: the op's further positional arguments, which each f has bound.
    bytes, flops: what one call must move and compute.
    """

    part: str
    op: str
    form: str
    shape: tuple[int, int]
    dtype: torch.dtype
    options: tuple
    inputs: Callable[[Callable[..., Tensor]], tuple[Tensor, ...]]
    implementations: Mapping[str, Callable[[], Callable]]
    bytes: int
    flops: int


@dataclass(frozen=True)
class Calls:
    """Statements that a user would write, timed from Python on small tensors, whose variables are `names`.

    statements: implementation → expression of the variables, the op's function and `eager`, its reference.
    baseline: the one of them that is no implementation of the op, but what their cost is compared with.
    """

    op: str
    form: str
    shape: tuple[int, int]
    dtype: torch.dtype
    options: tuple
    inputs: Callable[[Callable[..., Tensor]], tuple[Tensor, ...]]
    names: tuple[str, ...]
    baseline: str
    statements: Mapping[str, str]
    part: str = "calls"


@dataclass(frozen=True)
class Row:
    """One implementation on one cell: times in µs, None where not measured; match: ok | baseline | FAILED: why."""

    op: str
    part: str
    form: str
    implementation: str
    rows: int
    columns: int
    dtype: str
    activation: str
    us_p20: float | None = None
    us_p50: float | None = None
    us_p80: float | None = None
    call_us: float | None = None
    bytes: int | None = None
    flops: int | None = None
    tb_per_s: float | None = None
    percent_of_copy: float | None = None
    match: str = "ok"


# ------------------------------------------------------------------------------------------------------------------
# For the ops' bench.py.


def implementations(op: str, options: tuple, names: Iterable[str], *, in_place: bool = False) -> dict[str, Callable]:
    """Builders of the op's usual implementations; names among eager, torch.compile, max-autotune, triton, cuda."""
    eager = _bound(testing.reference(op + "_" * in_place), options)
    # Without CUDA graphs of its own: the harness captures all implementations alike.
    autotune = functools.partial(torch.compile, eager, dynamic=False, mode="max-autotune-no-cudagraphs")
    builders = {
        "eager": lambda: eager,
        "torch.compile": functools.partial(torch.compile, eager, dynamic=False),
        "max-autotune": autotune,
    }
    public = getattr(kernels, op + "_" * in_place)
    for backend in OURS:
        builders[backend] = functools.partial(_bound, public, options, backend=backend)
    return {name: builders[name] for name in names}


def _bound(function: Callable, options: tuple, **keywords) -> Callable:
    def bound(*tensors):
        return function(*tensors, *options, **keywords)

    return bound


# ------------------------------------------------------------------------------------------------------------------
# Measuring.


class Gpu:
    """The clock: captures work into CUDA graphs and times their replays, each with a cold L2."""

    def __init__(self) -> None:
        self.device = runtime.device()
        self._stream = torch.cuda.Stream()
        l2 = torch.cuda.get_device_properties(self.device).L2_cache_size
        self._other = torch.zeros(l2, device=self.device)  # float32: four times the L2

    def on_side_stream(self, work: Callable):
        """work() on the stream that is captured: a backward runs on the stream of its forward."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            result = work()
        torch.cuda.synchronize()
        return result

    def capture(self, work: Callable) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        """(replay, outputs): work() as one CUDA graph, and the tensors that it returned, which each replay writes."""
        graph = torch.cuda.CUDAGraph()

        def capture():
            graph.capture_begin()
            try:
                outputs = work()
            except BaseException:
                with suppress(RuntimeError):  # of a capture that failed; what made it fail says more
                    graph.capture_end()
                raise
            graph.capture_end()
            return outputs

        return graph.replay, self.on_side_stream(capture)

    def times(self, replays: Mapping[str, Callable[[], None]]) -> dict[str, list[float]]:
        """µs of each of REPLAYS replays."""
        events = {name: [] for name in replays}
        for _ in range(REPLAYS):
            for name, replay in replays.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(200_000)  # 0.1 ms: by its end everything up to `end` has been enqueued
                self._other.amax()
                start.record()
                replay()
                end.record()
                events[name].append((start, end))
        torch.cuda.synchronize()
        return {name: [1e3 * a.elapsed_time(b) for a, b in pairs] for name, pairs in events.items()}

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def clear(self) -> None:
        torch.cuda.empty_cache()

    def copy(self, op: str) -> Row:
        """A copy from device to device, launched on the stream: as a node of a graph it is slower."""
        source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        for _ in range(3):
            target.copy_(source)
        times = self.times({"copy": lambda: target.copy_(source)})["copy"]
        match = "ok" if torch.equal(source, target) else "FAILED: the copy differs"
        row = Row(op, "copy", "copy", "b.copy_(a)", 1, COPY_BYTES, "uint8", "", bytes=2 * COPY_BYTES, match=match)
        return _timed(row, times, 1) if match == "ok" else row


def measure(cell: Cell, gpu: Gpu) -> list[Row]:
    """A row for each of the cell's implementations, FAILED for one that raises or does not match."""
    torch._dynamo.reset()
    backward = cell.form == "backward"
    # torch.compile's backward writes into what its forward saved ("donated buffers"), so that it runs once only; here
    # it runs again and again on the same forward (retain_graph).
    again = torch._functorch.config.patch(donated_buffer=False) if backward else nullcontext()
    runs, failed = {}, {}
    with torch.set_grad_enabled(backward), again:
        try:
            sets = _draw_sets(cell, gpu.device)
            make = functools.partial(_BackwardRun if backward else _ForwardRun, cell, sets, gpu)
            for name, build in cell.implementations.items():
                try:
                    runs[name] = make(name, build())
                    runs[name].check()
                except Exception as error:
                    failed[name] = _describe(error)
            good = {name: run for name, run in runs.items() if name not in failed}
            times = gpu.times({name: run.replay for name, run in good.items()})
            calls = call_times({name: run.call for name, run in good.items()}, 20, 3, gpu.synchronize)
            for name, run in good.items():
                try:
                    run.check()
                except Exception as error:
                    failed[name] = _describe(error)
        except Exception as error:  # of no implementation: out of memory for the inputs, say
            failed = {name: _describe(error) for name in cell.implementations} | failed
    rows = []
    for name in cell.implementations:
        row = replace(_row(cell, name), bytes=cell.bytes, flops=cell.flops)
        if name in failed:
            rows.append(replace(row, match=f"FAILED: {failed[name]}"))
        else:
            rows.append(replace(_timed(row, times[name], len(sets)), call_us=calls[name]))
    return rows


def measure_calls(calls: Calls, gpu: Gpu, batch: int = 200, batches: int = 25) -> list[Row]:
    """A row for each statement, with its time per call."""
    torch._dynamo.reset()
    with torch.no_grad():
        tensors = calls.inputs(_generator(calls.dtype, gpu.device))
        in_place = calls.form == "in place"
        op = calls.op + "_" * in_place
        expected = testing.expected(calls.op, testing.Call("", tensors, calls.options))
        good, failed = {}, {}
        for name, statement in calls.statements.items():
            given = [tensor.clone() for tensor in tensors]
            variables = dict(zip(calls.names, given, strict=True)) | {op: getattr(kernels, op)}
            variables["eager"] = testing.reference(op)
            try:
                output = eval(statement, variables)
                if name != calls.baseline:
                    testing.compare(output, expected)
                good[name] = timeit.Timer(statement, globals=variables).timeit
            except Exception as error:
                failed[name] = _describe(error)
        times = _batches(good, batch, batches, gpu.synchronize)
    return [
        replace(_row(calls, name), match=f"FAILED: {failed[name]}")
        if name in failed
        else replace(_row(calls, name), call_us=times[name], match="baseline" if name == calls.baseline else "ok")
        for name in calls.statements
    ]


def call_times(functions: Mapping[str, Callable], batch: int, batches: int, synchronize: Callable) -> dict[str, float]:
    """µs per call of each function, not waiting for the GPU: medians over batches of calls, the functions by turns."""
    timers = {name: timeit.Timer("function()", globals={"function": f}).timeit for name, f in functions.items()}
    return _batches(timers, batch, batches, synchronize)


def _batches(timers: Mapping[str, Callable[[int], float]], batch: int, batches: int, synchronize: Callable) -> dict:
    seconds = {name: [] for name in timers}
    for _ in range(batches + 1):
        for name, timer in timers.items():
            synchronize()
            seconds[name].append(timer(batch))
    synchronize()
    # The first batch warms up.
    return {name: 1e6 * percentiles(taken[1:])[1] / batch for name, taken in seconds.items()}


def percentiles(values: list[float]) -> tuple[float, float, float]:
    """The 20th, 50th and 80th percentile, interpolated linearly."""
    found = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64))
    return tuple(found.tolist())


class _ForwardRun:
    """One implementation, captured on all sets; check() replays, and compares what the last call gave."""

    def __init__(self, cell: Cell, sets: list[tuple[Tensor, ...]], gpu: Gpu, name: str, function: Callable) -> None:
        self._cell, self._name, self._tensors = cell, name, sets[-1]
        self._given = tuple(tensor.clone() for tensor in sets[-1])
        self.call = functools.partial(function, *sets[0])

        def work():
            # All outputs live to the end, so that no call writes to memory that another one left in the L2.
            return [function(*tensors) for tensors in sets][-1:]

        gpu.on_side_stream(lambda: [self.call() for _ in range(3)] and None)
        self.replay, (self._output,) = gpu.capture(work)

    def check(self) -> None:
        cell = self._cell
        if cell.form == "in place" and self._output.data_ptr() != self._tensors[0].data_ptr():
            raise AssertionError("the output is not the first argument")
        # First the output, then the inputs: an output that is an input keeps the input's values.
        self._output.fill_(math.nan)
        for tensor, given in zip(self._tensors, self._given, strict=True):
            tensor.copy_(given)
        self.replay()
        expected = testing.expected(cell.op, testing.Call("", self._given, cell.options))
        testing.compare(self._output, expected, **_tolerance(self._name, cell.dtype, self._given))
        for tensor, given in list(zip(self._tensors, self._given, strict=True))[cell.form == "in place" :]:
            if not torch.equal(tensor, given):
                raise AssertionError("an input was changed")


class _BackwardRun:
    """The same for the gradients of all inputs, of forwards that ran once."""

    def __init__(self, cell: Cell, sets: list[tuple[Tensor, ...]], gpu: Gpu, name: str, function: Callable) -> None:
        self._cell, self._tensors, self._rounds = cell, sets[-1], name not in OURS
        leaves = [tuple(tensor.detach().requires_grad_() for tensor in tensors) for tensors in sets]
        outputs = gpu.on_side_stream(lambda: [function(*tensors) for tensors in leaves])
        generator = _generator(cell.dtype, gpu.device, seed=1)
        grads = [generator(*output.shape) for output in outputs]
        self._grad = grads[-1]

        def backward(i: int):
            return torch.autograd.grad(outputs[i], leaves[i], grads[i], retain_graph=True)

        def work():
            return [backward(i) for i in range(len(sets))][-1]

        self.call = functools.partial(backward, 0)
        gpu.on_side_stream(lambda: [self.call() for _ in range(3)] and None)
        self.replay, self._gradients = gpu.capture(work)

    def check(self) -> None:
        given = {tensor.data_ptr() for tensor in (*self._tensors, self._grad)}
        for gradient in self._gradients:
            if gradient.data_ptr() not in given:  # the gradient of a sum may be the one that came in
                gradient.fill_(math.nan)
        self.replay()
        call = testing.Call("", self._tensors, self._cell.options)
        needed = (True,) * len(self._tensors)
        gradients = _with_gradients(self._gradients)
        testing.check_gradients(self._cell.op, gradients, call, needed, self._grad, rounds=self._rounds)


def _with_gradients(gradients: tuple[Tensor, ...]) -> Callable:
    """A function whose gradients are these: what has been computed, in the form that testing.check_gradients takes."""

    class Computed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            ctx.options = len(arguments) - len(gradients)
            return torch.zeros_like(arguments[0])

        @staticmethod
        def backward(ctx, grad):
            return *gradients, *[None] * ctx.options

    return Computed.apply


def _tolerance(name: str, dtype: torch.dtype, tensors: tuple[Tensor, ...]) -> dict[str, float]:
    """Eager and jit round to the dtype after each of up to three operations, on values that grow to the inputs' size
    and beyond, each time by half an epsilon, where a fused kernel rounds once; in half precision assert_close's
    tolerances do not allow for that."""
    if name not in ("eager", "jit") or dtype.itemsize >= 4:
        return {}
    epsilon = torch.finfo(dtype).eps
    return {"rtol": 2 * epsilon, "atol": 2 * epsilon * max(tensor.abs().max().item() for tensor in tensors)}


def _generator(dtype: torch.dtype, device: torch.device, seed: int = 0) -> Callable[..., Tensor]:
    """draw(*shape): the next normal values of a seeded generator on the device."""
    return functools.partial(
        torch.randn, dtype=dtype, device=device, generator=torch.Generator(device).manual_seed(seed)
    )


def _draw_sets(cell: Cell, device: torch.device) -> list[tuple[Tensor, ...]]:
    draw = _generator(cell.dtype, device)
    first = cell.inputs(draw)
    count = int(INPUT_BYTES / sum(tensor.nbytes for tensor in first))
    return [first, *(cell.inputs(draw) for _ in range(1, max(4, min(MOST_CALLS, count))))]


def _row(cell: Cell | Calls, name: str) -> Row:
    activation = next((option for option in cell.options if isinstance(option, str)), "")
    dtype = str(cell.dtype).removeprefix("torch.")
    return Row(cell.op, cell.part, cell.form, name, *cell.shape, dtype, activation)


def _timed(row: Row, times: list[float], calls: int) -> Row:
    p20, p50, p80 = (value / calls for value in percentiles(times))
    return replace(row, us_p20=p20, us_p50=p50, us_p80=p80)


def _describe(error: Exception) -> str:
    """The error in one short line, without the folders of paths."""
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return re.sub(r"(?<![\w.])/(?:[^\s/'\":]+/)+", "", line)[:200]


# ------------------------------------------------------------------------------------------------------------------
# A run: its rows, its table, its record.


def run(op: str, gpu: Gpu, *, quick: bool = False) -> dict:
    """Measure one op, printing as it goes; returns the record that --save writes."""
    rows = [first := gpu.copy(op)]
    print(HEADER, line(first), sep="\n", flush=True)
    part, start = None, time.monotonic()
    for cell in importlib.import_module(f"kernels.ops.{op}.bench").cells(quick):
        if part is not None and cell.part != part:
            print(f"# {op} {part}: {time.monotonic() - start:.0f} s", flush=True)
            start = time.monotonic()
        part = cell.part
        for row in measure_calls(cell, gpu) if isinstance(cell, Calls) else measure(cell, gpu):
            rows.append(row)
            print(line(with_rates(row, _rate(first))), flush=True)
        gpu.clear()
    print(f"# {op} {part}: {time.monotonic() - start:.0f} s", flush=True)
    rows.append(last := gpu.copy(op))
    print(line(last), flush=True)
    copy = max(_rate(first), _rate(last))
    versions = runtime.versions()
    return {
        "op": op,
        **{name: versions[name] for name in ("GPU", "driver", "torch", "triton", "CUDA", "Python")},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "quick": quick,
        "sources_sha256": sources_sha256(op),
        "copy_tb_per_s": {"before": _rate(first), "after": _rate(last), "limit": copy},
        "rows": [asdict(with_rates(row, copy)) for row in rows],
    }


def _rate(row: Row) -> float:
    return row.bytes / row.us_p50 / 1e6 if row.us_p50 else math.nan


def with_rates(row: Row, copy: float) -> Row:
    """The row with TB/s, and % of the copy bandwidth `copy` in TB/s, where it has a time."""
    if row.us_p50 is None or row.bytes is None:
        return row
    return replace(row, tb_per_s=_rate(row), percent_of_copy=100 * _rate(row) / copy)


def save(record: dict, results: Path = RESULTS) -> Path:
    """Write results/<gpu>/<op>.json, whole or not at all; returns its path."""
    path = results / slug(record["GPU"]) / f"{record['op']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {key: value for key, value in record.items() if key != "rows"}
    rows = ",\n".join("  " + json.dumps(_rounded(row), ensure_ascii=False) for row in record["rows"])
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "rows": [\n{rows}\n ]\n}}\n'
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _rounded(row: dict) -> dict:
    return {key: float(f"{value:.5g}") if isinstance(value, float) else value for key, value in row.items()}


def recorded(op: str, gpu: str | None = None, results: Path = RESULTS) -> pandas.DataFrame:
    """What --save wrote for an op, a line a Row; attrs holds the rest: GPU, versions, date, sources_sha256, ….

    gpu: the folder's name, "h200"; default: the latest record.

    Raises:
        FileNotFoundError: nothing has been recorded.
    """
    import pandas

    record = load(op, gpu, results)
    frame = pandas.DataFrame(record.pop("rows"))
    frame.attrs = record
    return frame


def load(op: str, gpu: str | None = None, results: Path = RESULTS) -> dict:
    """The record as `run` returned it; see `recorded`."""
    records = [json.loads(path.read_text()) for path in recorded_files(f"{op}.json", results, gpu)]
    if not records:
        raise FileNotFoundError(f"{op}: nothing recorded{f' on {gpu}' if gpu else ''}; make gpu records, on a GPU")
    return max(records, key=lambda record: record["date"])


def _columns(*values: str) -> str:
    widths = (18, 10, 13, 13, 8, 8, 8, 17, 8, 10, 9, 6, 6)
    return " ".join(f"{v:<{w}}" if i < 6 else f"{v:>{w}}" for i, (v, w) in enumerate(zip(values, widths, strict=False)))


HEADER = (
    _columns(
        "op", "form", "implement.", "shape", "dtype", "activat.",
        "µs p50", "p20 – p80", "µs call", "MB", "MFLOP", "TB/s", "% copy",
    )
    + "  match"
)  # fmt: skip


def line(row: Row) -> str:
    """The row as a line of the printed table."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    between = f"{number(row.us_p20)} – {number(row.us_p80)}" if row.us_p50 is not None else ""
    shape = f"{row.rows}×{row.columns}"
    text = _columns(
        row.op, row.form, row.implementation, shape, row.dtype, row.activation, number(row.us_p50), between,
        number(row.call_us), number(row.bytes and row.bytes / 1e6), number(row.flops and row.flops / 1e6),
        number(row.tb_per_s), number(row.percent_of_copy),
    )  # fmt: skip
    return f"{text}  {row.match}"


# ------------------------------------------------------------------------------------------------------------------
# What the figures must show.


def summary(record: dict) -> list[str]:
    """One verdict a part that was measured: met or missed, with the figure; what misses is listed below it."""
    rows = [Row(**row) for row in record["rows"]]
    verdicts = (
        ("bandwidth", lambda found: judge_bandwidth(found, record["copy_tb_per_s"]["limit"])),
        ("grid", judge_grid),
        ("calls", judge_calls),
        ("backward", judge_backward),
    )
    lines = []
    for part, verdict in verdicts:
        found = [row for row in rows if row.part == part]
        if found:
            met, figure, misses = verdict(found)
            lines += [f"{record['op']} {part}: {'met' if met else 'MISSED'}: {figure}", *(f"    {m}" for m in misses)]
    failed = [row for row in rows if row.match.startswith("FAILED")]
    return lines + [f"FAILED: {label(row)}: {row.match}" for row in failed]


def label(row: Row) -> str:
    """implementation form rows×columns dtype activation."""
    parts = (row.implementation, row.form, f"{row.rows}×{row.columns}", row.dtype, row.activation)
    return " ".join(filter(None, parts))


def judge_bandwidth(rows: list[Row], copy: float) -> tuple[bool, str, list[str]]:
    """Ours within 1.03 (half precision: 1.05) of the necessary bytes at the copy bandwidth, in TB/s."""
    figures, misses = [], []
    for backend in OURS:
        found = [row for row in rows if row.implementation == backend]
        ratios = {row: row.us_p50 * copy * 1e6 / row.bytes if row.us_p50 else math.inf for row in found}
        misses += [
            f"{label(row)}: {ratio:.3f}"
            for row, ratio in ratios.items()
            if ratio > (1.03 if row.dtype == "float32" else 1.05)
        ]
        figures.append(f"{backend} at worst {max(ratios.values(), default=math.inf):.3f} of {len(found)}")
    figure = f"{', '.join(figures)} × the necessary bytes at the copy bandwidth; limit 1.03, bfloat16 1.05"
    return bool(rows) and not misses and "inf" not in figure, figure, misses


def judge_grid(rows: list[Row]) -> tuple[bool, str, list[str]]:
    """Each of ours within 1.05 (1.15 where the fastest peer takes less than 10 µs) of the fastest peer in 95 % of the
    cells, and in each other cell the better of ours within 1.25."""
    cells: dict[tuple, dict[str, float]] = {}
    for row in rows:
        cells.setdefault((row.rows, row.columns), {})[row.implementation] = row.us_p50 or math.inf
    within = dict.fromkeys(OURS, 0)
    misses, worst = [], 0.0
    for shape, times in cells.items():
        peer = min(times.get(peer, math.inf) for peer in PEERS)
        ratios = {backend: times.get(backend, math.inf) / peer if peer < math.inf else math.inf for backend in OURS}
        limit = 1.15 if peer < 10 else 1.05
        for backend in OURS:
            within[backend] += ratios[backend] <= limit
        if max(ratios.values()) > limit:
            better = min(ratios.values())
            worst = max(worst, better)
            each = ", ".join(f"{backend} {ratio:.3f}" for backend, ratio in ratios.items())
            fastest = min(PEERS, key=lambda peer: times.get(peer, math.inf))
            misses.append(f"{shape[0]}×{shape[1]}: {each}; limit {limit}, {fastest} {peer:.2f} µs; better {better:.3f}")
    shares = {backend: count / len(cells) for backend, count in within.items()}
    figure = "; ".join(f"{backend} within the limit in {share:.1%}" for backend, share in shares.items())
    figure += f" of {len(cells)} cells (95 % asked), elsewhere the better of the two within {worst:.3f} (1.25 asked)"
    return min(shares.values()) >= 0.95 and worst <= 1.25, figure, misses


def judge_calls(rows: list[Row]) -> tuple[bool, str, list[str]]:
    """A call of the CUDA backend at most 1.2 × PyTorch's own smallest call of the same form."""
    figures, met = [], True
    for form in dict.fromkeys(row.form for row in rows):
        found = [row for row in rows if row.form == form]
        base = next(row for row in found if row.match == "baseline" or row.implementation not in (*OURS, *PEERS))
        ratios = {
            row.implementation: row.call_us / base.call_us if row.call_us and base.call_us else math.inf
            for row in found
            if row is not base
        }
        met &= ratios.get("cuda", math.inf) <= 1.2
        each = ", ".join(f"{backend} {ratio:.2f}" for backend, ratio in ratios.items())
        figures.append(f"{form}: {each} × {base.implementation} ({base.call_us or math.nan:.2f} µs)")
    return met, "; ".join(figures) + "; limit 1.2 for cuda", []


def judge_backward(rows: list[Row]) -> tuple[bool, str, list[str]]:
    """Ours at most 1.1 × torch.compile's backward."""
    def cell(row: Row) -> tuple:
        return row.rows, row.columns, row.dtype, row.activation

    compiled = {cell(row): row.us_p50 for row in rows if row.implementation == "torch.compile"}
    figures, misses = [], []
    for backend in OURS:
        ratios = {}
        for row in (row for row in rows if row.implementation == backend):
            peer = compiled.get(cell(row))
            ratios[row] = row.us_p50 / peer if row.us_p50 and peer else math.inf
        misses += [f"{label(row)}: {ratio:.3f}" for row, ratio in ratios.items() if ratio > 1.1]
        figures.append(f"{backend} at worst {max(ratios.values(), default=math.inf):.3f} of {len(ratios)}")
    figure = f"{', '.join(figures)} × torch.compile; limit 1.1"
    return not misses and "inf" not in figure, figure, misses


# ------------------------------------------------------------------------------------------------------------------


def ops() -> list[str]:
    """The ops that have a benchmark."""
    return sorted(path.parent.name for path in KERNELS.glob("ops/*/bench.py"))


def show(op: str, results: Path = RESULTS) -> None:
    """Print the recorded table, labelled as recorded."""
    try:
        record = load(op, results=results)
    except FileNotFoundError as error:
        print(error)
        return
    changed = "not changed" if record["sources_sha256"] == sources_sha256(op) else "changed"
    versions = ", ".join(f"{name} {record[name]}" for name in ("driver", "CUDA", "torch", "triton", "Python"))
    print(f"{op}, recorded on {record['GPU']}, {record['date']}{', --quick' if record['quick'] else ''} ({versions});")
    print(f"its sources have {changed} since.")
    print(HEADER)
    for row in record["rows"]:
        print(line(Row(**row)))
    print(*summary(record), sep="\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.measure bench", description="What the ops cost on this GPU.")
    parser.add_argument("op", nargs="*", help=f"default: all ({', '.join(ops())})")
    parser.add_argument("--save", action="store_true", help="record in traces/results/<gpu>/<op>.json")
    parser.add_argument("--quick", action="store_true", help="a few cells, in under a minute")
    arguments = parser.parse_args(argv)
    if arguments.save and arguments.quick:
        parser.error("--quick measures a part of the cells: it is not saved over the record of all")
    unknown = [op for op in arguments.op if op not in ops()]
    if unknown:
        parser.error(f"unknown op {', '.join(unknown)}: expected one of {', '.join(ops())}")
    chosen = arguments.op or ops()
    if runtime.device().type != "cuda":
        print("No GPU here: nothing is measured. What was recorded:\n")
        for op in chosen:
            show(op)
        return 0
    gpu, records, start = Gpu(), [], time.monotonic()
    for op in chosen:
        records.append(run(op, gpu, quick=arguments.quick))
        if arguments.save:
            print(f"saved {save(records[-1]).relative_to(KERNELS.parent)}")
    print(f"\n{records[0]['GPU']}, torch {records[0]['torch']}; {time.monotonic() - start:.0f} s in all")
    for record in records:
        copy = record["copy_tb_per_s"]
        print(f"{record['op']}: copy {copy['before']:.3f} TB/s before, {copy['after']:.3f} after")
        print(*summary(record), sep="\n")
    return int(any(row["match"].startswith("FAILED") for record in records for row in record["rows"]))
