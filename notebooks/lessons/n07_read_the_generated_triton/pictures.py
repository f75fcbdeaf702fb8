"""Pictures of the generated kernel: which lane takes an element, and how wide an access is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessons.n07_read_the_generated_triton import recorded
from lessons.n07_read_the_generated_triton.layer_variants import COLUMNS
from lessons.shared.picture import FETCHED, NEEDED, OTHER, draw_box, panels
from lessons.shared.records import LANES, SECTOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECTOR_ELEMENTS = SECTOR // 4  # float32


def width(block: int, warps: int) -> int:
    """Bytes that a lane moves in one instruction, where addresses and sizes are known to be multiples of 16."""
    return 4 * min(4, max(1, block // (LANES * warps)))


def draw_index(element: int = 1300, rows: int = 4) -> Figure:
    """From an element's index to its row and column, and to the program, warp and lane that compute it."""
    row = recorded.kept()
    if not 0 <= element < row["rows"] * COLUMNS:
        raise ValueError(f"element: expected 0 to {row['rows'] * COLUMNS - 1:,}, the elements of x; got {element}")
    block, warps = int(row["XBLOCK"]), int(row["num_warps"])
    neighbours = width(block, warps) // 4
    at_once = neighbours * LANES * warps  # elements that all lanes take in one instruction
    shown = rows * COLUMNS
    start = element // shown * shown  # the first that is drawn
    program, inside = divmod(element, block)
    instruction, place = divmod(inside, at_once)
    warp, lane = place // (neighbours * LANES), place // neighbours % LANES
    figure, axes = panels((11, 4.2), 4, 1)
    first = element // neighbours * neighbours
    by = f"in load {instruction + 1} of {block // at_once}"
    takes = f"Lane {lane} takes {first} to {first + neighbours - 1}"
    columns = f"columns (x0) {first % COLUMNS} to {(first + neighbours - 1) % COLUMNS} of row {element // COLUMNS}"
    stripes = (  # what it says, how many boxes, the first one's number, the chosen one's, their text
        (f"rows, xindex // 512: 512 elements each; the line marks element {element}", rows, start // COLUMNS,
         element // COLUMNS, "row {}"),
        (f"programs, xindex // XBLOCK: {block} elements each", shown // block, start // block, program, "program {}"),
        (f"warps of program {program}, {by}: {at_once // warps} elements each", warps, 0, warp, "warp {}"),
        (f"lanes of warp {warp}, {by}: {neighbours} elements each. {takes}: {columns}", LANES, 0, lane, "{}"),
    )
    for ax, (title, count, from_, chosen, text) in zip(axes, stripes, strict=True):
        for index in range(count):
            draw_box(ax, index / count, 0, 1 / count, 1, FETCHED if from_ + index == chosen else OTHER)
            ax.text((index + 0.5) / count, 0.2, text.format(from_ + index), ha="center", va="center", size=8)
        if ax in axes[:2]:
            ax.plot([(element - start + 0.5) / shown] * 2, (0.4, 1), color=NEEDED, lw=2)
        ax.set_title(title, size=9, loc="left")
        ax.set(xlim=(-0.002, 1.002), ylim=(-0.02, 1.02))
        ax.axis("off")
    return figure


def draw_accesses(lanes: int = 32) -> Figure:
    """128 elements that a warp reads: in one instruction of 16 bytes a lane, or in four of 4 bytes."""
    import matplotlib.pyplot as plt

    figure, axes = panels((11, 2.8), 2, 1, height_ratios=(1.3, 4))
    colours = plt.get_cmap("viridis")
    for ax, neighbours in zip(axes, (4, 1), strict=True):
        for element in range(4 * lanes):
            instruction, lane = divmod(element // neighbours, lanes)
            place = element + 0.5 * (element // SECTOR_ELEMENTS)
            draw_box(ax, place, instruction, 1, 0.75, colours(lane / lanes), lw=0.2)
        for instruction in range(4 // neighbours):
            sectors = 4 * lanes // SECTOR_ELEMENTS * neighbours // 4
            text = f"instruction {instruction + 1}: {sectors} sectors"
            ax.text(-1.5, instruction + 0.4, text, ha="right", va="center", size=9)
        ax.set(xlim=(-32, 4 * lanes * (1 + 0.5 / SECTOR_ELEMENTS) + 1), ylim=(4 // neighbours, -0.2))
        ax.axis("off")
    axes[0].set_title("16 bytes per lane: each lane (one colour) reads four neighbouring elements", size=9, loc="left")
    axes[1].set_title("4 bytes per lane: neighbouring lanes read neighbouring elements", size=9, loc="left")
    return figure
