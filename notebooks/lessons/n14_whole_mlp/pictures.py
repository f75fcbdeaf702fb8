"""The whole MLP in one kernel, as pictures: what an output hangs on, the schedule tile by tile, the time over the batch
as it is predicted and as it was recorded; and the bytes of the interaction, step by step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from kernels.measure.records import README_GPU
from kernels.ops.dot_interaction.eager import forward_bytes
from lessons.n14_whole_mlp.arithmetic import BOTTOM, TOP, crossing, curve, dependency, moved
from lessons.shared.picture import NEEDED, OTHER, SHADES, draw_box, draw_cells, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STAYS, NOW, DONE = SHADES[2], SHADES[1], "#6baed6"


# ----------------------------------------------------------------------------------------- what an output hangs on


def draw_dependency(row: int, column: int, rows: int = 8, widths: tuple[int, int, int] = (6, 12, 5)) -> Figure:
    """x, layer 1 and out side by side, and in blue what out[row, column] hangs on."""
    of_x, of_between = dependency(row, column, rows, widths)
    of_out = torch.zeros(rows, widths[2], dtype=torch.bool)
    of_out[row, column] = True
    figure, axes = panels((10, 2.8), 1, 3, width_ratios=widths)
    names = "x", "layer 1 = act(x W1ᵀ + b1)", "out"
    for ax, name, needed in zip(axes, names, (of_x, of_between, of_out), strict=True):
        draw_cells(ax, [[NEEDED if cell else OTHER for cell in line] for line in needed.tolist()], "0.6")
        ax.set_title(f"{name} [{rows}, {needed.shape[1]}]", size=9)
    axes[0].text(-0.4, row + 0.5, f"row {row}", ha="right", va="center", size=9)
    return figure


# --------------------------------------------------------------------------------------------- the schedule


def draw_schedule(chunks: int = 4) -> Figure:
    """What a program holds and reads at each chunk of layer 1: a panel a chunk. A product stands to the right of its
    left operand and below its right one."""

    figure, axes = panels((10, 2.9), 1, chunks)
    for chunk, ax in enumerate(axes):
        box = partial(draw_box, ax, edge="0.5")

        def text(x: float, y: float, label: str, ax: Axes = ax) -> None:
            ax.text(x, y, label, ha="center", va="center", size=8)

        box(0, 5, 1.2, 1.3, STAYS)
        box(6.6, 5, 1.6, 1.3, (DONE, (chunk + 1) / chunks))
        for part in range(chunks):
            colour = NOW if part == chunk else OTHER
            box(1.8 + 4 * part / chunks, 3.2, 4 / chunks, 1.2, colour)
            if part <= chunk:  # an earlier one is forgotten
                box(1.8 + 4 * part / chunks, 5, 4 / chunks, 1.3, NOW if part == chunk else "0.9")
            box(6.6, 0.4 + 4 * part / chunks, 1.6, 4 / chunks, colour)
        text(0.6, 5.65, "x tile")
        text(3.8, 2.9, "W1ᵀ")
        text(7.4, 0.1, "W2ᵀ")
        text(3.8, 6.65, "layer 1, tile")
        text(7.4, 5.65, f"{chunk + 1} of {chunks}\nparts")
        text(7.4, 6.65, "layer 2, sums")
        ax.set(xlim=(-0.1, 8.4), ylim=(7, -0.2), aspect="equal")
        ax.set_title(f"chunk {chunk + 1}" + ", then b2 and activation" * (chunk == chunks - 1), size=9)
        ax.axis("off")
    return figure


# ------------------------------------------------------------------------------------------- the curve over the batch


def draw_curve(predicted: Callable[[int, tuple[int, ...]], tuple[float, float]]) -> Figure:
    """Both MLPs. predicted(rows, widths) → (µs of the one kernel, µs of two a layer): as lines; what was recorded as
    dots, and torch.compile's with x filled up. Prints the crossing of each."""
    figure, axes = panels((10, 3.4), 1, 2, sharey=True)
    batches = [2**n for n in range(7, 18)]
    for ax, name, widths in zip(axes, ("bottom", "top"), (BOTTOM, TOP), strict=True):
        lines = {rows: predicted(rows, widths) for rows in batches}
        dots = curve(widths)
        kinds = ("one kernel", "our faster one"), ("two kernels a layer", "torch.compile")
        for which, (label, ran) in enumerate(kinds):
            ax.loglog(batches, [lines[rows][which] for rows in batches], f"C{which}--", label=f"{label}, predicted")
            us = [both[which] for both in dots.values()]
            ax.loglog(list(dots), us, f"C{which}o-", lw=1, ms=4, label=f"{ran}, recorded")
        filled_up = {rows: us for rows, (_, us) in curve(widths, "torch.compile, padded").items()}
        ax.loglog(*zip(*filled_up.items(), strict=True), "C2o:", lw=1, ms=4, label="torch.compile, filled up, recorded")
        crossings = []
        for points, what, style in ((lines, "predicted", "--"), (dots, f"recorded, {README_GPU.upper()}", "-")):
            rows = crossing(points)
            crossings.append(f"{what}: {'none' if rows is None else f'{rows:,.0f} rows'}")
            if rows is not None:
                ax.axvline(rows, color="0.4", ls=style, lw=1)
        print(f"{name}, two kernels a layer are faster from: {'; '.join(crossings)}")
        ax.set(xlabel="rows of the batch", title=f"{name}, {'-'.join(map(str, widths))}")
    axes[0].set_ylabel("µs")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


# ------------------------------------------------------------------------------------------------ the interaction


def draw_moved(rows: int, features: int, columns: int) -> Figure:
    """A bar of eager's steps, one behind the other, and one of the bytes that are needed."""
    figure, ax = panels((10, 1.7))
    start = 0.0
    for i, (step, size) in enumerate(moved(rows, features, columns).items()):
        ax.barh("eager", size / 1e6, left=start, color=f"C{i}", alpha=0.5)
        ax.text(start + size / 2e6, 0, step, ha="center", va="center", size=9)
        start += size / 1e6
    ax.barh("needed", forward_bytes(rows, features, columns, torch.float32) / 1e6, color="C0")
    ax.set(xlabel=f"MB read and written, {rows:,} rows of {features + 1} vectors of {columns}")
    ax.invert_yaxis()
    return figure
