"""Where a training step's time goes: record a torch.profiler trace, read it as tables, draw it.

    python -m model.profiling story [--only 01,03]   on a GPU: record the lecture's ten steps in traces/
    python -m model.profiling table                  bring the table in traces/README.md up to date
    python -m model.profiling generated              on a GPU: what torch.compile generates, in traces/generated/

A trace's fields are those of Kineto, the library behind torch.profiler (https://github.com/pytorch/kineto).
HolisticTraceAnalysis 0.5 reads the same files, but none without a GPU's work; what is wanted here are sums and unions
of intervals, which pandas and NumPy do.
"""

import argparse
import gzip
import itertools
import json
import math
import os
import re
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import Timer

from data.cli import Parser, UserError
from data.criteo import SPARSE, CriteoBatches, Feature
from data.synthetic import CATEGORIES, SyntheticConfig, generate, hashed_ids
from kernels import inductor, runtime
from model import lora
from model.config import Interaction, Optimizer, preset
from model.dlrm import DLRM
from model.hashing import Hash

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "traces"
BEGIN, END = "<!-- begin: python -m model.profiling table -->", "<!-- end -->"
MAX_BYTES = 2_000_000  # of a trace file
GAP_US = 5.0  # a shorter pause between kernels is not counted as a gap

_HOST = ("cpu_op", "user_annotation", "python_function")
_CALLS = ("cuda_runtime", "cuda_driver")
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_WAYS = {  # that the host spends its time in
    "launch": r"cu(da)?(Launch\w*Kernel|GraphLaunch)",
    "copy": r"cu(da)?Memcpy",
    "item": r"aten::(item|_local_scalar_dense)$",
    "synchronize": r"cu(da)?[A-Za-z]*Synchronize",
}


# Recording ------------------------------------------------------------------------------------------------------------


def record(
    step: Callable[[], object],
    out_dir: str | Path,
    *,
    command: str = "",
    config: Mapping | None = None,
    device: str | torch.device | None = None,
    active: int = 3,
    timed: int = 5,
    stacks: bool = True,
) -> dict:
    """Time `step`, then profile `active` steps of it; both go into a folder that TensorBoard shows as a run.

    out_dir/NAME.1.pt.trace.json.gz (NAME: the folder's) is the trace, with shapes and memory. stacks: with Python's
    calls too, which slow the host down; they are left out if the file would exceed MAX_BYTES.
    out_dir/run.json is what is returned: command, config, versions, date; step_ms, without the profiler
    (the median of ten blocks of `timed` steps, each block waited for); peak_bytes, torch.cuda.max_memory_allocated
    meanwhile (None on the CPU); facts, the trace's StepFacts; key_averages, the profiler's own totals over the active
    steps, count and µs by name: of kernels and copies on a GPU, on the CPU of operators without what they call.
    No file names the machine, the user or an absolute path.

    The GPU is idle when the first active step begins: all work recorded is that of the active steps.
    """
    device, out = torch.device(device or runtime.device()), Path(out_dir).resolve()
    cuda = device.type == "cuda"
    for _ in range(10):  # compilation, caches, the allocator
        step()
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    step_ms = float(step_times({"step": step}, timed)["step"].median())
    peak_bytes = torch.cuda.max_memory_allocated(device) if cuda else None

    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA][: 1 + cuda]
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=active, repeat=1)
    # acc_events: or torch warns that it drops the events of earlier cycles, of which there are none.
    options = {"record_shapes": True, "profile_memory": True, "with_stack": stacks, "acc_events": True}
    with torch.profiler.profile(activities=activities, schedule=schedule, **options) as profiler:
        for done in range(1, 3 + active + 1):
            step()
            if done == 3 and cuda:
                torch.cuda.synchronize(device)
            profiler.step()
    out.mkdir(parents=True, exist_ok=True)
    trace = read(export(profiler, out / f"{out.name}.1.pt.trace.json.gz"))
    run = {
        "name": out.name,
        "command": command,
        **runtime.versions(),
        **({} if cuda else {"GPU": "none", "driver": "none"}),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "config": dict(config or {}),
        "step_ms": step_ms,
        "active_steps": active,
        "peak_bytes": peak_bytes,
        "facts": asdict(step_facts(trace)),
        "key_averages": _totals(profiler, trace, cuda),
    }
    text = _anonymous(json.dumps(run, indent=1))
    (out / "run.json").write_text(text + "\n")
    return json.loads(text)


