"""Pictures of a backward: chunks and their workspace; µs of the sum by the number of chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessons.n09_a_backward import recorded
from lessons.shared.picture import NEEDED, RECORDED, SERIES, draw_arrow, draw_box, open_panels, panels
from lessons.shared.records import copy_us

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_two_stage(chunks: int = 4) -> Figure:
    """Left: every chunk's program adds to the result itself. Right: each has a row of a workspace, which one more
    launch adds up."""
    figure, axes = panels((11, 3.2), 1, 2, width_ratios=(1, 1.5))
    for ax, staged in zip(axes, (False, True), strict=True):
        for chunk in range(chunks):
            draw_box(ax, 0, 1.5 * chunk, 4, 1.3, (f"C{chunk}", 0.35))
            ax.text(2, 1.5 * chunk + 0.65, f"chunk {chunk}", ha="center", va="center", size=9)
            if staged:
                draw_box(ax, 6.5, 1.5 * chunk + 0.45, 4, 0.4, (f"C{chunk}", 0.35))
                draw_arrow(ax, (4.1, 1.5 * chunk + 0.65), (6.4, 1.5 * chunk + 0.65))
                draw_arrow(ax, (10.6, 1.5 * chunk + 0.65), (13, 3.1))
            else:
                draw_arrow(ax, (4.1, 1.5 * chunk + 0.65), (6.9, 3.1), linestyle="--")
        draw_box(ax, 13.1 if staged else 7, 2.9, 4, 0.4, NEEDED)
        ax.text(15.1 if staged else 9, 3.7, "result", ha="center", va="center", size=9)
        ax.text(2, -0.2, "x", ha="center", size=9)
        ax.set(xlim=(-0.2, 17.4 if staged else 11.4), ylim=(6.2, -0.7))
        ax.axis("off")
    axes[0].set_title("atomics: programs add in the order in which they end", size=9, loc="left")
    fixed = "two stages: each chunk has a row of the workspace; the rows are added in a fixed order"
    axes[1].set_title(fixed, size=9, loc="left")
    axes[1].text(8.5, -0.2, f"workspace [{chunks}, columns]", ha="center", size=9)
    return figure


def draw_chunks() -> Figure:
    """The recorded µs of the sum by the number of chunks; the line is what the bytes alone take."""
    figure, ax = open_panels((9, 3))
    least = copy_us(4 * recorded.ROWS * recorded.COLUMNS)
    for (way, step), colour in zip(recorded.WAYS.items(), SERIES, strict=False):
        points = recorded.BACKWARD.rows("chunks", step=step).sort_values("chunks")
        ax.plot(points["chunks"], points["us_p50"], "o-", ms=4, color=colour, label=way)
    ax.axhline(least, color="0.4", ls="--", lw=1)
    ax.text(1, least, f"the bytes at the copy's rate: {least:.1f} µs", va="top", size=8)
    ax.set(xscale="log", yscale="log", xlabel="chunks of the rows", ylabel=f"µs, {RECORDED}")
    ax.set_xticks(chunks := [1, 4, 16, 64, 128, 512, 2048, 16384], [f"{count:,}" for count in chunks], size=8)
    ax.set_yticks(us := [30, 100, 300, 1000], us)
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=8)
    return figure
