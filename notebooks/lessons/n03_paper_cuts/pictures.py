"""Paper cuts as pictures: what grows with a table's ids, host and GPU as two queues, steps by what their time is spent
on, effects with their spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lessons.n03_paper_cuts import recorded, two_queues
from lessons.shared import records
from lessons.shared.picture import IDLE, SERIES, open_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEPS = {
    "08_main_dot": "08: 13,428 ids, dense, SGD",
    "11_full_sgd_dense": "11: 33.8 million ids, dense, SGD",
    "12_full_sgd_sparse": "12: sparse and one tensor, SGD",
    "13_full_adagrad_dense": "13: dense, Adagrad",
    "14_full_adagrad_sparse": "14: sparse and one tensor, Adagrad",
}
SETTLED = 128  # known ids: before it every hash is slower, also those whose work is the same for all: it warms up


def conversions() -> Figure:
    """µs of step 01's 26 torch.tensor calls, by the length of their lists."""
    found = recorded.conversions()
    figure, ax = open_panels((8, 2.6))
    for name, colour in zip(("all", "walk"), SERIES, strict=False):
        fixed, slope = recorded.line_of(found["ids"], found[name])
        label = f"{name}: {fixed:.0f} µs + {slope:.0f} ns an id"
        ax.plot(found["ids"], found[name], "o", ms=4, color=colour, label=label)
        ax.plot([0, 2000], [fixed, fixed + 2 * slope], lw=1, color=colour)
    ax.set(xlabel="known ids of the table", ylabel="µs on the host", ylim=(0, None))
    ax.set_title("RECORDED on an H200, profiled: step 01's 26 conversions of a list", loc="left", fontsize=9)
    ax.legend(fontsize=8, frameon=False)
    return figure


def hash_kernels() -> Figure:
    """µs on the GPU of an index hash's four kernels, by the table's ids; dashed: what is fixed, and the bytes' time."""
    found = recorded.hash_kernels()
    figure, ax = open_panels((8, 2.8))
    for name, colour in zip(recorded.INDEX_KERNELS, SERIES, strict=False):
        fixed, _ = recorded.line_of(found["ids"], found[name])
        bytes_us = records.copy_us(recorded.COMPARED[name] * 2048 * 2000)
        ax.plot(found["ids"], found[name], "o", ms=4, color=colour, label=name)
        ax.plot([0, 2000], [fixed, fixed + bytes_us], "--", color=colour, lw=1)
    ax.plot([], [], "--", color="0.4", lw=1, label="if its bytes went at a copy's rate")
    ax.set(xlabel="known ids of the table", ylabel="µs on the GPU", ylim=(0, None))
    ax.set_title("RECORDED on an H200: the kernels of step 03's hashes, 2048 ids each", loc="left", fontsize=9)
    ax.legend(fontsize=8, frameon=False)
    return figure


def queues() -> Figure:
    """Three steps of a launch-bound and of a GPU-bound program, without and with a wait behind each."""
    figure, axes = open_panels((9.5, 4.2), 4, sharex=True)
    programs = (
        ("A: kernels shorter than a launch", two_queues.LAUNCH_BOUND),
        ("B: four short kernels, two long ones", two_queues.GPU_BOUND),
    )
    cases = [(name, kernels, waits) for name, kernels in programs for waits in (False, True)]
    for ax, (name, kernels, waits) in zip(axes, cases, strict=True):
        steps = two_queues.simulate(kernels, waits)
        _bars(ax, 0, steps.launches, SERIES[0])
        _bars(ax, 0, steps.waits, SERIES[4])
        _bars(ax, 1, steps.kernels, SERIES[2])
        for end in steps.ends:
            ax.axvline(end, color="0.6", lw=0.8, ls=":")
        ax.set_yticks((0, 1), ("host", "GPU"))
        ax.set_ylim(1.5, -0.5)
        ax.set_title(f"{name}, {'a wait behind each step' if waits else 'no wait'}", loc="left", fontsize=8.5)
    axes[-1].set_xlabel("in launches; blue: the host launches, red: it waits; green: a kernel; dotted: a step ends")
    return figure


def _bars(ax: Axes, y: float, spans: Sequence[tuple[float, float]], colour: str) -> None:
    ax.broken_barh([(begin, end - begin) for begin, end in spans], (y - 0.4, 0.8), fc=colour, ec="white", lw=0.6)


def steps() -> Figure:
    """ms of the story's steps with small and large tables, by kind of kernel, and the time in which the GPU is idle."""
    found = {label: recorded.story_step(name) for name, label in STEPS.items()}
    figure, ax = open_panels((9.5, 2.9))
    left = np.zeros(len(found))
    kinds = (*recorded.KINDS, "the rest", "idle")
    for kind, colour in zip(kinds, (SERIES[1], SERIES[4], SERIES[3], SERIES[2], IDLE), strict=True):
        width = np.array([step[kind] for step in found.values()])
        label = "no kernel runs" if kind == "idle" else "other kernels" if kind == "the rest" else kind
        ax.barh(list(found), width, left=left, color=colour, label=label, height=0.65)
        left += width
    ax.invert_yaxis()
    ax.set_xlabel("ms a step")
    ax.set_title("RECORDED on an H200: the kernels of a step, and how long it takes", loc="left", fontsize=9)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure


