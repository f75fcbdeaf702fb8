"""What look-ups read, as pictures: rows of a table, of a buffer of tables, sectors, frequencies, bags."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lessons.n15_embeddings.arithmetic import PAIR
from lessons.shared.picture import NEEDED, SHADES, draw_box, draw_cells, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNUSED = "#f7d4b5"


def buffer(heights: Sequence[int], ids: Sequence[int], width: int) -> Figure:
    """The tables one behind the other, and the way of one id of each into the output."""
    starts = np.concatenate([[0], np.cumsum(heights)])
    figure, (left, right) = panels((7, 0.25 * sum(heights) + 0.6), columns=2, width_ratios=(2, 1))
    table = np.repeat(np.arange(len(heights)), heights)
    wanted = {int(starts[f]) + id for f, id in enumerate(ids)}
    colours = [SHADES[f] if row in wanted else "white" for row, f in enumerate(table)]
    names = [f"table {f}, id {row - starts[f]}: row {row}" for row, f in enumerate(table)]
    draw_cells(left, [[colour] * width for colour in colours], "0.7", names)
    for start in starts[1:-1]:
        left.plot([0, width], [start, start], color="black", lw=2)
    outputs = [[shade] * width for shade in SHADES[: len(heights)]]
    draw_cells(right, outputs, "0.7", [f"out[0, {f}]" for f in range(len(heights))])
    left.set_title(f"tables: row_offsets {starts.tolist()}", size=9)
    right.set_title(f"ids [[{', '.join(map(str, ids))}]]", size=9)
    return figure


def sector_map(widths: Sequence[int], row: int = 3, pairs_shown: int = 8) -> Figure:
    """One row of tables of these widths: the pairs of sectors that come for it, and the part that was wanted."""
    figure, ax = panels((10, 0.5 * len(widths) + 0.7))
    for y, width in enumerate(widths):
        first, last = 4 * width * row, 4 * width * (row + 1)  # float32
        origin = first // PAIR * PAIR
        for k in range(pairs_shown):
            colour = UNUSED if origin + k * PAIR < last else "white"
            draw_box(ax, k * PAIR, y, PAIR, 0.7, colour, 0.8, "0.5")
        draw_box(ax, first - origin, y, last - first, 0.7, NEEDED, edge="none", alpha=0.9)
        ax.text(-6, y + 0.35, f"D = {width}, {4 * width} bytes", ha="right", va="center", size=8)
    ax.set(xlim=(-125, pairs_shown * PAIR), ylim=(len(widths), -0.2))
    ax.set_title(f"row {row}: asked for (blue), read beside it (orange); a box is a pair, {PAIR} bytes", size=9)
    ax.axis("off")
    return figure


def bags(ids: Sequence[int], offsets: Sequence[int], features: int) -> Figure:
    """The ids of all bags in one line, cut at the offsets."""
    figure, ax = panels((10, 1.7))
    batch = (len(offsets) - 1) // features
    for bag, (begin, end) in enumerate(pairwise(offsets)):
        feature, row = divmod(bag, batch)
        for k in range(begin, end):
            draw_box(ax, k, 0, 1, 1, SHADES[feature], 1, "0.6", text=str(ids[k]), size=9)
        ax.plot([begin, begin], [-0.3, 1.3], color="black", lw=2)
        lift = 0.55 * (begin == end)  # or the name of an empty bag would lie on its neighbours'
        ax.text((begin + end) / 2, -0.4 - lift, f"f{feature} b{row}" + " empty" * (begin == end), ha="center", size=8)
    for place in sorted(set(offsets)):
        ax.text(place, 1.75, place, ha="center", size=8)
    ax.set(xlim=(-0.6, offsets[-1] + 0.6), ylim=(2, -1.3))
    ax.set_title(f"ids (boxes) and offsets {list(offsets)}; colour: feature, between two bars: a bag", size=9)
    ax.axis("off")
    return figure
