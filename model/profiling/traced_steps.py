"""The lecture's steps: what each trains, and how they are recorded and timed on a GPU."""

import itertools
import json
import os
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from data.cli import UserError
from data.criteo import CriteoBatches
from data.synthetic import CATEGORIES, FULL, SyntheticConfig, generate, hashed_ids
from kernels import runtime
from model import optimizers
from model.config import (
    DLRMConfig,
    Interaction,
    Kernels,
    Optimizer,
    Precision,
    Preset,
    TableOptimizer,
    TrainConfig,
    preset,
)  # fmt: skip
from model.dlrm import DLRM
from model.hashing import Hash
from model.profiling.recording import WARM_UP, record, step_times, today, versions
from model.step import make_step, on_the_device

REPEATS = 5  # processes that a step is timed in


@dataclass(frozen=True)
class TracedStep:
    """A training step that is traced: zero_grad, forward, loss, backward, optimizer; with sync_metrics also reading the
    loss, as model.train --sync-metrics does. It takes `batches` batches in turn, on the device before the clock starts.

    Data: data.synthetic, seed 0, with that largest table; all of its ids are known. preset: the model's widths.
    What is trained with stands here and not in the presets, whose settings may change: a recorded trace stays
    what its step says. sparse_gradients: of the tables, which then lie in one tensor, and have no weight decay.
    compile: torch.compile's mode; "": eager. blocking: under CUDA_LAUNCH_BLOCKING=1. kernels: of the tables; fused ones
    have no gradients at all. table_optimizer: where it is not the MLPs'. cuda_graph: the step is one, and the batch is
    copied into its buffers. precision: of the products, which the process is set to.
    """

    name: str
    preset: str
    interaction: Interaction = Interaction.DOT
    hash: Hash = Hash.MODULUS
    compile: str = ""
    sync_metrics: bool = False
    blocking: bool = False
    optimizer: Optimizer = Optimizer.SGD
    sparse_gradients: bool = False
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    largest_table: int = 2000
    batch_size: int = 2048
    batches: int = 4
    kernels: Kernels = Kernels.EAGER
    table_optimizer: TableOptimizer | None = None
    cuda_graph: bool = False
    precision: Precision = Precision.FP32

    @property
    def number(self) -> str:
        return self.name[:2]


_SMALL = {"preset": "small", "learning_rate": 3e-3}
_FULL = {"preset": "main", "weight_decay": 0.0, "largest_table": FULL}  # Kaggle's cardinalities, 2.2 GB of tables
_FUSED = {**_FULL, "kernels": Kernels.FUSED, "sparse_gradients": True}  # tables: one tensor, no gradient
_ROWWISE = TableOptimizer.ROWWISE_ADAGRAD
TRACED_STEPS = (
    TracedStep("01_index_naive", **_SMALL, hash=Hash.INDEX_NAIVE, sync_metrics=True),
    TracedStep("02_index_naive_blocking", **_SMALL, hash=Hash.INDEX_NAIVE, sync_metrics=True, blocking=True),
    TracedStep("03_index", **_SMALL, hash=Hash.INDEX),
    TracedStep("04_modulus", **_SMALL),
    TracedStep("05_modulus_compiled", **_SMALL, compile="default"),
    TracedStep("06_main_outer", "main", Interaction.OUTER),
    TracedStep("07_main_outer_compiled", "main", Interaction.OUTER, compile="default"),
    TracedStep("08_main_dot", "main"),
    TracedStep("09_main_dot_compiled", "main", compile="default"),
    TracedStep("10_main_dot_cuda_graphs", "main", compile="reduce-overhead"),
    TracedStep("11_full_sgd_dense", **_FULL),
    TracedStep("12_full_sgd_sparse", **_FULL, sparse_gradients=True),
    TracedStep("13_full_adagrad_dense", **_FULL, optimizer=Optimizer.ADAGRAD),
    TracedStep("14_full_adagrad_sparse", **_FULL, optimizer=Optimizer.ADAGRAD, sparse_gradients=True),
    TracedStep("15_full_sgd_fused", **_FUSED),
    TracedStep("16_full_adagrad_fused", **_FUSED, optimizer=Optimizer.ADAGRAD),
    TracedStep("17_full_rowwise_fused", **_FUSED, optimizer=Optimizer.ADAGRAD, table_optimizer=_ROWWISE),
    TracedStep("18_full_sgd_graph", **_FUSED, cuda_graph=True),
    TracedStep("19_full_adagrad_graph", **_FUSED, optimizer=Optimizer.ADAGRAD, cuda_graph=True),
    TracedStep("20_full_sgd_graph_tf32", **_FUSED, cuda_graph=True, precision=Precision.TF32),
)


