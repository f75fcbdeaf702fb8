"""One kernel as pictures: the sectors that the reader's touches, the budget of a thread, a tile's chip, the ranking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernels.ops.dlrm.shape import MOST_NUMBERS
from lessons.n17_whole_model_in_one_kernel import recorded
from lessons.n17_whole_model_in_one_kernel.on_your_machine import shape
from lessons.shared.picture import (
    BLUE,
    GREEN,
    IDLE,
    ORANGE,
    RED,
    SHADES,
    VIOLET,
    draw_arrow,
    draw_box,
    open_panels,
    panels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REGISTERS = 255  # that a thread can have
COLOURS = {recorded.OURS: GREEN, "eager": ORANGE, "torch.compile": BLUE, recorded.NOBODY: IDLE}


def draw_touched(touched: Mapping[str, tuple[float, float, int]]) -> Figure:
    """touched: puzzles.touched(kernel). For each tensor the sectors that a warp's accesses touch; where its rows lie
    side by side, a line at as few as would hold them."""
    groups: dict[str, list[float]] = {}
    for name, (accesses, sectors, fewest) in touched.items():
        total = groups.setdefault(name.rstrip("0123456789"), [0.0, 0.0, 0.0])
        for k, value in enumerate((accesses, sectors, fewest)):
            total[k] += value
    figure, ax = open_panels((9, 2.8))
    for y, (accesses, sectors, fewest) in enumerate(groups.values()):
        ax.barh(y, sectors, color=BLUE, height=0.6)
        ax.text(sectors, y, f"  {sectors:,.0f} in {accesses:,.0f} instructions", va="center", size=8)
        if fewest:
            ax.plot([fewest, fewest], [y - 0.4, y + 0.4], color=RED, linewidth=2)
            ax.text(fewest, y - 0.42, f"{fewest:,.0f} would hold it", ha="center", va="bottom", size=7, color=RED)
    ax.set_yticks(range(len(groups)), groups)
    ax.invert_yaxis()
    ax.set(xlabel="sectors that a warp's 32 rows touch", xlim=(0, 1.3 * max(sum(s[1:2]) for s in groups.values())))
    return figure


def draw_budget(widths: tuple[int, ...] = (4, 16, 64)) -> Figure:
    """Numbers that a thread holds at once, over the tables, a line a width; the op's budget and the registers."""
    figure, ax = open_panels((9, 3.2))
    tables = range(1, 31)
    for width, colour in zip(widths, (GREEN, BLUE, VIOLET), strict=False):
        ax.plot(tables, [shape(count, width).numbers for count in tables], color=colour, label=f"width {width}")
    ax.axhline(REGISTERS, color=RED, linestyle=":", linewidth=1)
    ax.text(30, REGISTERS, "255 registers, some of them for addresses", ha="right", va="bottom", size=8, color=RED)
    ax.axhline(MOST_NUMBERS, color=RED, linewidth=1)
    ax.text(30, MOST_NUMBERS, f"the op's budget: {MOST_NUMBERS}", ha="right", va="bottom", size=8, color=RED)
    ax.set(xlabel="tables", ylabel="numbers a thread holds, as the op counts", ylim=(0, 500), xlim=(1, 30))
    ax.legend(frameon=False, loc="upper left", fontsize=8)
    return figure


def draw_tile() -> Figure:
    """A block of the tiled kernel: what lies in the memory, in the L2, in shared memory and in registers."""
    figure, ax = panels((10.5, 4.2))
    for x, wide, name in ((0.1, 2.3, "memory"), (2.8, 2.3, "L2"), (5.5, 4.9, "one SM, one block of 16 warps")):
        draw_box(ax, x, 0.1, wide, 4.2, "0.97", 1)
        ax.text(x + wide / 2, 4.4, name, ha="center", va="bottom", size=10)
    texts = {
        (0.3, 2.15, 1.9, 0.75, SHADES[2]): "dense: 8, 16 or 32 rows",
        (0.3, 1.2, 1.9, 0.75, SHADES[1]): "the table rows\nof the ids",
        (0.3, 0.3, 1.9, 0.7, SHADES[3]): "out",
        (3.0, 3.1, 1.9, 1.0, SHADES[0]): "weights of both MLPs,\nlaid out as fragments",
        (5.7, 3.1, 4.5, 1.0, SHADES[0]): (
            "registers: each warp holds its sums, and the weights of\n16 outputs, which it loads three loads ahead"
        ),
        (5.7, 2.15, 4.5, 0.75, SHADES[2]): "shared memory: activations between two layers",
        (5.7, 1.2, 4.5, 0.75, SHADES[1]): "shared memory: 27 vectors per row",
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


def draw_ranking() -> Figure | None:
    """Who is the fastest for which batch and how many tables, by the record; without one, nothing."""
    if (record := recorded.sweep()) is None:
        return None
    figure, ax = panels((10, 3.4))
    cells = recorded.cells(record)
    batches, tables = (sorted({at[k] for at in cells}) for k in (1, 0))
    for (count, batch), cell in cells.items():
        name = recorded.winner(cell)
        times = dict(zip(cell["implementation"], cell["us_p50"], strict=True))
        best = min((us for who, us in times.items() if who != recorded.OURS), default=float("nan"))
        text = f"{name}\n{times.get(recorded.OURS, float('nan')):.1f} µs, a peer {best:.1f}"
        colour = COLOURS.get(name, VIOLET)
        draw_box(ax, batches.index(batch), tables.index(count), 1, 1, colour, text=text, size=7, alpha=0.45)
    ax.set_xticks([k + 0.5 for k in range(len(batches))], [f"{batch:,}" for batch in batches])
    ax.set_yticks([k + 0.5 for k in range(len(tables))], tables)
    ax.set(xlim=(0, len(batches)), ylim=(0, len(tables)), xlabel="rows of a batch", ylabel="tables")
    where = record.head("GPU").removeprefix("NVIDIA ")
    ax.set_title(f"the fastest by the GPU's time, recorded, {where}", loc="left", size=9)
    return figure
