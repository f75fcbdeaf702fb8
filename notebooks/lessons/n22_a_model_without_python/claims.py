"""22, A model without Python: each number in its prose stands in an output; what it says of an H100 is counted here."""

from __future__ import annotations

from lessons.shared.claim import claim, quotes
from lessons.shared.records import Record

NOTEBOOK = "22"
quotes(NOTEBOOK)


def _us(implementation: str) -> float:
    """Of a call for one row on one thread."""
    record = Record("serving", gpu="h100-80gb-hbm3")
    return record.one(rows=1, threads=1, implementation=implementation)["us"]


def _without_python() -> tuple:
    """How many times as fast a package becomes out of Python, and how many times more in a graph, which is more."""
    python, cpp = _us("aoti_load_package, from Python"), _us("run_exported, without graphs")
    assert cpp / _us("run_exported") > python / cpp
    return python / cpp, cpp / _us("run_exported")


claim(
    NOTEBOOK,
    "for a row C++ is {:.2f} × as fast. The same C++ in a graph is {:.2f} × as fast again.",
    _without_python,
)
claim(
    NOTEBOOK,
    "On the H100 the copies alone took {:.1f} µs of the {:.1f} that a graph from C++ takes for a row in float32.",
    lambda: (_us("copies"), _us("run_exported")),
)
