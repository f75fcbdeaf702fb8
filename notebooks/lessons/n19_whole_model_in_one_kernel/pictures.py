"""One kernel as pictures: the sectors that the reader's touches, the budget of a thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lessons.n19_whole_model_in_one_kernel.mini_kernel import shape
from lessons.shared.picture import BLUE, GREEN, ORANGE, RED, open_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REGISTERS = 255  # that a thread can have


def draw_touched(touched: Mapping[str, tuple[float, float, int]]) -> Figure:
    """touched: puzzles.touched(kernel). For each tensor the sectors that a warp's accesses touch; where its rows lie
    side by side, a red line at as few as would hold them."""
    groups: dict[str, list[float]] = {}
    for name, (accesses, sectors, fewest) in touched.items():
        total = groups.setdefault(name.rstrip("0123456789"), [0.0, 0.0, 0.0])
        for k, value in enumerate((accesses, sectors, fewest)):
            total[k] += value
    figure, ax = open_panels((9, 2.8))
    for y, (accesses, sectors, fewest) in enumerate(groups.values()):
        ax.barh(y, sectors, color=BLUE, height=0.6)
        label = f"{sectors:,.0f} in {accesses:,.0f} instruction{'s' * (accesses != 1)}"
        if fewest:
            ax.plot([fewest, fewest], [y - 0.4, y + 0.4], color=RED, linewidth=2)
            label += f"; {fewest:,.0f} would hold it"
        ax.text(sectors, y, f"  {label}", va="center", size=8)
    ax.set_yticks(range(len(groups)), groups)
    ax.invert_yaxis()
    ax.set(xlabel="sectors that a warp's 32 rows touch", xlim=(0, 1.45 * max(sum(s[1:2]) for s in groups.values())))
    return figure


def draw_budget(compiled: Mapping[int, tuple[int, int]], width: int = 16) -> Figure:
    """Numbers that a thread holds at once, as the op counts them, over the tables; compiled: tables → registers of the
    compiled kernel, and bytes that it spills."""
    figure, ax = open_panels((9, 3.2))
    tables = range(1, 31)
    ax.plot(tables, [shape(count, width).numbers for count in tables], color=BLUE, label="numbers, as the op counts")
    for count, (registers, spilled) in compiled.items():
        ax.plot(count, registers, "o", color=ORANGE if spilled else GREEN)
        ax.annotate(f"{spilled} bytes spilled" if spilled else "", (count, registers), (0, -14), size=7,
                    textcoords="offset points", ha="center")
    ax.plot([], [], "o", color=GREEN, label="registers of the compiled kernel")
    ax.axhline(REGISTERS, color=RED, linestyle=":", linewidth=1)
    budgets = [shape(count, width).most_numbers for count in tables]
    ax.step(tables, budgets, color=RED, linewidth=1, where="mid")
    for x, y, text in ((8, REGISTERS, "the registers of a thread"), (30, budgets[-1], "the op's budget")):
        ax.text(x, y, f"{text}: {y}", ha="right", va="bottom", size=8, color=RED)
    ax.set(xlabel=f"tables of width {width}", ylim=(0, 500), xlim=(1, 30))
    ax.legend(frameon=False, loc="upper left", fontsize=8)
    return figure
