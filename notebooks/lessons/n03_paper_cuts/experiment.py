"""What each paper cut costs, one change at a time and by turns: `python -m lessons.n03_paper_cuts --save`, on a GPU.

By parts, each of which is one process's rounds; a round runs every variant for a block of steps, and waits behind it:

    hash      a step of the story's 04, its hash changed: index_naive, index, sorted, modulus
    waits     a step of the story's 04 and of 06, whose kernels are long: the batch on the device; its loss read in
              every step; the batch copied from ordinary memory, the same with non_blocking, from pinned memory with
              non_blocking, and pinned in the step
    tables    a step of the story's 08 and of 11: tables of 13,428 and of 33.8 million ids; dense or sparse gradients,
              26 tensors or one, SGD and Adagrad; also the launches, and the µs of the kernels
    gradients   a step of the story's 11: the gradients kept, zero_grad(set_to_none=False), or set to None
    ladder      the notebook's own program, its cuts mended one after the other: small with SGD, from the list of ids
                on; main with Kaggle's tables and Adagrad; also launches and µs of the kernels
    hash_sizes  the hash alone, of 2048 ids in one table of n known ones

A variant is FAILED if its loss or a gradient is not that of its part's first, from the same weights, where they compute
the same; or if its update is not what the rule makes of its gradient: lessons.n03_paper_cuts.agreement says why losses
of several steps are not compared. ms: a number a round.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.synthetic import CATEGORIES, FULL, SyntheticConfig, hashed_ids
from lessons.n03_paper_cuts import program
from lessons.n03_paper_cuts.agreement import Program, disagreement
from lessons.shared import dlrm
from lessons.shared.experiment import Experiment, kernels_of
from model.config import Optimizer
from model.device import pinned
from model.dlrm import DLRM
from model.hashing import Hash, make_hash
from model.profiling.recording import WARM_UP, step_times
from model.profiling.traced_steps import (
    TRACED_STEPS,
    TracedStep,
    drawn_batches,
    make_optimizer,
    shape_of,
)
from model.step import on_the_device

BY_NUMBER = {step.number: step for step in TRACED_STEPS}
HOST_BOUND, GPU_BOUND, SMALL_TABLES, FULL_TABLES = "04", "06", "08", "11"  # of the story
KEPT, NONE = "set_to_none=False", "set_to_none=True"
MAIN = {"bottom": (13, 512, 256, 64, 16), "top": (512, 256, 1)}  # the preset's widths
LEAST, MOST, MOST_COMPARED = 4, 23, 17  # log2 of n, of the sizes; up to where ids are compared one by one
ON_DEVICE, ITEM = "on the device", "the loss read"
PAGEABLE, PAGEABLE_NON_BLOCKING = "ordinary memory", "ordinary memory, non_blocking"
PINNED, PINNED_IN_STEP = "pinned memory, non_blocking", "pinned in the step"
# (a name of its own, sparse gradients, one tensor)
LAYOUTS = (
    ("dense, 26 tensors", False, False), ("dense, one tensor", False, True),
    ("sparse, 26 tensors", True, False), ("sparse, one tensor", True, True),
)


@dataclass(frozen=True)
class Sizes:
    """batch: rows a step. largest: ids of a table. rounds of `block` steps each. most: log2 of n, of the sizes."""

    batch: int = 2048
    largest: int = FULL
    rounds: int = 10
    block: int = 5
    most: int = MOST
    gpu_bound: str = GPU_BOUND


def hashes(chosen: TracedStep, device: torch.device) -> Iterator[Program]:
    """Ids get other rows from sorted and modulus."""
    shape, batches = shape_of(chosen), drawn_batches(chosen, device)
    names = zip(CATEGORIES, shape.cardinalities, strict=False)  # the first tables' features
    known = [hashed_ids(name, np.arange(ids)).astype(np.int64) for name, ids in names]
    for kind in (Hash.INDEX_NAIVE, Hash.INDEX, Hash.SORTED, Hash.MODULUS):
        torch.manual_seed(0)
        with torch.device(device):
            model = DLRM(replace(shape, hash=kind), None if kind is Hash.MODULUS else known).to(device)
        same = kind in (Hash.INDEX_NAIVE, Hash.INDEX)
        yield _program(str(kind), model, make_optimizer(model, chosen), batches, same=same)


def waits(chosen: TracedStep, device: torch.device) -> Iterator[Program]:
    """Steps of one model, by how the batch comes and whether the loss is read."""
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    with torch.device(device):
        model = DLRM(shape_of(chosen)).to(device)
    optimizer = make_optimizer(model, chosen)
    work = partial(on_the_device, model, optimizer)
    there = drawn_batches(chosen, device)
    host = [[tensor.cpu() for tensor in batch] for batch in there]
    in_pinned = [[tensor.pin_memory() if cuda else tensor for tensor in batch] for batch in host]

    def way(
        name: str, batches: Sequence[Sequence[Tensor]], prepare: Callable[[Tensor], Tensor], read: bool = False
    ) -> Program:
        turns = itertools.cycle(batches)

        def run() -> Tensor:
            loss = work(*map(prepare, next(turns)))
            if read:
                loss.item()
            return loss

        return Program(name, run, model, optimizer)

    def copied(tensor: Tensor, non_blocking: bool = True) -> Tensor:
        return tensor.to(device, non_blocking=non_blocking)

    yield way(ON_DEVICE, there, lambda tensor: tensor)
    yield way(ITEM, there, lambda tensor: tensor, read=True)
    yield way(PAGEABLE, host, partial(copied, non_blocking=False))
    yield way(PAGEABLE_NON_BLOCKING, host, copied)
    yield way(PINNED, in_pinned, copied)
    yield way(PINNED_IN_STEP, host, lambda tensor: copied(pinned(tensor) if cuda else tensor))


def tables(chosen: TracedStep, device: torch.device) -> Iterator[Program]:
    """Steps whose tables are one tensor or 26, with dense gradients or sparse ones; the weights are the same."""
    batches, weights = drawn_batches(chosen, device), None
    for name, sparse, one in LAYOUTS:
        torch.manual_seed(0)
        with torch.device(device):
            model = DLRM(replace(shape_of(chosen), sparse_gradients=one)).to(device)
        if weights is None:
            weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(weights)  # a GPU draws others where the tables are one tensor
        embeddings = model.sparse_arch.tables
        if one and not sparse:
            embeddings.forward = partial(_dense_look_up, embeddings)
        elif sparse and not one:
            for table in embeddings:
                table.sparse = True
        yield _program(name, model, make_optimizer(model, replace(chosen, sparse_gradients=sparse)), batches)


def gradients(chosen: TracedStep, device: torch.device) -> Iterator[Program]:
    """Steps whose gradients stay where they are and are filled with 0, and steps that make them anew."""
    batches = drawn_batches(chosen, device)
    for name, work in ((KEPT, _keeping), (NONE, dlrm.step)):
        torch.manual_seed(0)
        with torch.device(device):
            model = DLRM(shape_of(chosen)).to(device)
        yield _program(name, model, make_optimizer(model, chosen), batches, work)


def _program(
    name: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: list, work: Callable = on_the_device,
    same: bool = True,
) -> Program:
    return Program(name, program.loop(model, optimizer, batches, lambda tensor: tensor, work), model, optimizer, same)


def _keeping(model: torch.nn.Module, optimizer, labels: Tensor, dense: Tensor, ids: Tensor) -> Tensor:
    loss = F.binary_cross_entropy_with_logits(model(dense, ids), labels)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    return loss.detach()


def kaggle(rows: int, largest: int = FULL, count: int = 4) -> tuple[tuple[int, ...], list[list[Tensor]]]:
    """Kaggle's table sizes, `largest` at most, and batches whose ids are drawn from as many; on the host."""
    chosen = replace(BY_NUMBER[FULL_TABLES], batch_size=rows, batches=count, largest_table=largest)
    return SyntheticConfig(largest).cardinalities, drawn_batches(chosen, "cpu")


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.003)


