"""The backend's record as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.measure import records
from lessons.n24_a_compiler_that_says_why_not.recorded import LOSES, NEITHER, WAYS, WINS, cells
from lessons.shared.picture import GREEN, IDLE, RED, draw_box, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {WINS: GREEN, NEITHER: IDLE, LOSES: RED}


def draw_record() -> Figure:
    """For each cell and clock how many times as long as ours the fastest peer takes; green where ours is faster, red
    where it is slower."""
    record = records.load("backend")
    found = {way: list(cells(record["rows"], way)) for way in WAYS}
    models = list(dict.fromkeys(cell.model for of_way in found.values() for cell in of_way))
    figure, axes = panels((11, 5.2), 1, len(WAYS), gridspec_kw={"width_ratios": [5, 5, 3]})
    for ax, (way, of_way) in zip(axes, found.items(), strict=True):
        sizes = list(dict.fromkeys(cell.labels["rows"] for cell in of_way))
        for cell in of_way:
            x, y = sizes.index(cell.labels["rows"]), models.index(cell.model)
            text = f"{cell.peer_us / cell.us:.2f}"
            draw_box(ax, x, y, 1, 1, COLOURS[cell.verdict], text=text, size=7, alpha=0.45)
        ax.set_xticks([k + 0.5 for k in range(len(sizes))], [f"{size:,}" for size in sizes], size=7)
        names = [f"{preset} {precision} {'step' if trains else 'inference'}" for preset, precision, trains in models]
        ax.set_yticks([k + 0.5 for k in range(len(models))], names if ax is axes[0] else [""] * len(names), size=7)
        ax.set(xlim=(0, len(sizes)), ylim=(len(models), 0), xlabel="rows")
        ax.set_title(WAYS[way], loc="left", size=9)
    figure.suptitle(f"the fastest peer's time over ours, recorded, {record['GPU'].removeprefix('NVIDIA ')}", size=9)
    return figure