def sizes() -> Figure:
    """µs a call of a hash alone, by the known ids of its table."""
    found = recorded.PAPER_CUTS.rows("sizes")
    found = found[(found["n"] >= min(SETTLED, found["n"].max()))]
    figure, ax = open_panels((8, 2.8))
    for (name, rows), colour in zip(found.groupby("variant", sort=False), SERIES, strict=False):
        us = 1e3 * np.array([np.quantile(ms, [0.2, 0.5, 0.8]) for ms in rows["ms"]])
        ax.fill_between(rows["n"], us[:, 0], us[:, 2], color=colour, alpha=0.25, lw=0)
        ax.plot(rows["n"], us[:, 1], ".-", color=colour, label=name)
    ax.set(xscale="log", yscale="log", xlabel="known ids of the table", ylabel="µs a call, host included")
    ax.set_title("RECORDED on an H200: 2048 ids through one hash", loc="left", fontsize=9)
    ax.legend(fontsize=8, frameon=False)
    return figure


# (what, part, step, before, after, optimizer), by the notebook's sections.
CHANGES = (
    ("1 · list → buffer", "hash", "04", "index_naive", "index", ""),
    ("2 · compare → search", "hash", "04", "index", "sorted", ""),
    ("2 · search → modulus", "hash", "04", "sorted", "modulus", ""),
    ("3 · 04: loss not read", "waits", "04", "the loss read", "on the device", ""),
    ("3 · 06: loss not read", "waits", "06", "the loss read", "on the device", ""),
    ("4 · 04: non_blocking", "waits", "04", "ordinary memory", "ordinary memory, non_blocking", ""),
    ("4 · 04: and pinned", "waits", "04", "ordinary memory, non_blocking", "pinned memory, non_blocking", ""),
    ("4 · 06: non_blocking", "waits", "06", "ordinary memory", "ordinary memory, non_blocking", ""),
    ("4 · 06: and pinned", "waits", "06", "ordinary memory, non_blocking", "pinned memory, non_blocking", ""),
    ("5 · SGD, dense: 26 tensors → one", "tables", "11", "dense, 26 tensors", "dense, one tensor", "sgd"),
    ("5 · SGD, 26 tensors: dense → sparse", "tables", "11", "dense, 26 tensors", "sparse, 26 tensors", "sgd"),
    ("5 · SGD, sparse: 26 tensors → one", "tables", "11", "sparse, 26 tensors", "sparse, one tensor", "sgd"),
    ("5 · Adagrad, dense: 26 tensors → one", "tables", "11", "dense, 26 tensors", "dense, one tensor", "adagrad"),
    ("5 · Adagrad, 26 tensors: dense → sparse", "tables", "11", "dense, 26 tensors", "sparse, 26 tensors", "adagrad"),
    ("5 · Adagrad, sparse: 26 tensors → one", "tables", "11", "sparse, 26 tensors", "sparse, one tensor", "adagrad"),
)


def effects() -> Figure:
    """ms that each change takes off a step, with its spread, grey where that contains 0."""
    found = [
        recorded.effect(part, before, after, step=step, **({"rule": rule} if rule else {}))
        for _, part, step, before, after, rule in CHANGES
    ]
    figure, ax = open_panels((9, 4.0))
    for y, one in enumerate(found):
        colour = "0.6" if one.none else SERIES[0]
        ax.plot([-one.high, -one.low], [y, y], color=colour, lw=3, solid_capstyle="butt")
        ax.plot(-one.middle, y, "o", color=colour, ms=5)
        ax.annotate(
            f"{-one.middle:+.2f}", (max(-one.low, -one.middle), y), (7, 0), textcoords="offset points", va="center",
            fontsize=8, color=colour,
        )
    ax.axvline(0, color="0.3", lw=0.8)
    ax.set_yticks(range(len(CHANGES)), [change[0] for change in CHANGES], fontsize=8)
    ax.invert_yaxis()
    ax.set_xscale("symlog", linthresh=0.1)
    ax.set_xlim(-6, 30)
    ax.set_xticks((-3, -1, -0.3, 0, 0.3, 1, 3, 10), ("-3", "-1", "-0.3", "0", "0.3", "1", "3", "10"))
    ax.set_xlabel("slower ← ms less a step: median, percentiles 10 to 90 (grey: 0 lies between, no effect) → faster")
    ax.set_title("RECORDED on an H200, by turns, one change at a time", loc="left", fontsize=9)
    return figure
