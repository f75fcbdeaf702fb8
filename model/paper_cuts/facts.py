"""What the record of the paper cuts and the story's traces say: effects with their spread, kernels by table, bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from data.synthetic import FULL, SyntheticConfig
from kernels.measure import records
from kernels.measure.verdict import verdict
from model.paper_cuts.record import NAME, PROG
from model.profiling.facts import step_facts, summarize
from model.profiling.tables import TRACES
from model.profiling.trace import read

if TYPE_CHECKING:
    import pandas as pd

SMALL = SyntheticConfig().cardinalities  # of the story's first ten steps
KAGGLE = SyntheticConfig(FULL).cardinalities
WIDTH = 16  # of the tables, float32
INDEX_KERNELS = ("eq", "mul", "sum", "to int64")  # an index hash's kernels, in order
# Bytes for each id and each known one: == writes 1, * reads 1 and writes 4, the sum reads 4.
COMPARED = {"eq": 1, "mul": 5, "sum": 4, "to int64": 0}
LAST_TABLE = len(SMALL)


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
    """The recorded ms of each round; FileNotFoundError if nothing is recorded."""
    found = records.recorded(NAME)
    for name, value in ({"part": part, "variant": variant} | labels).items():
        found = found[found[name] == value]
    assert len(found) == 1, f"{part}, {variant}, {labels}: {len(found)} rows"
    return np.asarray(found.iloc[0]["ms"])


def layouts(step: str = "11") -> None:
    """Print each layout's ms a step, launches, and ms of its kernels, with SGD and with Adagrad."""
    try:
        found = records.recorded(NAME)
    except FileNotFoundError:
        print(f"layouts: no record yet; `{PROG} --save`, on a GPU, makes one")
        return
    print(f"RECORDED on an H200, by turns, step {step}'s tables: ms a step, launches, ms of kernels")
    for rule in ("sgd", "adagrad"):
        rows = found[(found["part"] == "tables") & (found["step"] == step) & (found["rule"] == rule)]
        for row in rows.itertuples():
            kernels = f"{row.launches:5.0f} {row.kernel_us / 1e3:6.1f}" if "launches" in rows else ""
            print(f"  {rule:<8} {row.variant:<20} {np.median(row.ms):6.2f} {kernels}")


def counted(variant: str, **labels) -> tuple[float, float]:
    """(launches, µs of the kernels) of a variant of the tables."""
    found = records.recorded(NAME)
    for name, value in ({"part": "tables", "variant": variant} | labels).items():
        found = found[found[name] == value]
    return found.iloc[0]["launches"], found.iloc[0]["kernel_us"]


def effect(part: str, before: str, after: str, **labels) -> Effect:
    """What became of a step by this change, round by round."""
    a, b = times(part, before, **labels), times(part, after, **labels)
    return Effect(float(np.median(a)), float(np.median(b)), *np.quantile(b - a, [0.1, 0.5, 0.9]))


def judge(what: str, predicted: float | None, part: str, before: str, after: str, why: str, **labels) -> None:
    """The verdict on a predicted cost, ms a step: of `before` over `after`; and its spread."""
    try:
        found = effect(part, before, after, **labels)
    except FileNotFoundError:
        print(f"{what}: no record yet; `{PROG} --save`, on a GPU, makes one")
        return
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


def copy_us(moved: float) -> float:
    """µs that so many bytes take at the rate of the record's copy."""
    return moved / (1e6 * records.recorded("add_relu").attrs["copy_tb_per_s"]["limit"])


def table_bytes(cardinalities: Sequence[int] = KAGGLE) -> int:
    return 4 * WIDTH * sum(size + 1 for size in cardinalities)


def sweeps(rule: str) -> dict[str, int]:
    """How many times a step with dense gradients reads or writes all tables, operation by operation (torch's foreach
    kernels, no weight decay)."""
    if rule == "sgd":
        return {"fill the gradient with 0": 1, "update: row, gradient → row": 3}
    return {
        "fill the gradient with 0": 1, "sum += g²": 3, "sqrt(sum)": 2, "+ eps": 2, "-rate · g": 2,
        "update: row, -rate · g, root → row": 4,
    }  # fmt: skip


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
