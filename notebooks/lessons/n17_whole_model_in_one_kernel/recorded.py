"""What `python -m kernels.measure bench dlrm` and its sweep found: on the H200, or on another GPU that has a record."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kernels.measure.cells import FRESH
from lessons.shared.records import Record, apart, spread

if TYPE_CHECKING:
    import pandas

RECORD, SWEEP = Record("dlrm"), Record("dlrm_sweep")
COMMANDS = {
    RECORD: "python -m kernels.measure bench dlrm --save", SWEEP: "python -m kernels.measure bench dlrm --sweep --save",
}
OURS, NOBODY = "cuda", "no difference"


def no_record(record: Record) -> str:
    """What is said in its place."""
    return f"This has not been recorded yet. On a GPU, `{COMMANDS[record]}` records it, and this cell then shows it."


def sweep() -> Record | None:
    """The H200's, else another GPU's; None: there is none."""
    with suppress(LookupError):
        return SWEEP.with_part("grid")


def cells(record: Record) -> dict[tuple[int, int], pandas.DataFrame]:
    """(tables, batch) → the rows of that cell of the grid, the fastest first; those that failed are not among them."""
    grid = record.rows("grid")
    grid = grid.assign(tables=grid["model"].str.split().str[0].astype(int))
    groups = grid.dropna(subset=["us_p50"]).sort_values("us_p50").groupby(["tables", "rows"])
    return {(int(tables), int(batch)): cell for (tables, batch), cell in groups}


def winner(cell: pandas.DataFrame) -> str:
    """The fastest; NOBODY where the second is no slower than the spread, or 3 %."""
    first, *others = (row for _, row in cell.iterrows())
    return first["implementation"] if not others or apart(first, others[0]) else NOBODY


def print_ranking() -> None:
    """How often who is the fastest, and where it is not our kernel."""
    if (record := sweep()) is None:
        print(no_record(SWEEP))
        return
    winners = {at: winner(cell) for at, cell in cells(record).items()}
    counts = {name: [*winners.values()].count(name) for name in {OURS: 0} | dict.fromkeys(winners.values())}
    shown = ", ".join(f"{name} in {count}" for name, count in counts.items())
    where = f"{record.head('GPU')}, {record.head('date')}"
    print(f"The fastest in each of {len(winners)} cells, by the GPU's time ({where}): {shown}.")
    for other in sorted(counts.keys() - {OURS}):
        places = ", ".join(f"{tables} × {batch:,}" for (tables, batch), name in winners.items() if name == other)
        print(f"  {other}: {places} (tables × rows)")


def print_calls() -> None:
    """µs of a call of mini, a line an implementation, the fastest first: on the same inputs, and on fresh ones."""
    try:
        record = RECORD.with_part("latency", model="mini")
    except LookupError:
        print(no_record(RECORD))
        return
    where = f"{record.head('GPU')}, {record.head('date')}"
    print(f"Mini, µs per call, between two events (20th to 80th percentile), {where}")
    print(f"  {'':25} {'the same inputs':26} fresh inputs")
    calls = {}
    for _, row in record.rows("latency", model="mini").dropna(subset=["call_us"]).sort_values("call_us").iterrows():
        of_call = {"us_p20": row["call_us_low"], "us_p50": row["call_us"], "us_p80": row["call_us_high"]}
        calls[row["implementation"]] = spread(of_call, 6)
    for name in (name for name in calls if not name.endswith(FRESH)):
        print(f"  {name:25} {calls[name]:26} {calls.get(name + FRESH, '')}".rstrip())
