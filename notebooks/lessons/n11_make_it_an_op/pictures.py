"""Pictures of an op: what a call passes on its way, where a fake is wrong, what a graph holds of it, what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lessons.n11_make_it_an_op import recorded
from lessons.shared.picture import FETCHED, RECORDED, draw_arrow, draw_box, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, THEIRS, ASIDE, LINE = FETCHED, "#deebf7", "0.95", "0.45"
# (key, what happens there, whether it is in the notebook's 20 lines)
PATH = (
    ("Autocast", "casts, under torch.autocast;\nhere nothing does", False),
    ("Autograd", "runs what is below;\nsetup_context keeps tensors,\nbackward is noted", True),
    ("CPU, CUDA", "your function:\nallocates and launches", True),
)


_box = partial(draw_box, lw=0.8, edge=LINE, size=9)
_arrow = partial(draw_arrow, colour=LINE, lw=1.2)


def draw_path() -> Figure:
    """A call's way through the dispatcher, and the way of a call with fake tensors."""
    figure, ax = panels((11, 3.2))
    _box(ax, 0, 1.9, 1.5, 1, text="add_relu(x, bias)\nthe schema says\nwhat may come", colour=OURS)
    for n, (key, text, ours) in enumerate(PATH):
        left = 2.2 + 2.9 * n
        ax.text(left + 1.1, 3.02, f"key {key}", ha="center", va="bottom", size=10, weight="bold")
        _box(ax, left, 1.9, 2.2, 1, text=text, colour=OURS if ours else THEIRS)
        _arrow(ax, (left - 0.65, 2.4), (left, 2.4))
    _box(ax, 2.2 + 2 * 2.9, 0.1, 2.2, 1, text="your fake:\nshape, dtype, strides,\nno kernel", colour=OURS)
    ax.text(2.2 + 2.5 * 2.9 - 0.35, -0.02, "key Meta", ha="center", va="top", size=10, weight="bold")
    asking = "fake tensors: torch.compile and torch.export\nask what would come out"
    _box(ax, 2.2, 0.1, 4.1, 1, text=asking, colour=THEIRS)
    _arrow(ax, (6.3, 0.6), (8.0, 0.6))
    _arrow(ax, (0.75, 1.9), (2.2, 0.7))
    ax.set(xlim=(-0.1, 10.4), ylim=(-0.4, 3.4))
    ax.axis("off")
    ax.set_title("orange: what you declare; blue: what PyTorch does", size=9)
    return figure


def draw_places(tensors: Mapping[str, Tensor]) -> Figure:
    """A grid a tensor: in each cell its place in memory, by the strides; the darker, the later."""
    import matplotlib.pyplot as plt

    figure, axes = panels((11, 2.2), 1, len(tensors), squeeze=False)
    for ax, (title, tensor) in zip(axes[0], tensors.items(), strict=True):
        rows, columns = tensor.shape
        for row in range(rows):
            for column in range(columns):
                place = row * tensor.stride(0) + column * tensor.stride(1)
                colour = plt.get_cmap("Blues")(0.6 * place / max(1, rows * columns))
                _box(ax, column, row, 1, 1, colour, text=str(place), size=8)
        ax.set(xlim=(0, columns), ylim=(rows, 0))
        ax.set_title(f"{title}: strides {tuple(tensor.stride())}", size=9)
        ax.axis("off")
    return figure


def nodes(graph: torch.fx.GraphModule) -> list[str]:
    """What a graph calls, in order."""
    found = []
    for node in graph.graph.nodes:
        if node.op in ("call_function", "call_method"):
            found.append(node.target if isinstance(node.target, str) else getattr(node.target, "__name__", ""))
            if isinstance(node.target, torch._ops.OpOverload):
                found[-1] = str(node.target).removesuffix(".default")
    return found


def draw_graphs(graphs: Mapping[str, torch.fx.GraphModule]) -> Figure:
    """A row a graph: its inputs, what it calls, its output."""
    figure, axes = panels((10, 1.05 * len(graphs)), len(graphs), 1, squeeze=False)
    for ax, (title, graph) in zip(axes[:, 0], graphs.items(), strict=True):
        called = nodes(graph)
        for n, text in enumerate(["x, bias", *called, "output"]):
            inner = 0 < n <= len(called)
            colour = OURS if inner and text.startswith("lecture.") else THEIRS if inner else ASIDE
            _box(ax, 2.6 * n, 0, 1.9, 1, colour, text=text)
            if n:
                _arrow(ax, (2.6 * n - 0.7, 0.5), (2.6 * n, 0.5))
        ax.set(xlim=(-3.2, 13), ylim=(-0.1, 1.1))
        ax.text(-0.3, 0.5, title, ha="right", va="center", size=9)
        ax.axis("off")
    return figure


def draw_rungs(predicted: float | None = None) -> Figure:
    """µs of one call from Python, a bar a rung; a dashed line where the reader's prediction is."""
    found = recorded.rungs()
    figure, ax = panels((10, 3.4))
    for n, (name, times) in enumerate(found.items()):
        colour = OURS if name in ("torch.library", "cuda", "triton") else "#9ecae1"
        ax.barh(n, times.us, color=colour, ec=LINE, height=0.7)
        ax.plot((times.low, times.high), (n, n), color="black", lw=1)
        ax.text(max(times.us, times.high) + 0.3, n, f"{times.us:.1f}", va="center", size=8,
                bbox={"fc": "white", "ec": "none", "pad": 0.5})
    if predicted is not None:
        ax.axvline(predicted, color="C3", ls="--", lw=1, zorder=0)
        ax.text(predicted, -0.75, " you", color="C3", size=8)
    ax.set_yticks(range(len(found)), labels=[recorded.RUNGS[name] for name in found])
    longest = max(times.high for times in found.values())
    ax.set_xlim(0, 1.12 * max(longest, predicted or 0))
    ax.set(xlabel="µs a call from Python, 64×64 float32", ylim=(len(found) - 0.4, -1.1))
    ax.set_title(f"{RECORDED}; orange: ops of this notebook; the black line: 20th to 80th percentile", size=9)
    return figure
