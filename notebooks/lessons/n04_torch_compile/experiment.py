"""What torch.compile writes for DLRM, and what compiling costs and brings.

    times     seconds of the first step of the story's 04, 06, 08, each in a new process: eager, compiled with empty
              caches, compiled with filled ones; ms of a step, eager and compiled, by turns

`python -m lessons.n04_torch_compile launches` writes to traces/compiled/torch-<version>.json the launches of DLRM
small, 26 tables, 2048 rows, inference and training, by Inductor's options; it takes no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from unittest import mock

import torch

from kernels import inductor, runtime
from kernels.measure import records
from lessons.n04_torch_compile.dynamo_graphs import batch_of, bounded, bounded_where, quiet, small_model
from lessons.shared.experiment import Experiment
from model.profiling.recording import WARM_UP, step_times, today
from model.profiling.tables import TRACES
from model.profiling.traced_steps import TRACED_STEPS, TracedStep, training_step

PROG = "python -m lessons.n04_torch_compile"
FOLDER = TRACES / "compiled"
CHILD = """
import json, sys, torch
from lessons.n04_torch_compile.experiment import first_step
from model.profiling.traced_steps import TracedStep
print(first_step(TracedStep(**json.loads(sys.argv[1])), torch.device(sys.argv[2]))[1])
"""
BY_NUMBER = {step.number: step for step in TRACED_STEPS}
TOLERANCE = 1e-3  # of a loss, in all steps that warm up
STEPS = ("04", "06", "08")  # of the story, each eager and compiled here
OPTIONS: dict[str, dict] = {
    "default": {},
    "combo_kernels": {"combo_kernels": True},
    "min_overlap_ratio": {"min_overlap_ratio": 0.0},
    "both": {"combo_kernels": True, "min_overlap_ratio": 0.0},
}


def launches(rows: int = 2048, tables: int = 26, backward: bool = True) -> list[dict]:
    """A row for inference and training (backward) with each option: launches by kind; look_ups, gradients: those whose
    kernel is for look-ups, or for a table's gradient, alone; None where kernels of a combination are not named."""
    model, batch, found = small_model(tables), batch_of(rows, tables), []
    for what in ("inference", "training")[: 1 + backward]:
        for name, options in OPTIONS.items():
            row = {"what": what, "options": name}
            if not all(map(inductor.has_option, options)):
                found.append(row | {"match": f"torch {torch.__version__} has no such option"})
                continue
            sources = inductor.triton_source(model, *batch, backward=what == "training", options=options)
            found.append(row | {"match": "not compared", "launches": inductor.count(sources)} | by_part(sources))
            if what == "inference":
                found[-1]["tables_a_launch"] = tables_a_launch(sources[0])
            print(found[-1], flush=True)
    return found


def launches_of_logits(logits: int = 65536) -> list[dict]:
    """A row for each of the notebook's two functions of logits: launches by kind."""
    rows = []
    for function in (bounded, bounded_where):
        with quiet():
            sources = inductor.triton_source(function, torch.randn(logits))
        row = {"what": function.__name__, "options": "default", "match": "not compared", "logits": logits}
        rows.append(row | {"launches": inductor.count(sources)})
        print(rows[-1], flush=True)
    return rows


def by_part(sources: list[str]) -> dict[str, int | None]:
    """Launches of kernels that look up, and that make a table's gradient; None where a kernel has no names."""
    kernels = [kernel for source in sources for kernel in inductor.split(source)]
    if any(not kernel.fused for kernel in kernels if kernel.source):
        return {"look_ups": None, "gradients": None}
    names = {"look_ups": "aten.embedding", "gradients": "aten.embedding_dense_backward"}
    return {part: sum(k.launches for k in kernels if name in k.fused) for part, name in names.items()}


def tables_a_launch(source: str) -> list[int]:
    """How many look-ups each kernel does that does any: each checks its row once. Not the interaction's index."""
    found = [k.source.count("tl.device_assert") for k in inductor.split(source) if "aten.index" not in k.fused]
    return [number for number in found if number]


