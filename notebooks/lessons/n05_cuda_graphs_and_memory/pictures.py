"""CUDA graphs as pictures: steps, addresses over the runs, memory by pool, when a replay pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lessons.n05_cuda_graphs_and_memory import puzzles, recorded
from lessons.n05_cuda_graphs_and_memory.experiment import BYTES, KERNELS, PHASES
from lessons.shared.picture import BLUE, GREEN, IDLE, RED, VIOLET, open_panels
from lessons.shared.records import copy_us

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOST, GPU, SAVED, FREE, BAD = BLUE, GREEN, VIOLET, IDLE, RED


def steps() -> Figure:
    """ms of the story's steps without and with graphs, and of their kernels."""
    figure, ax = open_panels((8.5, 2.8))
    names = [name for pair in recorded.PAIRS for name in pair]
    for place, name in enumerate(names):
        found, y = recorded.step(name), place + 0.5 * (place // 2)
        ax.barh(y, found["ms"], color=HOST, alpha=0.35, label="" if place else "step")
        ax.barh(y, found["busy_ms"], height=0.4, color=GPU, label="" if place else "its kernels")
        said = f"  {found['launches']:.0f} launches, {found['kernels']:.0f} kernels"
        ax.text(found["ms"], y, said, va="center", fontsize=8)
    ax.set_yticks([place + 0.5 * (place // 2) for place in range(len(names))], names, fontsize=8)
    ax.invert_yaxis()
    ax.set(xlabel="ms a step", xlim=(0, 5))
    ax.set_title("RECORDED on an H200: each pair without graphs, and with them", loc="left", fontsize=9)
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    return figure


def addresses() -> Figure:
    """What lies at three addresses after the capture and each of two runs; what a variable that was kept shows."""
    columns = ("captured", "copy 1 in", "replay", "copy 5 in", "replay")
    held = {
        "buffer": ("0", "1", "1", "5", "5"),
        "2 · buffer": ("?", "?", "2", "2", "10"),
        "out": ("?", "?", "3", "3", "11"),
    }
    figure, ax = open_panels((8.5, 2.6))
    for y, values in enumerate(held.values()):
        for x, value in enumerate(values):
            new = x > 0 and value != values[x - 1]
            box = {"boxstyle": "square,pad=0.5", "fc": "#cfe3d6" if new else "white", "ec": "0.5"}
            ax.text(x, y, f"{value:^3}", ha="center", va="center", family="monospace", bbox=box)
    ax.annotate(
        "kept = out, of the first run: 3 …", (2.25, 2), (2.35, 3), fontsize=8.5, color=BAD,
        arrowprops={"arrowstyle": "->", "color": BAD},
    )
    ax.annotate("… and 11 now", (4, 2.3), (3.8, 3), fontsize=8.5, color=BAD)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(3), held)
    ax.set(xlim=(-0.6, 4.7), ylim=(3.3, -0.6))
    ax.xaxis.tick_top()
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set_title("A graph of 2 · buffer + 1: three addresses, what is written anew in green", loc="left", fontsize=9)
    return figure


def pools() -> Figure:
    """MB in PyTorch's own cache and in the graph's pool, by phase."""
    found = [recorded.GRAPHS.one("memory", variant=phase) for phase in PHASES]
    figure, ax = open_panels((8.5, 2.8))
    width = 0.38
    for side, (prefix, colour, name) in enumerate((("", HOST, "the cache"), ("graph_", SAVED, "the graph's pool"))):
        at = np.arange(len(PHASES)) + (side - 0.5) * width
        ax.bar(at, [row[f"{prefix}reserved_mb"] for row in found], width, color=FREE, edgecolor=colour)
        ax.bar(at, [row[f"{prefix}allocated_mb"] for row in found], width, color=colour, label=name)
    ax.set_xticks(range(len(PHASES)), PHASES)
    ax.set(ylabel="MB")
    ax.set_title("RECORDED on an H200: reserved (outline), of it allocated (filled)", loc="left", fontsize=9)
    ax.legend(fontsize=8, frameon=False)
    return figure


def peaks() -> Figure:
    """MB beyond the tables at the peak, as the allocator counts them: the whole model's step, without and with a graph.

    No times: the notebook asks for those later.
    """
    cases = (("dot", 2048), ("dot", 16384), ("outer", 2048))
    figure, axes = open_panels((8.5, 1.7), columns=len(cases))
    for ax, (part, rows) in zip(axes, cases, strict=True):
        mb = [recorded.above_tables_mb(part, how, rows) for how in ("fused", "fused graph")]
        bars = ax.barh(("no graph", "a graph"), mb, color=(FREE, SAVED))
        ax.bar_label(bars, fmt=" {:,.1f}", fontsize=8)
        ax.invert_yaxis()
        ax.set_xlabel("MB", fontsize=8)
        ax.margins(x=0.3)
        precision = recorded.whole(part, "fused", rows)["precision"].upper()
        ax.set_title(f"{part}, {rows:,} rows, {precision}", loc="left", fontsize=9)
    title = "RECORDED on an H200: MB at the peak of a fused step with SGD, beyond tables and state"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    return figure


def pays(replay_us: float = 10.0) -> Figure:
    """µs saved a step by n kernels on one input of so many bytes, by puzzle 3's formula; dots: recorded."""
    launch, sizes = recorded.chain_us(), np.logspace(12, 29, 100, base=2)
    figure, ax = open_panels((8.5, 3))
    for count, colour in zip(KERNELS, (HOST, GPU, SAVED), strict=True):
        saved = [
            puzzles.saved(count, launch, count * copy_us(2 * size), replay_us, copy_us(2 * size))
            for size in sizes
        ]
        ax.plot(sizes, saved, color=colour, label=f"{count} kernel{'s' if count > 1 else ''}")
        dots = [
            recorded.GRAPHS.us("replay", variant="eager", kernels=count, bytes=size)
            - recorded.GRAPHS.us("replay", variant="copy and replay", kernels=count, bytes=size) for size in BYTES
        ]
        ax.plot(BYTES, dots, "o", ms=4, color=colour)
    ax.axhline(0, color="0.4", lw=0.8)
    ax.set_xscale("log", base=2)
    ax.set_yscale("symlog", linthresh=10)
    ax.set(xlabel="bytes of the input that is copied", ylabel="µs saved a step")
    said = f"COUNTED: {launch:.1f} µs a launch of x + 1, {replay_us:.0f} a replay; dots: recorded"
    ax.set_title(said, loc="left", fontsize=9)
    ax.legend(fontsize=8, frameon=False)
    return figure
