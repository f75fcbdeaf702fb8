"""What the record of the paper cuts and the traces say: what each cut saves, with its spread; kinds of kernels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lessons.n03_paper_cuts.arithmetic import SMALL
from lessons.shared.prediction import verdict
from lessons.shared.records import LEAST, Record
from model.profiling.facts import step_facts, summarize
from model.profiling.tables import TRACES
from model.profiling.trace import read

LAST_TABLE = len(SMALL)
PAPER_CUTS = Record("paper_cuts")
COMMAND = "python -m lessons.n03_paper_cuts --save"


@dataclass(frozen=True)
class Effect:
    """ms per step, medians of the rounds; low, middle, high: percentiles 10, 50, 90 of what a round saves.

    For two equal programs ten rounds' percentiles 10 and 90 have the same sign about once in 50.
    """

    before: float
    after: float
    low: float
    middle: float
    high: float

    @property
    def none(self) -> bool:
        """Whether the spread contains 0, or the saving is under 3 % of the step."""
        return self.low <= 0 <= self.high or abs(self.middle) <= (LEAST - 1) * self.before

    def __str__(self) -> str:
        return f"A step takes {self.after:.2f} ms instead of {self.before:.2f}."

    @property
    def saved(self) -> str:
        digits = 2 if max(abs(self.low), abs(self.high)) >= 0.1 else 3
        low, middle, high = (f"{ms:.{digits}f}".replace("-", "−") for ms in (self.low, self.middle, self.high))
        return f"{middle} ({low} to {high}){': none' if self.none else ''}"


def effect_of(before: np.ndarray | pd.Series, after: np.ndarray | pd.Series) -> Effect:
    """The effect between two programs that took turns: before and after are the ms per step of each round."""
    before, after = np.asarray(before), np.asarray(after)
    saved = np.quantile(before - after, [0.1, 0.5, 0.9])
    return Effect(float(np.median(before)), float(np.median(after)), *map(float, saved))


def times(part: str, variant: str, **labels) -> np.ndarray:
    """The recorded ms of each round; of a part that the H200's record lacks, another GPU's."""
    return np.asarray(PAPER_CUTS.with_part(part).one(part, variant=variant, **labels)["ms"])


def effect(part: str, before: str, after: str, **labels) -> Effect:
    """What this change saves of a step, round by round."""
    return effect_of(times(part, before, **labels), times(part, after, **labels))


# The step that is changed; the last one has Kaggle's tables, and Adagrad in place of SGD.
SMALL_STEP, OUTER_STEP, KAGGLE_STEP = "small", "main, outer", "main, Kaggle"
_WAITS = {"part": "waits", "step": "04"}
_TABLES = {"part": "tables", "step": "11", "rule": "adagrad"}
# The cut's name in the notebook: the step, before, after, and the record's labels.
CUTS = {
    "list → buffer": (SMALL_STEP, "index_naive", "index", {"part": "hash", "step": "04"}),
    "compare → mod n": (SMALL_STEP, "index", "modulus", {"part": "hash", "step": "04"}),
    "loss read → not": (SMALL_STEP, "the loss read", "on the device", _WAITS),
    "loss read → not, longer kernels": (OUTER_STEP, "the loss read", "on the device", _WAITS | {"step": "06"}),
    "to() → non_blocking": (SMALL_STEP, "ordinary memory", "ordinary memory, non_blocking", _WAITS),
    "ordinary → pinned": (SMALL_STEP, "ordinary memory, non_blocking", "pinned memory, non_blocking", _WAITS),
    "pinned in the step → before": (SMALL_STEP, "pinned in the step", "pinned memory, non_blocking", _WAITS),
    "26 tables: dense → sparse": (KAGGLE_STEP, "dense, 26 tensors", "sparse, 26 tensors", _TABLES),
    "dense: 26 tables → one": (KAGGLE_STEP, "dense, 26 tensors", "dense, one tensor", _TABLES),
    "one table: dense → sparse": (KAGGLE_STEP, "dense, one tensor", "sparse, one tensor", _TABLES),
    "gradients kept → set to None": (
        KAGGLE_STEP, "set_to_none=False", "set_to_none=True", {"part": "gradients", "rule": "adagrad"}
    ),
    "all of the above": (SMALL_STEP, "the list", "a sparse gradient", {"part": "ladder", "size": "small, SGD"}),
}


def cut(name: str) -> Effect | None:
    """What the record says of a cut by its name in the notebook; None: it has no such measurement."""
    if name not in CUTS:
        return None
    _, before, after, labels = CUTS[name]
    try:
        return effect(labels["part"], before, after, **{k: v for k, v in labels.items() if k != "part"})
    except LookupError:
        return None


def elsewhere(name: str) -> str:
    """The GPU of that measurement, if it is not the H200; else ""."""
    gpu = PAPER_CUTS.with_part(CUTS[name][3]["part"]).head("GPU").removeprefix("NVIDIA ")
    return "" if gpu == "H200" else gpu


def judge(name: str, predicted: float | None) -> None:
    """The verdict on a prediction of what a cut saves, ms per step; where it saves less than nothing, what it costs."""
    saving = cut(name)
    if saving.middle >= 0:
        spread = f"The spread of the saving is {saving.low:.2f} to {saving.high:.2f} ms."
        verdict(name, predicted, saving.middle, "ms saved", f"{saving} {spread}", how="recorded")
        return
    guess = "no prediction" if predicted is None else f"predicted {predicted:g} ms saved"
    cost = f"it costs {-saving.middle:.2f} ms ({-saving.high:.2f} to {-saving.low:.2f})"
    print(f"{name}: {guess}, recorded: {cost}. {saving}")


RUNGS = {"as it was": "the first program", "the loss not read": "the loss is not read"}  # how a variant is printed


def ladder() -> None:
    """Print the recorded ladder: one program, its cuts mended one after the other, all by turns."""
    try:
        record = PAPER_CUTS.with_part("ladder")
    except LookupError:
        print(f"No record yet of all cuts in one program, mended one after the other. On a GPU, {COMMAND} makes it.")
        return
    for size, rows in record.rows("ladder").groupby("size", sort=False):
        print(f"RECORDED on an {record.head('GPU')}, {size}: ms per step, launches, ms in kernels")
        last = None
        for row in rows.itertuples():
            saved = "" if last is None else f"saves {effect_of(last, row.ms).saved}"
            ms, kernels = np.median(row.ms), getattr(row, "kernel_us", np.nan) / 1e3
            name = RUNGS.get(row.variant, row.variant)
            print(f"  {name:<28} {ms:6.2f} {getattr(row, 'launches', np.nan):5.0f} {kernels:6.2f}  {saved}")
            last = row.ms


def counted(variant: str, **labels) -> tuple[float, float]:
    """(launches, ms of the kernels) of a variant of the tables, by default with Adagrad and Kaggle's ids."""
    row = PAPER_CUTS.one("tables", variant=variant, **{"step": "11", "rule": "adagrad"} | labels)
    return row["launches"], row["kernel_us"] / 1e3