def step_times(steps: Mapping[str, Callable[[], object]], block: int = 5, rounds: int = 10) -> pd.DataFrame:
    """ms a step, without a profiler: a column a step, a row a round, in which each runs a block of `block` steps.

    A block is waited for. Since the steps take turns, what slows the machine down for a while slows all of them:
    compare within a row.
    """
    threads = torch.get_num_threads()
    timers = {name: Timer("step()", globals={"step": step}, num_threads=threads) for name, step in steps.items()}
    # Timer waits for the GPU, and runs a step twice before it times a block.
    return 1e3 * pd.DataFrame([{n: timer.timeit(block).mean for n, timer in timers.items()} for _ in range(rounds)])


def export(profiler: torch.profiler.profile, path: Path) -> Path:
    """Write a finished profile as .json.gz of at most MAX_BYTES that names no machine, user or absolute path.

    ValueError if it is larger even without Python's calls.
    """
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        trace = json.loads(Path(folder, "trace.json").read_bytes())
    for field in ("host_name", "traceName"):
        trace.pop(field, None)
    for left_out in (None, "python_function"):
        trace["traceEvents"] = [e for e in trace["traceEvents"] if left_out is None or e.get("cat") != left_out]
        packed = gzip.compress(_anonymous(json.dumps(trace)).encode(), mtime=0)
        if len(packed) <= MAX_BYTES:
            path.write_bytes(packed)
            return path
    raise ValueError(f"{path.name}: {len(packed):,} bytes, more than {MAX_BYTES:,}: record fewer active steps")


def _totals(profiler: torch.profiler.profile, trace: "Trace", cuda: bool) -> list[dict]:
    names = set(trace.events.loc[trace.events["cat"].isin(_GPU if cuda else ("cpu_op",)), "name"])
    on_device = torch.autograd.DeviceType.CUDA if cuda else torch.autograd.DeviceType.CPU
    wanted = [total for total in profiler.key_averages() if total.key in names and total.device_type == on_device]
    us = [total.self_device_time_total if cuda else total.self_cpu_time_total for total in wanted]
    return [{"name": w.key, "count": w.count, "us": round(t, 3)} for w, t in zip(wanted, us, strict=True)]


def _anonymous(text: str) -> str:
    """JSON text with each absolute path made relative to the repository, to Python's libraries, or just a file name."""
    known = {str(ROOT), sys.prefix, sys.base_prefix, str(Path.home()), tempfile.gettempdir()}
    known |= {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}
    paths = [re.escape(json.dumps(path)[1:-1]) for path in sorted(known, key=len, reverse=True) if len(path) > 1]
    letters = r"""(?:[^/\s"'\\:,<>()|]|\\u[\da-f]{4})+"""  # JSON escapes what is not ASCII
    words = rf"{letters}(?: (?!-){letters})*"  # not a command's next option
    # Any other; elsewhere than in quotes and after /home a space ends a path.
    paths += [rf"""(?<=["'])(?:/{words})+""", rf"/(?:home|Users)/{words}(?:/{letters})*", rf"(?:/{letters})+"]
    start = r"(?:(?<![\w./-])|(?<=\\[nrt]))(?:file://[\w.-]*)?"  # \n, as JSON writes a line's end, is no letter
    text = re.sub(rf"{start}(?:{'|'.join(paths)})/", "", text)
    return re.sub(r"torchinductor_[\w.-]+", "torchinductor", text)  # Inductor's folder bears the user's name


