"""DLRM as pictures: counts and their logarithms, the interaction's triangle, a training's loss, bytes, the roofline."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from lessons.n01_dlrm_from_scratch import arithmetic
from lessons.shared.picture import SHADES, draw_box, panels
from lessons.shared.records import yardstick

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lessons.n01_dlrm_from_scratch.training import Run

COLOURS = {"bottom MLP": "C0", "look-ups": "C1", "interaction": "C2", "top MLP": "C4", "whole model": "black"}


def counts(raw: Tensor, transformed: Tensor, column: int) -> Figure:
    """One column of counts as logged, and its logarithms: how many rows have which value."""
    figure, (left, right) = panels((10, 2.4), columns=2)
    left.hist(raw[:, column].numpy(), bins=40, color="C0")
    left.set(title=f"DENSE_{column} as logged", xlabel="value", ylabel="rows of the batch")
    right.hist(transformed[:, column].numpy(), bins=40, color="C1")
    right.set(title="log(1 + max(x, 0))", xlabel="value")
    return figure


def triangle(features: int = 4, width: int = 3) -> Figure:
    """All products of a row's vectors as a square, numbered in the order of the output; and the output."""
    vectors = features + 1
    figure, (square, line) = panels((10, 2.6), columns=2, width_ratios=(1, 2.6))
    number = 0
    place = 0.0
    shades = SHADES[2], SHADES[0], SHADES[1], *SHADES[3:]
    box = partial(draw_box, wide=1, high=1, lw=0.6, edge="0.5")
    for k in range(width):
        box(line, place, 0, colour="#d9d9d9", text=f"v0[{k}]")
        place += 1
    for i in range(vectors):
        for j in range(vectors):
            if j < i:
                colour = shades[(i - 1) % len(shades)]
                box(square, j, i, colour=colour, text=str(number))
                box(line, place, 0, colour=colour, text=f"{i}·{j}")
                number, place = number + 1, place + 1
            else:
                box(square, j, i, text="" if j > i else "|v|²")
    for k in range(vectors):
        square.text(-0.15, k + 0.5, f"v{k}", ha="right", va="center", size=9)
        square.text(k + 0.5, -0.15, f"v{k}", ha="center", va="bottom", size=9)
    square.set(xlim=(-0.8, vectors + 0.1), ylim=(vectors + 0.1, -0.8), aspect="equal")
    square.set_title("vᵢ · vⱼ: coloured ones are kept", size=9)
    line.set(xlim=(-0.1, place + 0.1), ylim=(2.2, -1.2), aspect="equal")
    line.text(width / 2, 1.25, f"v0 itself,\n{width} numbers", ha="center", va="top", size=8)
    line.text(width + number / 2, 1.25, "the pairs, row by row", ha="center", va="top", size=8)
    line.set_title(f"a row of the output: {width} + {number} numbers", size=9)
    for ax in (square, line):
        ax.axis("off")
    return figure


def losses(run: Run) -> Figure:
    """The loss of each step, beside that of who always says the click rate."""
    figure, ax = panels((10, 2.4))
    ax.plot(run.losses, lw=0.8, color="C0", alpha=0.4, label="each step")
    smooth = np.convolve(run.losses, np.ones(10) / 10, mode="valid")
    ax.plot(np.arange(9, 9 + len(smooth)), smooth, color="C0", label="mean of 10 steps")
    ax.axhline(run.entropy, color="0.4", ls=":", label=f"always the click rate: {run.entropy:.3f}")
    ax.set(xlabel="step", ylabel="log loss", title="training loss")
    ax.legend(frameon=False, ncol=3, loc="upper right")
    return figure


