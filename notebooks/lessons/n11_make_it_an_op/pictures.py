"""Pictures of an op: what a call passes on its way, and where a fake is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from lessons.shared.picture import FETCHED, draw_arrow, draw_box, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, LINE = FETCHED, "0.45"
_box = partial(draw_box, lw=0.8, edge=LINE, size=9)
_arrow = partial(draw_arrow, colour=LINE, lw=1.2)


def draw_path() -> Figure:
    """A call's way through the dispatcher; at its end the function for the device, or for fake tensors the fake."""
    figure, ax = panels((10, 2.8))
    steps = (("the call", "add_relu(x, bias):\ndo the types match\nthe schema?", OURS),
             ("key Autograd", "setup_context keeps tensors,\nbackward is noted for later", OURS))
    for n, (key, text, colour) in enumerate(steps):
        ax.text(3.1 * n + 1.1, 2.12, key, ha="center", va="bottom", size=9, weight="bold")
        _box(ax, 3.1 * n, 1.1, 2.3, 1, colour, text=text)
    _arrow(ax, (2.3, 1.6), (3.1, 1.6))
    ends = (("key CUDA, or CPU", "your function:\nallocates and launches", 2.0),
            ("fake tensors, under torch.compile", "your fake:\nshape, dtype, strides, device", 0.2))
    for key, text, y in ends:
        ax.text(7.8, y + 1.02, key, ha="center", va="bottom", size=9, weight="bold")
        _box(ax, 6.5, y, 2.6, 1, OURS, text=text)
        _arrow(ax, (5.4, 1.6), (6.5, y + 0.5))
    ax.set(xlim=(-0.1, 9.3), ylim=(0, 3.4))
    ax.axis("off")
    ax.set_title("orange: code that you write; arrows: the dispatcher's work", size=9)
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
