"""The fused update as pictures: the walk over sorted occurrences, its segments; and what shared rows cost in AUC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lessons.n16_training_tables.arithmetic import chunk_of
from lessons.shared.picture import draw_box, panels

if TYPE_CHECKING:
    import pandas as pd
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


def draw_segments(segments: Mapping[str, Sequence[int]], ids: int, columns: int = 16) -> Figure:
    """segments: for each table the lengths of its segments, in a batch of `ids` ids a table. The longest and the mean
    of each table, on a logarithmic scale, and how long the CUDA kernel's chunks are for rows of `columns` numbers."""
    chunk = chunk_of(ids * len(segments), columns)

    figure, ax = panels((10, 3.2))
    names = list(segments)
    ax.bar(names, [max(lengths) for lengths in segments.values()], color="lightskyblue", label="longest segment")
    ax.plot(names, [ids / len(lengths) for lengths in segments.values()], "k_", markersize=14, label="mean segment")
    ax.axhline(chunk, color="C1", linestyle="--", label=f"a chunk of the CUDA kernel: {chunk}")
    ax.set(yscale="log", ylabel="occurrences of a row")
    ax.tick_params(axis="x", labelsize=7)
    ax.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def draw_auc(table: pd.DataFrame) -> Figure:
    """AUC over rows a known id, a line a hash, with the spread of the seeds; above, the best that can be reached."""
    figure, ax = panels((8, 3.6))
    for name, part in table.groupby("hash"):
        errors = (part["auc"] - part["lowest"], part["highest"] - part["auc"])
        ax.errorbar(part["share"], part["auc"], errors, marker="o", capsize=3, label=name)
    ax.axhline(table.attrs["best"], color="k", linestyle=":", label="the true probability")
    ax.set(xscale="log", xlabel="rows of the tables, for each known id", ylabel="AUC on unseen rows")
    ax.set_xticks(shares := sorted(table["share"].unique()), [f"{share:g}" for share in shares])
    ax.minorticks_off()
    ax.legend(frameon=False)
    return figure