def write_launches(found: list[dict]) -> str:
    versions = runtime.versions()
    version = versions["torch"].partition("+")[0]
    gpu = versions["GPU"] if runtime.device().type == "cuda" else "none, lowered for a fake one"
    head = {"command": f"{PROG} launches", "GPU": gpu, "torch": versions["torch"], "date": today()}
    path = FOLDER / f"torch-{'.'.join(version.split('.')[:2])}.json"
    rows = ",\n".join("  " + json.dumps(row) for row in found)
    records.write(path, json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{rows}\n ]\n}}\n')
    return f"saved traces/compiled/{path.name}"


def first_step(chosen: TracedStep, device: torch.device) -> tuple[Callable, float]:
    """(step, seconds of its first run), after Dynamo has forgotten what it compiled."""
    torch._dynamo.reset()
    step, _ = training_step(chosen, device)
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return step, time.perf_counter() - start


def cache_folders(caches: str) -> dict[str, str]:
    """The environment by which Inductor and Triton keep what they compile in the folder `caches`."""
    return {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "TRITON_CACHE_DIR": f"{caches}/triton"}


def new_process(chosen: TracedStep, device: torch.device, caches: str) -> float:
    """Seconds of the step's first run in a process of its own, which keeps what it compiles in the folder `caches`."""
    path = os.pathsep.join([str(TRACES.parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", CHILD, json.dumps(asdict(chosen)), str(device)]
    environment = os.environ | cache_folders(caches) | {"PYTHONPATH": path}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"the first step of {chosen.name} ended with status {done.returncode}")
    return float(done.stdout.split()[-1])


def times(chosen: TracedStep, device: torch.device, rounds: int = 10, block: int = 5) -> list[dict]:
    """A row for eager and for compiled: first_s cold and warm (eager: once), ms of each round, by turns."""
    compiled = replace(chosen, compile="default")
    with tempfile.TemporaryDirectory() as caches:
        first = {"eager": [new_process(chosen, device, caches)]}
        first["compiled"] = [new_process(compiled, device, caches) for _ in ("cold", "warm")]
        with mock.patch.dict(os.environ, cache_folders(caches)):
            steps = {"eager": first_step(chosen, device)[0], "compiled": first_step(compiled, device)[0]}
    losses = {name: torch.stack([step().detach() for _ in range(WARM_UP)]) for name, step in steps.items()}
    error = (losses["compiled"] - losses["eager"]).abs().max().item()
    match = "ok" if error <= TOLERANCE else f"FAILED: a loss differs by {error:.2g}"
    ms = step_times(steps, block, rounds)
    return [
        {
            "step": chosen.number, "variant": name, "match": match, "first_s": first[name],
            "ms": [float(f"{value:.5g}") for value in ms[name]],
        }
        for name in steps
    ]


@dataclass(frozen=True)
class Sizes:
    """steps: of the story. changes: fields of them that are replaced. rounds of `block` steps each."""

    steps: tuple[str, ...] = STEPS
    changes: Mapping[str, int] = field(default_factory=lambda: {"batch_size": 2048})
    rounds: int = 10
    block: int = 5


class CompileTimes(Experiment):
    """What compile_times.json has; first_s: seconds of the first step, ms: a number a round."""

    NAME = "compile_times"
    PARTS = ("times",)
    COMMANDS = ("launches",)
    FULL = Sizes()
    SMALL = Sizes(("04",), {"batch_size": 4, "batches": 1, "largest_table": 10}, rounds=2, block=1)

    def times(self) -> None:
        for number in self.sizes.steps:
            chosen = replace(BY_NUMBER[number], **self.sizes.changes)
            for row in times(chosen, self.device, self.sizes.rounds, self.sizes.block):
                self.add("times", None, row.pop("match"), **row)

    def launches(self) -> None:
        """write the launches of DLRM small by Inductor's options to traces/compiled: needs no GPU"""
        print(write_launches(launches() + launches_of_logits()))


main = CompileTimes.main
