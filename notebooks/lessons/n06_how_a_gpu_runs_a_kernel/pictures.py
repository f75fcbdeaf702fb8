"""Pictures of a GPU's insides: who loads what, where data lies, sectors, reads under way, roofs. What has been recorded
is drawn as dots."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from lessons.n06_how_a_gpu_runs_a_kernel import recorded
from lessons.shared.picture import FETCHED, LINE, NEEDED, OTHER, RECORDED, draw_box, panels
from lessons.shared.records import GPU, LANES, SECTOR, device, gb_per_s, sms, tflop_per_s, yardstick

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Where a product's name stands beside its dot; the second layers are the same product.
PLACES = {"bottom 1": (7, -9), "bottom 2": (-58, 2), "bottom 3": (6, -9), "bottom 4": (7, 3), "top 1": (8, -8),
          "top 1 padded": (8, -8), "top 3": (6, -9), "pairs": (-64, -10), "outer": (8, -2)}


# ------------------------------------------------------------------------------------------------ program and lane


def draw_lanes(neighbours: int = 4, warps: int = 4) -> Figure:
    """A tile's numbers: a row a warp, a cell a lane with the first number that it reads; one lane's registers below."""
    figure, ax = panels((11, 2.6))
    chosen = 1, 5
    for warp in range(warps):
        for lane in range(LANES):
            first = neighbours * (LANES * warp + lane)
            draw_box(ax, lane, warp, 1, 0.8, (f"C{warp}", 0.9 if (warp, lane) == chosen else 0.25))
            ax.text(lane + 0.5, warp + 0.4, first, ha="center", va="center", size=7)
        ax.text(-0.3, warp + 0.4, f"warp {warp}", ha="right", va="center", size=9)
    first = neighbours * (LANES * chosen[0] + chosen[1])
    for register in range(neighbours):
        left = chosen[1] + 2.2 * register
        draw_box(ax, left, warps + 0.5, 2.1, 0.8, (f"C{chosen[0]}", 0.9))
        ax.text(left + 1.05, warps + 0.9, f"number {first + register}", ha="center", va="center", size=7)
    ax.text(chosen[1] - 0.3, warps + 0.9, "its registers", ha="right", va="center", size=9)
    ax.text(16, -0.35, "lane 0 … 31: each cell is a thread, with the first of its numbers", ha="center", size=9)
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
        ax.text(left + 0.8, 0.4, "issues a warp's\ninstruction a clock", ha="center", va="center", size=7)
        draw_box(ax, left + 0.1, 0.7, 1.4, 0.8, "#a1d99b")
        ax.text(left + 0.8, 1.1, "registers\n64 KiB", ha="center", va="center", size=8)
    draw_box(ax, 4.05, 1.8, 6.7, 0.9, "#fdd0a2")
    ax.text(
        7.4,
        2.25,
        "shared memory and L1, 256 KiB: a program's threads exchange numbers here",
        ha="center",
        va="center",
        size=8,
    )
    for top, text, colour in (
        (3.1, f"L2{_size('L2_cache_size', 2**20, 'MiB')}: shared by all SMs", "#fdae6b"),
        (3.85, f"HBM{_size('total_memory', 2**30, 'GiB')}: the GPU's memory", "#e6550d"),
    ):
        draw_box(ax, 0, top, 10.9, 0.6, colour)
        ax.text(5.45, top + 0.3, text + _speed(text[:2]), ha="center", va="center", size=9)
    ax.set(xlim=(-0.1, 11), ylim=(4.5, -0.4))
    ax.axis("off")
    return figure


def _size(name: str, unit: int, called: str) -> str:
    return f", {device(name) / unit:.0f} {called}"


def _speed(level: str) -> str:
    return f"; a read takes {recorded.latency_ns({'L2': 'L2', 'HB': 'HBM'}[level]):.0f} ns"


def draw_reread() -> Figure:
    """The rate at which all SMs read a buffer again and again, by its size: as usual, and past the L1."""
    figure, ax = panels((10, 3))
    for cache, label in (("L1", "the L1 is asked first"), ("L2", "past the L1 (.cg)")):
        found = GPU.rows("reread", cache=cache).sort_values("size")
        rates = [gb_per_s(row) / 1e3 for _, row in found.iterrows()]
        ax.plot(found["size"] / 1e6, rates, "o-", ms=4, label=label)
    ax.legend(frameon=False, title=RECORDED, title_fontsize=8, fontsize=8)
    ends = ((2**18 / 1e6, "an SM's L1"), (device("L2_cache_size") / 1e6, "the L2"))
    for size, text in ends:
        ax.axvline(size, color="0.6", lw=1, ls="--")
        ax.text(size, 1.0, f" {text}", transform=ax.get_xaxis_transform(), va="top", size=8)
    ax.set(xscale="log", xlabel="MB of the buffer, which every SM reads again and again", ylabel="TB/s", ylim=(0, None))
    return figure


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


def draw_stride(predicted: Callable[[int], float]) -> Figure:
    """GB/s of what was asked for, by stride: the line that predicted(stride) gives, and the record."""
    figure, ax = panels((10, 3))
    strides = range(1, 33)
    ax.plot(strides, [predicted(stride) for stride in strides], "C0--", label="predicted")
    found = GPU.rows("stride").sort_values("stride")
    ax.plot(found["stride"], [gb_per_s(row) for _, row in found.iterrows()], "C1o-", ms=4, label=RECORDED)
    ax.set(xscale="log", yscale="log", xlabel="stride, in numbers of 4 bytes", ylabel="GB/s of what was asked for")
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
        ax.set_title(f"{count} program{'s' * (count > 1)} an SM", size=9)
    axes[0].set_ylabel("programs")
    return figure


def draw_flight(predicted: Callable[[int, int], float]) -> Figure:
    """GB/s of the copy: by an SM's KB in flight, with predicted(programs, block) as a line, and by occupancy."""
    import matplotlib.pyplot as plt

    figure, (left, right) = panels((11, 3.6), 1, 2, sharey=True)
    sizes = [128 * 2 ** (k / 8) for k in range(73)]
    left.plot(
        [4 * size / 1e3 for size in sizes], [predicted(1, size) for size in sizes], "k--", lw=1, label="predicted"
    )
    found = GPU.rows("flight")
    for n, (block, some) in enumerate(found[found["programs"] > 0].groupby("block")):
        rates = [gb_per_s(row) for _, row in some.iterrows()]
        for ax, measure in ((left, recorded.in_flight), (right, recorded.occupancy)):
            places = [measure(row) for _, row in some.iterrows()]
            ax.plot(
                places, rates, "o-", color=plt.get_cmap("viridis")(n / 8), ms=4, lw=0.7, label=f"BLOCK {block:.0f}"
            )
    right.legend(frameon=False, fontsize=7, title=RECORDED, title_fontsize=7)
    left.set(xscale="log", xlabel="KB that an SM has in flight", ylabel="GB/s, read and written")
    left.legend(["predicted"], frameon=False, title="colours as on the right", title_fontsize=7)
    right.set(xlabel="occupancy, % of the warps that an SM has room for")
    return figure


