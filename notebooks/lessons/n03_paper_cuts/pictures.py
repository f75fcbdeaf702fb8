"""Paper cuts as pictures: host and GPU as two queues, and steps by what their time is spent on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lessons.n03_paper_cuts import recorded
from lessons.shared.picture import IDLE, RECORDED, SERIES, open_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def queues(simulate: Callable, programs: Mapping[str, Sequence[float]]) -> Figure:
    """Three steps of each program, without and with a wait behind each; simulate: as in the notebook."""
    figure, axes = open_panels((9.5, 2.1 * len(programs)), 2 * len(programs), sharex=True)
    cases = [(name, kernels, waits) for name, kernels in programs.items() for waits in (False, True)]
    for ax, (name, kernels, waits) in zip(axes, cases, strict=True):
        launches, waited, ran = simulate(kernels, waits)
        _bars(ax, 0, launches, SERIES[0])
        _bars(ax, 0, waited, SERIES[4])
        _bars(ax, 1, ran, SERIES[2])
        for _, end in ran[len(kernels) - 1 :: len(kernels)]:
            ax.axvline(end, color="0.6", lw=0.8, ls=":")
        ax.set_yticks((0, 1), ("host", "GPU"))
        ax.set_ylim(1.5, -0.5)
        ax.set_title(f"{name}, {'the host waits after each step' if waits else 'no wait'}", loc="left", fontsize=8.5)
    axes[-1].set_xlabel("time, in launches; blue: host launches, red: it waits, green: kernel runs, dotted: step ends")
    return figure


def _bars(ax: Axes, y: float, spans: Sequence[tuple[float, float]], colour: str) -> None:
    ax.broken_barh([(begin, end - begin) for begin, end in spans], (y - 0.4, 0.8), fc=colour, ec="white", lw=0.6)


def steps(first: int = 0, last: int | None = None) -> Figure:
    """ms of Kaggle's steps by kind of kernel, and the time in which no kernel runs."""
    times = dict(list(recorded.steps())[first:last])
    figure, ax = open_panels((9.5, 1.2 + 0.45 * len(times)))
    left = np.zeros(len(times))
    kinds = (*recorded.KINDS, "the rest", "idle")
    for kind, colour in zip(kinds, (SERIES[1], SERIES[4], SERIES[3], SERIES[2], IDLE), strict=True):
        width = np.array([step[kind] for step in times.values()])
        label = "no kernel runs" if kind == "idle" else "other kernels" if kind == "the rest" else kind
        ax.barh(list(times), width, left=left, color=colour, label=label, height=0.65)
        left += width
    ax.invert_yaxis()
    ax.set_xlabel("ms per step")
    ax.set_title(f"main, Kaggle's tables, Adagrad ({RECORDED})", loc="left", fontsize=9)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    return figure
