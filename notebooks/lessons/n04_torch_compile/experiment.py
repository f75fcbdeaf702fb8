"""What torch.compile writes for DLRM, and what compiling costs and brings.

    steps     seconds of the first step of three recorded training steps, 04, 06 and 08, each in a new process: eager,
              compiled with empty caches, compiled with filled ones; ms of a step, eager and compiled, by turns
    look_ups  µs and launches of 8, 9 and 26 look-ups, alone and in DLRM small, forward and training, by settings of
              Inductor, by turns

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
from torch import Tensor, nn

from data.synthetic import SyntheticConfig
from kernels import inductor, runtime
from kernels.measure import records
from lessons.n04_torch_compile.look_ups import FORCED, LookUps, OneTensor
from lessons.shared.dlrm import DLRM
from lessons.shared.experiment import Experiment, Way
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
STEPS = ("04", "06", "08")  # each eager and compiled here
COMBO = {"combo_kernels": True}
OPTIONS: dict[str, dict] = {
    "default": {},
    "force_pointwise_cat": FORCED,
    "combo_kernels": COMBO,
    "min_overlap_ratio": {"min_overlap_ratio": 0.0},
    "both": COMBO | {"min_overlap_ratio": 0.0},
}
SETTINGS: dict[str, dict] = {"default": {}, "combo_kernels": COMBO, "force_pointwise_cat": FORCED}
ONE_TENSOR = "one tensor"


# ----------------------------------------------------------------------------------------------------------- launches


def small_model(tables: int) -> DLRM:
    """The lecture's model with the sample's first tables."""
    torch.manual_seed(0)
    return DLRM(SyntheticConfig().cardinalities[:tables])


def batch_of(rows: int, tables: int) -> tuple[Tensor, Tensor]:
    """dense [rows, 13] and ids [rows, tables]."""
    return torch.randn(rows, 13), torch.randint(2**32, (rows, tables))


def launches(rows: int = 2048, tables: int = 26, backward: bool = True) -> list[dict]:
    """A row for inference and training (backward) with each option: launches by kind; look_ups, gradients: those whose
    kernel is for look-ups, or for a table's gradient, alone; None where kernels of a combination are not named."""
    model, batch, results = small_model(tables), batch_of(rows, tables), []
    for what in ("inference", "training")[: 1 + backward]:
        for name, options in OPTIONS.items():
            row = {"what": what, "options": name}
            if not all(map(inductor.has_option, options)):
                results.append(row | {"match": f"torch {torch.__version__} has no such option"})
                continue
            sources = inductor.triton_source(model, *batch, backward=what == "training", options=options)
            results.append(row | {"match": "not compared", "launches": inductor.count(sources)} | by_part(sources))
            if what == "inference":
                results[-1]["tables_a_launch"] = tables_a_launch(sources[0])
            print(results[-1], flush=True)
    return results


def by_part(sources: list[str]) -> dict[str, int | None]:
    """Launches of kernels that look up, and that make a table's gradient; None where a kernel has no names."""
    kernels = [kernel for source in sources for kernel in inductor.split(source)]
    if any(not kernel.fused for kernel in kernels if kernel.source):
        return {"look_ups": None, "gradients": None}
    names = {"look_ups": "aten.embedding", "gradients": "aten.embedding_dense_backward"}
    return {part: sum(k.launches for k in kernels if name in k.fused) for part, name in names.items()}


def tables_a_launch(source: str) -> list[int]:
    """How many look-ups each kernel does that does any: each checks its row once. Not the interaction's index."""
    counts = [k.source.count("tl.device_assert") for k in inductor.split(source) if "aten.index" not in k.fused]
    return [number for number in counts if number]


def write_launches(results: list[dict]) -> str:
    versions = runtime.versions()
    version = versions["torch"].partition("+")[0]
    gpu = versions["GPU"] if runtime.device().type == "cuda" else "none, lowered for a fake one"
    head = {"command": f"{PROG} launches", "GPU": gpu, "torch": versions["torch"], "date": today()}
    path = FOLDER / f"torch-{'.'.join(version.split('.')[:2])}.json"
    rows = ",\n".join("  " + json.dumps(row) for row in results)
    records.write(path, json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{rows}\n ]\n}}\n')
    return f"saved traces/compiled/{path.name}"