def shape_of(chosen: TracedStep) -> DLRMConfig:
    """The shape of the step's model: a preset that has cardinalities of its own keeps its few tables."""
    base, available = preset(chosen.preset).model, SyntheticConfig(chosen.largest_table).cardinalities
    return replace(
        base, interaction=chosen.interaction, hash=chosen.hash, kernels=chosen.kernels,
        sparse_gradients=chosen.sparse_gradients,
        cardinalities=tuple(map(min, base.cardinalities or available, available)),
    )


def training_step(chosen: TracedStep, device: torch.device | str) -> tuple[Callable[[], object], dict]:
    """The step as a function, and its config for run.json: run, model, ids (their number, over all tables)."""
    shape = shape_of(chosen)
    vocabularies = None
    if chosen.hash is not Hash.MODULUS:
        known = zip(CATEGORIES, shape.cardinalities, strict=False)  # the first tables' features
        vocabularies = [hashed_ids(name, np.arange(ids)).astype(np.int64) for name, ids in known]
    batches = drawn_batches(chosen, device)
    torch.manual_seed(0)
    with torch.device(device):  # where drawing 540 million weights takes no time
        model = DLRM(shape, vocabularies).to(device)
    optimizer = make_optimizer(model, chosen)
    forward = torch.compile(model, mode=chosen.compile) if chosen.compile else model
    turns = itertools.cycle(batches)

    if not chosen.cuda_graph:
        work = partial(on_the_device, forward, optimizer, precision=chosen.precision)
    elif torch.device(device).type == "cuda":
        work = make_step(forward, optimizer, chosen.batch_size, torch.device(device), chosen.precision, cuda_graph=True)
    else:
        raise UserError(f"{chosen.name}: a CUDA graph needs an NVIDIA GPU, this is the {device}")

    def step() -> torch.Tensor:
        loss = work(*next(turns))
        if chosen.sync_metrics:
            loss.item()
        return loss

    return step, {"run": asdict(chosen), "model": asdict(shape), "ids": sum(shape.cardinalities)}


def drawn_batches(chosen: TracedStep, device: torch.device | str) -> list[list[torch.Tensor]]:
    """The step's batches, (labels, dense, sparse) each, on the device."""
    data = SyntheticConfig(chosen.largest_table)
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(next(generate(chosen.batches * chosen.batch_size, 0, data)), f"{folder}/rows.parquet")
        return [[tensor.to(device) for tensor in batch] for batch in CriteoBatches(folder, chosen.batch_size)]


def make_optimizer(model: DLRM, chosen: TracedStep) -> torch.optim.Optimizer | optimizers.Optimizers:
    """The step's optimizer: one rule and one rate; SGD has one kernel for all parameters with dense gradients.

    Sparse gradients take neither weight decay nor that kernel, so the tables then are a group of their own. Tables of
    the fused kernels have an optimizer of their own, that of model.train.
    """
    if chosen.kernels is Kernels.FUSED:
        rate, rule = chosen.learning_rate, chosen.table_optimizer or TableOptimizer(chosen.optimizer)
        settings = TrainConfig(
            optimizer=chosen.optimizer, learning_rate=rate, table_optimizer=rule, table_learning_rate=rate,
            weight_decay=chosen.weight_decay, precision=chosen.precision, batch_size=chosen.batch_size,
        )
        return optimizers.make_optimizer(model, Preset(model.config, settings), chosen.cuda_graph)
    fused = {"fused": True} if chosen.optimizer is Optimizer.SGD else {}
    groups = [{"params": list(model.parameters()), "weight_decay": chosen.weight_decay, **fused}]
    if chosen.sparse_gradients:
        tables = list(model.sparse_arch.tables.parameters())
        ours = {id(table) for table in tables}
        groups[0]["params"] = [parameter for parameter in model.parameters() if id(parameter) not in ours]
        groups.append({"params": tables, "weight_decay": 0.0})
    match chosen.optimizer:
        case Optimizer.SGD:
            return torch.optim.SGD(groups, lr=chosen.learning_rate)
        case Optimizer.ADAGRAD:
            return torch.optim.Adagrad(groups, lr=chosen.learning_rate)
        case _:
            raise ValueError(f"optimizer: expected sgd or adagrad, got {chosen.optimizer}")


def record_steps(
    steps: Sequence[TracedStep], out: Path, device: str | None = None, active: int = 3, repeats: int = REPEATS,
    options: str = "",
) -> int:
    """Record the steps in out/, each trace once and each time in `repeats` processes; returns how many steps failed.

    options: the command's, for run.json. Each repeat is a process of its own: CUDA_LAUNCH_BLOCKING has to be set before
    CUDA starts, its allocator is empty, and the times vary as they do from one start to the next. The steps take turns.
    """
    failed = set()
    for step in steps:
        command = f"python -m model.profiling story --only {step.number}{options}"
        if _in_a_process(step, _record, step, out, device, active, command) is None:
            failed.add(step)
        else:
            print(f"{step.name}: recorded", flush=True)
    recorded = [step for step in steps if step not in failed]
    first = {step: [_run(out, step)["step_ms"]] for step in recorded}
    return len(failed) + _time_by_turns(recorded, out, device, repeats, first)


