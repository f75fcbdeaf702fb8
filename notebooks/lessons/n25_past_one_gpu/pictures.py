"""Where the ids of a batch go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lessons.shared.picture import SHADES, draw_box, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_exchange(owner: Sequence[int], rows: int, world: int) -> Figure:
    """The ids of each rank's rows, each in the colour of its table's owner; and each rank's tables."""
    figure, axes = panels((9, 0.45 * rows + 1.3), 1, world)
    for rank, ax in enumerate(axes):
        for row in range(rows):
            for f, to in enumerate(owner):
                draw_box(ax, f, rows - row, 0.9, 0.9, SHADES[to], text=f"row {rank * rows + row}, table {f}", size=6.5)
        own = [f for f, to in enumerate(owner) if to == rank]
        for place, f in enumerate(own):
            draw_box(ax, place * 1.6, -0.4, 1.5, 0.9, SHADES[rank], lw=1.5, edge="black", text=f"table {f}")
        ax.set(title=f"rank {rank}: its rows' ids, and its tables", xlim=(-0.2, len(owner)), ylim=(-0.6, rows + 1.1))
        ax.title.set_size(9)
        ax.axis("off")
    return figure
