"""Pictures of LoRA: its matrices to scale, passes over memory, times, what merging keeps, blocks of many adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lessons.n12_lora import merging, recorded
from lessons.shared.picture import NEEDED, RECORDED, draw_box, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from model.profiling.operators import Operator

FROZEN, TRAINED, PASS, EPILOGUE = "0.85", "#fdae6b", "#e6550d", NEEDED
PRODUCTS = ("mm", "addmm", "bmm")


def draw_matrices(width: int = 256, rank: int = 16) -> Figure:
    """W, A and B to scale, and the product A B, which is as large as W and is not made."""
    figure, ax = panels((11, 3.4))
    apart, left = 0.22 * width, 0.0
    for text, wide, high, colour, edge in (
        (f"W, {width} × {width}\nfrozen", width, width, FROZEN, "-"),
        (f"A, {width} × {rank}\ntrained", rank, width, TRAINED, "-"),
        (f"B, {rank} × {width}\ntrained", width, rank, TRAINED, "-"),
        ("A B: as large as W,\nbut of rank 16 at most;\nnot made here", width, width, "white", "--"),
    ):
        draw_box(ax, left, 0, wide, high, colour, 1, "0.4", ls=edge)
        below = text if high < width or wide < width else None
        if below:
            ax.text(left + wide / 2, high + 12, text, ha="center", va="top", size=9)
        else:
            ax.text(left + wide / 2, high / 2, text, ha="center", va="center", size=9)
        left += wide + apart
    ax.set(xlim=(-10, left), ylim=(width + 60, -10), aspect="equal")
    ax.axis("off")
    return figure


def draw_passes(recorded: Mapping[str, Sequence[Operator]], unit: int, title: str = "") -> Figure:
    """A row a way: each operator as long as what it reads and writes, in units of one [rows, out] tensor. Products are
    grey, passes orange, the epilogue blue."""
    figure, ax = panels((11, 0.8 + 0.55 * len(recorded)))
    names = {"add_mul_activation": "epilogue", "relu": "activate", "mul": "scale"}
    for place, operators in enumerate(recorded.values()):
        left, passed = 0.0, 0.0
        products = iter(("x Wᵀ", "x A", "(x A) B"))
        for operator in operators:
            moved = round((operator.read + operator.written) / unit)  # the weights are the small part
            product = operator.name in PRODUCTS
            passed += 0 if product else moved
            ours = operator.name.startswith("add_mul_activation")
            colour = FROZEN if product else EPILOGUE if ours else PASS
            label = next(products) if product else names.get(operator.name, operator.name)
            ax.barh(place, moved, left=left, color=colour, ec="white", height=0.8)
            ax.text(left + moved / 2, place, label, ha="center", va="center", size=8)
            left += moved
        ax.text(left + 0.1, place, f"{passed:.0f} E in passes", va="center", size=9)
    ax.set_yticks(range(len(recorded)), list(recorded))
    ax.set(ylim=(len(recorded) - 0.5, -0.5), xlim=(0, 13), xlabel="E: one reading or writing of [rows, out]")
    ax.set_title(title, size=9)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return figure


def draw_times(part: str = "layer") -> Figure:
    """GPU time and the host's, by shape and variant."""
    variants = list(dict.fromkeys(recorded.LORA.rows(part)["variant"]))
    figure, axes = panels((11, 3.4), columns=len(recorded.SHAPES))
    for ax, shape in zip(axes, recorded.SHAPES, strict=True):
        places = np.arange(len(variants))
        for offset, (kind, colour) in zip((-0.2, 0.2), (("us_p50", "C0"), ("host_us", "C1")), strict=True):
            us = [recorded.row(part, name, **recorded.at(shape))[kind] for name in variants]
            ax.barh(places + offset, us, 0.38, color=colour, label="GPU" if kind == "us_p50" else "host")
        ax.set_yticks(places, variants if ax is axes[0] else [""] * len(variants))
        ax.invert_yaxis()
        ax.set_title(f"{shape[0]:,} rows of {shape[1]}", size=9)
        ax.set_xlabel("µs a call")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=8, title=RECORDED, title_fontsize=7
    )
    return figure


def draw_kept() -> Figure:
    """Error and projection of the output's change, by B's size and by way: computed, not measured."""
    figure, (left, right) = panels((11, 3.2), columns=2)
    found = [merging.kept_of(std) for std in merging.STDS]
    for ax, values in ((left, "error"), (right, "projection")):
        for way, style in zip(merging.WAYS, ("o-", "s--", "^:"), strict=True):
            ax.plot([each.change for each in found], [getattr(each, values)[way] for each in found], style, label=way)
        ax.set(xscale="log", xlabel="the change's size, % of W's")
        ax.invert_xaxis()
    left.set(yscale="log", ylabel="error of the change, %")
    left.axhline(100, color="0.7", lw=1)
    right.axhline(1, color="0.7", lw=1)
    right.set(ylabel="projection: how much of it is there", ylim=(0, 1.1))
    right.legend(frameon=False, fontsize=8)
    return figure


def draw_blocks(adapter: Sequence[int] = (2, 0, 1, 2, 4, 0), count: int = 5, rank: int = 3) -> Figure:
    """x with all adapters' A: what each row keeps of its n · r numbers."""
    figure, ax = panels((9, 2.6))
    for row, chosen in enumerate(adapter):
        for place in range(count * rank):
            own = place // rank == chosen
            left = place + 0.4 * (place // rank)
            draw_box(ax, left, row, 1, 0.85, f"C{chosen}" if own else "white", 0.6, "0.6")
            ax.text(left + 0.5, row + 0.43, "" if own else "0", ha="center", va="center", size=7, color="0.5")
        ax.text(-0.4, row + 0.43, f"row {row}: adapter {chosen}", ha="right", va="center", size=9)
    for number in range(count):
        middle = number * (rank + 0.4) + rank / 2
        ax.text(middle, -0.25, f"x A[{number}]", ha="center", va="bottom", size=9, color=f"C{number}")
    ax.set(xlim=(-6, count * (rank + 0.4)), ylim=(len(adapter), -1))
    ax.axis("off")
    return figure
