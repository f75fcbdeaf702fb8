"""The whole MLP in one kernel, as pictures: what an output hangs on, and the schedule, chunk by chunk."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

import torch

from kernels.ops.fused_mlp.eager import fused_mlp
from lessons.shared.picture import NEEDED, OTHER, SHADES, draw_box, draw_cells, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STAYS, NOW, DONE = SHADES[2], SHADES[1], "#6baed6"


# ----------------------------------------------------------------------------------------- what an output hangs on


def dependency(row: int, column: int, rows: int = 8, widths: tuple[int, int, int] = (6, 12, 5)) -> tuple:
    """The numbers of x and of layer 1 of which out[row, column] changes: two boolean tensors, by the derivative."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    (w1, b1), (w2, b2) = ((draw(b, a), draw(b)) for a, b in itertools.pairwise(widths))
    x = draw(rows, widths[0]).requires_grad_()
    between = fused_mlp(x, [w1], [b1], final_activation="gelu")
    out = fused_mlp(between, [w2], [b2], final_activation="sigmoid")
    return tuple(grad != 0 for grad in torch.autograd.grad(out[row, column], (x, between)))


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