def time_steps(steps: Sequence[TracedStep], out: Path, device: str | None = None, repeats: int = REPEATS) -> int:
    """Time steps that are recorded in out/ once more, by turns; their traces stay. Returns how many failed.

    UserError if one is not recorded there, or was with another GPU, torch or step: its time would be of something else.
    """
    here = versions(torch.device(device or runtime.device()))
    for step in steps:
        if not (out / step.name / "run.json").exists():
            raise UserError(f"{out / step.name}: no run.json: record it first, with story --only {step.number}")
        run = _run(out, step)
        for name in ("GPU", "torch"):
            if run[name] != here[name]:
                raise UserError(f"{out / step.name}: {name}: recorded with {run[name]}, here is {here[name]}")
        ours, theirs = asdict(step), run["config"]["run"]
        for name in ours.keys() & theirs.keys():
            if ours[name] != theirs[name]:
                raise UserError(f"{out / step.name}: {name}: recorded with {theirs[name]}, asked for {ours[name]}")
    return _time_by_turns(steps, out, device, repeats, {step: [] for step in steps})


def _time_by_turns(
    steps: Sequence[TracedStep], out: Path, device: str | None, repeats: int, ms: dict[TracedStep, list[float]]
) -> int:
    """Add to each step's times until it has `repeats`, and note them in its run.json after each; how many failed."""
    failed = set()
    while waiting := [step for step in steps if step not in failed and len(ms[step]) < repeats]:
        fewest = min(len(ms[step]) for step in waiting)
        for step in (step for step in waiting if len(ms[step]) == fewest):
            step_ms = _in_a_process(step, _time, step, device)
            if step_ms is None:
                failed.add(step)
                continue
            ms[step].append(step_ms)
            _note_times(out / step.name / "run.json", ms[step])
    for step in (step for step in steps if step not in failed):
        spread = f"{min(ms[step]):.3g} to {max(ms[step]):.3g}"
        print(f"{step.name}: {statistics.median(ms[step]):.3g} ms a step, {spread} in {len(ms[step])} processes")
    return len(failed)


def _note_times(file: Path, ms: list[float]) -> None:
    times = {"step_ms": statistics.median(ms), "step_ms_low": min(ms), "step_ms_high": max(ms), "repeats": len(ms)}
    file.write_text(json.dumps(json.loads(file.read_text()) | times | {"timed": today()}, indent=1) + "\n")


def _in_a_process(step: TracedStep, function: Callable, *arguments):
    """What function(*arguments) returns in a process of its own; None, with its error on stderr, if it fails."""
    try:
        with ProcessPoolExecutor(1, mp_context=_processes()) as pool:
            return pool.submit(function, *arguments).result()
    except Exception as error:
        print(f"{step.name}: FAILED: {type(error).__name__}: {str(error).partition(os.linesep)[0]}", flush=True)
        traceback.print_exception(error, file=sys.stderr)
        return None


@cache
def _processes() -> BaseContext:
    """Forks of a server that has imported torch and has not touched CUDA, which does not survive a fork."""
    processes = get_context("forkserver")
    processes.set_forkserver_preload(["torch"])
    return processes


def _record(step: TracedStep, out: Path, device: str | None, active: int, command: str) -> bool:
    function, config = _prepared(step, device)
    # Without stacks: they slow the host down, and the GPU would wait for it more than it does.
    record(function, out / step.name, command=command, config=config, device=device, active=active, stacks=False)
    return True


def _time(step: TracedStep, device: str | None) -> float:
    """ms a step, as `record` times it."""
    function, _ = _prepared(step, device)
    for _ in range(WARM_UP):
        function()
    return float(step_times({"step": function})["step"].median())


def _prepared(step: TracedStep, device: str | None) -> tuple[Callable[[], object], dict]:
    os.environ["CUDA_LAUNCH_BLOCKING"] = str(int(step.blocking))  # CUDA reads it when it starts, which is below
    chosen = torch.device(device or runtime.device())
    if chosen.type == "cpu":
        torch.set_num_threads(1)  # as the small model trains: sharing its operations costs more than it saves
    torch.set_float32_matmul_precision("high" if step.precision is Precision.TF32 else "highest")
    return training_step(step, chosen)


def _run(out: Path, step: TracedStep) -> dict:
    return json.loads((out / step.name / "run.json").read_text())
