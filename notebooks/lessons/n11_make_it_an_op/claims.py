"""11, Make it an op: what a call was recorded to take; else no number in the prose that the notebook does not print."""

from __future__ import annotations

from lessons.shared.claim import claim, quotes
from lessons.shared.records import ADD_RELU

NOTEBOOK = "11"
quotes(NOTEBOOK)


def _calls() -> tuple:
    """µs of a call from Python on 64 × 64 elements, as in the cell: PyTorch's two operators, the library's op."""
    rows = [ADD_RELU.one("calls", form="functional", implementation=name) for name in ("eager", "auto")]
    assert all((row["rows"], row["columns"]) == (64, 64) for row in rows)
    theirs, ours = rows
    assert ours["call_us_high"] < theirs["call_us_low"]
    return theirs["call_us"], ours["call_us"]


claim(
    NOTEBOOK,
    "In the record of an H200, a call of PyTorch's two kernels at this shape takes the host {:.1f} µs, and a call of "
    "the library's op {:.1f} µs.",
    _calls,
)
