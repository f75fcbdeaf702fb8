"""The picture of notebook 18: what a caller waits for, launch by launch and as a CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lessons.shared.measure import Times
from lessons.shared.picture import BLUE, ORANGE, open_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRAPH = " in a graph"  # the end of a way's name


def draw_waits(times: Times, sizes: Sequence[int]) -> Figure | None:
    """A bar for each way, and below it the same way's graph; a panel for each size. Nothing where nothing is timed."""
    names = list(dict.fromkeys(row["name"].removesuffix(GRAPH) for row in times.rows if "us_p50" in row))
    if not names:
        return None
    figure, axes = open_panels((9.6, 0.55 * len(names) + 1.1), 1, len(sizes), sharey=True, squeeze=False)
    for ax, size in zip(axes[0], sizes, strict=True):
        for place, name in enumerate(names):
            for shift, end, colour in ((-0.2, "", ORANGE), (0.2, GRAPH, BLUE)):
                if row := times.one(name + end, size):
                    ax.barh(place + shift, row["us_p50"], 0.36, color=colour)
                    ax.text(row["us_p50"], place + shift, f" {row['us_p50']:,.0f}", va="center", size=8)
        ax.set(yticks=range(len(names)), yticklabels=names, xlabel=f"µs for {size:,} rows")
        ax.margins(x=0.12)
    axes[0][0].invert_yaxis()
    axes[0][0].set_title("orange: launch by launch; blue: as one CUDA graph", loc="left", size=9)
    return figure
