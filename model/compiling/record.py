"""What torch.compile writes for DLRM, and what compiling costs and brings.

    python -m model.compiling launches    of DLRM small, 26 tables, 2048 rows: inference and training, by Inductor's
                                          options; it takes no GPU; written to traces/compiled/torch-<version>.json
    python -m model.compiling times       on a GPU: seconds of the first step of the story's 04, 06, 08, each in a new
                                          process: eager, compiled with empty caches, compiled with filled ones; ms of a
                                          step, eager and compiled, by turns;
                                          written to traces/results/<gpu>/compile_times.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from unittest import mock

import torch

from data.cli import Parser, UserError, user_errors
from kernels import inductor, runtime
from kernels.measure import records
from model.compiling.graphs import batch_of, small_model
from model.profiling.recording import WARM_UP, step_times, today
from model.profiling.story import STORY, StoryStep, training_step
from model.profiling.tables import TRACES

PROG = "python -m model.compiling"
FOLDER = TRACES / "compiled"
NAME = "compile_times"
CHILD = """
import json, sys, torch
from model.compiling.record import first_step
from model.profiling.story import StoryStep
print(first_step(StoryStep(**json.loads(sys.argv[1])), torch.device(sys.argv[2]))[1])
"""
BY_NUMBER = {step.number: step for step in STORY}
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


def first_step(chosen: StoryStep, device: torch.device) -> tuple[Callable, float]:
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


def new_process(chosen: StoryStep, device: torch.device, caches: str) -> float:
    """Seconds of the step's first run in a process of its own, which keeps what it compiles in the folder `caches`."""
    path = os.pathsep.join([str(TRACES.parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", CHILD, json.dumps(asdict(chosen)), str(device)]
    environment = os.environ | cache_folders(caches) | {"PYTHONPATH": path}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"the first step of {chosen.name} ended with status {done.returncode}")
    return float(done.stdout.split()[-1])


def times(chosen: StoryStep, device: torch.device, rounds: int = 10, block: int = 5) -> list[dict]:
    """A row for eager and for compiled: first_s cold and warm (eager: once), ms of each round, by turns."""
    compiled = replace(chosen, compile="default")
    with tempfile.TemporaryDirectory() as caches:
        first = {"eager": [new_process(chosen, device, caches)]}
        first["compiled"] = [new_process(compiled, device, caches) for _ in ("cold", "warm")]
        with mock.patch.dict(os.environ, cache_folders(caches)):
            steps = {"eager": first_step(chosen, device)[0], "compiled": first_step(compiled, device)[0]}
    for each in steps.values():
        for _ in range(WARM_UP):
            each()
    ms = step_times(steps, block, rounds)
    return [
        {
            "step": chosen.number, "variant": name, "match": "not compared", "first_s": first[name],
            "ms": [float(f"{value:.5g}") for value in ms[name]],
        }
        for name in steps
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = Parser(prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("launches", "times"))
    parser.add_argument("--device", help="of times; default: the GPU; cpu only tries it out and saves nothing")
    parser.add_argument("--batch-size", type=int, default=2048, metavar="N", help="of times (default: 2048)")
    args = parser.parse_args(arguments)
    with user_errors(PROG):
        if args.what == "launches":
            print(write_launches(launches()))
            return 0
        if args.device is None and runtime.device().type != "cuda":
            raise UserError("times are recorded on an NVIDIA GPU, and there is none here (--device cpu tries it out)")
        device, rows = torch.device(args.device or runtime.device()), []
        for number in STEPS:
            chosen = replace(BY_NUMBER[number], batch_size=args.batch_size)
            rows += times(chosen, device)
            print(*rows[-2:], sep="\n", flush=True)
        if args.device is None and args.batch_size == 2048:
            print(records.save({"op": NAME, **runtime.versions(), "date": today(), "rows": rows}))
        return 0
