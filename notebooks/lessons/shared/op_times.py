"""What the ops' records say in µs, as several lessons quote it."""

from __future__ import annotations

from lessons.shared.records import Record, copy_us


def cell_us(op: str, implementation: str, **labels) -> float:
    """The recorded time on the GPU, µs, of the one cell that has these labels."""
    return Record(op).us(implementation=implementation, **labels)


def limit_us(op: str, **labels) -> float:
    """µs that a copy takes for the bytes that the cell must move."""
    return copy_us(Record(op).one(implementation="triton", **labels)["bytes"])


def look_ups(rows: int, width: int = 16, ids: str = "uniform", part: str = "bandwidth") -> tuple[float, ...]:
    """µs of the bytes, of eager, of torch.compile and of the one launch, which is faster than both."""
    cell = {"rows": rows, "width": width, "ids": ids, "part": part, "form": "functional"}
    eager, compiled, ours = (cell_us("embedding_bags", name, **cell) for name in ("eager", "torch.compile", "triton"))
    assert ours < compiled < eager
    return limit_us("embedding_bags", **cell), eager, compiled, ours
