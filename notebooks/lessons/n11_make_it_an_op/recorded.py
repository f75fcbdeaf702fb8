"""What was recorded of calls: of this lesson (make_op.json), and of the op add_relu (add_relu.json)."""

from __future__ import annotations

from dataclasses import dataclass

from lessons.shared.records import ADD_RELU, Record

MAKE_OP = Record("make_op")
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


@dataclass(frozen=True)
class Times:
    """µs: the median, and the 20th and 80th percentile."""

    us: float
    low: float
    high: float


def times(part: str, name: str) -> Times:
    """A row of this lesson's record. LookupError: there is none."""
    row = MAKE_OP.one(part, name=name)
    return Times(*(row[key] for key in ("us_p50", "us_p20", "us_p80")))


def call(implementation: str, form: str = "functional") -> Times:
    """A call of add_relu from Python, 64×64 float32, by its record. form: or "with a gradient", "in place"."""
    row = ADD_RELU.one("calls", form=form, implementation=implementation)
    return Times(*(row[key] for key in ("call_us", "call_us_low", "call_us_high")))


def rungs() -> dict[str, Times]:
    """The rungs of RUNGS."""
    return {name: times("call", name) for name in RUNGS}
