"""The bytes of the interaction, step by step."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from lessons.shared.picture import panels


def draw_steps(steps: Mapping[str, float], needed: float) -> Figure:
    """A bar of eager's steps, one behind the other, in MB, and one of the MB that are needed."""
    figure, ax = panels((10, 1.7))
    start = 0.0
    for number, (step, size) in enumerate(steps.items()):
        ax.barh("eager", size, left=start, color=f"C{number}", alpha=0.5)
        ax.text(start + size / 2, 0, step, ha="center", va="center", size=9)
        start += size
    ax.barh("needed", needed, color="C0")
    ax.set(xlabel="MB read and written")
    ax.invert_yaxis()
    return figure
