"""Pictures of a backward: what is kept for it, a tile that goes down the rows, chunks and their workspace, µs by step,
the error of a sum by its order, bytes and time of each activation's backward, its µs by the number of chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lessons.n09_a_backward import arithmetic, recorded, sum_launch
from lessons.shared.picture import FETCHED, LINE, NEEDED, OTHER, RECORDED, draw_arrow, draw_box, panels
from lessons.shared.records import copy_us

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DONE, NOW = "#c6dbef", NEEDED
NAMES = {"eager": "eager", "torch.compile": "torch.compile", "cuda": "ours, CUDA", "triton": "ours, Triton"}


def draw_kept(itemsize: int = 4) -> Figure:
    """Bytes a number that the forward and the backward move, by what is kept between them."""
    figure, ax = panels((10, 2.4))
    for place in range(len(arithmetic.WAYS)):
        forward, backward = arithmetic.traffic(place, itemsize)
        ax.barh(place, forward, color=FETCHED, ec=LINE, label="forward" if not place else None)
        ax.barh(place, backward, left=forward, color=NEEDED, ec=LINE, label="backward" if not place else None)
        ax.text(forward / 2, place, forward, ha="center", va="center", size=9)
        ax.text(forward + backward / 2, place, backward, ha="center", va="center", size=9, color="white")
        ax.text(forward + backward, place, f" {forward + backward}", va="center", size=9)
    ax.set(yticks=range(len(arithmetic.WAYS)), xlabel="bytes for each number of out, float32", ylim=(3.6, -0.6))
    ax.set_xlim(0, 40)
    ax.set_yticklabels([f"kept: {name}" for name in arithmetic.WAYS])
    ax.legend(frameon=False, fontsize=8, loc="center right")
    return figure


def draw_tile(turn: int = 1, rows: int = 8, columns: int = 12, tile: tuple[int, int] = (2, 4)) -> Figure:
    """sum_tiles: program 1 in its loop's turn number `turn`; right, its sums and the row that tl.sum makes of them."""
    figure, ax = panels((10, 3.1))
    high, wide = tile
    for row in range(rows):
        for column in range(columns):
            mine = column // wide == 1
            colour = NOW if row // high == turn else DONE if row // high < turn else FETCHED
            draw_box(ax, column, row, 1, 1, colour if mine else OTHER)
    for program in range(columns // wide):
        ax.text(wide * (program + 0.5), -0.3, f"program {program}", ha="center", size=9)
    draw_arrow(ax, (columns + 0.6, 0.2), (columns + 0.6, rows - 0.2))
    ax.text(columns + 0.8, rows / 2, "the loop", rotation=-90, va="center", size=9)
    left = columns + 4
    for row in range(high):
        for column in range(wide):
            draw_box(ax, left + column, 2 + row, 1, 1, DONE)
    ax.text(left + wide / 2, 1.6, f"sums [{high}, {wide}], in registers", ha="center", size=9)
    draw_arrow(ax, (2 * wide + 0.2, turn * high + 1), (left - 0.2, 3), NOW)
    for column in range(wide):
        draw_box(ax, left + column, 6.2, 1, 1, DONE)
        draw_arrow(ax, (left + column + 0.5, 4.1), (left + column + 0.5, 6.1))
    ax.text(left + wide + 0.3, 5.1, "tl.sum(sums, axis=0),\nonce, after the loop", va="center", size=9)
    ax.text(left + wide + 0.3, 6.7, f"result [{columns}]: 4 of them", va="center", size=9)
    ax.text(left + wide + 0.3, 3, f"+= the {high} × {wide} numbers\nof this turn (blue)", va="center", size=9)
    ax.text(0, rows + 0.7, f"program 1: pale is added, blue is turn {turn}, orange is to come", size=9)
    ax.set(xlim=(-0.3, left + wide + 8), ylim=(rows + 1, -1))
    ax.axis("off")
    return figure


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
    axes[0].set_title("atomics: += in the order in which the programs end", size=9, loc="left")
    axes[1].set_title("two stages: a row of the workspace each, added up in a fixed order", size=9, loc="left")
    axes[1].text(8.5, -0.2, f"workspace [{chunks}, columns]", ha="center", size=9)
    return figure


def draw_steps() -> Figure:
    """µs of each step, and of the last two by the number of chunks; the line is what the bytes alone take."""
    figure, axes = panels((11, 3), 1, 2, width_ratios=(1, 1.2))
    least = copy_us(4 * arithmetic.NUMBERS)
    found = [recorded.BACKWARD.us("step", step=step) for step in sum_launch.STEPS]
    axes[0].barh(range(len(found)), found, color=NEEDED, ec=LINE)
    for place, us in enumerate(found):
        axes[0].text(us, place, f" {us:.0f}", va="center", size=9)
    axes[0].set(yticks=range(len(found)), xscale="log", xlabel=f"µs, {RECORDED}", ylim=(4.6, -0.6))
    axes[0].set_xlim(10, 5 * max(found))
    axes[0].set_yticklabels([recorded.SAID[step] for step in sum_launch.STEPS])
    for step, label in (("sum_atomic", "atomics"), ("sum_chunk", "two stages")):
        points = recorded.BACKWARD.rows("chunks", step=step).sort_values("chunks")
        axes[1].plot(points["chunks"], points["us_p50"], "o-", ms=4, label=label)
    for ax, line in ((axes[0], axes[0].axvline), (axes[1], axes[1].axhline)):
        line(least, color="0.4", ls="--", lw=1)
        ax.set_title(f"dashed: the bytes at the copy's rate, {least:.0f} µs", size=9, loc="left")
    axes[1].set(xscale="log", yscale="log", xlabel="chunks of the rows", ylabel="µs")
    axes[1].legend(frameon=False, fontsize=8)
    return figure


def draw_errors() -> Figure:
    """The error of a column's sum over 65536 rows in float32, 64 columns, by the order of the additions."""
    figure, ax = panels((10, 2.2))
    x = arithmetic.draw()
    exact = x.sum(0, dtype=np.float64)
    for place, sums in enumerate((arithmetic.one_after_another(x), arithmetic.in_chunks(x))):
        errors = np.abs(sums - exact)
        ax.plot(errors, np.full(len(errors), place), "o", ms=5, alpha=0.4, color=NEEDED)
        middle = float(np.median(errors))
        ax.plot([middle] * 2, [place - 0.3, place + 0.3], color="black")
        ax.text(middle, place - 0.34, f"median {middle:.1e}", ha="center", size=8)
    ax.set(xscale="log", yticks=(0, 1), ylim=(1.5, -0.8), xlabel="how far a sum is off; the sums are some hundreds")
    ax.set_yticklabels(["one after another", "512 chunks of 128"])
    return figure


def draw_backward(dtype: str = "float32") -> Figure:
    """The recorded µs of each activation's backward; dark: what its bytes take at the copy's rate."""
    figure, axes = panels((11, 2.5), 1, len(arithmetic.COMPILER), sharex=True)
    itemsize = 4 if dtype == "float32" else 2
    names = [name for name in NAMES if name != "eager"]
    for ax, activation in zip(axes, arithmetic.COMPILER, strict=True):
        for place, name in enumerate(names):
            us = recorded.backward(name, activation, dtype)["us_p50"]
            size = arithmetic.backward_bytes(name, activation, itemsize)
            ax.barh(place, us, color=FETCHED, ec=LINE)
            ax.barh(place, copy_us(size * arithmetic.NUMBERS), color=NEEDED, ec=LINE)
            ax.text(2, place, f"{size} bytes a number", va="center", size=8, color="white")
            ax.text(us, place, f" {us:.0f} µs", va="center", size=9)
        ax.set(yticks=range(len(names)), ylim=(2.6, -0.6), xlim=(0, 225), xlabel=f"µs, {RECORDED}")
        ax.set_yticklabels([NAMES[name] for name in names] if ax is axes[0] else [])
        ax.set_title(f"{activation}, {dtype}", size=9, loc="left")
    return figure


def draw_op(activation: str = "relu") -> Figure:
    """The recorded µs of our Triton backward by the number of chunks, with the sum over the rows and without."""
    figure, ax = panels((9, 3))
    for sums, label, colour in ((True, "with grad_bias", "C1"), (False, "without", NEEDED)):
        points = recorded.BACKWARD.rows("op", activation=activation, sums=sums).sort_values("chunks")
        ax.plot(points["chunks"], points["us_p50"], "o-", ms=4, color=colour, label=label)
    compiled = recorded.backward("torch.compile", activation)["us_p50"]
    size = arithmetic.backward_bytes("triton", activation, 4)
    least = copy_us(size * arithmetic.NUMBERS)
    for us, text in ((compiled, f"torch.compile, with grad_bias: {compiled:.0f} µs"),
                     (least, f"our {size} bytes a number at the copy's rate: {least:.0f} µs")):
        ax.axhline(us, color="0.4", ls="--", lw=1)
        ax.text(5000, us, text, va="center", size=8)
    ax.set(xscale="log", xticks=(64, 128, 256, 512, 1024, 2048, 4096), xlabel="chunks of the rows", xlim=(55, 4800))
    ax.set(xticklabels=ax.get_xticks().astype(int), ylabel=f"µs, {RECORDED}")
    ax.minorticks_off()
    ax.set_ylim(120, 210)
    ax.set_title(f"{activation}, float32", size=9, loc="left")
    ax.legend(frameon=False, fontsize=8)
    return figure
