"""Pictures of softmax and of tiled products: the online sum, and what a tile needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lessons.shared.picture import FETCHED, LINE, OTHER, SHADES, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

X, WEIGHT, OUT, NOW = SHADES[0], FETCHED, SHADES[2], "#e6550d"
ROW = (1.0, 0.4, 1.6, 0.8, 2.4, 1.2, 2.0, 0.6, 1.4, 3.0, 2.6, 1.8)  # a row of twelve numbers, in three blocks


def draw_online(row: Sequence[float] = ROW, block: int = 4) -> Figure:
    """A panel a block: the terms e^(x - maximum) that the sum has so far, by the maximum of then and by the one now."""
    figure, axes = panels((11, 2.9), 1, len(row) // block, sharey=True)
    before = -np.inf
    for number, ax in enumerate(axes):
        seen = np.array(row[: (number + 1) * block])
        maximum = seen.max()
        old = np.exp(seen[: number * block] - before) if number else np.array([])
        new = np.exp(seen - maximum)
        places = np.arange(len(seen))
        ax.bar(places[: len(old)], old, color="white", ec="0.5", ls="--", label="as it was added")
        ax.bar(places, new, color=[X] * (number * block) + [NOW] * block, ec="0.4", lw=0.5)
        factor = f"total · e^({before:.1f} − {maximum:.1f}) = total · {np.exp(before - maximum):.2f}" if number else ""
        ax.set_title(f"block {number + 1}: maximum {maximum:.1f}, total {new.sum():.2f}\n{factor}", size=9)
        ax.set(xlim=(-0.6, len(row) - 0.4), xlabel="column")
        before = maximum
    axes[0].set_ylabel("e^(z − maximum)")
    return figure


def draw_tiles() -> Figure:
    """What a program reads: for one element of out, for a tile of it, and for a tile in one step of the loop."""
    figure, axes = panels((11, 3.7), 1, 3)
    size, tile, step = 16, 4, 2
    titles = ("an element: 2 rows for 1 result", f"a tile: {2 * tile} rows for {tile * tile} results",
              "one step of the loop: two small tiles")
    for ax, title, side in zip(axes, titles, (1, tile, tile), strict=True):
        at = 8 if side == tile else 9
        now = range(6, 6 + step) if title.startswith("one") else range(size)
        _matrix(ax, 0, size + 2, size, size, lambda r, c, at=at, side=side, now=now: _hit(r, c, at, side, now, X))
        _matrix(
            ax, size + 2, 0, size, size, lambda r, c, at=at, side=side, now=now: _hit(c, r, at, side, now, WEIGHT)
        )
        _matrix(
            ax, size + 2, size + 2, size, size,
            lambda r, c, at=at, side=side: OUT if at <= r < at + side and at <= c < at + side else OTHER,
        )
        for x, y, text in ((size / 2, 2 * size + 3.4, "x [M, K]"), (1.5 * size + 2, 2 * size + 3.4, "out [M, N]"),
                           (size, size / 2, "weightᵀ [K, N]")):
            ax.text(x, y, text, ha="right" if text.startswith("weight") else "center", va="center", size=9)
        ax.set(xlim=(-0.5, 2 * size + 2.5), ylim=(2 * size + 4, -0.5), aspect="equal")
        ax.set_title(title, size=9)
        ax.axis("off")
    return figure


def _hit(along: int, depth: int, at: int, side: int, now: range, colour: str) -> str:
    if not at <= along < at + side:
        return OTHER
    return (NOW if len(now) < 16 else colour) if depth in now else colour


def _matrix(
    ax: Axes, left: float, top: float, rows: int, columns: int, colour: Callable[[int, int], str | tuple]
) -> None:
    """A cell an element. In one collection: thousands of patches take seconds."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    cells = [(row, column) for row in range(rows) for column in range(columns)]
    patches = [Rectangle((left + column, top + row), 1, 1) for row, column in cells]
    colours = [colour(*cell) for cell in cells]
    ax.add_collection(PatchCollection(patches, facecolors=colours, edgecolors=LINE, linewidths=0.3))
