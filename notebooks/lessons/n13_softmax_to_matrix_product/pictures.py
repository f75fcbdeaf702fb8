"""Pictures of softmax and of tiled products: the online sum, tiles and strips, the order of programs, banks, steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lessons.n13_softmax_to_matrix_product import arithmetic, recorded
from lessons.n13_softmax_to_matrix_product.launch import STEPS, TUNED
from lessons.shared.picture import FETCHED, LINE, OTHER, RECORDED, SHADES, draw_box, panels
from lessons.shared.records import tflop_per_s

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
    """What a program reads: for one number of out, for a tile of it, and for a tile in one step of the loop."""
    figure, axes = panels((11, 3.7), 1, 3)
    size, tile, step = 16, 4, 2
    titles = ("a number: 2 rows for 1 result", f"a tile: {2 * tile} rows for {tile * tile} results",
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
    """A cell a number. In one collection: thousands of patches take seconds."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    cells = [(row, column) for row in range(rows) for column in range(columns)]
    patches = [Rectangle((left + column, top + row), 1, 1) for row, column in cells]
    colours = [colour(*cell) for cell in cells]
    ax.add_collection(PatchCollection(patches, facecolors=colours, edgecolors=LINE, linewidths=0.3))


def draw_order(order: Callable, rows: int = 64, columns: int = 64, group: int = 8) -> Figure:
    """The tiles that the first programs take, two an SM, row by row and in groups; the strips of x, at the left, and of
    the weight, on top, that they need."""
    import matplotlib.pyplot as plt

    figure, axes = panels((11, 4.8), 1, 2)
    for ax, size, title in zip(axes, (1, group), ("row by row", f"groups of {group} rows"), strict=True):
        programs = {order(program, rows, columns, size): program for program in range(arithmetic.resident())}
        high, wide = arithmetic.strips(order, rows, columns, size)

        def shade(row: int, column: int, programs: dict = programs) -> str | tuple:
            program = programs.get((row, column))
            return OTHER if program is None else plt.get_cmap("viridis")(program / arithmetic.resident())

        _matrix(ax, 1.5, 1.5, rows, columns, shade)
        for row in {row for row, _ in programs}:
            draw_box(ax, -1, row + 1.5, 2, 1, X, lw=0.3)
        for column in {column for _, column in programs}:
            draw_box(ax, column + 1.5, -1, 1, 2, WEIGHT, lw=0.3)
        ax.set(xlim=(-1.3, columns + 1.8), ylim=(rows + 3.6, -1.3))
        ax.set_title(f"{title}: {high} strips of x + {wide} of the weight = {high + wide}", size=9)
        ax.text(columns / 2 + 1.5, rows + 2.6, f"the tiles of programs 0 (dark) to {arithmetic.resident() - 1} (light)",
                ha="center", va="center", size=8)
        ax.axis("off")
    return figure


def draw_banks(*distances: int) -> Figure:
    """Shared memory, 32 banks wide: where lane k's number k · apart lies; a column is a bank."""
    figure, axes = panels((11, 2.9), 1, len(distances))
    for ax, apart in zip(np.atleast_1d(axes), distances, strict=True):
        rows = 12
        _matrix(ax, 0, 0, rows, 32, lambda row, bank, apart=apart: OTHER if (32 * row + bank) % apart else NOW)
        for lane in range(-(-32 * rows // apart)):
            row, bank = divmod(lane * apart, 32)
            ax.text(bank + 0.5, row + 0.5, lane, ha="center", va="center", size=6)
        count = arithmetic.ways(apart)
        turns = f"{count} lanes ask one bank, {count} turns" if count > 1 else "each lane has a bank of its own, 1 turn"
        ax.set_title(f"rows {apart} numbers apart: {turns}", size=9)
        ax.set(xlim=(-0.2, 32.2), ylim=(rows + 0.1, -0.1))
        ax.axis("off")
        ax.text(16, rows + 0.9, "bank 0 … 31; the number is the lane (of the first rows)", ha="center", size=8)
    return figure


def draw_steps() -> Figure:
    """TFLOP/s of each step at 4096³ in bfloat16, on a logarithmic scale, and cuBLAS's as a line."""
    figure, ax = panels((10, 3.3))
    names = [*STEPS, TUNED]
    rates = [tflop_per_s(recorded.step(name)) for name in names]
    library = tflop_per_s(recorded.step("fused"))
    ax.barh(names, rates, color=[X] * (len(names) - 1) + [OUT], ec="0.5")
    for place, rate in enumerate(rates):
        ax.text(0.95 * rate, place, f"{rate:,.1f}", ha="right", va="center", size=8)
    ax.axvline(library, color=NOW, lw=1.5)
    ax.set_title(f"{RECORDED}; the line is cuBLAS with bias and relu, {library:.0f}", size=9)
    ax.set(xscale="log", xlim=(min(rates) / 2, 2.5 * library))
    ax.set(xlabel="TFLOP/s")
    ax.invert_yaxis()
    return figure
