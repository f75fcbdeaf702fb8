"""Pictures of what a warp touches, of a sum through shared memory, of times, which are the record's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lessons.n10_cuda_kernels import recorded
from lessons.n10_cuda_kernels.counting import STEPS
from lessons.shared.picture import FETCHED, NEEDED, ORANGE, draw_arrow, draw_box, panels
from lessons.shared.records import LANES, SECTOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECTOR_NUMBERS = SECTOR // 4  # float32
BLOCK, SHOWN = 256, 1024  # threads; elements in the picture
# The first number that lane k takes in its first read, how many, and how many reads come before the first store.
FIRST: dict[str, tuple[Callable[[int], int], int, int]] = {
    "strided": (lambda lane: 16 * lane, 1, 1),
    "coalesced": (lambda lane: lane, 1, 1),
    "early": (lambda lane: lane, 1, 4),
    "wide": (lambda lane: 4 * lane, 4, 1),
}


def draw_reads() -> Figure:
    """The first numbers of each step: what a warp asks for before its first store, and what comes with it."""
    figure, axes = panels((11, 4.2), len(FIRST), 1)
    for ax, (name, (first, width, reads)) in zip(axes, FIRST.items(), strict=True):
        asked = {first(lane) + k + BLOCK * j for lane in range(LANES) for k in range(width) for j in range(reads)}
        sectors = {number // SECTOR_NUMBERS for number in asked}
        for sector in range(SHOWN // SECTOR_NUMBERS):
            place = sector * SECTOR_NUMBERS
            draw_box(ax, place, 0, SECTOR_NUMBERS, 1, FETCHED if sector in sectors else "white", lw=0.4)
        for number in asked:
            draw_box(ax, number, 0, 1, 1, NEEDED, lw=0.2)
        useful = 100 * len(asked) / (len(sectors) * SECTOR_NUMBERS)
        requests = f"{reads} request{'s' * (reads > 1)}, {len(sectors)} sectors"
        ax.set_title(f"{name}: {requests}, {useful:.1f} % of their bytes used", size=9, loc="left")
        ax.set(xlim=(0, SHOWN), ylim=(0, 1), yticks=[])
        ax.tick_params(labelsize=7)
    axes[-1].set_xlabel("element of x; blue: warp 0 requests it before its first store; orange: comes with it", size=9)
    return figure


def draw_steps(predicted: dict[str, float | None] | None = None) -> Figure:
    """µs of the steps, with their spread; the line is a copy of as many bytes; diamonds: what was predicted. Beside
    them those of the GPU that has *early* too."""
    runs = recorded.step_runs()
    figure, axes = panels((10, 2.6), 1, len(runs), sharey=True, squeeze=False)
    for record, ax in zip(runs, axes[0], strict=True):
        rows = record.rows("step").set_index("name")
        for name in rows.index:
            row = rows.loc[name]
            spread = [[row["us_p50"] - row["us_p20"]], [row["us_p80"] - row["us_p50"]]]
            place = list(STEPS).index(name)
            ax.barh(place, row["us_p50"], xerr=spread, color=NEEDED, height=0.6)
            ax.text(row["us_p50"] * 1.01, place, f" {row['us_p50']:.1f}", size=9, va="center")
        ax.axvline(record.us("copy", of="step"), color="0.4", ls="--", lw=1, label="a copy of as many bytes")
        ax.set_title(f"recorded, {recorded.gpu_of(record)}", size=9, loc="right")
        ax.margins(x=0.12)
        ax.set(xlabel="µs for 65536 × 512 float32", xlim=(0, None), yticks=range(len(STEPS)), yticklabels=STEPS)
    for name, value in (predicted or {}).items():
        if value is not None:
            axes[0][0].plot(value, list(STEPS).index(name), "D", color=ORANGE)  # the reader's
    axes[0][0].set_xlabel("µs for 65536 × 512 float32; orange: your prediction")
    axes[0][0].invert_yaxis()
    axes[0][0].legend(fontsize=8, loc="lower right")
    return figure


def draw_sum(rows: int = 16) -> Figure:
    """A block's way from 32 columns of x to 32 sums: rows to warps, a place of shared memory for each, then warp 0."""
    figure, ax = panels((11, 3.4))
    for row in range(rows):
        draw_box(ax, 0, 0.5 * row, 3, 0.42, (f"C{row % 8}", 0.45))
        ax.text(-0.1, 0.5 * row + 0.21, row, ha="right", va="center", size=7)
    ax.text(1.5, -0.25, "x: 32 columns", ha="center", size=9)
    for warp in range(8):
        top = 1 * warp + 0.1
        draw_box(ax, 4.6, top, 2.2, 0.7, (f"C{warp}", 0.45))
        ax.text(5.7, top + 0.35, f"warp {warp} adds rows {warp}, {warp + 8}, …", ha="center", va="center", size=7)
        draw_arrow(ax, (6.8, top + 0.35), (8.2, top + 0.35), "black", lw=0.8)
        draw_box(ax, 8.2, top, 2.4, 0.7, FETCHED)
        ax.text(9.4, top + 0.35, f"part[{warp}][0 … 31]", ha="center", va="center", size=8)
        draw_arrow(ax, (10.6, top + 0.35), (12.4, 4), "black", lw=0.8)
        for row in (warp, warp + 8):
            ax.plot((3, 4.6), (0.5 * row + 0.21, top + 0.35), color=f"C{warp}", lw=0.5)
    ax.plot((11, 11), (-0.1, 8), color="#e6550d", ls="--")
    ax.text(11, -0.25, "__syncthreads()", ha="center", size=9, color="#e6550d")
    ax.text(9.4, -0.25, "__shared__", ha="center", size=9)
    draw_box(ax, 12.4, 3.6, 2, 0.8, "C0")
    ax.text(13.4, 4, "warp 0: 32 sums", ha="center", va="center", size=8, color="white")
    ax.set(xlim=(-0.6, 14.6), ylim=(8.3, -0.7))
    ax.axis("off")
    return figure