# Reading --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """What a trace holds; times in µs since the first recorded step began.

    steps: a row a ProfilerStep# of the host: ts, end.
    events: a row an event: cat, name, thread, ts, dur, end, correlation (a launch and what it started have the same),
        bytes (NaN: not known), step. The host's events belong to the step that they begin in; the GPU's, which run
        later, to the one that launched them. -1: to none.
    peaks: most bytes allocated, by device type (0 CPU, 1 CUDA).
    """

    name: str
    steps: pd.DataFrame
    events: pd.DataFrame
    peaks: dict[int, int]

    def of(self, *categories: str) -> pd.DataFrame:
        """The events of these categories that belong to a step."""
        return self.events[self.events["cat"].isin(categories) & (self.events["step"] >= 0)]


def read(trace: Trace | str | Path) -> Trace:
    """Read a trace of torch.profiler: a .json or .json.gz file, or a folder that holds one.

    UserError if it is truncated, empty, not a trace, or has no step markers, or a GPU's work but no launch in a step.
    """
    if isinstance(trace, Trace):
        return trace
    path = Path(trace)
    if path.is_dir():
        found = sorted(path.glob("*.pt.trace.json*"))
        if len(found) != 1:
            raise UserError(f"{path}: expected one file *.pt.trace.json or .json.gz, found {len(found)}")
        path = found[0]
    rows, peaks = [], {}
    try:
        for event in _load(path):
            more = event.get("args", {})
            if event["ph"] == "X":
                words = event.get("cat", ""), event["name"], f"{event['pid']} {event['tid']}"
                numbers = event["ts"], event["dur"], more.get("correlation", -1)
                sound = all(isinstance(word, str) for word in words) and all(map(math.isfinite, numbers))
                if not (sound and event["dur"] >= 0):
                    raise ValueError(f"{event}")
                rows.append((*words, *map(float, numbers), float(more.get("bytes", np.nan))))
            elif event["name"] == "[memory]":
                peaks[more["Device Type"]] = max(peaks.get(more["Device Type"], 0), more["Total Allocated"])
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise UserError(f"{path}: not a trace of torch.profiler: {type(error).__name__}: {error}") from None
    events = pd.DataFrame(rows, columns=["cat", "name", "thread", "ts", "dur", "correlation", "bytes"])
    is_step = (events["cat"] == "user_annotation") & events["name"].str.startswith("ProfilerStep#")
    if not is_step.any():
        raise UserError(f"{path}: no step markers (ProfilerStep#): record with a schedule and profiler.step()")
    events["ts"] -= events.loc[is_step, "ts"].min()  # before dur is added: the clock's floats are too coarse for it
    events["end"] = events["ts"] + events["dur"]
    steps = events.loc[is_step, ["ts", "end"]].sort_values("ts", ignore_index=True)

    calls = events[events["cat"].isin(_CALLS) & (events["correlation"] >= 0)].drop_duplicates("correlation")
    launched = events["correlation"].map(calls.set_index("correlation")["ts"])
    on_gpu = events["cat"].isin(_GPU)
    begun = events["ts"].where(~on_gpu, launched).to_numpy()
    step = steps["ts"].searchsorted(np.nan_to_num(begun, nan=-1.0), side="right") - 1
    events["step"] = np.where(begun < steps["end"].to_numpy()[step], step, -1)
    if on_gpu.any() and (events.loc[on_gpu, "step"] < 0).all():
        raise UserError(f"{path}: GPU work, but no launch of it in the steps")
    return Trace(path.name.partition(".")[0], steps, events, peaks)


def _load(path: Path) -> list[dict]:
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path}: truncated or damaged: {error}") from None
    if not data.strip():
        raise UserError(f"{path}: the file is empty")
    try:
        raw = json.loads(data)
    except ValueError as error:
        raise UserError(f"{path}: truncated, or not JSON: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("traceEvents"), list):
        raise UserError(f"{path}: not a trace of torch.profiler: it has no list traceEvents")
    return raw["traceEvents"]


@dataclass(frozen=True)
class StepFacts:
    """One step of a trace: µs and numbers are means over the recorded steps; None is what a CPU's trace cannot tell.

    device: cuda or cpu. step_us: how long it takes, the profiler's own work included (`record` measures it without).
    launch_us, copy_us, item_us, synchronize_us: the host's time in calls that launch a kernel or a graph, that copy,
        in Tensor.item() (which copies and waits), and in calls that wait for the GPU.
    peak_bytes: most bytes allocated on the device, on the CPU since the profiler began.
    kernels: kernels, copies and memsets that ran. launches: the calls that started them; a CUDA graph is one.
    busy_us, busy_percent: the time in which at least one of them ran.
    gaps, gap_us, longest_gap_us: the pauses of more than GAP_US between them: number, sum, longest of all.

    On a GPU step_us, busy and gaps are measured from the start of the first step's first kernel to that of the last
    step's: a whole number of periods, whether host or GPU is the slower one. The host's steps would not do, for the GPU
    works behind the host; nor would ProfilerStep# as the GPU has it, which leaves out the wait for the next step. Steps
    without GPU work are no first or last one; if one step alone has any, all are measured from their begin on the host
    until both are done. On the CPU they are the host's.
    """

    device: str
    steps: int
    step_us: float
    launch_us: float
    copy_us: float
    item_us: float
    synchronize_us: float
    peak_bytes: int | None = None
    kernels: float | None = None
    launches: float | None = None
    busy_us: float | None = None
    busy_percent: float | None = None
    gaps: float | None = None
    gap_us: float | None = None
    longest_gap_us: float | None = None


def step_facts(trace: Trace | str | Path) -> StepFacts:
    """What a step of the trace costs; UserError as for `read`."""
    trace = read(trace)
    work, steps, count = trace.of(*_GPU), trace.steps, len(trace.steps)
    host = {f"{way}_us": _length(_union(_host(trace, way))) / count for way in _WAYS}
    if work.empty:
        return StepFacts("cpu", count, _length(steps.to_numpy()) / count, **host, peak_bytes=trace.peaks.get(0))
    firsts = work.groupby("step")["ts"].min()
    start, end, periods = firsts.iloc[0], firsts.iloc[-1], int(firsts.index[-1] - firsts.index[0])
    if not periods:
        start, end, periods = steps["ts"].iloc[0], max(steps["end"].iloc[-1], work["end"].max()), count
    # Whatever the GPU does then: the end of what came before the first step, too.
    everything = trace.events[trace.events["cat"].isin(_GPU)]
    busy = np.clip(_union(everything[(everything["end"] > start) & (everything["ts"] < end)]), start, end)
    pauses = np.append(busy[:, 0], end) - np.append(start, busy[:, 1])
    pauses = pauses[pauses > GAP_US]
    return StepFacts(
        "cuda", count, float(end - start) / periods, **host, peak_bytes=trace.peaks.get(1),
        kernels=len(work) / count, launches=work["correlation"].nunique() / count,
        busy_us=_length(busy) / periods, busy_percent=100 * _length(busy) / float(end - start),
        gaps=len(pauses) / periods, gap_us=float(pauses.sum()) / periods, longest_gap_us=float(pauses.max(initial=0)),
    )  # fmt: skip


def summarize(trace: Trace | str | Path) -> pd.DataFrame:
    """A row a kernel (on the CPU: an operator), the most expensive first; UserError as for `read`.

    Columns: count (how often it runs in a step), us (µs a step; an operator's without what it calls), share (of the
    time in which the GPU is busy with the steps; on the CPU of the steps, of which Python has the rest), bytes (a step;
    of copies and memsets, NaN elsewhere).
    """
    trace = read(trace)
    rows, count = trace.of(*_GPU), len(trace.steps)
    whole = _length(_union(rows)) if len(rows) else _length(trace.steps.to_numpy())
    rows = rows.assign(us=rows["dur"], calls=1) if len(rows) else _own_times(trace)
    groups = rows.groupby("name")
    us, calls, moved = groups["us"].sum(), groups["calls"].sum(), groups["bytes"].sum(min_count=1)
    table = pd.DataFrame({"count": calls / count, "us": us / count, "share": us / whole, "bytes": moved / count})
    return table.sort_values("us", ascending=False, kind="stable")


def compare(a: Trace | str | Path, b: Trace | str | Path, tolerance: float = 0.1) -> pd.DataFrame:
    """What became of each kernel (on the CPU: operator) from trace a to trace b, the largest change first.

    Columns: "count a", "us a", "count b", "us b", "change us" (b - a), change (disappeared, appeared; more or fewer
    calls; else faster or slower by more than `tolerance`, or same). The last row, "total", is the sum.
    """
    before, after = summarize(a)[["count", "us"]].add_suffix(" a"), summarize(b)[["count", "us"]].add_suffix(" b")
    table = before.join(after, how="outer").fillna(0.0)
    table["change us"] = table["us b"] - table["us a"]
    table = table.sort_values("change us", key=abs, ascending=False, kind="stable")
    table.loc["total"] = table.sum()
    conditions = {
        "disappeared": table["count b"] == 0,
        "appeared": table["count a"] == 0,
        "more": table["count b"] > table["count a"],
        "fewer": table["count b"] < table["count a"],
        "faster": table["us b"] < (1 - tolerance) * table["us a"],
        "slower": table["us b"] > (1 + tolerance) * table["us a"],
    }
    return table.assign(change=np.select(list(conditions.values()), list(conditions), "same"))


def _host(trace: Trace, way: str) -> pd.DataFrame:
    events = trace.of("cpu_op", *_CALLS)
    return events[events["name"].str.match(_WAYS[way])]


def _own_times(trace: Trace) -> pd.DataFrame:
    """The steps' operators with us, their duration without what they call, and calls (0: by one of the same name)."""
    events = trace.of(*_HOST).sort_values(["thread", "ts", "end"], ascending=[True, True, False], kind="stable")
    us, calls = events["dur"].to_numpy(copy=True), np.ones(len(events), int)
    open_: list[tuple] = []  # the events that the next one may be called by: thread, end, index, name
    columns = (events[name] for name in ("thread", "ts", "dur", "end", "name"))
    for i, (thread, start, dur, end, name) in enumerate(zip(*columns, strict=True)):
        while open_ and (open_[-1][0] != thread or open_[-1][1] <= (start + end) / 2):  # rounded, ends may cross
            open_.pop()
        if open_:
            us[open_[-1][2]] -= dur
            calls[i] = open_[-1][3] != name
        open_.append((thread, end, i, name))
    return events.assign(us=us, calls=calls)[(events["cat"] == "cpu_op").to_numpy()]