def conversions() -> pd.DataFrame:
    """A row per table of step 01: ids; µs of walk, and of all in its torch.tensor: means over the steps.

    torch.tensor is no operator, but leaves three: aten::empty for the memory, then nothing for as long as it walks the
    list, aten::to, which copies to the GPU and waits, and at its end aten::lift_fresh.
    """
    trace = read(TRACES / "01_index_naive")
    ops = trace.of("cpu_op").sort_values("ts", kind="stable")
    ops = ops[ops["thread"].isin(ops.loc[ops["name"] == "aten::lift_fresh", "thread"])]
    outermost = ops[ops["ts"] >= ops["end"].cummax().shift(fill_value=-np.inf)]
    last = np.flatnonzero(outermost["name"] == "aten::lift_fresh")
    begin, end = outermost["ts"].to_numpy(), outermost["end"].to_numpy()
    columns = {"walk": begin[last - 1] - end[last - 2], "all": end[last] - begin[last - 2]}
    assert len(last) == len(trace.steps) * LAST_TABLE
    means = {name: us.reshape(-1, LAST_TABLE).mean(0) for name, us in columns.items()}
    return pd.DataFrame({"ids": SMALL} | means)


def line_of(ids: pd.Series, us: pd.Series) -> tuple[float, float]:
    """(µs at no ids, µs for each 1000 ids): the straight line through them."""
    slope, fixed = np.polyfit(ids, us, 1)
    return float(fixed), 1000 * float(slope)


KINDS = {
    "fill with 0": r"FillFunctor",
    "update": r"multi_tensor_apply",
    "add up the rows' gradients": r"embedding_backward|embedding.*scatter|coalesceValues|indexFunc|index_add",
}


def run(name: str) -> dict:
    """run.json of a traced step: step_ms, the median of five processes, and facts."""
    return json.loads((TRACES / name / "run.json").read_text())


def traced(name: str) -> dict[str, float]:
    """ms of a traced step: by kind of kernel, "the rest", "idle", and "step"."""
    trace = read(TRACES / name)
    ms = run(name)["step_ms"]
    us = summarize(trace)["us"]
    by_kind = {kind: float(us[us.index.str.contains(pattern)].sum()) / 1e3 for kind, pattern in KINDS.items()}
    busy = step_facts(trace).busy_us / 1e3
    return by_kind | {"the rest": busy - sum(by_kind.values()), "idle": ms - busy, "step": ms}


# Steps of main with Kaggle's tables and Adagrad, from the first one of the notebook to what later ones make of it.
STEPS = {
    "dense gradients, 26 tables": "13_full_adagrad_dense",
    "a sparse gradient, one table": "14_full_adagrad_sparse",
    "its tables by our kernels": "16_full_adagrad_fused",
    "all of it a CUDA graph": "19_full_adagrad_graph",
}


def steps() -> Iterator[tuple[str, dict[str, float]]]:
    """(label, ms by kind of kernel) of STEPS."""
    for label, name in STEPS.items():
        yield label, traced(name)
