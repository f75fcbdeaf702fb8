"""Pictures of LoRA: its matrices to scale, passes over memory, what bfloat16 keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lessons.n12_lora import merging
from lessons.shared.picture import NEEDED, draw_box, open_panels, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from model.profiling.operators import Operator

FROZEN, TRAINED, PASS = "0.85", "#fdae6b", "#e6550d"
PRODUCTS = {
    "mm": "product", "addmm": "product", "_addmm_activation": "product, relu inside",
    "lora_kernel": "(x A) B, sums, relu",
}


def draw_matrices(width: int = 256, rank: int = 16) -> Figure:
    """W, A and B to scale, and the product A B, which is as large as W and is not made."""
    figure, ax = panels((11, 3.4))
    left = 0.0
    for text, wide, high, colour, edge in (
        (f"W, {width} × {width}\nfrozen", width, width, FROZEN, "-"),
        (f"A, {width} × {rank}\ntrained", rank, width, TRAINED, "-"),
        (f"B, {rank} × {width}\ntrained", width, rank, TRAINED, "-"),
        ("A B: as large as W,\nbut of rank 16 at most;\ncomputed only to merge", width, width, "white", "--"),
    ):
        draw_box(ax, left, 0, wide, high, colour, 1, "0.4", ls=edge)
        thin = high < width or wide < width
        place = (high + 12, "top") if thin else (high / 2, "center")
        ax.text(left + wide / 2, place[0], text, ha="center", va=place[1], size=9)
        left += 1.22 * width if wide == width else wide + 0.5 * width
    ax.set(xlim=(-10, left), ylim=(width + 60, -10), aspect="equal")
    ax.axis("off")
    return figure


def draw_passes(operators: Mapping[str, Sequence[Operator]], unit: int) -> Figure:
    """A row a way: each operator as long as what it reads and writes, in tensors of `unit` bytes. Products are grey,
    passes orange, LoRA's kernel blue."""
    figure, ax = open_panels((11, 0.8 + 0.5 * len(operators)))
    longest = 1.0
    for place, seen in enumerate(operators.values()):
        left = 0.0
        for operator in seen:
            moved = round((operator.read + operator.written) / unit)  # W and the thin matrices are left out
            colour = NEEDED if operator.name == "lora_kernel" else FROZEN if operator.name in PRODUCTS else PASS
            ax.barh(place, moved, left=left, color=colour, ec="white", height=0.8)
            if moved:
                text = PRODUCTS.get(operator.name, operator.name)
                ax.text(left + moved / 2, place, text, ha="center", va="center", size=8)
            left += moved
        ax.text(left + 0.1, place, f"{left:.0f} E", va="center", size=9)
        longest = max(longest, left)
    ax.set_yticks(range(len(operators)), list(operators))
    ax.set(ylim=(len(operators) - 0.5, -0.5), xlim=(0, longest + 1), xlabel="E: one read or write of [rows, out]")
    return figure


def draw_kept(projection: Callable = merging.projection) -> Figure:
    """How much of LoRA's change is there, by B's size and by way: computed, not measured. A way that gives what another
    one gives is seen on top of it: a thin line on a broad one."""
    figure, ax = open_panels((9, 3.2))
    changes = {std: merging.applied(std) for std in merging.STDS}
    styles = [dict(lw=6, marker="o", ms=12, alpha=0.4), dict(ls="--", marker="s", ms=4), dict(ls=":", marker="^")]
    for way, style in zip(changes[merging.STDS[0]][1], styles, strict=True):
        shown = [projection(wanted, arrived[way]) for wanted, arrived in changes.values()]
        ax.plot(merging.STDS, shown, label=way, **style)
    ax.set(xscale="log", xlabel="standard deviation of B", ylabel="projection", ylim=(0, 1.1))
    ax.invert_xaxis()
    ax.axhline(1, color="0.7", lw=1)
    ax.legend(frameon=False, fontsize=8)
    return figure
