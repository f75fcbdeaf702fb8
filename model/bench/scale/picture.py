"""The estimates as a picture, by number of GPUs and blocks of columns: a step's parts, the bytes, the memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data.cli import UserError
from model.bench.scale.cost import PARTS, Estimate
from model.bench.scale.rates import Rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = dict(zip(PARTS, ("#0b5cad", "#58b0ff", "#f6d28b", "#f0a02f", "#c9711a", "#9c4f96", "#8c959f"), strict=True))
HATCHES = {"paper": "/", "least": "//"}
NEAR, FAR, TOO_MUCH = "#2e7d5b", "#a8c256", "#b3261e"


def draw(groups: dict[str, Sequence[Estimate]], rates: Rates, path: Path) -> None:
    """Write the picture, a column of three panels a group of estimates; UserError for a file that is no picture's."""
    from matplotlib.figure import Figure  # here, so that a table needs no drawing library

    figure = Figure(figsize=(4.6 * len(groups), 8.4), layout="constrained")
    if path.suffix[1:] not in figure.canvas.get_supported_filetypes():
        raise UserError(f"{path}: expected a name that ends in .png or .svg")
    panels = figure.subplots(3, len(groups), squeeze=False, sharex="col", height_ratios=(2, 1, 1))
    for (name, estimates), (step, wires, memory) in zip(groups.items(), panels.T, strict=True):
        _steps(step, estimates)
        _bytes(wires, estimates)
        _memory(memory, estimates, rates)
        step.set_title(name, fontsize=10)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS), fontsize=9)
    figure.suptitle(
        f"A training step on several {rates.gpu}. Hatched: paper, not measured; twice: and the least.\n"
        "Above a bar: look-ups of the busiest GPU over the mean. Dashed: a GPU's memory.", fontsize=11,
    )
    figure.savefig(path, dpi=120)


def _steps(ax: Axes, estimates: Sequence[Estimate]) -> None:
    below = [0.0] * len(estimates)
    for part in PARTS:
        heights = [1e3 * one.parts[part] for one in estimates]
        bars = ax.bar(range(len(estimates)), heights, bottom=below, color=COLOURS[part], label=part, edgecolor="white")
        for bar, one in zip(bars, estimates, strict=True):
            bar.set_hatch(HATCHES.get(one.origin, ""))
        below = [low + height for low, height in zip(below, heights, strict=True)]
    for place, (top, one) in enumerate(zip(below, estimates, strict=True)):
        ax.text(place, top, f"{one.busiest:.1f}×", ha="center", va="bottom", fontsize=8)
    ax.set_ylim(0, 1.1 * max(below))
    ax.set_ylabel("ms a step")


def _bytes(ax: Axes, estimates: Sequence[Estimate]) -> None:
    for shift, name, colour, sent in (
        (-0.2, "NVLink", NEAR, [one.near for one in estimates]), (0.2, "network", FAR, [one.far for one in estimates]),
    ):
        places = [place + shift for place in range(len(sent))]
        ax.bar(places, [count / 1e6 for count in sent], width=0.4, color=colour, label=name)
    ax.set_yscale("log")
    ax.set_ylim(1, 1e5)
    ax.set_ylabel("MB, the busiest GPU")
    ax.legend(fontsize=8, loc="upper left", ncols=2)


def _memory(ax: Axes, estimates: Sequence[Estimate], rates: Rates) -> None:
    colours = [COLOURS["dense"] if one.fits else TOO_MUCH for one in estimates]
    ax.bar(range(len(estimates)), [one.fullest / 1e9 for one in estimates], color=colours)
    ax.axhline(rates.memory.value / 1e9, color="0.3", linestyle="--", linewidth=1)
    ax.set_yscale("log")
    ax.set_ylim(0.1, 1e3)
    ax.set_ylabel("GB, the fullest GPU")
    ax.set_xlabel("GPUs, and blocks of columns")
    labels = [f"{one.layout.gpus}\n{one.layout.columns}" for one in estimates]
    ax.set_xticks(range(len(estimates)), labels)
