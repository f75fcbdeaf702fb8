"""What was recorded of calls: of this lesson (make_op.json), and of the op add_relu (add_relu.json)."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.measure import records

NAME = "make_op"
# The rungs of one call, slowest declaration first: name in the record → what the picture calls it.
RUNGS = {
    "torch.library": "op by torch.library, Triton's launcher",
    "launcher": "Triton's launcher alone, output made",
    "launcher, output given": "Triton's launcher alone, output given",
    "relu(x + bias)": "PyTorch, two kernels: relu(x + bias)",
    "x + 1": "PyTorch, one kernel: x + 1",
    "cuda": "our declaration, CUDA through C++",
    "triton": "our declaration, cubin through C++",
    "graph of 20": "replay of a CUDA graph of 20, for each",
}
# What add_relu's own record calls four of them.
_THERE = {"relu(x + bias)": "eager", "x + 1": "x + 1", "cuda": "cuda", "triton": "triton"}


@dataclass(frozen=True)
class Times:
    """µs: the median, and the 20th and 80th percentile."""

    us: float
    low: float
    high: float


def load(name: str) -> dict:
    return records.load(name)


def times(part: str, name: str) -> Times:
    """Of a row of this lesson's record. FileNotFoundError before there is one, KeyError where it lacks that row."""
    rows = [row for row in load(NAME)["rows"] if row["part"] == part and row["name"] == name and "us_p50" in row]
    if len(rows) != 1:
        raise KeyError(f"{NAME}: {part}, {name}: {len(rows)} rows")
    return Times(*(rows[0][key] for key in ("us_p50", "us_p20", "us_p80")))


def call(implementation: str, form: str = "functional") -> Times:
    """Of add_relu's record: µs of one call from Python, 64×64 float32. form: or "with a gradient", "in place"."""
    rows = [
        row for row in load("add_relu")["rows"]
        if (row["part"], row["form"], row["implementation"]) == ("calls", form, implementation)
    ]  # fmt: skip
    if len(rows) != 1:
        raise KeyError(f"add_relu: calls, {form}, {implementation}: {len(rows)} rows")
    return Times(*(rows[0][key] for key in ("call_us", "call_us_low", "call_us_high")))


def rungs() -> dict[str, Times | None]:
    """Each of RUNGS; None where nothing is recorded. All from one record: this lesson's, or, before there is one,
    add_relu's."""
    found: dict[str, Times | None] = {}
    for name in RUNGS:
        try:
            found[name] = times("call", name)
        except KeyError:
            found[name] = None
        except FileNotFoundError:
            found[name] = call(_THERE[name]) if name in _THERE else None
    return found