def _union(events: pd.DataFrame) -> np.ndarray:
    """The times that events cover, as disjoint intervals [n, 2] in order."""
    spans = events[["ts", "end"]].to_numpy(float)
    spans = spans[spans[:, 0].argsort(kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    opens = np.append(True, spans[1:, 0] > reach[:-1])[: len(spans)]
    closes = np.append(opens[1:], True)[: len(spans)]
    return np.stack([spans[opens, 0], reach[closes]], axis=1)


def _length(intervals: np.ndarray) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


# Pictures -------------------------------------------------------------------------------------------------------------

_COLOURS = {
    "operator": "#9cc3e6", "item": "#7b3fa0", "launch": "#1f5fa8", "copy": "#e8912d", "synchronize": "#c0392b",
    "kernel": "#2e8b57", "another step's": "#d5dad7",
}  # fmt: skip


def timeline(*traces: Trace | str | Path, step: int = 1) -> "Figure":
    """One step of each trace, one above the other on one scale of time: host, its calls to CUDA, GPU.

    step: which of the recorded ones, from 0 (the last where there are fewer). A picture begins where the host begins
    the step, and ends where host and GPU are done with it; what is done for other steps is pale. UserError as for
    `read`.
    """
    import matplotlib.pyplot as plt  # here, so that tables need no drawing library

    found = [read(trace) for trace in traces]  # a bad one leaves no figure open
    size = (11, 0.7 + 1.5 * len(traces))
    figure, axes = plt.subplots(len(traces), figsize=size, sharex=True, squeeze=False, layout="constrained")
    ms = [_draw(ax, trace, step) for ax, trace in zip(axes[:, 0], found, strict=True)]
    axes[-1, 0].set(xlim=(0, max(ms)), xlabel="ms since the host began the step")
    labels = {label: bar for ax in axes[:, 0] for bar, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels, loc="outside upper center", ncols=len(labels), fontsize=8, frameon=False)
    return figure


def _draw(ax, trace: Trace, step: int) -> float:
    """Draw a step (or the last one); returns its length in ms."""
    step = min(step, len(trace.steps) - 1)
    facts, work = step_facts(trace), trace.events[trace.events["cat"].isin(_GPU)]
    start, end = trace.steps.loc[step, ["ts", "end"]]
    end = max([end, *work.loc[work["step"] == step, "end"]])
    lanes = {
        "host": {"operator": trace.of("cpu_op"), "item": _host(trace, "item")},
        "CUDA calls": {way: _host(trace, way) for way in ("launch", "copy", "synchronize")},
        "GPU": {"kernel": work[work["cat"] == "kernel"], "copy": work[work["cat"] != "kernel"]},
    }
    shown = list(lanes)[: 3 if facts.device == "cuda" else 1]
    for y, lane in enumerate(shown):
        for kind, events in lanes[lane].items():
            ours = events["step"] == step
            for label, part in (("another step's", events[~ours]), (kind, events[ours])):
                spans = (np.clip(_union(part), start, end) - start) / 1e3
                spans = [(begin, stop - begin) for begin, stop in spans if stop > begin]
                if spans:  # what is far narrower than a pixel stays visible by its outline
                    bars = {"color": _COLOURS[label], "linewidth": 0.15, "snap": False}
                    ax.broken_barh(spans, (y - 0.4, 0.8), label=label, **bars)
    gpu = "" if facts.busy_percent is None else f", {facts.kernels:.0f} kernels, GPU busy {facts.busy_percent:.0f} %"
    ax.set_title(f"{trace.name}: {facts.step_us / 1e3:.2f} ms a step{gpu}", loc="left", fontsize=9)
    ax.set_yticks(range(len(shown)), shown)
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return (end - start) / 1e3


# Memory ---------------------------------------------------------------------------------------------------------------


def memory_snapshot(step: Callable[[], object]) -> pd.DataFrame:
    """The memory allocated on the current GPU while step() runs, as `allocated_over_time` gives it. Needs a GPU.

    RuntimeError if a memory history is recorded already: it would be ended.
    """
    torch.cuda.synchronize()
    if torch._C._cuda_isHistoryEnabled():
        raise RuntimeError("a memory history is recorded already: end it, _record_memory_history(enabled=None), first")
    torch.cuda.memory._record_memory_history(context=None, stacks="python")
    try:
        step()
        torch.cuda.synchronize()
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    return allocated_over_time(snapshot, torch.cuda.current_device())


def allocated_over_time(snapshot: dict, device: int = 0) -> pd.DataFrame:
    """A row an allocation or a free of what torch.cuda.memory._snapshot returns, for one GPU.

    Columns: us (since the first), bytes (allocated after it). The form of a snapshot:
    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html#snapshot-api-reference
    """
    signs = {"alloc": 1, "free_requested": -1}
    history = [entry for entry in snapshot["device_traces"][device] if entry["action"] in signs]
    change = np.array([signs[entry["action"]] * entry["size"] for entry in history], np.int64)
    us = np.array([entry["time_us"] for entry in history], np.int64)
    at_end = sum(segment["allocated_size"] for segment in snapshot["segments"] if segment["device"] == device)
    return pd.DataFrame({"us": us - us[:1].sum(), "bytes": at_end - change.sum() + change.cumsum()})


# Without a trace -----------------------------------------------------------------------------------------------------


class Operator(NamedTuple):
    """A call of an operator: its name, in place or not, and the bytes of the tensors that it takes and gives."""

    name: str
    read: int
    written: int


class Operators(TorchDispatchMode):
    """Notes the operators that compute something, below autograd: with Operators() as operators: …; operators.seen.

    Left out is a view: it computes nothing and gives the memory that it was given. A number that is passed as a 0-d
    tensor on the CPU, as the ops of kernels/ take a multiplier, counts no bytes. Dense tensors only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Operator] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        taken, given = ([x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)] for tree in ((args, kwargs), out))
        same = {x.untyped_storage()._cdata for x in taken} & {x.untyped_storage()._cdata for x in given}
        if not same or function._schema.is_mutable:
            read = sum(x.nbytes for x in taken if x.dim() or x.device.type != "cpu")
            written = sum(x.nbytes for x in given)
            self.seen.append(Operator(function._schema.name.split("::")[1].rstrip("_"), read, written))
        return out


# The story ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A training step of the story: zero_grad, forward, loss, backward, optimizer; with sync_metrics also reading the
    loss, as model.train --sync-metrics does. It takes `batches` batches in turn, on the device before the clock starts.

    Data: data.synthetic, seed 0; all ids of its default configuration are known. What is not said here is the preset's.
    compile: torch.compile's mode; "": eager. blocking: under CUDA_LAUNCH_BLOCKING=1.
    """

    name: str
    preset: str
    interaction: Interaction = Interaction.DOT
    hash: Hash = Hash.MODULUS
    compile: str = ""
    sync_metrics: bool = False
    blocking: bool = False
    optimizer: Optimizer = Optimizer.SGD
    batch_size: int = 2048
    batches: int = 4


STORY = (
    Run("01_index_naive", "small", hash=Hash.INDEX_NAIVE, sync_metrics=True),
    Run("02_index_naive_blocking", "small", hash=Hash.INDEX_NAIVE, sync_metrics=True, blocking=True),
    Run("03_index", "small", hash=Hash.INDEX),
    Run("04_modulus", "small"),
    Run("05_modulus_compiled", "small", compile="default"),
    Run("06_main_outer", "main", Interaction.OUTER),
    Run("07_main_outer_compiled", "main", Interaction.OUTER, compile="default"),
    Run("08_main_dot", "main"),
    Run("09_main_dot_compiled", "main", compile="default"),
    Run("10_main_dot_cuda_graphs", "main", compile="reduce-overhead"),
)


def training_step(run: Run, device: torch.device | str) -> tuple[Callable[[], object], dict]:
    """The run's step, and its config for run.json: run, model, train, ids (their number, over all tables)."""
    from model import train as training  # here: reading traces needs no TensorBoard

    cardinalities = SyntheticConfig().cardinalities
    features = {
        name: Feature(ids, hashed_ids(category, np.arange(ids)).astype(np.int64))  # most frequent first
        for name, category, ids in zip(SPARSE, CATEGORIES, cardinalities, strict=True)
    }
    base = preset(run.preset)
    shape = replace(base.model, interaction=run.interaction, hash=run.hash).with_metadata(features)
    chosen = replace(base, model=shape, train=replace(base.train, optimizer=run.optimizer, batch_size=run.batch_size))
    training.check_comparisons(shape, chosen.train)
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(next(generate(run.batches * run.batch_size)), f"{folder}/rows.parquet")
        batches = [[tensor.to(device) for tensor in batch] for batch in CriteoBatches(folder, run.batch_size)]
    torch.manual_seed(chosen.train.seed)
    model = DLRM(shape, shape.vocabularies(features)).to(device)
    optimizer = training.make_optimizer(model, chosen)
    forward = torch.compile(model, mode=run.compile) if run.compile else model
    turns = itertools.cycle(batches)

    def step() -> None:
        loss = training.train_step(forward, optimizer, *next(turns))
        if run.sync_metrics:
            loss.item()

    config = {"run": asdict(run), "model": asdict(shape), "train": asdict(chosen.train), "ids": sum(cardinalities)}
    return step, config


def readme_table(traces: Path = TRACES) -> str:
    """The table of the recorded runs in Markdown, from their run.json."""
    lines = ["| step | command | GPU | step, ms | launches | kernels | GPU busy % |", "|---|---|---|---|---|---|---|"]
    for path in sorted(traces.glob("*/run.json")):
        run = json.loads(path.read_text())
        facts = [run["facts"][name] for name in ("launches", "kernels", "busy_percent")]
        cells = [run["GPU"], f"{run['step_ms']:.3g}", *("–" if fact is None else f"{fact:.0f}" for fact in facts)]
        lines.append(f"| [{run['name']}]({path.parent.name}/) | `{run['command']}` | {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else "None is recorded yet: `python -m model.profiling story`, on a GPU."


def write_table(traces: Path = TRACES) -> None:
    """Put the table between its markers in traces/README.md; ValueError if they are not there."""
    readme = traces / "README.md"
    before, begin, rest = readme.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{readme} must have the lines {BEGIN} and {END}")
    readme.write_text(f"{before}{begin}\n\n{readme_table(traces)}\n\n{end}{after}")


def generated_cases() -> dict[str, tuple[Callable, tuple, bool]]:
    """What `generated` records beside the two ops: name → (module, its inputs, backward too), at the story's sizes."""
    torch.manual_seed(0)
    cases = {"lora_mlp": (lora.MLP((512, 1024, 512), rank=16, alpha=24.0), (torch.randn(2048, 512),), True)}
    for name in ("small", "main"):
        shape = replace(preset(name).model, cardinalities=SyntheticConfig().cardinalities)
        sparse = torch.randint(2**32, (2048, len(shape.cardinalities)))
        cases[f"dlrm_{name}"] = (DLRM(shape), (torch.randn(2048, 13), sparse), True)
    return cases


def _record(run: Run, out: Path, device: str | None, active: int, command: str) -> None:
    os.environ["CUDA_LAUNCH_BLOCKING"] = str(int(run.blocking))  # CUDA reads it when it starts: below
    step, config = training_step(run, device or runtime.device())
    # Without stacks: they slow the host down, and the GPU would wait for it more than it does.
    record(step, out / run.name, command=command, config=config, device=device, active=active, stacks=False)


def story(runs: Iterable[Run], out: Path, device: str | None = None, active: int = 3, options: str = "") -> int:
    """Record the runs in out/; returns how many failed. options: the command's, for run.json.

    Each has a process of its own: CUDA_LAUNCH_BLOCKING has to be set before CUDA starts, and its allocator is empty.
    """
    failed = 0
    for run in runs:
        command = f"python -m model.profiling story --only {run.name[:2]}{options}"
        process = get_context("spawn").Process(target=_record, args=(run, out, device, active, command))
        process.start()
        process.join()
        failed += process.exitcode != 0
        print(f"{run.name}:", f"FAILED ({process.exitcode})" if process.exitcode else "recorded", flush=True)
    return failed


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit status: 0, 1 if a run failed, 2 for a mistake of the user's."""
    text = {"description": __doc__, "formatter_class": argparse.RawTextHelpFormatter}
    parser = Parser(prog="python -m model.profiling", **text)
    parser.add_argument("do", choices=("story", "table", "generated"), help="see above")
    parser.add_argument("--out", type=Path, default=TRACES, metavar="DIR", help="their folder (default: traces/)")
    parser.add_argument("--only", metavar="01,03", help="these runs only")
    parser.add_argument("--steps", type=int, metavar="N", help="recorded steps of a run (default: 3)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="rows a step (default: 2048)")
    parser.add_argument("--device", help="default: the GPU; cpu only tries it out")
    args = parser.parse_args(arguments)
    given = {"steps": args.steps, "batch-size": args.batch_size, "device": args.device}
    for name in ("steps", "batch-size"):
        if given[name] is not None and given[name] < 1:
            parser.error(f"argument --{name}: expected at least 1, got {given[name]}")
    if args.do == "table":
        try:
            write_table(args.out)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        return 0
    runs = {run.name[:2]: replace(run, batch_size=args.batch_size or run.batch_size) for run in STORY}
    chosen = args.only.split(",") if args.only else list(runs)
    if unknown := sorted(set(chosen) - set(runs)):
        parser.error(f"--only {','.join(unknown)}: expected some of {','.join(runs)}")
    if args.device is None and runtime.device().type != "cuda":
        parser.error("this is recorded on an NVIDIA GPU, and there is none here (story --device cpu tries it out)")
    if args.do == "generated":
        cases = inductor.cases() | generated_cases()
        inductor.record(cases, args.out / "generated", "python -m model.profiling generated")
        return 0
    options = "".join(f" --{name} {value}" for name, value in given.items() if value)
    failed = story([runs[number] for number in chosen], args.out, args.device, args.steps or 3, options)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
