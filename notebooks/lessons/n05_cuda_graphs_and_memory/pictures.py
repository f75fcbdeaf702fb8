"""CUDA graphs as pictures: addresses over the runs, memory that is alive, memory by pool, when a replay pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lessons.n05_cuda_graphs_and_memory import recorded
from lessons.n05_cuda_graphs_and_memory.experiment import BYTES, KERNELS, PHASES
from lessons.shared.picture import BLUE, GREEN, IDLE, RED, VIOLET, open_panels
from lessons.shared.records import copy_us

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CACHE, POOL, FREE, BAD = BLUE, VIOLET, IDLE, RED


def addresses() -> Figure:
    """What lies at three addresses after the capture and each of two replays; what a variable that was kept shows."""
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
        "kept = out: 3 after one replay …", (2.25, 2), (2.35, 3), fontsize=8.5, color=BAD,
        arrowprops={"arrowstyle": "->", "color": BAD},
    )
    ax.annotate("… and 11 now", (4, 2.3), (3.8, 3), fontsize=8.5, color=BAD)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(3), held)
    ax.set(xlim=(-0.6, 4.7), ylim=(3.3, -0.6))
    ax.xaxis.tick_top()
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set_title("A graph of 2 · buffer + 1 uses three addresses; a green box was just written", loc="left", fontsize=9)
    return figure


def alive(history: Sequence[tuple[str, int]], total: int) -> Figure:
    """MB of a step's tensors that are alive after each of its operators; total: bytes of all of them together."""
    names, mb = [name for name, _ in history], np.array([size for _, size in history]) / 1e6
    figure, ax = open_panels((8.5, 2.8))
    ax.fill_between(range(len(mb)), mb, step="mid", color=POOL, alpha=0.35, lw=0)
    ax.step(range(len(mb)), mb, where="mid", color=POOL, lw=1)
    peak = int(mb.argmax())
    text = f"peak: {mb[peak]:.1f} MB, in {names[peak].partition('.')[0]}"
    ax.text(peak + 0.025 * len(mb), mb[peak], text, fontsize=8.5)
    (loss,) = (at for at, name in enumerate(names) if name.startswith("binary_cross_entropy"))
    ax.axvline(loss, color="0.4", lw=0.8, ls=":")
    ax.text(loss, mb.max() * 1.12, " the backward begins", fontsize=8.5)
    ax.annotate(
        f"the gradients: {mb[-1]:.2f} MB", (len(mb) - 1, mb[-1]), (len(mb) * 0.86, mb.max() * 0.35), fontsize=8.5,
        arrowprops={"arrowstyle": "->"},
    )
    ax.set(xlabel="operators, in order", ylabel="MB alive", ylim=(0, mb.max() * 1.25), xlim=(0, len(mb) * 1.02))
    ax.set_title(f"MEASURED here: a step makes {total / 1e6:.1f} MB of tensors", loc="left", fontsize=9)
    return figure


def pools() -> Figure:
    """MB in PyTorch's own cache and in the graph's pool, by phase."""
    rows = [recorded.GRAPHS.one("memory", variant=phase) for phase in PHASES]
    figure, ax = open_panels((8.5, 2.8))
    width = 0.38
    for side, (prefix, colour, name) in enumerate((("", CACHE, "cache"), ("graph_", POOL, "graph's pool"))):
        at = np.arange(len(PHASES)) + (side - 0.5) * width
        reserved = [row[f"{prefix}reserved_mb"] for row in rows]
        bars = ax.bar(at, reserved, width, color=FREE, edgecolor=colour, label=f"{name}: reserved")
        ax.bar(at, [row[f"{prefix}allocated_mb"] for row in rows], width, color=colour, label=f"{name}: allocated")
        ax.bar_label(bars, [f"{mb:.0f}" if mb else "" for mb in reserved], fontsize=8)
    ax.set_xticks(range(len(PHASES)), PHASES)
    ax.set(ylabel="MB", ylim=(0, 140))
    ax.set_title("RECORDED on an H200: a training step with our kernels and small tables", loc="left", fontsize=9)
    ax.legend(fontsize=8, frameon=False, ncols=2)
    return figure


def pays(saved: Callable) -> Figure:
    """µs saved by a graph of n kernels on one input of so many bytes: by `saved`, puzzle 3's formula, and recorded."""
    sizes = np.logspace(12, 28, 100, base=2)
    figure, axes = open_panels((9.5, 3), columns=len(KERNELS))
    for ax, count in zip(axes, KERNELS, strict=True):
        formula = [
            saved(count, recorded.launch_us(), count * copy_us(2 * size), recorded.replay_us(), copy_us(2 * size))
            for size in sizes
        ]
        ax.plot(sizes, formula, color=GREEN, label="formula")
        low, middle, high = np.transpose([recorded.saved_us(count, size) for size in BYTES])
        steady = [not disturbed(count, size) for size in BYTES]
        colours = ["black" if good else "white" for good in steady]
        ax.vlines(BYTES, low, high, color="black", lw=1)
        ax.scatter(BYTES, middle, 22, colours, edgecolors="black", zorder=3, label="recorded")
        ax.axhline(0, color="0.4", lw=0.8)
        ax.set_xscale("log", base=2)
        ax.set_xticks(BYTES, ("4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB"), fontsize=7)
        ax.set_title(f"{count} kernel{'s' if count > 1 else ''}", loc="left", fontsize=9)
    axes[0].set(ylabel="µs saved", xlabel="bytes of the input")
    axes[0].legend(fontsize=8, frameon=False)
    title = "RECORDED on an H200: median and spread; at hollow points, the host was disturbed"
    figure.suptitle(title, x=0.01, ha="left", size=9)
    return figure


def disturbed(kernels: int, size: int) -> bool:
    """Whether eager took over a fifth longer than with more bytes, which cannot take less time."""
    larger = [np.median(recorded.rounds_us("eager", kernels, other)) for other in BYTES if other > size]
    return bool(larger and np.median(recorded.rounds_us("eager", kernels, size)) > 1.2 * min(larger))
