"""What the records say of compiling: launches by Inductor's options, kernels' ms by part, seconds, steps, look-ups."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lessons.n04_torch_compile.experiment import FOLDER
from lessons.shared.records import Record
from model.profiling.tables import TRACES

if TYPE_CHECKING:
    import pandas

COMPILE_TIMES = Record("compile_times")
# The notebook names three recorded training steps by their models.
EAGER = {"small": "04_modulus", "main": "08_main_dot", "outer": "06_main_outer"}
COMPILED = {"small": "05_modulus_compiled", "main": "09_main_dot_compiled", "outer": "07_main_outer_compiled"}
_GEMM = re.compile("gemm|splitK", re.IGNORECASE)
_GRADIENT = re.compile("embedding_backward|embedding_dense_backward")
PARTS = ("GEMMs", "gradients of the look-ups", "all other kernels")


@dataclass(frozen=True)
class Step:
    """A recorded step: ms and their 20th and 80th percentile; ms of its kernels by part and their launches, by a trace
    of the same step."""

    ms: float
    low: float
    high: float
    parts: dict[str, float]
    launches: int

    @property
    def busy(self) -> float:
        return sum(self.parts.values())


def _step(model: str, variant: str) -> Step:
    row = COMPILE_TIMES.one(step=EAGER[model][:2], variant=variant)
    low, middle, high = np.quantile(row["ms"], (0.2, 0.5, 0.8))
    run = json.loads((TRACES / (EAGER if variant == "eager" else COMPILED)[model] / "run.json").read_text())
    parts = dict.fromkeys(PARTS, 0.0)
    for kernel in run["key_averages"]:
        part = PARTS[0] if _GEMM.search(kernel["name"]) else PARTS[1 if _GRADIENT.search(kernel["name"]) else 2]
        parts[part] += kernel["us"] / 1e3 / run["active_steps"]
    return Step(float(middle), float(low), float(high), parts, int(run["facts"]["launches"]))


def pair(model: str) -> tuple[Step, Step]:
    """The model's training step, eager and compiled, by turns in one process."""
    return _step(model, "eager"), _step(model, "compiled")


def launches(torch: str, what: str, options: str = "default") -> dict:
    """The recorded row of this version, "2.11" or "2.13", inference or training. LookupError: there is none."""
    rows = json.loads((FOLDER / f"torch-{torch}.json").read_text())["rows"]
    for row in rows:
        if (row["what"], row["options"]) == (what, options):
            return row
    raise LookupError(f"torch-{torch}.json: no row of {what}, {options}")


def count(torch: str, what: str, options: str = "default") -> int:
    """All launches of that row."""
    return sum(launches(torch, what, options)["launches"].values())


@dataclass(frozen=True)
class Pays:
    """A step compiled: seconds by which its first run in a new process is longer than eager's, with empty caches and
    with filled ones; ms saved a step: percentiles 20, 50, 80."""

    cold: float
    warm: float
    low: float
    saved: float
    high: float

    def steps(self, seconds: float) -> float:
        """After how many steps these seconds are saved."""
        return math.ceil(1e3 * seconds / self.saved) if self.saved > 0 else math.inf


def pays(model: str) -> Pays:
    """What is recorded of the model's training step."""
    rows = {name: COMPILE_TIMES.one(step=EAGER[model][:2], variant=name) for name in ("eager", "compiled")}
    eager, compiled = (np.asarray(rows[name]["ms"]) for name in ("eager", "compiled"))
    cold, warm = (seconds - rows["eager"]["first_s"][0] for seconds in rows["compiled"]["first_s"])
    return Pays(cold, warm, *(float(value) for value in np.quantile(eager - compiled, (0.2, 0.5, 0.8))))


def show_look_ups() -> None:
    """Print what was recorded of 8, 9 and 26 look-ups, and of a DLRM with most of them, a line a direction: µs and
    launches by each setting."""
    record = COMPILE_TIMES.with_part("look_ups")
    rows = record.rows("look_ups")
    rows = rows[(rows["model"] == "look-ups") | (rows["tables"] == rows["tables"].max())]
    widths = {name: max(16, len(name) + 2) for name in rows["setting"].unique()}
    print(f"RECORDED, µs of a CUDA graph's replay (launches): {record.head('GPU')}, torch {record.head('torch')}")
    print(f"{'':30}" + "".join(f"{name:>{width}}" for name, width in widths.items()))
    for (model, tables, what), group in rows.groupby(["model", "tables", "what"], sort=False):
        cells = {row["setting"]: _us_and_launches(row) for _, row in group.iterrows()}
        where = f"{model}, {tables:.0f} tables, {what}"
        print(f"{where:30}" + "".join(f"{cells.get(name, '–'):>{width}}" for name, width in widths.items()))


def _us_and_launches(row: pandas.Series) -> str:
    return f"{row['us_p50']:,.1f}" + ("" if np.isnan(row["launches"]) else f" ({row['launches']:.0f})")
