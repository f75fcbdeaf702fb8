"""Pictures of a GPU's insides: who loads what, where data lies, sectors, reads in flight, roofs. What has been recorded
is drawn as dots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from lessons.n06_how_a_gpu_runs_a_kernel import recorded
from lessons.shared.picture import FETCHED, LINE, NEEDED, OTHER, RECORDED, draw_box, panels
from lessons.shared.records import (
    GPU,
    LANES,
    SECTOR,
    device,
    gb_per_s,
    memory_tb_per_s,
    sms,
    tflop_per_s,
    yardstick,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ------------------------------------------------------------------------------------------------ program and lane


def draw_lanes(elements: int = 4, warps: int = 4) -> Figure:
    """A tile: a row a warp, a cell a lane with the first element that it reads; one lane's registers below."""
    figure, ax = panels((11, 2.6))
    chosen = 1, 5
    for warp in range(warps):
        for lane in range(LANES):
            first = elements * (LANES * warp + lane)
            draw_box(ax, lane, warp, 1, 0.8, (f"C{warp}", 0.9 if (warp, lane) == chosen else 0.25))
            ax.text(lane + 0.5, warp + 0.4, first, ha="center", va="center", size=7)
        ax.text(-0.3, warp + 0.4, f"warp {warp}", ha="right", va="center", size=9)
    first = elements * (LANES * chosen[0] + chosen[1])
    for register in range(elements):
        left = chosen[1] + 2.2 * register
        draw_box(ax, left, warps + 0.5, 2.1, 0.8, (f"C{chosen[0]}", 0.9))
        ax.text(left + 1.05, warps + 0.9, f"element {first + register}", ha="center", va="center", size=7)
    whose = f"registers of lane {chosen[1]}, warp {chosen[0]}"
    ax.text(chosen[1] - 0.3, warps + 0.9, whose, ha="right", va="center", size=9)
    ax.text(16, -0.35, "lanes 0 to 31: each cell is a thread, with the first of its elements", ha="center", size=9)
    ax.set(xlim=(-3, 32.2), ylim=(warps + 1.5, -0.6))
    ax.axis("off")
    return figure


# ------------------------------------------------------------------------------------------------ where data lies


