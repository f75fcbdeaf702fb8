"""22, A model without Python: its prose quotes what its cells print. What it says of a GPU is computed from the record
of its own cells, or, as long as that lacks a way, from an H100's of `model.serving.bench`."""

from __future__ import annotations

import re

from lessons.shared.claim import claim, printed, quotes
from lessons.shared.records import Record

NOTEBOOK = "22"
OWN, H100 = Record("lecture_22"), Record("serving", gpu="h100-80gb-hbm3")
PYTHON, CPP, GRAPH, COPIES = "package from Python", "package from C++", "package from C++ in a graph", "copies"
IN_H100 = {PYTHON: "aoti_load_package, from Python", CPP: "run_exported, without graphs", GRAPH: "run_exported"}
quotes(NOTEBOOK)


def _own(name: str, part: str = "fp32") -> float:
    """µs that a caller waits for a row, of the notebook's own cells."""
    return OWN.us(part, name=name, size=1)


def _h100(implementation: str) -> float:
    """The same of an H100, on one thread."""
    return H100.one(rows=1, threads=1, implementation=implementation)["us"]


def _us() -> tuple[str, dict[str, float]]:
    """The GPU, and the µs of each way for a row."""
    try:
        return "H200", {name: _own(name) for name in (PYTHON, CPP, GRAPH)} | {COPIES: _own(COPIES, COPIES)}
    except (LookupError, FileNotFoundError):
        return "H100", {name: _h100(IN_H100.get(name, name)) for name in (PYTHON, CPP, GRAPH, COPIES)}


def _graph_from_python() -> float:
    """How many times as fast a graph makes one row, if all of it is launched from Python."""
    if _us()[0] == "H200":
        return _own(PYTHON) / _own(f"{PYTHON} in a graph")
    return _h100("torch.compile") / _h100("torch.compile, mode=reduce-overhead")


def _without_python() -> tuple:
    """How many times as fast a package becomes out of Python, which is little, and how many times more in a graph."""
    gpu, us = _us()
    out_of_python, in_a_graph = us[PYTHON] / us[CPP], us[CPP] / us[GRAPH]
    assert 1 <= out_of_python < 1.25
    assert 2 * out_of_python < min(in_a_graph, _graph_from_python())
    other = "An H100 has recorded some of these ways, for the same architecture with random weights. "
    return other if gpu == "H100" else "", out_of_python, in_a_graph


def _copies() -> tuple:
    gpu, us = _us()
    return gpu, us[COPIES], us[GRAPH]


def _on_a_cpu() -> tuple:
    """What the calls of section 7 took, as they are stored."""
    number, text = r" ([\d.]+) ms", printed(NOTEBOOK, "cell-35")
    times = re.findall(f"eager, Python{number}, package, Python{number}, package, C\\+\\+{number}", text)
    (eager, python, cpp), (many_eager, *many) = ([float(ms) for ms in each] for each in times)
    assert eager / python > max(1.5, python / cpp)
    assert max(many) < many_eager < min(many) * eager / python
    return ()


claim(
    NOTEBOOK,
    "{}From Python a package is one call, and little of its time is Python's: for a row C++ is {:.2f} × as fast. "
    "In a graph the C++ program is {:.2f} × as fast again. So **the launches, not Python, were the price**.",
    _without_python,
)
claim(
    NOTEBOOK,
    "On an {} the copies alone took {:.1f} µs of the {:.1f} that a graph from C++ took for a row in float32.",
    _copies,
)
claim(NOTEBOOK, "For one row the package is much faster than eager, even from Python", _on_a_cpu)
claim(NOTEBOOK, "Leaving Python then gains less. For 2048 rows the gain is smaller:", _on_a_cpu)
