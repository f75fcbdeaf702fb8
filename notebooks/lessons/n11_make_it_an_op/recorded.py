"""What was recorded of calls (make_op.json): rung by rung, and by how much each differs from the one below it."""

from __future__ import annotations

from dataclasses import dataclass

from lessons.shared.records import Record

MAKE_OP = Record("make_op")
# The rungs of one call: name in the record → what the notebook calls it.
RUNGS = {
    "launcher, output given": "the launcher, out given",
    "launcher": "the launcher, which allocates out",
    "torch.library, define": "the launcher in define and impl",
    "torch.library": "the launcher in custom_op",
    "C++": "C++, TORCH_LIBRARY",
    "triton": "one declaration, Triton",
    "cuda": "one declaration, CUDA",
    "x + 1": "PyTorch, one kernel: x + 1",
    "relu(x + bias)": "PyTorch, two kernels: relu(x + bias)",
    "graph of 1": "replay of a CUDA graph of one call",
    "graph of 20": "replay of a CUDA graph of 20, per call",
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


def rungs(part: str = "call") -> dict[str, Times | None]:
    """Those of RUNGS that the part has or is to have; None: no record yet."""
    by_name: dict[str, Times | None] = {}
    for name in RUNGS:
        try:
            by_name[name] = times(part, name)
        except LookupError:
            if part == "call" or name == "C++":
                by_name[name] = None
    return by_name


def elsewhere(name: str, part: str = "call") -> str:
    """What another GPU's record has of the rung, and of custom_op beside it."""
    return MAKE_OP.elsewhere(part, beside="torch.library", called="custom_op", name=name)


def show_rungs(part: str = "call") -> None:
    """Print each rung's µs, with the 20th and 80th percentile."""
    print(f"recorded on an {MAKE_OP.head('GPU')}{', with a gradient' * (part == 'gradient')}:")
    for name, row in rungs(part).items():
        recorded = row and f"{row.us:5.1f} µs ({row.low:.1f} to {row.high:.1f})"
        text = recorded or elsewhere(name, part)
        print(f"{RUNGS[name]:44} {text}")