def moved(found: Mapping[str, arithmetic.Cost], rows: int) -> Figure:
    """Bytes a row of each block: eager's operators one behind the other, and one kernel's."""
    figure, ax = panels((10, 3.4))
    ticks = []
    for y, name in enumerate(name for name in found if name != "whole model"):
        cost, start = found[name], 0.0
        for i, kind in enumerate(dict.fromkeys(operator.name for operator in cost.operators)):
            alike = [operator for operator in cost.operators if operator.name == kind]
            size = sum(operator.read + operator.written for operator in alike) / rows
            ax.barh(3 * y, size, left=start, color=COLOURS[name], alpha=0.25 + 0.2 * (i % 2), ec="white")
            if size > 800:
                label = f"{len(alike)} {kind}" if len(alike) > 1 else kind
                ax.text(start + size / 2, 3 * y, label, ha="center", va="center", size=8)
            start += size
        ax.barh(3 * y + 1, cost.fused / rows, color=COLOURS[name])
        for line, size in enumerate((start, cost.fused / rows)):
            ax.text(size + 80, 3 * y + line, f"{size:,.0f}", va="center", size=8)
        ticks += [(3 * y, f"{name}, eager"), (3 * y + 1, "one kernel")]
    ax.set_yticks(*zip(*ticks, strict=True), size=8)
    ax.invert_yaxis()
    ax.margins(x=0.06)
    ax.set(xlabel=f"bytes read and written a row, in a batch of {rows:,}; in a bar: eager's operators")
    return figure


def roofline(found: Mapping[str, arithmetic.Cost]) -> Figure:
    """The H200's roofs, the interaction as recorded, and below them each block's way from eager to one kernel."""
    figure, ax = panels((10, 4.4))
    rate, reach = yardstick(), np.geomspace(0.3, 400, 400)
    roofs = (arithmetic.FP32_TFLOPS, "float32", "-"), (arithmetic.TF32_TFLOPS, "tf32, tensor cores", "--")
    for peak, name, style in roofs:
        ax.loglog(reach, np.minimum(rate * reach, peak), color="0.3", ls=style, lw=1.3)
        ax.text(390, peak * 1.1, f"{name}: {peak:g} TFLOP/s", ha="right", size=8)
        ax.axvline(peak / rate, color="0.6", ls=":", lw=1)
        ax.text(peak / rate * 1.03, 0.04, f"{peak / rate:.1f}", size=8, color="0.4")
    ax.text(2.0, rate * 2.0 * 1.8, f"memory: a copy's {rate:.2f} TB/s", size=8, ha="right")
    for lane, (name, cost) in enumerate((name, cost) for name, cost in found.items() if cost.flops):
        y, (before, after) = 0.7 / 1.9**lane, (cost.intensity(fused) for fused in (False, True))
        ax.annotate("", (after, y), (before, y), arrowprops={"arrowstyle": "->", "color": COLOURS[name], "lw": 1.5})
        ax.plot(before, y, "o", mfc="white", color=COLOURS[name], ms=8)
        ax.plot(after, y, "o", color=COLOURS[name], ms=8)
        ax.text(before / 1.12, y, f"{name}  {before:.1f}", ha="right", va="center", size=8)
        ax.text(after * 1.12, y, f"{after:.1f}", va="center", size=8)
    for name, label, fused in (("eager", "eager", False), ("cuda", "one kernel", True)):
        row, x = arithmetic.interaction_recorded(name), found["interaction"].intensity(fused)
        reached = row["flops"] / row["us_p50"] / 1e6
        ax.plot([x, x], [reached, rate * x], color=COLOURS["interaction"], lw=1)
        ax.plot(x, reached, "x", color=COLOURS["interaction"], ms=8, mew=2)
        ax.text(x * 1.12, reached * 0.85, f"interaction, {label}: recorded", size=8, va="center")
    ax.set(xlabel="FLOPs a byte", ylabel="TFLOP/s, of the roofs and crosses", xlim=(0.3, 400), ylim=(0.03, 1000))
    ax.set_title("below: intensity in eager (hollow), as one kernel (full)", size=9)
    return figure