def small_ladder(rows: int, largest: int, device: torch.device) -> Iterator[Program]:
    """The notebook's program from the list of ids to the mended step; mod n gives ids other rows."""
    sizes, host = kaggle(rows, min(2000, largest))
    known = [
        torch.from_numpy(hashed_ids(name, np.arange(n)).astype(np.int64)).sort().values
        for name, n in zip(CATEGORIES, sizes, strict=True)
    ]
    for name, kind in (("the list", program.ListHash), ("ids in a buffer", program.BufferHash)):
        yield _rung(name, lambda kind=kind: program.Exact(known, kind), sgd, host, device)
    for rung in _rungs(sizes, {}, sgd, host, device, "(id + 1) mod n"):
        yield replace(rung, same=False)


def kaggle_ladder(rows: int, largest: int, device: torch.device) -> Iterator[Program]:
    """The notebook's program at Kaggle's size, with Adagrad; all compute the same."""
    sizes, host = kaggle(rows, largest)
    yield from _rungs(sizes, MAIN, program.adagrad, host, device, "as it was")


def _rungs(
    sizes: Sequence[int], shape: Mapping, optimizer: Callable, host: list, device: torch.device, first: str
) -> Iterator[Program]:
    """26 tables with dense gradients, the loss read and the batch waited for; then one cut after the other mended."""

    def one(sparse: bool) -> Callable:
        return lambda: program.OneTable(sizes, partial(_looked_up, sparse=sparse), **shape)

    in_pinned = [[tensor.pin_memory() if device.type == "cuda" else tensor for tensor in batch] for batch in host]
    apart, quiet = partial(dlrm.DLRM, sizes, **shape), {"work": dlrm.step, "non_blocking": True}
    yield _rung(first, apart, optimizer, host, device)
    yield _rung("the loss not read", apart, optimizer, host, device, dlrm.step)
    yield _rung("non_blocking", apart, optimizer, host, device, **quiet)
    yield _rung("from pinned memory", apart, optimizer, in_pinned, device, **quiet)
    yield _rung("one table", one(False), optimizer, in_pinned, device, **quiet)
    yield _rung("a sparse gradient", one(True), optimizer, in_pinned, device, **quiet)


