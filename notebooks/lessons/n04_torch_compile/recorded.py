"""What the records say of compiling: launches by Inductor's options, kernels' µs by part, seconds and steps."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

import numpy as np

from kernels import inductor
from kernels.measure.verdict import verdict
from lessons.n04_torch_compile.experiment import FOLDER, OPTIONS
from lessons.shared.records import Record
from model.profiling.tables import TRACES

COMPILE_TIMES = Record("compile_times")
# The notebook names the story's training steps by their models.
EAGER = {"small": "04_modulus", "main": "08_main_dot", "outer": "06_main_outer"}
COMPILED = {"small": "05_modulus_compiled", "main": "09_main_dot_compiled", "outer": "07_main_outer_compiled"}
_GEMM = re.compile("gemm|splitK", re.IGNORECASE)
_GRADIENT = re.compile("embedding_backward|embedding_dense_backward")
PARTS = ("GEMMs", "gradients of the look-ups", "all else")


@dataclass(frozen=True)
class Step:
    """A recorded step: ms without the profiler, what they lie between, ms of its kernels by part, launches."""

    ms: float
    low: float
    high: float
    parts: dict[str, float]
    launches: int

    @property
    def busy(self) -> float:
        return sum(self.parts.values())


def story_step(name: str) -> Step:
    """What traces/NAME/run.json has."""
    run = json.loads((TRACES / name / "run.json").read_text())
    parts = dict.fromkeys(PARTS, 0.0)
    for kernel in run["key_averages"]:
        part = PARTS[0] if _GEMM.search(kernel["name"]) else PARTS[1 if _GRADIENT.search(kernel["name"]) else 2]
        parts[part] += kernel["us"] / 1e3 / run["active_steps"]
    return Step(run["step_ms"], run["step_ms_low"], run["step_ms_high"], parts, int(run["facts"]["launches"]))


def pair(model: str) -> tuple[Step, Step]:
    """The model's training step, eager and compiled."""
    return story_step(EAGER[model]), story_step(COMPILED[model])


def launches(torch: str, what: str, options: str = "default") -> dict:
    """The recorded row of this version, "2.11" or "2.13", inference or training."""
    text = (FOLDER / f"torch-{torch}.json").read_text()
    (row,) = (r for r in json.loads(text)["rows"] if (r["what"], r["options"]) == (what, options))
    return row


def count(torch: str, what: str, options: str = "default") -> int | None:
    """All launches of that row; None where this version has no such option."""
    row = launches(torch, what, options)
    return sum(row["launches"].values()) if "launches" in row else None


def generated() -> tuple[list[inductor.Kernel], list[inductor.Kernel]]:
    """The kernels of DLRM small in training, forward and backward, as torch 2.11 wrote them on the record's GPU."""
    _, (forward, backward) = inductor.read(TRACES / "generated" / "dlrm_small.txt")
    return inductor.split(forward), inductor.split(backward)


def show_launches() -> None:
    """Print the launches of each version, option by option."""
    print("launches of DLRM small, 26 tables, 2048 rows, as recorded")
    for torch in ("2.11", "2.13"):
        for what in ("inference", "training"):
            found = {name: count(torch, what, name) for name in OPTIONS}
            shown = (f"{name} {'no such option' if n is None else n}" for name, n in found.items())
            print(f"torch {torch}, {what:9}:", ", ".join(shown))


@dataclass(frozen=True)
class Pays:
    """A step compiled: seconds by which its first run in a new process is longer than eager's, with empty caches and
    with filled ones; ms saved a step: percentiles 20, 50, 80."""

    eager: float
    compiled: float
    cold: float
    warm: float
    low: float
    saved: float
    high: float

    @property
    def none(self) -> bool:
        """Whether what is saved lies below the spread."""
        return self.low <= 0 <= self.high

    def steps(self, seconds: float) -> float:
        """After how many steps these seconds are saved."""
        return math.ceil(1e3 * seconds / self.saved) if self.saved > 0 else math.inf


def pays(model: str) -> Pays:
    """What is recorded of the model's training step."""
    rows = {name: COMPILE_TIMES.one(step=EAGER[model][:2], variant=name) for name in ("eager", "compiled")}
    eager, compiled = (np.asarray(rows[name]["ms"]) for name in ("eager", "compiled"))
    cold, warm = (seconds - rows["eager"]["first_s"][0] for seconds in rows["compiled"]["first_s"])
    return Pays(
        float(np.median(eager)), float(np.median(compiled)), cold, warm,
        *(float(value) for value in np.quantile(eager - compiled, (0.2, 0.5, 0.8))),
    )


def judge(model: str, predicted: float) -> None:
    """The verdict on the steps after which compiling pays."""
    found = pays(model)
    why = f"{found.cold:.1f} s, for {found.saved:.2f} ms a step ({found.low:.2f} to {found.high:.2f})."
    verdict(f"{model}, cold", predicted, found.steps(found.cold), "steps", why, how="recorded")
