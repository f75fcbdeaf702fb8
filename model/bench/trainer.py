"""What model.bench measures: the implementations of a training step, their state, and the memory that they take."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from model.bench.compiled_ways import COMPILED
from model.config import DLRMConfig, Kernels, Optimizer, Precision, Preset, TableOptimizer, TrainConfig
from model.dlrm import DLRM
from model.optimizers import Optimizers, Schedule, make_optimizer
from model.step import make_step
from model.table_update import TableUpdate

RATES = {TableOptimizer.SGD: 0.1, TableOptimizer.ADAGRAD: 0.01, TableOptimizer.ROWWISE_ADAGRAD: 0.01}
TABLES = "sparse_arch.tables.weight"  # all of them, by their name where they are one tensor
FIRST = "over_arch.mlp.0.weight"  # the weight that a peer may fill up
# Implementation → what of DLRMConfig it changes; how it is compiled, if it is; whether it is a CUDA graph.
IMPLEMENTATIONS = {
    "eager sparse": ({}, None, False),
    "eager dense": ({"sparse_gradients": False}, None, False),
    **{name: ({"sparse_gradients": not how.look_ups}, how, False) for name, how in COMPILED.items()},
    "fused, eager update": ({"kernels": Kernels.FUSED}, None, False),
    "fused": ({"kernels": Kernels.FUSED}, None, False),
    "fused graph": ({"kernels": Kernels.FUSED}, None, True),
}


class Trainer:
    """An implementation at its beginning: the same weights for all of them.

    precision: of matrix products, which `model.device.settings` sets too, where it is tf32. rate: else the rule's.
    floor: bytes of the tables and their optimizer's state.
    """

    def __init__(
        self, name: str, rule: TableOptimizer, shape: DLRMConfig, rows: int, device: torch.device,
        precision: Precision = Precision.FP32, rate: float = 0.0,
    ):
        changes, compiled, graph = IMPLEMENTATIONS[name]
        shape = replace(shape, **changes)
        mlps = Optimizer.SGD if rule is TableOptimizer.SGD else Optimizer.ADAGRAD
        rate = rate or RATES[rule]
        settings = TrainConfig(mlps, rate, rule, rate, weight_decay=0.0, precision=precision, batch_size=rows)
        self.peak = Peak(device)
        torch.manual_seed(0)
        with self.peak, torch.device(device):  # where drawing 540 million weights takes no time
            model = DLRM(shape).to(device)
            if compiled:
                compiled.prepare(model)
            optimizer = make_optimizer(model, Preset(shape, settings), capturable=graph)
            if name == "fused, eager update":
                tables = TableUpdate(model.sparse_arch.tables, rule, rate, backend="eager")
                optimizer = Optimizers(optimizer.parts | {"tables": tables}, optimizer.rates, Schedule())
        weights = sum(parameter.nbytes for parameter in model.sparse_arch.tables.parameters())
        state = {TableOptimizer.SGD: 0.0, TableOptimizer.ADAGRAD: 1.0}.get(rule, 1 / shape.embedding_dim)
        self.floor = weights * (1 + state)
        self.model, self.optimizer = model, optimizer
        forward = compiled.compile(model) if compiled else model
        self.step = make_step(forward, optimizer, rows, device, precision, cuda_graph=graph)

    def weights(self) -> dict[str, Tensor]:
        """The model's state_dict, as a DLRM loads it that fills up nothing."""
        weights = self.model.state_dict()
        return weights | {FIRST: self._unpadded(weights[FIRST])}

    def _unpadded(self, weight: Tensor) -> Tensor:
        return weight[:, : self.model.interaction_arch.out_features]

    def state(self) -> dict[str, list[Tensor]]:
        """Each parameter, and its sum of squared gradients if it has one; all tables as one, whatever their layout."""
        tables = [parameter.detach() for parameter in self.model.sparse_arch.tables.parameters()]
        tensors, numbers = {TABLES: [joined(tables)]}, itertools.count()
        sums = {name: own["state"] for name, own in self.optimizer.state_dict().items() if name != "steps"}
        for name, parameter in self.model.named_parameters():
            if not name.startswith("sparse_arch.tables."):
                own = sums["mlps"].get(next(numbers), {}).get("sum")
                tensors[name] = [parameter.detach(), *([] if own is None else [own])]
        if sums["tables"].get(0, {}).get("sum") is not None:
            tensors[TABLES].append(joined([sums["tables"][table]["sum"] for table in range(len(tables))]))
        tensors[FIRST] = [self._unpadded(tensor) for tensor in tensors[FIRST]]
        return tensors


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """All rows as one tensor, without a copy where they are."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


class Peak:
    """bytes: the most memory that what is done within takes, over all times; None on the CPU. What is allocated between
    the times does not count."""

    def __init__(self, device: torch.device):
        self.device, self.bytes, self.kept = device, None, 0

    def __enter__(self) -> "Peak":
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self.before = torch.cuda.memory_allocated(self.device)
        return self

    def __exit__(self, *_) -> None:
        if self.device.type == "cuda":
            most = self.kept + torch.cuda.max_memory_allocated(self.device) - self.before
            self.bytes = max(self.bytes or 0, most)
            self.kept += torch.cuda.memory_allocated(self.device) - self.before


def no_reference(failed: Mapping) -> str:
    """What a row's match is where the row that it is compared with failed."""
    return f"FAILED: there is no reference: {failed['implementation']}: {failed['match'].removeprefix('FAILED: ')}"


class noting:
    """row["match"] says what is raised in here. whose: what it says before."""

    def __init__(self, row: dict, whose: str = ""):
        self.row, self.whose = row, whose

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, traceback) -> bool:
        if isinstance(error, Exception):
            self.row["match"] = f"FAILED: {self.whose}{kind.__name__}: {(str(error).splitlines() or [''])[0]}"
            return True
        return False