def _rung(
    name: str, make: Callable, optimizer: Callable, batches: list, device: torch.device,
    work: Callable = program.reading, non_blocking: bool = False,
) -> Program:
    torch.manual_seed(0)
    with torch.device(device):
        model = make().to(device)
    optim = optimizer(model)
    step = program.loop(model, optim, batches, lambda tensor: tensor.to(device, non_blocking=non_blocking), work)
    return Program(name, step, model, optim)


def _looked_up(table: Tensor, rows: Tensor, sparse: bool) -> Tensor:
    return F.embedding(rows, table, sparse=sparse)


def _dense_look_up(embeddings: torch.nn.Module, rows: Tensor) -> Tensor:
    return F.embedding(rows + embeddings.starts, embeddings.weight)


def measure(
    programs: Iterable[Program], device: torch.device, rounds: int, block: int, count: bool = False
) -> list[dict]:
    """A row a program: variant, ms of each round, match; count: also its launches and the µs of its kernels."""
    programs = list(programs)
    differs = [disagreement(programs[0], one) for one in programs]  # all of them, while all have the same batch next
    rows, steps = [], {one.name: one.step for one in programs}
    for one, wrong in zip(programs, differs, strict=True):
        for _ in range(WARM_UP):
            one.step()
        row = {"variant": one.name, "match": f"FAILED: {wrong}" if wrong else "ok"}
        if count and device.type == "cuda":
            row |= kernels_of(one.step)
        rows.append(row)
    ms = step_times(steps, block, rounds)
    return [row if row["match"].startswith("FAILED") else row | {"ms": _rounded(ms[row["variant"]])} for row in rows]