# ------------------------------------------------------------------------------------------------------- the roofs


def draw_roofline(rows: int = 65536) -> Figure:
    """Arithmetic intensity against TFLOP/s: the copy's slope, the roofs as recorded, DLRM's products and add_relu."""
    figure, ax = panels((10, 4.4))
    places = np.logspace(-0.9, 3.5, 100)
    slope = yardstick()
    layers: dict[str, list] = {}  # name → where its dots are, which a thin line connects
    colours = {"fp32": "0.5", "tf32": "C0", "bf16": "C1"}
    for precision, colour in colours.items():
        roof = recorded.roof(precision)
        ax.plot(places, np.minimum(slope * places, roof), color=colour, lw=1)
        ax.text(2.8e3, roof * 1.06, f"{precision}: {roof:.0f}", color=colour, ha="right", size=9)
        found = GPU.rows("product", precision=precision)
        found = found[(found["rows"] == rows) | (found["name"] == "outer")]
        x, y = zip(
            *((recorded.intensity(row), tflop_per_s(row)) for _, row in found.iterrows()), strict=True
        )
        ax.plot(x, y, "o", color=colour, ms=5)
        for (_, row), place in zip(found.iterrows(), zip(x, y, strict=True), strict=True):
            layers.setdefault(row["name"], []).append(place)
        if precision == "bf16":
            for (_, row), a, b in zip(found.iterrows(), x, y, strict=True):
                if row["name"] in PLACES:
                    depth, columns = row["depth"], row["columns"]
                    name = "the interaction" if row["name"] == "pairs" else f"{depth:.0f} to {columns:.0f}"
                    ax.annotate(name, (a, b), PLACES[row["name"]], textcoords="offset points", size=8)
    for line in layers.values():
        ax.plot(*zip(*line, strict=True), color="0.8", lw=0.7, zorder=0)
    pointwise = recorded.pointwise()
    x, y = recorded.intensity(pointwise), tflop_per_s(pointwise)
    ax.plot([x], [y], "o", color="0.5", ms=5)
    ax.annotate("add_relu", (x, y), (8, -3), textcoords="offset points", size=8)
    ax.set(xscale="log", yscale="log", xlabel="FLOP a byte", ylabel="TFLOP/s", ylim=(0.6, 1500), xlim=(0.15, 3e3))
    ax.set_title(f"{RECORDED}: a batch of {rows:,} rows (186624 to 512: 2,048)", size=9)
    return figure
