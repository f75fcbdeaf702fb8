"""14: its prose quotes what its cells print; and what follows from the shapes and the recorded times."""

from __future__ import annotations

from math import ceil

from lessons.n14_matrix_product_in_cuda import product
from lessons.shared.claim import claim, quotes
from lessons.shared.op_times import cell_us
from lessons.shared.records import Record, copy_us, sms

NOTEBOOK = "14"
CELLS = Record("lecture_14")
ROWS, OUTPUTS, COLUMNS = 2048, 512, (27 * 16) ** 2  # of section 5
STEP = 16  # columns that a block of registers.cuh takes at a time
quotes(NOTEBOOK)


def outer_us(name: str, rows: int = ROWS) -> float:
    return CELLS.us("outer", name=name, size=rows)


def _written() -> tuple:
    """µs to write vec(c cᵀ) and read it back, and the share of eager's time in float32; in tf32 it is larger."""
    moving = copy_us(2 * ROWS * COLUMNS * 4)
    labels = {"part": "bandwidth", "rows": ROWS, "columns": 432, "precision": "tf32"}
    eager = cell_us("outer_linear", "eager", **labels)
    assert moving > eager / 4
    return moving, 100 * moving / outer_us("eager")


def blocks(rows: int, outputs: int = OUTPUTS) -> int:
    side = product.read("registers").side
    return ceil(rows / side) * ceil(outputs / side)


def _walk() -> tuple:
    """Blocks of 2,048 rows, steps of a block, blocks of 128 rows; the times are the same."""
    assert sms() < blocks(ROWS) <= 2 * sms()
    assert blocks(128) <= sms()
    assert abs(outer_us("4×4, made", 128) / outer_us("4×4, made") - 1) < 0.03
    assert ceil(blocks(2048, 2048) / sms()) == 8
    return blocks(ROWS), COLUMNS // STEP, blocks(128)


def _library() -> tuple:
    slowest = max(outer_us(name) for name in ("eager", "torch.compile", "4×4, made", "outer_linear"))
    assert slowest == outer_us("outer_linear")
    return (slowest / outer_us("eager"),)


claim(
    NOTEBOOK,
    "To write vec(c cᵀ) and to read it back takes {:.0f} µs at a copy's rate, {:.0f} % of eager's time.",
    _written,
)
claim(
    NOTEBOOK,
    "2,048 rows are {} blocks, at most two an SM, and each takes {:,} steps along K. 128 rows are {} blocks, and take "
    "as long. So two blocks share an SM at no cost: it mostly waits, for their loads and at their barriers. In section "
    "4 an SM had up to eight blocks to work through.",
    _walk,
)
claim(NOTEBOOK, "With 2,048 rows `outer_linear` is the slowest, at {:.2f} × eager's time.", _library)
