"""18, A model without Python: its last table is of an H100's record; what else is measured stands in the cells."""

from __future__ import annotations

from lessons.shared.claim import claim
from lessons.shared.records import Record

H100 = Record("serving", gpu="h100-80gb-hbm3")
WAYS = {
    "eager": "eager",
    "the package, from Python": "aoti_load_package, from Python",
    "`run_exported`, launch by launch": "run_exported, without graphs",
    "`run_exported`, as a CUDA graph": "run_exported",
}


def _us(way: str) -> tuple[float, float]:
    """µs of 1 row and of 2048, in one thread."""
    return tuple(H100.one(implementation=WAYS[way], rows=rows, threads=1)["us"] for rows in (1, 2048))


def _without_python() -> tuple:
    """The most per cent that C++ gains over the package from Python; the package gains more than half of eager's time,
    and a graph leaves a fifth of C++'s for one row."""
    eager, package, launched, graph = map(_us, WAYS)
    assert max(now / before for now, before in zip(package, eager, strict=True)) < 0.5
    assert 0.18 < graph[0] / launched[0] < 0.22
    return (100 * max(1 - now / before for now, before in zip(launched, package, strict=True)),)


for _way in WAYS:
    claim("18", f"| {_way} | {{:,.0f}} | {{:,.0f}} |", lambda way=_way: _us(way))
claim("18", "To leave Python as well gains at most {:.0f} %, as long as", _without_python)
claim(
    "18",
    "a graph that is called from Python, takes {:.0f} µs for a row.",
    lambda: (H100.one(implementation="torch.compile, mode=reduce-overhead", rows=1, threads=1)["us"],),
)
