"""Two traps of a launch as pictures: a mask for four elements, and an array of addresses without a length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessons.shared.picture import ORANGE, OTHER, RED, SHADES, draw_arrow, draw_box, open_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUP = 4  # elements that a thread stores with one instruction


def draw_mask(n: int, upto: int = 28) -> Figure:
    """The elements of out, in groups: those within n, those that are written behind it, and those that are not."""
    figure, ax = open_panels((9, 1.5))
    for element in range(upto):
        first = element - element % GROUP
        colour = SHADES[2] if element < n else RED if first < n else OTHER
        draw_box(ax, element + 0.25 * (element // GROUP), 0, 1, 1, colour, text=str(element), size=8)
        if element == first:
            answer = f"{first} < {n}" if first < n else f"{first} ≥ {n}"
            ax.text(first + 0.25 * (first // GROUP) + GROUP / 2, -0.3, answer, ha="center", size=8)
    ax.text(-0.3, -0.3, "asked:", ha="right", size=8)
    ax.set(xlim=(-2.5, upto + 0.25 * upto / GROUP), ylim=(1.2, -0.9))
    ax.set_title(f"by_16, n = {n}: green is written, red is written behind the end", loc="left", size=9)
    ax.axis("off")
    return figure


def draw_addresses(given: tuple[str, ...], taken: tuple[tuple[str, int], ...]) -> Figure:
    """What the array of a launch points to, above, and the parameter into which the driver copies it, with its bytes.
    Beyond the array's end it reads whatever lies there."""
    figure, ax = open_panels((9, 2))
    for place, (name, size) in enumerate(taken):
        is_other = place >= len(given) or given[place] != name
        passed = given[place] if place < len(given) else "?"
        draw_box(ax, 2.2 * place, 0, 2, 0.8, SHADES[0] if place < len(given) else OTHER, text=passed, size=9)
        draw_box(ax, 2.2 * place, 2, 2, 0.8, RED if is_other else SHADES[2], text=f"{name}: {size} bytes", size=9)
        draw_arrow(ax, (2.2 * place + 1, 0.85), (2.2 * place + 1, 1.95), ORANGE if is_other else "0.3")
    ax.text(-0.2, 0.4, "the array", ha="right", va="center", size=9)
    ax.text(-0.2, 2.4, "by_16 takes", ha="right", va="center", size=9)
    ax.set(xlim=(-1.9, 2.2 * len(taken)), ylim=(3, -0.2))
    ax.axis("off")
    return figure
