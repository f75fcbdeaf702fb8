"""What a trace says: a step's facts, the cost of each kernel, and what became of it in another trace."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from model.profiling.trace import CUDA_CALLS, GPU, HOST, Trace, read

GAP_US = 5.0  # a shorter pause between kernels is not counted as a gap
# The host's calls that a step's time is looked for in: kind → the names of its events.
HOST_CALLS = {
    "launch": r"cu(da)?(Launch\w*Kernel|GraphLaunch)",
    "copy": r"cu(da)?Memcpy",
    "item": r"aten::(item|_local_scalar_dense)$",
    "synchronize": r"cu(da)?[A-Za-z]*Synchronize",
}


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

    On a GPU step_us, busy and gaps are measured on the GPU's clock, from the start of the first step's first kernel to
    the start of the last step's first kernel. That is a whole number of steps, whether host or GPU is the slower one.
    The host's own steps would be the wrong measure, because the GPU works behind the host. Steps without GPU work are
    no first or last one; if one step alone has any, all are measured from their begin on the host until both are done.
    On the CPU they are the host's.
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
    work, steps, count = trace.of(*GPU), trace.steps, len(trace.steps)
    host = {f"{kind}_us": length(union(host_calls(trace, kind))) / count for kind in HOST_CALLS}
    if work.empty:
        return StepFacts("cpu", count, length(steps.to_numpy()) / count, **host, peak_bytes=trace.peaks.get(0))
    firsts = work.groupby("step")["ts"].min()
    start, end, periods = firsts.iloc[0], firsts.iloc[-1], int(firsts.index[-1] - firsts.index[0])
    if not periods:
        start, end, periods = steps["ts"].iloc[0], max(steps["end"].iloc[-1], work["end"].max()), count
    # Whatever the GPU does then: the end of what came before the first step, too.
    everything = trace.events[trace.events["cat"].isin(GPU)]
    busy = np.clip(union(everything[(everything["end"] > start) & (everything["ts"] < end)]), start, end)
    pauses = np.append(busy[:, 0], end) - np.append(start, busy[:, 1])
    pauses = pauses[pauses > GAP_US]
    return StepFacts(
        "cuda", count, float(end - start) / periods, **host, peak_bytes=trace.peaks.get(1),
        kernels=len(work) / count, launches=work["correlation"].nunique() / count,
        busy_us=length(busy) / periods, busy_percent=100 * length(busy) / float(end - start),
        gaps=len(pauses) / periods, gap_us=float(pauses.sum()) / periods, longest_gap_us=float(pauses.max(initial=0)),
    )


def summarize(trace: Trace | str | Path) -> pd.DataFrame:
    """A row a kernel (on the CPU: an operator), the most expensive first; UserError as for `read`.

    Columns: count (how often it runs in a step), us (µs a step; an operator's without what it calls), share (of the
    time in which the GPU is busy with the steps; on the CPU of the steps, of which Python has the rest), bytes (a step;
    of copies and memsets, NaN elsewhere).
    """
    trace = read(trace)
    rows, count = trace.of(*GPU), len(trace.steps)
    whole = length(union(rows)) if len(rows) else length(trace.steps.to_numpy())
    rows = rows.assign(us=rows["dur"], calls=1) if len(rows) else _own_times(trace)
    groups = rows.groupby("name")
    us, calls, moved = groups["us"].sum(), groups["calls"].sum(), groups["bytes"].sum(min_count=1)
    table = pd.DataFrame({"count": calls / count, "us": us / count, "share": us / whole, "bytes": moved / count})
    return table.sort_values("us", ascending=False, kind="stable")


def kernel_us(trace: Trace | str | Path, *patterns: str) -> tuple[float, ...]:
    """For each regular expression µs a step of the kernels whose names it is found in. ValueError if there is none."""
    us = summarize(trace)["us"]
    parts = [us[us.index.str.contains(pattern)] for pattern in patterns]
    for pattern, part in zip(patterns, parts, strict=True):
        if part.empty:
            raise ValueError(f"patterns: no kernel's name has {pattern!r}")
    return tuple(float(part.sum()) for part in parts)


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


def host_calls(trace: Trace, kind: str) -> pd.DataFrame:
    """The steps' events of one of the kinds of HOST_CALLS."""
    events = trace.of("cpu_op", *CUDA_CALLS)
    return events[events["name"].str.match(HOST_CALLS[kind])]


def _own_times(trace: Trace) -> pd.DataFrame:
    """The steps' operators with us, their duration without what they call, and calls (0: by one of the same name)."""
    events = trace.of(*HOST).sort_values(["thread", "ts", "end"], ascending=[True, True, False], kind="stable")
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


def union(events: pd.DataFrame) -> np.ndarray:
    """The times that events cover, as disjoint intervals [n, 2] in order."""
    spans = events[["ts", "end"]].to_numpy(float)
    spans = spans[spans[:, 0].argsort(kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    opens = np.append(True, spans[1:, 0] > reach[:-1])[: len(spans)]
    closes = np.append(opens[1:], True)[: len(spans)]
    return np.stack([spans[opens, 0], reach[closes]], axis=1)


def length(intervals: np.ndarray) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())
