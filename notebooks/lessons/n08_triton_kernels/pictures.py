"""Pictures of a pointwise kernel: where a mask's edge falls, and what the lesson's last one takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessons.n08_triton_kernels import recorded
from lessons.shared.picture import BLUE, IDLE, NEEDED, ORANGE, OTHER, RECORDED, RED, draw_box, open_panels, panels
from lessons.shared.records import ADD_MUL_ACTIVATION, yardstick

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure


def draw_edge(*counts: int, lanes: int = 8) -> Figure:
    """The last lanes of tensors with so many elements: four neighbours a lane, which the mask takes whole, leaves out
    whole, or cuts."""
    figure, axes = panels((9, 0.95 * len(counts)), len(counts), 1, squeeze=False)
    for ax, count in zip(axes[:, 0], counts, strict=True):
        first = max(counts) // 16 * 16 - 16
        for lane in range(lanes):
            indices = [first + 4 * lane + k for k in range(4)]
            for k, index in enumerate(indices):
                left = 4.6 * lane + k
                draw_box(ax, left, 0, 1, 1, NEEDED if index < count else OTHER)
                ax.text(left + 0.5, 0.5, index, ha="center", va="center", size=7,
                        color="white" if index < count else "0.5")
            if indices[0] < count <= indices[-1]:
                ax.plot([4.6 * lane - 0.1, 4.6 * lane + 4.1], [-0.18, -0.18], color=RED, lw=3)
        cut = "each lane's four are all inside or all outside" if count % 4 == 0 else "the mask cuts one lane's four"
        ax.set_title(f"{count} elements: {cut}", loc="left", size=9)
        ax.set(xlim=(-0.3, 4.6 * lanes), ylim=(-0.4, 1.1))
        ax.axis("off")
    return figure


def draw_last(here: Mapping[str, float] | None = None) -> Figure:
    """sigmoid in float32 at the even size by the lesson's last kernel, the library's, torch.compile and eager; the
    bytes' time as a line. here: µs on this machine, in the place of the record's, a copy of as many bytes included."""
    names = {"yours, or the answer": "two ways", "the library": "the op"}
    names |= {name: name for name in ("torch.compile", "eager")}
    found = {label: recorded.find("step", name=name, shape="even", dtype="float32") for label, name in names.items()}
    bars = {label: row["us_p50"] for label, row in found.items() if row is not None}
    label, line = "the bytes at the copy's rate", recorded.bytes_us()
    if here:
        label, line = "a copy of as many bytes", here["a copy"]
        bars = {name: us for name, us in here.items() if name != "a copy"}
    figure, ax = open_panels((9, 2))
    for place, (name, us) in enumerate(bars.items()):
        ax.barh(place, us, 0.7, color=IDLE if name == "eager" else ORANGE if us > 1.03 * min(bars.values()) else BLUE)
        beyond = line if abs(us / line - 1) < 0.05 else us  # not under the line
        ax.text(max(us, beyond), place, f" {us:.1f}", size=8, va="center")
    ax.axvline(line, color="k", lw=1, ls="--", label=label)
    ax.set_yticks(range(len(bars)), list(bars), size=8)
    ax.set(xlabel="µs", ylim=(len(bars) - 0.4, -0.6), xlim=(0, 1.15 * max([line, *bars.values()])))
    ax.set_title("65536 × 512, float32" + (", this machine" if here else f" ({RECORDED})"), size=9)
    ax.legend(fontsize=7, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
    return figure


def draw_sizes() -> Figure:
    """sigmoid in float32 at each size of the library's benchmark: GB/s over the bytes that must move."""
    grid = ADD_MUL_ACTIVATION.rows("grid", form="functional").sort_values("bytes")
    figure, ax = open_panels((9, 3))
    ways = {"triton": ("the library, Triton", BLUE, "o"), "torch.compile": ("torch.compile", ORANGE, "x")}
    for name, (label, colour, marker) in (ways | {"eager": ("eager", IDLE, "s")}).items():
        rows = grid[grid["implementation"] == name]
        ax.semilogx(rows["bytes"], rows["bytes"] / rows["us_p50"] / 1e3, marker, color=colour, ms=5, label=label)
    ax.axhline(1e3 * yardstick(), color="k", lw=1, ls="--", label="the copy's rate")
    ax.set(xlabel="bytes of x, y and the result", ylabel="GB/s", title=f"sigmoid, float32 ({RECORDED})")
    ax.legend(fontsize=8, frameon=False)
    return figure
