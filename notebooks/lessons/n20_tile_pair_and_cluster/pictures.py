"""A tile's block as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessons.shared.picture import SHADES, draw_arrow, draw_box, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_tile(weight_bytes: int) -> Figure:
    """A block of the tiled kernel: what lies in the memory, in the L2, in shared memory and in registers."""
    figure, ax = panels((10.5, 4.2))
    for x, wide, name in ((0.1, 2.3, "memory"), (2.8, 2.3, "L2"), (5.5, 4.9, "one SM, one block of 16 warps")):
        draw_box(ax, x, 0.1, wide, 4.2, "0.97", 1)
        ax.text(x + wide / 2, 4.4, name, ha="center", va="bottom", size=10)
    texts = {
        (0.3, 2.15, 1.9, 0.75, SHADES[2]): "dense: 8, 16 or 32 rows",
        (0.3, 1.2, 1.9, 0.75, SHADES[1]): "the table rows\nof the ids",
        (0.3, 0.3, 1.9, 0.7, SHADES[3]): "out",
        (3.0, 3.1, 1.9, 1.0, SHADES[0]): f"{weight_bytes / 1e6:.2f} MB of weights,\nlaid out as fragments",
        (5.7, 3.1, 4.5, 1.0, SHADES[0]): (
            "registers: each warp holds its sums, and the weights of\n16 outputs, which it loads three loads ahead"
        ),
        (5.7, 2.15, 4.5, 0.75, SHADES[2]): "shared memory: activations between two layers",
        (5.7, 1.2, 4.5, 0.75, SHADES[1]): "shared memory: 27 vectors of 64 bytes per row",
        (5.7, 0.3, 4.5, 0.7, SHADES[3]): "pairs: for each row, one warp computes V · Vᵀ\non tensor cores",
    }
    for (x, y, wide, high, colour), text in texts.items():
        draw_box(ax, x, y, wide, high, colour, text=text, size=8)
    for start, end, label in (
        ((4.9, 3.6), (5.7, 3.6), "once per tile"),
        ((2.2, 2.52), (5.7, 2.52), "once"),
        ((2.2, 1.57), (5.7, 1.57), "requested after the first layer"),
        ((5.5, 0.65), (2.2, 0.65), "once"),
    ):
        draw_arrow(ax, start, end, lw=1.4)
        ax.text((start[0] + end[0]) / 2, start[1] + 0.06, label, ha="center", va="bottom", size=7)
    for upper, lower in ((3.1, 2.9), (2.15, 1.95), (1.2, 1.0)):
        draw_arrow(ax, (7.95, lower), (7.95, upper), arrowstyle="<->")
    ax.set(xlim=(0, 10.5), ylim=(0, 4.8))
    ax.axis("off")
    return figure
