"""DLRM as pictures: a look-up, the interaction's triangle, and the roof."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from lessons.n01_dlrm_from_scratch import recorded
from lessons.shared.picture import GREEN, IDLE, LINE, ORANGE, RECORDED, SHADES, draw_arrow, draw_box, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def looked_up(ids: Sequence[int], sizes: Sequence[int], shown: Sequence[int] = (0, 2, 8, 25)) -> Figure:
    """How a row's ids become vectors: of some tables id, row, and the place in the table."""
    figure, ax = panels((10, 2.9))
    for k, f in enumerate(shown):
        n, colour, x = sizes[f], SHADES[k], 2.6 * k
        row = (int(ids[f]) + 1) % n
        ax.text(x + 0.9, -1.1, f"SPARSE_{f}\n{int(ids[f]):,}", ha="center", size=8)
        draw_arrow(ax, (x + 0.9, -0.75), (x + 0.9, -0.1))
        draw_box(ax, x, 0, 1.8, 4)
        place = 0.1 + 3.5 * row / n
        draw_box(ax, x, place, 1.8, 0.3, colour, text=f"row {row:,}", size=7)
        ax.text(x + 0.9, 4.1, f"{n + 1:,} × 16", ha="center", va="top", size=8)
        draw_box(ax, 11.4, 0.9 * k, 2.2, 0.5, colour, text=f"v{f + 1}", size=8)
        draw_arrow(ax, (x + 1.8, place + 0.15), (11.4, 0.9 * k + 0.25), colour=LINE, lw=0.6)
    ax.text(12.5, 4.1, "[F, D]: this row's vectors", ha="center", va="top", size=8)
    ax.set(xlim=(-0.2, 13.8), ylim=(4.7, -1.9), title="(id + 1) mod n chooses a row of each table: 4 of the 26 tables")
    ax.axis("off")
    return figure


def triangle(features: int = 4, width: int = 3) -> Figure:
    """All products of a row's vectors as a square, numbered in the order of the output; and the output."""
    vectors = features + 1
    figure, (square, line) = panels((10, 2.6), columns=2, width_ratios=(1, 2.6))
    number, place = 0, 0.0
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
    square.set_title("vᵢ · vⱼ: the coloured products are kept", size=9)
    line.set(xlim=(-0.1, place + 0.1), ylim=(2.2, -1.2), aspect="equal")
    line.text(width / 2, 1.25, f"v0 itself,\n{width} elements", ha="center", va="top", size=8)
    line.text(width + number / 2, 1.25, "the pairs, row by row", ha="center", va="top", size=8)
    line.set_title(f"a row of the output: {width} + {number} elements", size=9)
    for ax in (square, line):
        ax.axis("off")
    return figure


def roof() -> Figure:
    """A prediction of main for 2048 rows: µs of its bytes and of its FLOPs, the longer of which is the roof, and as
    recorded."""
    figure, ax = panels((10, 2.2))
    us = {"bytes, at the copy's rate": recorded.bytes_us(), "FLOPs, at TF32's peak": recorded.prediction()["the roof"]}
    roof = max(us.values())
    us |= {name: value for name, value in recorded.prediction().items() if name != "the roof"}
    ax.barh(list(us), list(us.values()), color=[GREEN, GREEN, ORANGE, IDLE, IDLE], edgecolor=LINE)
    ax.axvline(roof, color=GREEN, ls="--", lw=1)
    for y, value in enumerate(us.values()):
        beside = ", the roof" if value == roof else f": {value / roof:.0f} × the roof" if y > 1 else ""
        ax.text(max(value, roof) + 1, y, f"{value:,.1f} µs{beside}", va="center")
    ax.invert_yaxis()
    ax.set(xlim=(0, 165), xlabel="µs", title=f"main, 2,048 rows, TF32 ({RECORDED})")
    ax.spines[["top", "right"]].set_visible(False)
    return figure