# -------------------------------------------------------------------------------------------------------------- steps


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


# ----------------------------------------------------------------------------------------------------------- look-ups


def passes(model: nn.Module, function: Callable, inputs: tuple, training: bool) -> Callable[[], tuple[Tensor, ...]]:
    """A call: what the function gives for these inputs; in training, with the gradients of the model's parameters."""
    if not training:

        @torch.no_grad()
        def forward() -> tuple[Tensor, ...]:
            return (function(*inputs),)

        return forward
    parameters = list(model.parameters())

    def both() -> tuple[Tensor, ...]:
        out = function(*inputs)
        return (out.detach(), *torch.autograd.grad(out, parameters, torch.ones_like(out)))

    return both


def ways(model: nn.Module, inputs: tuple, training: bool, settings: tuple[str, ...]) -> list[Way]:
    """Eager, and compiled with each of these settings that this torch has; of look-ups also all in one tensor."""
    expected = passes(model, model, inputs, training)()
    variants = [Way({"setting": "eager"}, [passes(model, model, inputs, training)], _like(expected))]
    for name in settings:
        one = OneTensor(model) if name == ONE_TENSOR else model
        options = {} if name == ONE_TENSOR else {k: v for k, v in SETTINGS[name].items() if inductor.has_option(k)}
        call = passes(one, torch.compile(one, dynamic=False, options=options), inputs, training)
        with inductor.written() as sources:
            call()
        labels = {"setting": name, "launches": sum(inductor.count(sources).values())}
        wanted = (expected[0], torch.cat(expected[1:])) if name == ONE_TENSOR and training else expected
        variants.append(Way(labels, [call], _like(wanted)))
    return variants


def _like(expected: tuple[Tensor, ...]) -> Callable:
    """Whether what comes out is that, to within 1e-4 of each tensor's largest number."""

    def right(outputs) -> bool:
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = zip(outputs, expected, strict=True)
        return all(bool((a - b).abs().max() <= 1e-4 * b.abs().max()) for a, b in pairs)  # NaN is not

    return right


@dataclass(frozen=True)
class Sizes:
    """steps: which training steps. changes: fields of them that are replaced. rounds of `block` steps each.

    tables: how many look-ups. rows: of their batch. settings: of Inductor.
    """

    steps: tuple[str, ...] = STEPS
    changes: Mapping[str, int] = field(default_factory=lambda: {"batch_size": 2048})
    rounds: int = 10
    block: int = 5
    tables: tuple[int, ...] = (8, 9, 26)
    rows: int = 2048
    settings: tuple[str, ...] = tuple(SETTINGS)


class CompileTimes(Experiment):
    """What compile_times.json has; first_s: seconds of the first step, ms: a number a round."""

    NAME = "compile_times"
    PARTS = ("steps", "look_ups")
    COMMANDS = ("launches",)
    FULL = Sizes()
    SMALL = Sizes(
        ("04",), {"batch_size": 4, "batches": 1, "largest_table": 10}, rounds=2, block=1, tables=(2,), rows=8,
        settings=("default",),
    )

    def steps(self) -> None:
        for number in self.sizes.steps:
            chosen = replace(BY_NUMBER[number], **self.sizes.changes)
            for row in times(chosen, self.device, self.sizes.rounds, self.sizes.block):
                self.add("steps", None, row.pop("match"), **row)

    def look_ups(self) -> None:
        for tables in self.sizes.tables:
            dense, ids = (part.to(self.device) for part in batch_of(self.sizes.rows, tables))
            alone = LookUps(SyntheticConfig().cardinalities[:tables])
            for name, model, inputs in (("look-ups", alone, (ids,)), ("DLRM", small_model(tables), (dense, ids))):
                settings = self.sizes.settings + (ONE_TENSOR,) * (model is alone)
                for training in (False, True):
                    torch._dynamo.reset()  # a function is compiled eight times at most, and then runs in eager
                    self.compare(
                        "look_ups", ways(model.to(self.device), inputs, training, settings), model=name, tables=tables,
                        rows=self.sizes.rows, what="training" if training else "inference",
                    )

    def launches(self) -> None:
        """write the launches of DLRM small by Inductor's options to traces/compiled: needs no GPU"""
        print(write_launches(launches()))


main = CompileTimes.main
