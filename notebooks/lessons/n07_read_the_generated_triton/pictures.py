"""Pictures of the generated kernel: what goes through memory, which lane takes a number, how wide an access is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessons.n07_read_the_generated_triton import arithmetic, recorded
from lessons.n07_read_the_generated_triton.layer_variants import COLUMNS
from lessons.shared.picture import FETCHED, LINE, NEEDED, OTHER, RECORDED, draw_box, panels
from lessons.shared.records import LANES, SECTOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECTOR_NUMBERS = SECTOR // 4  # float32
STEPS = ("0.5 · y", "x + …", "… + bias", "sigmoid(…)")
READ = (1, 2, 1, 1)  # tensors of the full size that each of eager's kernels reads; each writes one


def draw_traffic() -> Figure:
    """What each kernel reads and writes, in tensors of the full size, one box each; with the recorded µs."""
    figure, ax = panels((11, 2.4))
    left = 0.0
    for step, reads in zip(STEPS, READ, strict=True):
        ax.text(left + (reads + 1) / 2, -0.15, step, ha="center", size=9)
        for box in range(reads + 1):
            draw_box(ax, left + box, 0, 0.92, 0.7, NEEDED if box < reads else FETCHED)
        left += reads + 1 + 0.5
    for box in range(3):
        draw_box(ax, box, 1.3, 0.92, 0.7, NEEDED if box < 2 else FETCHED)
    ax.text(1.5, 1.15, "fused", ha="center", size=9)
    eager = recorded.GENERATED.us("eager", rows=recorded.rows_of())
    ax.text(left, 0.35, f"eager: 9 tensors, {eager:.0f} µs", va="center", size=10)
    ax.text(left, 1.65, f"fused: 3 tensors, {recorded.kept()['us_p50']:.0f} µs", va="center", size=10)
    ax.text(left, 2.1, f"blue: read, orange: written. {RECORDED}", va="center", size=8, color="0.4")
    ax.set(xlim=(-0.2, left + 5), ylim=(2.3, -0.4))
    ax.axis("off")
    return figure


def draw_index(number: int = 1300, rows: int = 4) -> Figure:
    """From a number's index to its row and column, and to the program, warp and lane that compute it."""
    row = recorded.kept()
    if not 0 <= number < row["rows"] * COLUMNS:
        raise ValueError(f"number: {number}, and x has those from 0 to {row['rows'] * COLUMNS - 1:,}")
    block, warps = int(row["XBLOCK"]), int(row["num_warps"])
    neighbours = arithmetic.width(block, warps, 1) // 4
    at_once = neighbours * LANES * warps  # numbers that all lanes take in one instruction
    shown = rows * COLUMNS
    start = number // shown * shown  # the first that is drawn
    program, inside = divmod(number, block)
    instruction, place = divmod(inside, at_once)
    warp, lane = place // (neighbours * LANES), place // neighbours % LANES
    figure, axes = panels((11, 4.2), 4, 1)
    first = number // neighbours * neighbours
    by = f"in load {instruction + 1} of {block // at_once}"
    takes = f"Lane {lane} takes {first} to {first + neighbours - 1}"
    columns = f"x0 = {first % COLUMNS} to {(first + neighbours - 1) % COLUMNS} of row {number // COLUMNS}"
    stripes = (  # what it says, how many boxes, the first one's number, the chosen one's, their text
        (f"rows, xindex // 512: 512 numbers each; the line is number {number}", rows, start // COLUMNS,
         number // COLUMNS, "row {}"),
        (f"programs, xindex // XBLOCK: {block} numbers each", shown // block, start // block, program, "program {}"),
        (f"warps of program {program}, {by}: {at_once // warps} numbers each", warps, 0, warp, "warp {}"),
        (f"lanes of warp {warp}, {by}: {neighbours} numbers each. {takes}: {columns}", LANES, 0, lane, "{}"),
    )
    for ax, (title, count, from_, chosen, text) in zip(axes, stripes, strict=True):
        for each in range(count):
            draw_box(ax, each / count, 0, 1 / count, 1, FETCHED if from_ + each == chosen else OTHER)
            ax.text((each + 0.5) / count, 0.2, text.format(from_ + each), ha="center", va="center", size=8)
        if ax in axes[:2]:
            ax.plot([(number - start + 0.5) / shown] * 2, (0.4, 1), color=NEEDED, lw=2)
        ax.set_title(title, size=9, loc="left")
        ax.set(xlim=(-0.002, 1.002), ylim=(-0.02, 1.02))
        ax.axis("off")
    return figure


def draw_accesses(lanes: int = 32) -> Figure:
    """128 numbers that a warp reads: in one instruction of 16 bytes a lane, or in four of 4 bytes."""
    import matplotlib.pyplot as plt

    figure, axes = panels((11, 2.8), 2, 1, height_ratios=(1.3, 4))
    colours = plt.get_cmap("viridis")
    for ax, neighbours in zip(axes, (4, 1), strict=True):
        for number in range(4 * lanes):
            instruction, lane = divmod(number // neighbours, lanes)
            place = number + 0.5 * (number // SECTOR_NUMBERS)
            draw_box(ax, place, instruction, 1, 0.75, colours(lane / lanes), lw=0.2)
        for instruction in range(4 // neighbours):
            sectors = 4 * lanes // SECTOR_NUMBERS * neighbours // 4
            text = f"instruction {instruction + 1}: {sectors} sectors"
            ax.text(-1.5, instruction + 0.4, text, ha="right", va="center", size=9)
        ax.set(xlim=(-32, 4 * lanes * (1 + 0.5 / SECTOR_NUMBERS) + 1), ylim=(4 // neighbours, -0.2))
        ax.axis("off")
    axes[0].set_title("16 bytes a lane: four neighbours are one lane's (one colour)", size=9, loc="left")
    axes[1].set_title("4 bytes a lane: neighbours are neighbouring lanes'", size=9, loc="left")
    return figure


def draw_sizes() -> Figure:
    """µs of the candidate that was kept of each variant, by its size and what is known of it."""
    figure, ax = panels((10, 2.4))
    found = [recorded.kept(variant)["us_p50"] for variant in recorded.SHOWN]
    ax.barh(range(len(found)), found, color=[NEEDED if us < 1.02 * found[0] else FETCHED for us in found], ec=LINE)
    for place, us in enumerate(found):
        ax.text(us, place, f" {us:.1f}", va="center", size=9)
    label = f"µs, {RECORDED}; orange: more than 2 % above literal"
    ax.set(yticks=range(len(found)), xlabel=label, xlim=(0, 1.08 * max(found)), ylim=(len(found) - 0.4, -0.6))
    ax.set_yticklabels(recorded.SHOWN)
    return figure
