"""What the record of the paper cuts and the story's traces say: effects with their spread, kernels by table, bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kernels.measure.verdict import verdict
from lessons.n03_paper_cuts.arithmetic import SMALL
from lessons.shared.records import Record
from model.profiling.facts import step_facts, summarize
from model.profiling.tables import TRACES
from model.profiling.trace import read

if TYPE_CHECKING:
    import pandas as pd

INDEX_KERNELS = ("eq", "mul", "sum", "to int64")  # an index hash's kernels, in order
# Bytes for each id and each known one: == writes 1, * reads 1 and writes 4, the sum reads 4.
COMPARED = {"eq": 1, "mul": 5, "sum": 4, "to int64": 0}
LAST_TABLE = len(SMALL)
PAPER_CUTS = Record("paper_cuts")


@dataclass(frozen=True)
class Effect:
    """ms a step, medians of the rounds; low, middle, high: percentiles 10, 50, 90 of the rounds' after - before.

    In words, as in the pictures, a positive number is what a change saves: the other sign.
    Of two equal programs ten rounds' percentiles 20 and 80 have the same sign about once in ten, 10 and 90 once in 50.
    """

    before: float
    after: float
    low: float
    middle: float
    high: float

    @property
    def none(self) -> bool:
        """Whether it lies below the spread."""
        return self.low <= 0 <= self.high

    def __str__(self) -> str:
        spread = f"{-self.middle:+.3f} ms ({-self.high:+.3f} to {-self.low:+.3f})"
        return f"{self.before:.2f} → {self.after:.2f} ms, saved by turns {spread}{': none' if self.none else ''}"


def times(part: str, variant: str, **labels) -> np.ndarray:
    """The recorded ms of each round."""
    return np.asarray(PAPER_CUTS.one(part, variant=variant, **labels)["ms"])


def layouts(step: str = "11") -> None:
    """Print each layout's ms a step, launches, and ms of its kernels, with SGD and with Adagrad."""
    print(f"RECORDED on an H200, by turns, step {step}'s tables: ms a step, launches, ms of kernels")
    for rule in ("sgd", "adagrad"):
        for row in PAPER_CUTS.rows("tables", step=step, rule=rule).itertuples():
            kernels = f"{row.launches:5.0f} {row.kernel_us / 1e3:6.1f}"
            print(f"  {rule:<8} {row.variant:<20} {np.median(row.ms):6.2f} {kernels}")


def counted(variant: str, **labels) -> tuple[float, float]:
    """(launches, µs of the kernels) of a variant of the tables."""
    row = PAPER_CUTS.one("tables", variant=variant, **labels)
    return row["launches"], row["kernel_us"]


def effect(part: str, before: str, after: str, **labels) -> Effect:
    """What became of a step by this change, round by round."""
    a, b = times(part, before, **labels), times(part, after, **labels)
    return Effect(float(np.median(a)), float(np.median(b)), *np.quantile(b - a, [0.1, 0.5, 0.9]))


def judge(what: str, predicted: float | None, part: str, before: str, after: str, why: str, **labels) -> None:
    """The verdict on a predicted cost, ms a step: of `before` over `after`; and its spread."""
    found = effect(part, before, after, **labels)
    verdict(what, predicted, -found.middle, "ms", f"{why} {found}.", how="recorded")


def conversions() -> pd.DataFrame:
    """A row a table of step 01: ids; µs of walk, of copy and wait, of all in its torch.tensor: means over the steps.

    torch.tensor is no operator, but leaves three: aten::empty for the memory, then nothing for as long as it walks the
    list, aten::to, which copies to the GPU and waits, and at its end aten::lift_fresh.
    """
    import pandas as pd

    trace = read(TRACES / "01_index_naive")
    ops = trace.of("cpu_op").sort_values("ts", kind="stable")
    ops = ops[ops["thread"].isin(ops.loc[ops["name"] == "aten::lift_fresh", "thread"])]
    outermost = ops[ops["ts"] >= ops["end"].cummax().shift(fill_value=-np.inf)]
    last = np.flatnonzero(outermost["name"] == "aten::lift_fresh")
    begin, end = outermost["ts"].to_numpy(), outermost["end"].to_numpy()
    columns = {
        "walk": begin[last - 1] - end[last - 2],
        "copy and wait": end[last - 1] - begin[last - 1],
        "all": end[last] - begin[last - 2],
    }
    assert len(last) == len(trace.steps) * LAST_TABLE
    means = {name: us.reshape(-1, LAST_TABLE).mean(0) for name, us in columns.items()}
    return pd.DataFrame({"ids": SMALL} | means)


def hash_kernels() -> pd.DataFrame:
    """A row a table of step 03: ids, µs of each of its hash's kernels: means over the steps."""
    import pandas as pd

    kernels = read(TRACES / "03_index").of("kernel").sort_values("ts", kind="stable")
    us = []
    for _, step in kernels.groupby("step"):
        ours = step[: len(INDEX_KERNELS) * LAST_TABLE]
        assert ours["name"].iloc[2 :: len(INDEX_KERNELS)].str.contains("reduce_kernel").all()
        us.append(ours["dur"].to_numpy().reshape(LAST_TABLE, -1))
    return pd.DataFrame(np.mean(us, axis=0), columns=INDEX_KERNELS).assign(ids=SMALL)


def line_of(ids: pd.Series, us: pd.Series) -> tuple[float, float]:
    """(µs at no ids, µs for each 1000 ids): the straight line through them."""
    slope, fixed = np.polyfit(ids, us, 1)
    return float(fixed), 1000 * float(slope)


KINDS = {
    "fill with 0": r"FillFunctor",
    "update": r"multi_tensor_apply",
    "add up the rows' gradients": r"embedding_backward|embedding.*scatter|coalesceValues|indexFunc|index_add",
}


def story_step(name: str) -> dict[str, float]:
    """ms a step of the story: by kind of kernel, "the rest", "idle", and "step"."""
    trace = read(TRACES / name)
    ms = json.loads((TRACES / name / "run.json").read_text())["step_ms"]
    us = summarize(trace)["us"]
    found = {kind: float(us[us.index.str.contains(pattern)].sum()) / 1e3 for kind, pattern in KINDS.items()}
    busy = step_facts(trace).busy_us / 1e3
    return found | {"the rest": busy - sum(found.values()), "idle": ms - busy, "step": ms}