def draw_chip() -> Figure:
    """An SM with what it has, among the others; below them the L2 and the memory."""
    figure, ax = panels((11, 3.6))
    for sm in range(sms()):
        draw_box(ax, 0.26 * (sm % 12), 0.26 * (sm // 12), 0.22, 0.22, NEEDED if sm == 11 else "0.9")
    ax.text(1.5, -0.15, f"{sms()} SMs, each with programs of its own", ha="center", size=9)
    ax.plot((3.08, 3.9), (0, 0), color=LINE, lw=0.7)
    ax.plot((3.08, 3.9), (0.22, 2.86), color=LINE, lw=0.7)
    draw_box(ax, 3.9, 0, 7, 2.86, "0.97")
    ax.text(7.4, -0.15, "one SM", ha="center", size=9)
    for quarter in range(4):
        left = 4.05 + 1.7 * quarter
        draw_box(ax, left, 0.15, 1.6, 1.5, "#deebf7")
        ax.text(left + 0.8, 0.4, "issues one warp\ninstruction per clock", ha="center", va="center", size=7)
        draw_box(ax, left + 0.1, 0.7, 1.4, 0.8, "#a1d99b")
        ax.text(left + 0.8, 1.1, "registers\n64 KiB", ha="center", va="center", size=8)
    draw_box(ax, 4.05, 1.8, 6.7, 0.9, "#fdd0a2")
    ax.text(
        7.4,
        2.25,
        "shared memory and L1, 256 KiB: a program's threads exchange data here",
        ha="center",
        va="center",
        size=8,
    )
    for top, text, colour in (
        (3.1, f"L2{_size('L2_cache_size', 2**20, 'MiB')}: a cache, shared by all SMs", "#fdae6b"),
        (3.85, f"HBM{_size('total_memory', 2**30, 'GiB')}: the GPU's memory", "#e6550d"),
    ):
        draw_box(ax, 0, top, 10.9, 0.6, colour)
        ax.text(5.45, top + 0.3, text, ha="center", va="center", size=9)
    ax.set(xlim=(-0.1, 11), ylim=(4.5, -0.4))
    ax.axis("off")
    return figure


def _size(name: str, unit: int, called: str) -> str:
    return f", {device(name) / unit:.0f} {called}"


# --------------------------------------------------------------------------------------------------------- sectors


def draw_sectors(*strides: int, shown: int = 16) -> Figure:
    """The first sectors that a warp's 32 reads of four bytes touch: in blue what it asked for, in orange what comes
    with it."""
    figure, axes = panels((11, 0.75 * len(strides)), len(strides), 1)
    per = SECTOR // 4
    for ax, stride in zip(np.atleast_1d(axes), strides, strict=True):
        asked = {lane * stride for lane in range(LANES)}
        touched = {place // per for place in asked}
        for place in range(shown * per):
            colour = NEEDED if place in asked else FETCHED if place // per in touched else OTHER
            draw_box(ax, place + 0.4 * (place // per), 0, 1, 1, colour, lw=0.3)
        ax.text(-1, 0.5, f"stride {stride}: {len(touched)} sectors", ha="right", va="center", size=9)
        ax.set(xlim=(-24, shown * (per + 0.4)), ylim=(-0.1, 1.1))
        ax.axis("off")
    return figure


def draw_stride(predicted: Mapping[int, float | None]) -> Figure:
    """GB/s of what was asked for, by stride: the record, what was predicted, and the memory's rate by the bytes that
    come with each element."""
    figure, ax = panels((10, 3))
    strides = np.arange(1, 33)
    for size, colour in ((SECTOR, "C0"), (2 * SECTOR, "C2")):
        rates = [1e3 * memory_tb_per_s() * 4 / min(4 * stride, size) for stride in strides]
        ax.plot(strides, rates, color=colour, ls="--", lw=1, label=f"if {size} bytes come at a time")
    rows = GPU.rows("stride").sort_values("stride")
    ax.plot(rows["stride"], [gb_per_s(row) for _, row in rows.iterrows()], "C1o", ms=5, label=RECORDED)
    guesses = {stride: rate for stride, rate in predicted.items() if rate}
    ax.plot(list(guesses), list(guesses.values()), "kx", ms=6, label="your prediction" if guesses else None)
    ax.set(xscale="log", yscale="log", xlabel="stride, in elements of 4 bytes", ylabel="GB/s of what was asked for")
    ax.set_xticks([1, 2, 4, 8, 16, 32], labels=["1", "2", "4", "8", "16", "32"])
    ax.set_yticks([200, 500, 1000, 2000, 5000], labels=["200", "500", "1000", "2000", "5000"])
    ax.minorticks_off()
    ax.legend(frameon=False)
    return figure


# ------------------------------------------------------------------------------------------------- bytes in flight


def draw_waiting(latency_ns: float, *programs: int, step_ns: float = 50.0, span_ns: float = 2400.0) -> Figure:
    """When reads are under way on one SM: a row a program, which asks again as soon as its last read has come."""
    figure, axes = panels((11, 2.2), 1, len(programs), sharey=True)
    for ax, count in zip(np.atleast_1d(axes), programs, strict=True):
        for program in range(count):
            start = program * step_ns
            while start < span_ns:
                wait = latency_ns - step_ns / 2
                ax.barh(program, wait, left=start, height=0.7, color=FETCHED, ec=LINE, lw=0.5)
                ax.barh(program, step_ns / 2, left=start + wait, height=0.7, color=NEEDED)
                start += latency_ns
        ax.set(xlim=(0, span_ns), ylim=(max(programs) - 0.4, -0.6), xlabel="ns", yticks=[])
        ax.set_title(f"{count} program{'s' * (count > 1)} per SM", size=9)
    axes[0].set_ylabel("programs")
    return figure


def draw_flight(law: Callable[[int, int], float]) -> Figure:
    """The copies in a loop by an SM's KB in flight, few warps and many: GB/s, and law(programs, block) as a line; and
    how long a read took, by the law."""
    figure, (left, right) = panels((11, 3.4), 1, 2)
    sizes = [128 * 2 ** (k / 8) for k in range(73)]
    idle = recorded.latency_ns("HBM")
    law_gb = [law(1, size) for size in sizes]
    left.plot([4 * size / 1e3 for size in sizes], law_gb, "k--", lw=1, label=f"the law, {idle:.0f} ns")
    rows = GPU.rows("flight")
    rows = rows[rows["programs"] > 0]
    for few, colour, label in ((True, "C1", "at most 16 warps per SM"), (False, "C0", "32 or 64 warps per SM")):
        some = [row for _, row in rows.iterrows() if (4 * recorded.resident(row) <= 16) == few]
        flying, rates = [recorded.in_flight(row) for row in some], [gb_per_s(row) for row in some]
        left.plot(flying, rates, "o", color=colour, ms=4, label=label)
        waits = [1e3 * kb * sms() / (rate / 2) for kb, rate in zip(flying, rates, strict=True)]
        right.plot(flying, waits, "o", color=colour, ms=4)
    right.axhline(idle, color="k", lw=1, ls="--")
    left.legend(frameon=False, fontsize=8, title=RECORDED, title_fontsize=8)
    for ax, text in ((left, "GB/s, read and written"), (right, "ns per read, by the law")):
        ax.set(xscale="log", xlabel="KB in flight on an SM", ylabel=text)
    right.set(yscale="log")
    return figure


# ------------------------------------------------------------------------------------------------------- the roofs


def draw_roofline(*products: str) -> Figure:
    """Arithmetic intensity against TFLOP/s: the copy's slope, the datasheet's roofs; as dots these products of the
    record, by name, and add_relu."""
    figure, ax = panels((10, 4))
    places = np.logspace(-0.9, 4, 200)
    for (precision, roof), colour in zip(recorded.ROOFS.items(), ("0.5", "C0", "C1"), strict=True):
        ax.plot(places, np.minimum(yardstick() * places, roof), color=colour, lw=1)
        what = " (float32, rounded for tensor cores)" if precision == "tf32" else ""
        ax.text(0.14, roof, f"{precision}{what}: {roof:g} TFLOP/s", color=colour, va="center", size=8)
        for number, name in enumerate(products):
            row = recorded.product(name, precision)
            dot = row["flops"] / row["bytes"], tflop_per_s(row)
            ax.plot(*dot, "o", color=colour, ms=5)
            if precision == "bf16":  # its labels, by turns right and left: neighbours' lie apart
                label, place = f"{row['depth']:.0f} to {row['columns']:.0f}", (-58, 4) if number % 2 else (6, -10)
                ax.annotate(label, dot, place, textcoords="offset points", size=8, color=colour)
    row = recorded.pointwise()
    dot = row["flops"] / row["bytes"], tflop_per_s(row)
    ax.plot(*dot, "o", color="0.5", ms=5)
    ax.annotate("add_relu", dot, (8, -3), textcoords="offset points", size=8)
    ax.set(xscale="log", yscale="log", xlabel="FLOPs per byte", ylabel="TFLOP/s", ylim=(0.6, 2000), xlim=(0.13, 1e4))
    ax.set_title(f"{RECORDED}; lines: PyTorch's copy and the datasheet", size=9)
    return figure
