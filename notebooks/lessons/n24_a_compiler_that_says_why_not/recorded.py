"""What `python -m model.bench.backend --save` found: where the backend is faster than Inductor, and where it is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernels.measure import records
from lessons.shared.records import apart

COMMAND = "python -m model.bench.backend --save"
OURS = "fused_kernels"
WAYS = {"replay": "a replay", "call": "a call", "graphs": "a call, reduce-overhead"}
WINS, NEITHER, LOSES = "faster", "no difference", "slower"


@dataclass(frozen=True)
class Cell:
    """One cell of the record, by one clock: our median µs, the fastest peer's, and ours compared with it."""

    labels: Mapping
    peer: str
    peer_us: float
    us: float
    verdict: str

    @property
    def model(self) -> tuple[str, str, bool]:
        return self.labels["preset"], self.labels["precision"], self.labels["trains"]

    def __str__(self) -> str:
        preset, precision, trains = self.model
        rows = f"{self.labels['rows']:,} row{'s' * (self.labels['rows'] > 1)}"
        what = f"{preset}, {rows}, {precision}, {'a training step' if trains else 'inference'}"
        return f"{what}: {self.us:,.1f} µs, {self.peer} {self.peer_us:,.1f} µs, {self.us / self.peer_us:.2f} ×"


def cells(rows: list[Mapping], way: str) -> Iterator[Cell]:
    """Each row by one of WAYS; those that failed, or were not timed so, are left out."""
    for row in rows:
        if row["match"] != "ok" or way not in row:
            continue
        times = {
            name: dict(zip(("us_p20", "us_p50", "us_p80"), us, strict=True)) for name, us in row[way].items()
        }
        ours = times.pop(OURS)
        peer = min(times, key=lambda name: times[name]["us_p50"])
        faster = ours["us_p50"] < times[peer]["us_p50"]
        verdict = NEITHER if not apart(ours, times[peer]) else WINS if faster else LOSES
        yield Cell(row, peer, times[peer]["us_p50"], ours["us_p50"], verdict)


def print_cells(way: str, most: int = 8) -> None:
    """By one of WAYS: how often the backend is faster, and the cells in which it is slower, at most so many."""
    record = records.load("backend")
    found = list(cells(record["rows"], way))
    counts = ", ".join(
        f"{name} in {sum(cell.verdict == name for cell in found)}" for name in (WINS, NEITHER, LOSES)
    )
    print(f"{WAYS[way]}, {record['GPU']}, {record['date']}: of {len(found)} cells {counts}")
    lost = sorted((cell for cell in found if cell.verdict == LOSES), key=lambda cell: -cell.us / cell.peer_us)
    for cell in lost[:most]:
        print(f"  {cell}")
    if lost[most:]:
        print(f"  … {len(lost) - most} more, at most {lost[most].us / lost[most].peer_us:.2f} ×")
