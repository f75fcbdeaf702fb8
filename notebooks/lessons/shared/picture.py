"""What the lessons' pictures have in common: panels, boxes, colours; and a kernel's source, printed.

Matplotlib is imported when something is drawn: counting and reading records need no drawing library.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kernels.measure.records import README_GPU

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEEDED, FETCHED, OTHER = "#3182bd", "#fdd0a2", "white"  # what a read asks for, what comes with it, and the rest
LINE = "0.55"
SERIES = BLUE, ORANGE, GREEN, VIOLET, RED = "#1f5fa8", "#e8912d", "#2e8b57", "#7b3fa0", "#c0392b"
IDLE = "#d5dad7"  # in pictures of time: nothing runs, or not for this step
SHADES = ("#9ecae1", "#fdae6b", "#a1d99b", "#bcbddc", "#fa9fb5", "#fdd835")  # one colour a table or a program
RECORDED = f"recorded, {README_GPU.upper()}"


def panels(size: tuple[float, float], rows: int = 1, columns: int = 1, **options) -> tuple[Figure, Any]:
    """A figure of width and height `size`, in inches, and its Axes: one, or an array of them as from plt.subplots,
    which takes the options."""
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=size, layout="constrained", **options)


def open_panels(size: tuple[float, float], rows: int = 1, columns: int = 1, **options) -> tuple[Figure, Any]:
    """As panels, without a line on top and at the right."""
    figure, axes = panels(size, rows, columns, **options)
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_box(
    ax: Axes, x: float, y: float, wide: float, high: float, colour: str | tuple = OTHER, lw: float = 0.7,
    edge: str = LINE, text: str = "", size: float = 8, **style,
) -> None:
    """A rectangle from (x, y) on, with a text in its middle. style: matplotlib's for a Rectangle."""
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((x, y), wide, high, fc=colour, ec=edge, lw=lw, **style))
    if text:
        ax.text(x + wide / 2, y + high / 2, text, ha="center", va="center", size=size)


def draw_cells(ax: Axes, colours: Sequence[Sequence[str]], edge: str, texts: Sequence[str] = ()) -> None:
    """A matrix, a square a number, in these colours; a text before each row."""
    for y, row in enumerate(colours):
        for x, colour in enumerate(row):
            draw_box(ax, x, y, 1, 1, colour, 0.5, edge)
        if texts:
            ax.text(-0.3, y + 0.5, texts[y], ha="right", va="center", size=8)
    ax.set(xlim=(-1 if texts else -0.1, len(colours[0]) + 0.1), ylim=(len(colours) + 0.1, -0.1), aspect="equal")
    ax.axis("off")


def draw_arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = "0.3", **style) -> None:
    """An arrow from start to end. style: matplotlib's arrowprops."""
    ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, **style})


def show_kernel(*functions: Callable) -> None:
    """Print the source of @triton.jit kernels and of Python functions, without what is said to the linter."""
    sources = [inspect.getsource(getattr(function, "fn", function)).rstrip() for function in functions]
    print(re.sub(r"  # (noqa|fmt).*", "", "\n\n".join(sources)))
