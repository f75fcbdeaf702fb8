"""Bags as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from lessons.shared.picture import SHADES, draw_box, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
