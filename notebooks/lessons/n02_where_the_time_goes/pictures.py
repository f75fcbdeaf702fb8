"""Pictures of host and GPU side by side: whole steps, the phases of one, one operator with its launch and kernel."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from lessons.shared.picture import BLUE, GREEN, IDLE, RED, VIOLET, panels
from model.profiling.facts import union
from model.profiling.phases import PHASES, phases, work_by_phase
from model.profiling.trace import CUDA_CALLS, GPU, Trace, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEPS = ("#9cc3e6", BLUE, "#0d2c54")
COLOURS = dict(zip(PHASES, ("#c9b3e6", "#f6bf7e", "#9cc3e6", RED, GREEN, VIOLET), strict=True))
OTHER = IDLE  # the GPU's work for another step
_CALL = {0: BLUE, 1: GREEN}
_BINS = 220  # of a picture's width: a kernel is far narrower than a pixel, so a lane shows the share of busy time


def draw_steps(*traces: Trace | str | Path) -> "Figure":
    """All recorded steps of each trace, on its own scale: when the host issues each, how busy the GPU is with it."""
    loaded = [read(trace) for trace in traces]
    figure, axes = _rows(len(loaded))
    for ax, trace in zip(axes, loaded, strict=True):
        work = trace.of(*GPU)
        end = max(trace.steps["end"].max(), work["end"].max())
        for number, (begin, stop) in enumerate(trace.steps[["ts", "end"]].to_numpy()):
            _block(ax, 1.5, begin / 1e3, stop / 1e3, STEPS[number % 3], _which(number), white=number % 3 > 0)
            _busy(ax, work[work["step"] == number], 0.0, end, STEPS[number % 3])
        _lanes(ax, end, f"{trace.name}: {len(trace.steps)} repetitions, while profiled")
    axes[-1].set_xlabel("ms since the host began the first repetition")
    return figure


def draw_phases(*traces: Trace | str | Path, step: int = 1) -> "Figure":
    """One step of each trace, on its own scale: the host's phases, and how busy the GPU is with the work of each,
    and with other steps'."""
    from matplotlib.patches import Patch

    loaded = [read(trace) for trace in traces]
    figure, axes = _rows(len(loaded))
    for ax, trace in zip(axes, loaded, strict=True):
        spans, work = phases(trace, step), work_by_phase(trace, step)
        start, end = spans["begin"].iloc[0], max(spans["end"].iloc[-1], work["end"].max())
        _busy(ax, trace.of(*GPU).query("step != @step"), start, end, OTHER)
        for phase, (begin, stop) in zip(spans.index, spans.to_numpy(), strict=True):
            wide = stop - begin > 0.06 * (end - start)
            _block(ax, 1.5, (begin - start) / 1e3, (stop - start) / 1e3, COLOURS[phase], phase if wide else "")
            _busy(ax, work[work["phase"] == phase], start, end, COLOURS[phase])
        _lanes(ax, end - start, f"{trace.name}: the {_which(step)} repetition, while profiled")
    handles = [Patch(color=colour, label=phase) for phase, colour in (COLOURS | {"another step's work": OTHER}).items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=8, frameon=False)
    axes[-1].set_xlabel("ms since the host began this repetition")
    return figure


def draw_call(events: pd.DataFrame) -> "Axes":
    """An operator's call, what it calls, its launch and its kernel, as rows of a trace (cat, name, ts, dur in µs): what
    calls what on the host, the launch, and what it starts on the GPU."""
    events = events.sort_values(["ts", "dur"], ascending=[True, False])
    events = events.assign(ts=events["ts"] - events["ts"].min())
    spans = [(ts, ts + dur) for cat, ts, dur in events[["cat", "ts", "dur"]].to_numpy() if cat == "cpu_op"]
    depth = [sum(a < ts and ts + dur < b for a, b in spans) for ts, dur in events[["ts", "dur"]].to_numpy()]
    host = max(level for level, cat in zip(depth, events["cat"], strict=True) if cat == "cpu_op") + 1
    rows = np.where(events["cat"].isin(GPU), host + 1, np.where(events["cat"].isin(CUDA_CALLS), host, depth))
    _, ax = panels((10, 0.45 * (host + 3)))
    tiny: dict[int, bool] = {}
    for y, (name, ts, dur) in zip(rows, events[["name", "ts", "dur"]].to_numpy(), strict=True):
        ax.barh(y, dur, left=ts, height=0.7, color=_CALL.get(y - host, "#d7e6f4"), edgecolor="white")
        name, middle = name.removeprefix("aten::") if y <= host else "the kernel", ts + dur / 2
        if y >= host:
            ax.text(ts + dur + 0.3, y, f"{name}, {dur:.1f} µs", va="center", fontsize=8)
        elif dur < 1:  # narrower than its name: above and below by turns
            above = tiny[y] = not tiny.get(y)
            edge, align = (y - 0.36, "bottom") if above else (y + 0.36, "top")
            ax.text(middle, edge, name, ha="center", va=align, fontsize=6)
        else:
            text = f"{name}, {dur:.1f} µs" if dur > 8 else name
            ax.text(middle, y, text, ha="center", va="center", fontsize=8 if dur > 8 else 6)
    ax.set_yticks(range(host + 2), ["host: operators", *[""] * (host - 1), "call into CUDA", "GPU"])
    end = (events["ts"] + events["dur"]).max()
    ax.set(ylim=(host + 1.6, -0.6), xlim=(0, end + 6), xlabel="µs since the call began, while profiled")
    ax.spines[["top", "right", "left"]].set_visible(False)
    return ax


def _which(number: int) -> str:
    return ("first", "second", "third")[number] if number < 3 else f"{number + 1}th"


def _rows(count: int) -> tuple["Figure", np.ndarray]:
    figure, axes = panels((10, 0.6 + 1.5 * count), count, squeeze=False)
    return figure, axes[:, 0]


def _block(ax: "Axes", y: float, begin: float, end: float, colour: str, text: str, white: bool = False) -> None:
    ax.barh(y, end - begin, left=begin, height=0.6, color=colour, edgecolor="white")
    ax.text((begin + end) / 2, y, text, ha="center", va="center", fontsize=8, color="white" if white else "black")


def _busy(ax: "Axes", work: pd.DataFrame, start: float, end: float, colour: str) -> None:
    """The share of each of _BINS parts of start … end in which this work runs, as an area from 0 to 1."""
    edges = np.linspace(start, end, _BINS + 1)
    spans = union(work) if len(work) else np.empty((0, 2))
    before = np.clip(edges[:, None], spans[:, 0], spans[:, 1]) - spans[:, 0]  # of each span, what lies before an edge
    share = np.diff(before.sum(1)) / np.diff(edges)
    shown = (edges - start) / 1e3
    ax.bar(shown[:-1], share, width=np.diff(shown), align="edge", color=colour)


def _lanes(ax: "Axes", end: float, title: str) -> None:
    ax.axhline(1, color=IDLE, lw=0.6)
    ax.set(xlim=(0, end / 1e3), ylim=(0, 1.9))
    ax.set_yticks([0, 0.5, 1, 1.5], ["0 %", "GPU: share of\ntime it is busy", "100 %", "host"], fontsize=8)
    ax.set_title(title, loc="left", fontsize=9)
    ax.spines[["top", "right", "left"]].set_visible(False)
