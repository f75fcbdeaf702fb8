"""Compiling as pictures: which graph serves each batch, 26 look-ups as kernels, a step of training before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from lessons.n04_torch_compile import recorded
from lessons.shared.picture import BLUE, IDLE, RECORDED, SERIES, draw_box, open_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TABLES = 26
OPERATIONS = ("+ 1", "mod n", "look-up")


def served(lengths: Sequence[int], ran: Mapping[str, tuple[Sequence, Sequence[int | None]]]) -> Figure:
    """A row a way of compiling, a square a batch. ran: way → (rows of each graph, the graph of each batch, or None)."""
    figure, ax = open_panels((8, 0.45 * len(ran) + 0.7))
    for y, (rows, graphs) in enumerate(ran.values()):
        for x, graph in enumerate(graphs):
            if graph is not None:
                draw_box(ax, x, y, 0.92, 0.86, SERIES[graph], edge="none")
                ax.text(x + 0.46, y + 0.43, rows[graph], color="white", ha="center", va="center", size=8)
    ax.set(xlim=(0, len(lengths)), ylim=(len(ran), 0), xlabel="rows of each batch, in order")
    ax.set_xticks(np.arange(len(lengths)) + 0.46, [f"{rows:,}" for rows in lengths], size=8)
    ax.set_yticks(np.arange(len(ran)) + 0.43, list(ran), size=8)
    ax.tick_params(length=0)
    ax.set_title("in each box: the rows that its graph was made for; the first graph is blue", loc="left", size=9)
    return figure


def look_ups() -> Figure:
    """The hash and the look-up of 26 tables: each box is a kernel, in eager, compiled, and with Inductor's options."""
    boxes = {f"eager: {TABLES * len(OPERATIONS)} kernels": ([1] * TABLES, False)}
    for options in ("default", "combo_kernels", "force_pointwise_cat"):
        widths = recorded.launches("2.13", "inference", options)["tables_a_launch"]
        name = "torch.compile" if options == "default" else options
        boxes[f"{name}: {len(widths)} kernel{'s' * (len(widths) > 1)}"] = (widths, True)
    figure, axes = open_panels((8, 4.2), len(boxes))
    for ax, (title, (widths, through)) in zip(axes, boxes.items(), strict=True):
        _kernels(ax, widths, through)
        ax.set_title(title, loc="left", size=9)
    axes[-1].set_xlabel("26 tables; each box is a kernel", size=8)
    return figure


def _kernels(ax: Axes, widths: Sequence[int], through: bool) -> None:
    """widths: how many tables each kernel does."""
    for start, end in pairwise((0, *accumulate(widths))):
        for y in (0,) if through else range(len(OPERATIONS)):
            size = (end - start - 0.2, (len(OPERATIONS) if through else 1) - 0.15)
            draw_box(ax, start + 0.1, y, *size, BLUE, edge="none", alpha=0.85)
    ax.set(xlim=(0, TABLES), ylim=(len(OPERATIONS), 0), xticks=[])
    ax.set_yticks(np.arange(len(OPERATIONS)) + 0.43, OPERATIONS, size=7)
    ax.tick_params(length=0)


def steps() -> Figure:
    """A training step of each model, eager and compiled: ms of kernels by part, and of the rest."""
    figure, axes = open_panels((9, 3), columns=len(recorded.EAGER))
    for ax, model in zip(axes, recorded.EAGER, strict=True):
        for x, step in enumerate(recorded.pair(model)):
            bottom = 0.0
            idle = {"no kernel runs": max(0.0, step.ms - step.busy)}
            for (part, ms), colour in zip((step.parts | idle).items(), (*SERIES[:3], IDLE), strict=True):
                ax.bar(x, ms, 0.6, bottom, color=colour, label=part if x == 0 else None)
                bottom += ms
            ax.errorbar(x, step.ms, [[step.ms - step.low], [step.high - step.ms]], color="black", capsize=3, lw=1)
        ax.set_xticks((0, 1), ("eager", "compiled"))
        ax.set_title(model, loc="left", size=9)
    axes[0].set_ylabel("ms per step")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, fontsize=8, frameon=False, loc="outside lower center", ncols=4)
    figure.suptitle(f"a training step, 2,048 rows, float32: its kernels, and the rest of its time ({RECORDED})", size=9)
    return figure


def pays(*models: str) -> Figure:
    """Time saved after so many steps, less the seconds that compiling takes at first, cold and warm."""
    payoffs = {model: recorded.pays(model) for model in models}
    figure, axes = open_panels((9, 2.8), columns=len(models))
    for ax, model in zip(np.atleast_1d(axes), models, strict=True):
        payoff = payoffs[model]
        steps = np.linspace(0, 2 * payoff.steps(payoff.cold) if payoff.saved > 0 else 20_000, 50)
        for name, seconds, colour in (("cold", payoff.cold, SERIES[0]), ("warm", payoff.warm, SERIES[1])):
            label = f"{name}: the first step takes {seconds:.1f} s longer"
            ax.plot(steps, steps * payoff.saved / 1e3 - seconds, color=colour, label=label)
            ax.fill_between(
                steps, steps * payoff.low / 1e3 - seconds, steps * payoff.high / 1e3 - seconds, color=colour, alpha=0.2
            )
            even = payoff.steps(seconds)
            ax.plot(even, 0, "o", color=colour, ms=5)
            ax.annotate(f"{even:,}", (even, 0), (4, -11), textcoords="offset points", size=8)
        ax.axhline(0, color="black", lw=0.8)
        ax.set(xlabel="training steps", ylabel="s saved")
        ax.set_title(model, loc="left", size=9)
        ax.legend(fontsize=8, frameon=False)
    figure.suptitle(f"time saved by compiling; the bands are the spread ({RECORDED})", size=9)
    return figure
