"""What model.bench measures: implementations of a training step, the memory they take, whether their losses agree."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

import kernels
from kernels.measure.clock import percentiles
from model.config import DLRMConfig, Kernels, Optimizer, Precision, Preset, TableOptimizer, TrainConfig
from model.dlrm import DLRM
from model.optimizers import Optimizers, make_optimizer
from model.profiling.recording import step_times
from model.step import make_step
from model.table_update import TableUpdate

RATES = {TableOptimizer.SGD: 0.1, TableOptimizer.ADAGRAD: 0.01, TableOptimizer.ROWWISE_ADAGRAD: 0.01}
# How far a loss or a probability may be off. TF32 has 11 bits in each factor, and another order of a sum rounds
# otherwise.
TOLERANCES = {Precision.FP32: 1e-4, Precision.TF32: 2e-3}
TOLERANCE = TOLERANCES[Precision.FP32]
# Implementation → what of DLRMConfig it changes; whether it is compiled; whether it is a CUDA graph.
IMPLEMENTATIONS = {
    "eager sparse": ({}, False, False),
    "eager dense": ({"sparse_gradients": False}, False, False),
    "torch.compile": ({}, True, False),
    "fused, eager update": ({"kernels": Kernels.FUSED}, False, False),
    "fused": ({"kernels": Kernels.FUSED}, False, False),
    "fused graph": ({"kernels": Kernels.FUSED}, False, True),
}


class Trainer:
    """An implementation at its beginning: the same weights for all of them.

    precision: of matrix products, which `model.device.settings` sets too, where it is tf32.
    floor: bytes of the tables and their optimizer's state.
    """

    def __init__(
        self, name: str, rule: TableOptimizer, shape: DLRMConfig, rows: int, device: torch.device,
        precision: Precision = Precision.FP32,
    ):
        changes, compiled, graph = IMPLEMENTATIONS[name]
        shape = replace(shape, **changes)
        mlps = Optimizer.SGD if rule is TableOptimizer.SGD else Optimizer.ADAGRAD
        settings = TrainConfig(
            mlps, RATES[rule], rule, RATES[rule], weight_decay=0.0, precision=precision, batch_size=rows
        )
        torch.manual_seed(0)
        with torch.device(device):  # where drawing 540 million weights takes no time
            model = DLRM(shape).to(device)
        optimizer = make_optimizer(model, Preset(shape, settings), capturable=graph)
        if name == "fused, eager update":
            tables = TableUpdate(model.sparse_arch.tables, rule, RATES[rule], backend="eager")
            optimizer = Optimizers(optimizer.parts | {"tables": tables}, optimizer.rates, 0)
        weights = sum(parameter.nbytes for parameter in model.sparse_arch.tables.parameters())
        state = {TableOptimizer.SGD: 0.0, TableOptimizer.ADAGRAD: 1.0}.get(rule, 1 / shape.embedding_dim)
        self.floor = weights * (1 + state)
        forward = torch.compile(model, dynamic=False) if compiled else model
        self.step = make_step(forward, optimizer, rows, device, precision, cuda_graph=graph)


def compare(row: dict, losses: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    """Say in the row whether the losses are those expected."""
    error = (losses - expected).abs().max().item()
    row["loss_error"] = error
    row["match"] = "ok" if error <= tolerance else f"FAILED: a loss differs from the reference's by {error:.2g}"


class Peak:
    """bytes: the most memory that was allocated within, beyond what was before; None on the CPU."""

    def __init__(self, device: torch.device):
        self.device, self.bytes = device, None

    def __enter__(self) -> "Peak":
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self.before = torch.cuda.memory_allocated(self.device)
        return self

    def __exit__(self, *_) -> None:
        if self.device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self.device) - self.before


class noting:
    """row["match"] says what is raised in here."""

    def __init__(self, row: dict):
        self.row = row

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, traceback) -> bool:
        if isinstance(error, Exception):
            self.row["match"] = f"FAILED: {kind.__name__}: {(str(error).splitlines() or [''])[0]}"
            return True
        return False


def bench_steps(
    rule: TableOptimizer, shape: DLRMConfig, batches: list, device: torch.device, names: Sequence[str],
    precision: Precision = Precision.FP32, part: str = "steps",
) -> list[dict]:
    """A row for each implementation, the reference first: its step on these batches."""
    steps, rows, expected = {}, {}, None
    count = len(batches[0][0])
    for name in names:
        row = rows[name] = {
            "part": part, "optimizer": str(rule), "rows": count, "precision": str(precision), "implementation": name
        }
        with Peak(device) as peak, noting(row):
            trainer = Trainer(name, rule, shape, count, device, precision)
            turns = itertools.cycle(batches)
            # Where the step is a graph, the last of these steps are replays.
            losses = torch.stack([trainer.step(*next(turns)).clone() for _ in range(8)])
            expected = losses if expected is None else expected
            compare(row, losses, expected, TOLERANCES[precision])
            steps[name] = lambda step=trainer.step, turns=turns: step(*next(turns))
            row["floor_mb"] = trainer.floor / 1e6
        row["peak_mb"] = peak.bytes and peak.bytes / 1e6
    good = {name: step for name, step in steps.items() if rows[name]["match"] == "ok"}
    times = step_times(good) if good else {}
    for name in good:
        low, middle, high = percentiles(times[name].tolist())
        rows[name] |= {"ms": middle, "ms_low": low, "ms_high": high}
    kernels.check_ids()
    return list(rows.values())
