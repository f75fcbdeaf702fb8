"""21: its prose quotes what its cells print; what it says of the record is counted here."""

from __future__ import annotations

from kernels.measure import records
from lessons.n21_a_compiler_that_says_why_not.calls import RUNGS
from lessons.n21_a_compiler_that_says_why_not.recorded import LOSES, cells
from lessons.shared.claim import claim, quotes
from lessons.shared.records import Record

NOTEBOOK = "21"
quotes(NOTEBOOK)


def _lost() -> tuple:
    """In how many cells, of how many, ours is slower by reduce-overhead, and the most rows of these calls. By replays
    and by calls in none. In each cell that it loses so, our replay takes at most so many % of the call."""
    rows = records.load("backend")["rows"]
    found = {way: list(cells(rows, way)) for way in ("replay", "call", "graphs")}
    assert not [cell for way in ("replay", "call") for cell in found[way] if cell.verdict == LOSES]
    replays = {(cell.model, cell.labels["rows"]): cell for cell in found["replay"]}
    lost = [cell for cell in found["graphs"] if cell.verdict == LOSES]
    shares = [100 * replays[cell.model, cell.labels["rows"]].us / cell.us for cell in lost]
    return len(lost), len(found["graphs"]), max(cell.labels["rows"] for cell in found["graphs"]), max(shares)


def _entered() -> tuple:
    """µs to enter the graph of 26 tables, and µs of its guards: less, by the medians and by the 20th percentiles."""
    rows = [Record("lecture_21").one("calls, 26 tables", name=rung) for rung in RUNGS[:3]]
    for percentile in ("us_p20", "us_p50"):
        op, entered, guarded = (row[percentile] for row in rows)
        assert entered - op > guarded - entered
    return entered - op, guarded - entered


claim(NOTEBOOK, "To enter the graph costs {:.1f} µs, more than all {:.1f} µs of guards.", _entered)
claim(
    NOTEBOOK,
    "By replays and by plain calls the backend is slower in no cell beyond the spread, which is wide for calls. By "
    "`reduce-overhead` it loses {} of {}, up to {} rows, the largest that were timed so. These calls wait for the "
    "host: in each of the cells that it loses so, our replay takes at most {:.0f} % of the call, and is no slower than "
    "the peer's.",
    _lost,
)
