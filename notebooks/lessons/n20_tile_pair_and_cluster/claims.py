"""20, A tile, a pair and a cluster of SMs a model: its prose quotes what its cells print, and a record of its parts."""

from __future__ import annotations

from kernels.measure.records import load
from lessons.shared.claim import claim, quotes
from lessons.shared.records import LEAST


def _in_parts(precision: str, rows: int = 65536) -> tuple[float, float]:
    """µs of a captured prediction of `main` by its parts, and by one kernel; a graph has two."""
    us = {
        row["way"]: row["us"] / 2
        for row in load("choices")["rows"]
        if (row.get("model"), row.get("rows"), row.get("precision")) == ("main", rows, precision)
        and not row["trains"]
        and row["match"] == "ok"
    }
    return us["looked up within"], us["one kernel"]


def _less_than_half() -> tuple[float, float]:
    parts, whole = _in_parts("bf16")
    assert parts < whole / 2
    return parts, whole


def _turn() -> tuple:
    """One kernel is faster with 2048 rows, and the parts are with more, in both formats."""
    for precision in ("tf32", "bf16"):
        for rows in (2048, 16384, 65536):
            parts, whole = _in_parts(precision, rows)
            assert (parts < whole / LEAST) if rows > 2048 else (whole < parts / LEAST)
    return ()


quotes("20")
claim("20", "65536 rows in TF32 take {:.0f} µs by the parts and {:.0f} by one kernel.", lambda: _in_parts("tf32"))
claim("20", "In bfloat16 the parts take less than half: {:.0f} against {:.0f}.", _less_than_half)
claim("20", "From 16384 on take the parts:", _turn)
