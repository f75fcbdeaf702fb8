"""The walk over sorted occurrences as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lessons.shared.picture import draw_box, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_walk(rows: Sequence[int]) -> Figure:
    """Occurrences as they come, as they are sorted, and the rows that are updated: each row in a colour of its own."""
    sorted_ = sorted(range(len(rows)), key=lambda n: (rows[n], n))
    distinct = sorted(set(rows))
    colour = {row: f"C{i}" for i, row in enumerate(distinct)}
    figure, ax = panels((10, 3.6))

    def box(x: float, y: float, row: int, text: str, width: float = 0.9) -> None:
        draw_box(ax, x, y, width, 0.5, colour[row], 1, colour[row], text, 9, alpha=0.35)

    for n, row in enumerate(rows):
        box(n, 2.6, row, f"row {row}")
        ax.text(n + 0.45, 3.2, f"position {n}", ha="center", size=7)
    for place, n in enumerate(sorted_):
        box(place, 1.4, rows[n], f"{rows[n]}, {n}")
        ax.plot([n + 0.45, place + 0.45], [2.6, 1.9], color=colour[rows[n]], linewidth=1)
    for row in distinct:
        places = [place for place, n in enumerate(sorted_) if rows[n] == row]
        terms = " + ".join(f"grad {sorted_[place]}" for place in places)
        box(places[0], 0.2, row, f"row {row}:\n{terms}", len(places) - 0.1)
        ax.plot([places[0] + 0.05, places[-1] + 0.85], [1.3, 1.3], color=colour[row], linewidth=3)
    for y, label in ((2.85, "as they come"), (1.65, "sorted:\nrow, position"), (0.45, "one update\na row")):
        ax.text(-0.15, y, label, ha="right", va="center", size=9)
    ax.set(xlim=(-1.6, len(rows)), ylim=(0, 3.4))
    ax.axis("off")
    return figure