def sizes(batch: int, device: torch.device, rounds: int, most: int = MOST) -> list[dict]:
    """A row a hash and n: µs a call, the host included."""
    rows = []
    for log2 in range(LEAST, most + 1):
        n = 1 << log2
        known = torch.randperm(2 * n)[:n]
        ids = known[torch.randint(n, (batch,))].to(device)
        kinds = (Hash.SORTED, Hash.MODULUS)
        if log2 <= MOST_COMPARED:
            kinds = (Hash.INDEX_NAIVE, Hash.INDEX, *kinds)
        modules = {kind: make_hash(kind, n, known).to(device) for kind in kinds}
        rows_of = {kind: module(ids) for kind, module in modules.items()}
        for module in [*modules.values()] * WARM_UP:  # a size's first calls are slower, whatever their work
            module(ids)
        ms = step_times({kind: partial(module, ids) for kind, module in modules.items()}, 5, rounds)
        for kind in kinds:  # the two by an index give ids the same rows, the others rows of the table
            if kind in (Hash.INDEX_NAIVE, Hash.INDEX):
                right = torch.equal(rows_of[kind], rows_of[Hash.INDEX])
            else:
                right = bool(((rows_of[kind] >= 0) & (rows_of[kind] <= n)).all())
            match = "ok" if right else "FAILED: another row"
            rows.append({"variant": str(kind), "n": n, "match": match, "ms": _rounded(ms[kind])})
    return rows


def _rounded(ms) -> list[float]:
    return [float(f"{value:.5g}") for value in ms]


class PaperCuts(Experiment):
    """What paper_cuts.json has; ms: of each round."""

    NAME = "paper_cuts"
    PARTS = ("hash", "waits", "tables", "gradients", "ladder", "hash_sizes")
    FULL = Sizes()
    SMALL = Sizes(batch=8, largest=50, rounds=2, block=1, most=6, gpu_bound="08")

    def hash(self) -> None:
        self._steps("hash", HOST_BOUND, hashes)

    def waits(self) -> None:
        for number in (HOST_BOUND, self.sizes.gpu_bound):
            self._steps("waits", number, waits)

    def tables(self) -> None:
        for number, rule in itertools.product((SMALL_TABLES, FULL_TABLES), (Optimizer.SGD, Optimizer.ADAGRAD)):
            changes = {"optimizer": rule, "weight_decay": 0.0}
            self._steps("tables", number, tables, changes, count=True, rule=str(rule))

    def gradients(self) -> None:
        for rule in (Optimizer.SGD, Optimizer.ADAGRAD):
            changes = {"optimizer": rule, "weight_decay": 0.0}
            self._steps("gradients", FULL_TABLES, gradients, changes, rule=str(rule))

    def ladder(self) -> None:
        sizes = self.sizes
        for name, variants in (("small, SGD", small_ladder), ("main, Kaggle's tables, Adagrad", kaggle_ladder)):
            steps = variants(sizes.batch, sizes.largest, self.device)
            for row in measure(steps, self.device, sizes.rounds, sizes.block, count=True):
                self.add("ladder", None, row.pop("match"), size=name, **row)
            self._release()

    def hash_sizes(self) -> None:
        for row in sizes(self.sizes.batch, self.device, self.sizes.rounds, self.sizes.most):
            self.add("sizes", None, row.pop("match"), step="", **row)

    def _steps(
        self, part: str, number: str, variants: Callable, changes: Mapping | None = None, count: bool = False, **labels
    ) -> None:
        chosen = replace(BY_NUMBER[number], batch_size=self.sizes.batch, **(changes or {}))
        chosen = replace(chosen, largest_table=min(chosen.largest_table, self.sizes.largest))
        rows = measure(variants(chosen, self.device), self.device, self.sizes.rounds, self.sizes.block, count)
        for row in rows:
            self.add(part, None, row.pop("match"), step=number, **labels, **row)
        self._release()

    def _release(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


main = PaperCuts.main
