"""A step of each trace as a picture: what the host, its calls into CUDA and the GPU do at which time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lessons.shared.picture import BLUE, GREEN, IDLE, ORANGE, RED, VIOLET, panels
from model.profiling.facts import host_calls, step_facts, union
from model.profiling.trace import GPU, Trace, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {
    "operator": "#9cc3e6", "item": VIOLET, "launch": BLUE, "copy": ORANGE, "synchronize": RED,
    "kernel": GREEN, "another step's": IDLE,
}


def timeline(*traces: Trace | str | Path, step: int = 1, labels: Sequence[str] = ()) -> "Figure":
    """One step of each trace, one above the other on one scale of time: host, its calls to CUDA, GPU.

    step: which of the recorded ones, from 0 (the last where there are fewer). A picture begins where the host begins
    the step, and ends where host and GPU are done with it; what is done for other steps is pale. labels: regular
    expressions; each is written below the kernels of the step whose names it is found in, where there are any.
    UserError as for `read`.
    """
    loaded = [read(trace) for trace in traces]  # a bad one leaves no figure open
    size = (11, 0.7 + 1.5 * len(traces))
    figure, axes = panels(size, len(traces), sharex=True, squeeze=False)
    ms = [_draw(ax, trace, step, labels) for ax, trace in zip(axes[:, 0], loaded, strict=True)]
    axes[-1, 0].set(xlim=(0, max(ms)), xlabel="ms since the host began the step")
    legend = {label: bar for ax in axes[:, 0] for bar, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(legend.values(), legend, loc="outside upper center", ncols=len(legend), fontsize=8, frameon=False)
    return figure


def _draw(ax, trace: Trace, step: int, labels: Sequence[str]) -> float:
    """Draw a step (or the last one); returns its length in ms."""
    step = min(step, len(trace.steps) - 1)
    facts, work = step_facts(trace), trace.events[trace.events["cat"].isin(GPU)]
    start, end = trace.steps.loc[step, ["ts", "end"]]
    end = max([end, *work.loc[work["step"] == step, "end"]])
    lanes = {
        "host": {"operator": trace.of("cpu_op"), "item": host_calls(trace, "item")},
        "CUDA calls": {kind: host_calls(trace, kind) for kind in ("launch", "copy", "synchronize")},
        "GPU": {"kernel": work[work["cat"] == "kernel"], "copy": work[work["cat"] != "kernel"]},
    }
    shown = list(lanes)[: 3 if facts.device == "cuda" else 1]
    for y, lane in enumerate(shown):
        for kind, events in lanes[lane].items():
            ours = events["step"] == step
            for label, part in (("another step's", events[~ours]), (kind, events[ours])):
                spans = (np.clip(union(part), start, end) - start) / 1e3
                spans = [(begin, stop - begin) for begin, stop in spans if stop > begin]
                if spans:  # what is far narrower than a pixel stays visible by its outline
                    bars = {"color": _COLOURS[label], "linewidth": 0.15, "snap": False}
                    ax.broken_barh(spans, (y - 0.4, 0.8), label=label, **bars)
    gpu = "" if facts.busy_percent is None else f", {facts.kernels:.0f} kernels, GPU busy {facts.busy_percent:.0f} %"
    ax.set_title(f"{trace.name}: {facts.step_us / 1e3:.2f} ms a step while profiled{gpu}", loc="left", fontsize=9)
    ax.set_yticks(range(len(shown)), shown)
    ax.set_ylim(len(shown) - (0.1 if labels else 0.5), -0.5)
    kernels = work[(work["cat"] == "kernel") & (work["step"] == step)]
    for label in labels:
        if len(part := kernels[kernels["name"].str.contains(label)]):
            middle = np.average((part["ts"] + part["end"]) / 2, weights=part["dur"]) - start
            ax.text(middle / 1e3, len(shown) - 0.55, label, ha="center", va="top", fontsize=7)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return (end - start) / 1e3
