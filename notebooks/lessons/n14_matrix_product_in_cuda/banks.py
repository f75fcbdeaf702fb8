"""Shared memory's banks: how many wavefronts a warp's read takes, and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lessons.shared.picture import LINE, OTHER, panels
from lessons.shared.records import LANES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOW = "#e6550d"


def ways(apart: int) -> int:
    """How many of a warp's lanes ask one bank, of 32, if lane k reads the float k · apart: as many wavefronts."""
    asked = [lane * apart % LANES for lane in range(LANES)]
    return max(map(asked.count, asked))


def draw_banks(*distances: int) -> Figure:
    """Shared memory, 32 banks wide: where lane k's float k · apart lies; a column is a bank."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    figure, axes = panels((11, 2.9), 1, len(distances))
    for ax, apart in zip(np.atleast_1d(axes), distances, strict=True):
        rows = 12
        places = range(rows * LANES)
        boxes = [Rectangle((place % LANES, place // LANES), 1, 1) for place in places]
        colours = [OTHER if place % apart else NOW for place in places]
        ax.add_collection(PatchCollection(boxes, facecolors=colours, edgecolors=LINE, linewidths=0.3))
        for lane in range(-(-rows * LANES // apart)):
            row, bank = divmod(lane * apart, LANES)
            ax.text(bank + 0.5, row + 0.5, lane, ha="center", va="center", size=6)
        count = ways(apart)
        words = f"{count} lanes ask one bank" if count > 1 else "each lane has its own bank"
        ax.set_title(f"rows {apart} floats apart: {words}, {count} wavefront{'s' * (count > 1)}", size=9)
        ax.set(xlim=(-0.2, LANES + 0.2), ylim=(rows + 0.1, -0.1))
        ax.axis("off")
        ax.text(LANES / 2, rows + 0.9, "bank 0 … 31; the number is the lane (of the first rows)", ha="center", size=8)
    return figure
