"""The whole MLP in one kernel, as pictures: what an output hangs on, the schedule tile by tile, the time over the batch
as it is predicted and as it was recorded."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernels.measure.records import README_GPU, recorded
from kernels.ops.fused_mlp import eager

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BOTTOM, TOP = (13, 512, 256, 64, 16), (367, 512, 256, 1)  # DLRM's two MLPs
NEEDED, OTHER, STAYS, NOW, DONE = "#3182bd", "white", "#a1d99b", "#fdae6b", "#6baed6"


def show(kernel) -> None:
    """Print the source of a @triton.jit function, without what is said to the linter."""
    print(re.sub(r"  # (noqa|fmt).*", "", inspect.getsource(kernel.fn)).rstrip())


# ----------------------------------------------------------------------------------------- what an output hangs on


def dependency(row: int, column: int, rows: int = 8, widths: tuple[int, int, int] = (6, 12, 5)) -> tuple:
    """Of which numbers of x and of layer 1 out[row, column] changes: two boolean tensors, by the derivative."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    (w1, b1), (w2, b2) = ((draw(b, a), draw(b)) for a, b in itertools.pairwise(widths))
    x = draw(rows, widths[0]).requires_grad_()
    between = eager.fused_mlp(x, [w1], [b1], final_activation="gelu")
    out = eager.fused_mlp(between, [w2], [b2], final_activation="sigmoid")
    return tuple(grad != 0 for grad in torch.autograd.grad(out[row, column], (x, between)))


def draw_dependency(row: int, column: int, rows: int = 8, widths: tuple[int, int, int] = (6, 12, 5)) -> Figure:
    """x, layer 1 and out side by side, and in blue what out[row, column] hangs on."""
    import matplotlib.pyplot as plt

    of_x, of_between = dependency(row, column, rows, widths)
    of_out = torch.zeros(rows, widths[2], dtype=torch.bool)
    of_out[row, column] = True
    figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), width_ratios=widths, layout="constrained")
    names = "x", "layer 1 = act(x W1ᵀ + b1)", "out"
    for ax, name, needed in zip(axes, names, (of_x, of_between, of_out), strict=True):
        _grid(ax, [[NEEDED if cell else OTHER for cell in line] for line in needed.tolist()])
        ax.set_title(f"{name} [{rows}, {needed.shape[1]}]", size=9)
    axes[0].text(-0.4, row + 0.5, f"row {row}", ha="right", va="center", size=9)
    return figure


def _grid(ax: Axes, colours: list[list[str]]) -> None:
    from matplotlib.patches import Rectangle

    for y, line in enumerate(colours):
        for x, colour in enumerate(line):
            ax.add_patch(Rectangle((x, y), 1, 1, fc=colour, ec="0.6", lw=0.5))
    ax.set(xlim=(-0.1, len(colours[0]) + 0.1), ylim=(len(colours) + 0.1, -0.1), aspect="equal")
    ax.axis("off")


# --------------------------------------------------------------------------------------------- the schedule


def draw_schedule(chunks: int = 4) -> Figure:
    """What a program holds and reads at each chunk of layer 1: a panel a chunk. A product stands to the right of its
    left operand and below its right one."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    figure, axes = plt.subplots(1, chunks, figsize=(10, 2.9), layout="constrained")
    for chunk, ax in enumerate(axes):

        def box(x: float, y: float, wide: float, high: float, colour: str | tuple, ax: Axes = ax) -> None:
            ax.add_patch(Rectangle((x, y), wide, high, fc=colour, ec="0.5", lw=0.7))

        def text(x: float, y: float, said: str, ax: Axes = ax) -> None:
            ax.text(x, y, said, ha="center", va="center", size=8)

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


def curve(widths: tuple[int, ...]) -> dict[int, tuple[float, float]]:
    """{rows: (µs of the one kernel, µs of torch.compile)} as recorded, float32 in tf32; the faster of our kernels.

    FileNotFoundError where nothing is recorded.
    """
    table = recorded("fused_mlp")
    parts = table["part"].isin(["curve", "bandwidth"]) | table["part"].str.fullmatch(r"top \d+")
    table = table[parts & (table["widths"] == "-".join(map(str, widths))) & (table["dtype"] == "float32")]
    us = table.pivot(index="rows", columns="implementation", values="us_p50").sort_index()
    ours = us[[name for name in ("triton", "cuda") if name in us]].min(axis=1)
    return {int(rows): (float(ours[rows]), float(us["torch.compile"][rows])) for rows in us.index}


def crossing(points: dict[int, tuple[float, float]]) -> float | None:
    """Rows at which the first time becomes longer than the second, between two points on a logarithmic scale; None if
    it does not; the first point's rows if it is from there on."""
    rows = sorted(points)
    gaps = [np.log(points[each][0] / points[each][1]) for each in rows]
    if gaps[0] > 0:
        return rows[0]
    for (low, before), (high, after) in itertools.pairwise(zip(rows, gaps, strict=True)):
        if after > 0:
            return float(np.exp(np.interp(0, [before, after], np.log([low, high]))))
    return None


def draw_curve(predicted: Callable[[int, tuple[int, ...]], tuple[float, float]]) -> Figure:
    """Both MLPs. predicted(rows, widths) → (µs of the one kernel, µs of two a layer): as lines; what was recorded as
    dots. Prints the crossing of each."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained", sharey=True)
    batches = [2**n for n in range(7, 18)]
    for ax, name, widths in zip(axes, ("bottom", "top"), (BOTTOM, TOP), strict=True):
        lines = {rows: predicted(rows, widths) for rows in batches}
        try:
            dots = curve(widths)
        except FileNotFoundError:
            dots = {}
        kinds = ("one kernel", "our faster one"), ("two kernels a layer", "torch.compile")
        for which, (label, ran) in enumerate(kinds):
            ax.loglog(batches, [lines[rows][which] for rows in batches], f"C{which}--", label=f"{label}, predicted")
            if dots:
                us = [both[which] for both in dots.values()]
                ax.loglog(list(dots), us, f"C{which}o-", lw=1, ms=4, label=f"{ran}, recorded")
        said = []
        for points, what, style in ((lines, "predicted", "--"), (dots, f"recorded, {README_GPU.upper()}", "-")):
            found = crossing(points) if points else None
            said.append(f"{what}: {'nothing yet' if not points else 'none' if found is None else f'{found:,.0f} rows'}")
            if found is not None:
                ax.axvline(found, color="0.4", ls=style, lw=1)
        print(f"{name}, two kernels a layer are faster from: {'; '.join(said)}")
        ax.set(xlabel="rows of the batch", title=f"{name}, {'-'.join(map(str, widths))}")
    axes[0].set_ylabel("µs")
    axes[0].legend(frameon=False, fontsize=8)
    return figure
