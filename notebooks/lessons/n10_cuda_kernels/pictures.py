"""What a warp requests of x before its first store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lessons.shared.picture import FETCHED, NEEDED, draw_box, panels
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
