"""Pictures of a pointwise kernel: where a mask's edge falls, what each step takes, bytes beside instructions, and where
the compiler wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessons.n08_triton_kernels import recorded, steps
from lessons.shared.picture import NEEDED, OTHER, RECORDED, draw_box, panels
from lessons.shared.records import copy_us

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CUT = "#de2d26"
COLOURS = {"torch.compile": "0.6", "ours": NEEDED}


def draw_edge(*counts: int, lanes: int = 8) -> Figure:
    """The last lanes of tensors with so many numbers: four neighbours a lane, which the mask takes whole, leaves out
    whole, or cuts."""
    figure, axes = panels((9, 0.95 * len(counts)), len(counts), 1, squeeze=False)
    for ax, count in zip(axes[:, 0], counts, strict=True):
        first = max(counts) // 16 * 16 - 16
        for lane in range(lanes):
            places = [first + 4 * lane + k for k in range(4)]
            cut = places[0] < count <= places[-1]
            for k, place in enumerate(places):
                left = 4.6 * lane + k
                draw_box(ax, left, 0, 1, 1, NEEDED if place < count else OTHER)
                colour = "white" if place < count else "0.5"
                ax.text(left + 0.5, 0.5, place, ha="center", va="center", size=7, color=colour)
            if cut:
                ax.plot([4.6 * lane - 0.1, 4.6 * lane + 4.1], [-0.18, -0.18], color=CUT, lw=3)
        ax.set_title(f"{count} numbers: {_cut(count)}", loc="left", size=9)
        ax.set(xlim=(-0.3, 4.6 * lanes), ylim=(-0.4, 1.1))
        ax.axis("off")
    return figure


def _cut(count: int) -> str:
    if count % 4 == 0:
        return "each lane's four are all inside or all outside"
    return "one lane (red) has numbers on either side of the edge"


def draw_steps() -> Figure:
    """µs of the steps, a panel each for an even size and an odd one in both types, with the copy of as many bytes."""
    names = [each.name for each in steps.STEPS] + ["torch.compile"]
    figure, axes = panels((12, 3.4), 1, len(recorded.PANELS), sharey=True)
    for ax, (shape, dtype) in zip(axes, recorded.PANELS, strict=True):
        ax.set_title("{} × {}, {}".format(*steps.SHAPES[shape], dtype), size=9)
        moved = steps.moved(steps.SHAPES[shape], steps.DTYPES[dtype])
        ax.axvline(copy_us(moved), color="k", lw=1, ls="--", label="its bytes at the copy's rate")
        found = [recorded.step(name, shape, dtype) if dtype == "float32" or _in_half(name) else None for name in names]
        for place, (name, row) in enumerate(zip(names, found, strict=True)):
            if row is None:
                why = "written for float32"
                ax.text(0.02, place, why, size=7, color="0.5", va="center", transform=ax.get_yaxis_transform())
                continue
            colour = COLOURS.get(name, NEEDED)
            error = [[row["us_p50"] - row["us_p20"]], [row["us_p80"] - row["us_p50"]]]
            ax.barh(place, row["us_p50"], xerr=error, color=colour, height=0.7)
            ax.text(row["us_p50"], place, f"   {row['us_p50']:.1f}", size=7, va="center")
        longest = max([copy_us(moved), *(row["us_p50"] for row in found if row is not None)])
        ax.set(xlim=(0, 1.3 * longest), xlabel="µs", ylim=(len(names) - 0.4, -0.6))
    axes[0].set_yticks(range(len(names)), names, size=8)
    axes[0].legend(fontsize=7, frameon=False, loc="lower left", bbox_to_anchor=(0, 1.08))
    figure.supxlabel(RECORDED, size=8)
    return figure


def _in_half(name: str) -> bool:
    return name == "torch.compile" or steps.step(name).in_half


def draw_gelu() -> Figure:
    """gelu by torch.compile and ours in both dtypes, beside sigmoid, and what their bytes alone take."""
    figure, axes = panels((10, 2.6), 1, 2)
    for ax, dtype in zip(axes, steps.DTYPES, strict=True):
        for place, activation in enumerate(("sigmoid", "gelu")):
            for shift, (label, name) in enumerate((("torch.compile", "torch.compile"), ("ours", "triton"))):
                row = recorded.of_op(name, activation, dtype)
                y = place + 0.38 * (shift - 0.5)
                ax.barh(y, row["us_p50"], 0.34, color=COLOURS[label], label=label if not place else None)
                ax.text(row["us_p50"], y, f" {row['us_p50']:.1f}", size=8, va="center")
        ax.axvline(recorded.bytes_us(dtype), color="k", lw=1, ls="--", label="its bytes at the copy's rate")
        ax.set_yticks((0, 1), ("sigmoid", "gelu"))
        ax.set(title=f"65536 × 512, {dtype}", xlabel="µs", xlim=(0, 1.4 * recorded.bytes_us(dtype)), ylim=(1.6, -0.6))
        ax.title.set_size(9)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside lower center", ncols=3)
    figure.suptitle(RECORDED, size=8)
    return figure


def draw_duels() -> Figure:
    """Ours over torch.compile's time at each size of the grid; grey where the difference is within the spread."""
    found = recorded.duels()
    rows, columns = (sorted(found[name].unique()) for name in ("rows", "columns"))
    figure, ax = panels((9, 2.8))
    for _, cell in found.iterrows():
        x, y = columns.index(cell["columns"]), rows.index(cell["rows"])
        colour = "#a1d99b" if cell["won"] else "#fc9272" if cell["lost"] else "0.9"
        draw_box(ax, x, y, 0.96, 0.9, colour)
        ax.text(x + 0.48, y + 0.45, f"{100 * (cell['times'] - 1):+.1f} %", ha="center", va="center", size=8)
    ax.set_xticks([x + 0.48 for x in range(len(columns))], [f"{int(n)}" for n in columns])
    ax.set_yticks([y + 0.45 for y in range(len(rows))], [f"{int(n)}" for n in rows])
    ax.set(xlim=(-0.1, len(columns)), ylim=(len(rows), -0.1), xlabel="columns", ylabel="rows")
    meaning = "our time against torch.compile's: green less, red more, grey within the spread"
    ax.set_title(f"sigmoid, float32: {meaning} ({RECORDED})", size=9)
    for side in ax.spines.values():
        side.set_visible(False)
    return figure
