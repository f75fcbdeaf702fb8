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

A variant whose loss differs from that of its part's first by more than 1e-4 is FAILED, where they compute the same; or
is not finite, where they do not. ms: a number a round.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.synthetic import CATEGORIES, FULL, SyntheticConfig, hashed_ids
from lessons.n03_paper_cuts import program
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
    training_step,
)
from model.step import on_the_device

BY_NUMBER = {step.number: step for step in TRACED_STEPS}
HOST_BOUND, GPU_BOUND, SMALL_TABLES, FULL_TABLES = "04", "06", "08", "11"  # of the story
KEPT, NONE = "set_to_none=False", "set_to_none=True"
MAIN = {"bottom": (13, 512, 256, 64, 16), "top": (512, 256, 1)}  # the preset's widths
TOLERANCE = 1e-4  # of a loss
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


def hashes(chosen: TracedStep, device: torch.device) -> Iterator[tuple[str, Callable, bool]]:
    """(variant, step, whether its loss must be the first one's): ids get other rows from sorted and modulus."""
    for kind in (Hash.INDEX_NAIVE, Hash.INDEX, Hash.SORTED, Hash.MODULUS):
        step, _ = training_step(replace(chosen, hash=kind), device)
        yield str(kind), step, kind in (Hash.INDEX_NAIVE, Hash.INDEX)


def waits(chosen: TracedStep, device: torch.device) -> Iterator[tuple[str, Callable, bool]]:
    """Steps of one model, by how the batch comes and whether the loss is read."""
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    with torch.device(device):
        model = DLRM(shape_of(chosen)).to(device)
    work = partial(on_the_device, model, make_optimizer(model, chosen))
    there = drawn_batches(chosen, device)
    host = [[tensor.cpu() for tensor in batch] for batch in there]
    in_pinned = [[tensor.pin_memory() if cuda else tensor for tensor in batch] for batch in host]

    def step(batches: Sequence[Sequence[Tensor]], prepare: Callable[[Tensor], Tensor], read: bool = False):
        turns = itertools.cycle(batches)

        def run() -> Tensor:
            loss = work(*map(prepare, next(turns)))
            if read:
                loss.item()
            return loss

        return run

    def copied(tensor: Tensor, non_blocking: bool = True) -> Tensor:
        return tensor.to(device, non_blocking=non_blocking)

    yield ON_DEVICE, step(there, lambda tensor: tensor), False
    yield ITEM, step(there, lambda tensor: tensor, read=True), False
    yield PAGEABLE, step(host, partial(copied, non_blocking=False)), False
    yield PAGEABLE_NON_BLOCKING, step(host, copied), False
    yield PINNED, step(in_pinned, copied), False
    yield PINNED_IN_STEP, step(host, lambda tensor: copied(pinned(tensor) if cuda else tensor)), False


def tables(chosen: TracedStep, device: torch.device) -> Iterator[tuple[str, Callable, bool]]:
    """Steps whose tables are one tensor or 26, with dense gradients or sparse ones; the weights are the same."""
    batches, weights = drawn_batches(chosen, device), None
    for name, sparse, one in LAYOUTS:
        torch.manual_seed(0)
        with torch.device(device):
            model = DLRM(replace(shape_of(chosen), sparse_gradients=one)).to(device)
        if weights is None:
            weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(weights)  # a GPU draws others where the tables are one tensor
        found = model.sparse_arch.tables
        if one and not sparse:
            found.forward = partial(_dense_look_up, found)
        elif sparse and not one:
            for table in found:
                table.sparse = True
        work = partial(on_the_device, model, make_optimizer(model, replace(chosen, sparse_gradients=sparse)))
        turns = itertools.cycle(batches)
        yield name, lambda work=work, turns=turns: work(*next(turns)), True


def gradients(chosen: TracedStep, device: torch.device) -> Iterator[tuple[str, Callable, bool]]:
    """Steps whose gradients stay where they are and are filled with 0, and steps that make them anew."""
    batches = drawn_batches(chosen, device)
    for name, work in ((KEPT, _keeping), (NONE, dlrm.step)):
        torch.manual_seed(0)
        with torch.device(device):
            model = DLRM(shape_of(chosen)).to(device)
        yield name, program.loop(model, make_optimizer(model, chosen), batches, lambda tensor: tensor, work), True


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


def small_ladder(rows: int, largest: int, device: torch.device) -> Iterator[tuple[str, Callable, bool]]:
    """The notebook's program from the list of ids to the mended step; with an id's own row losses must be the first
    one's, and mod n gives other rows."""
    sizes, host = kaggle(rows, min(2000, largest))
    known = [
        torch.from_numpy(hashed_ids(name, np.arange(n)).astype(np.int64)).sort().values
        for name, n in zip(CATEGORIES, sizes, strict=True)
    ]
    for name, kind in (("the list", program.ListHash), ("ids in a buffer", program.BufferHash)):
        yield name, _rung(lambda kind=kind: program.Exact(known, kind), sgd, host, device), True
    for name, step in _rungs(sizes, {}, sgd, host, device, "(id + 1) mod n"):
        yield name, step, False


def kaggle_ladder(rows: int, largest: int, device: torch.device) -> Iterator[tuple[str, Callable, bool]]:
    """The notebook's program at Kaggle's size, with Adagrad; all compute the same."""
    sizes, host = kaggle(rows, largest)
    for name, step in _rungs(sizes, MAIN, program.adagrad, host, device, "as it was"):
        yield name, step, True


def _rungs(
    sizes: Sequence[int], shape: Mapping, optimizer: Callable, host: list, device: torch.device, first: str
) -> Iterator[tuple[str, Callable]]:
    """26 tables with dense gradients, the loss read and the batch waited for; then one cut after the other mended."""

    def one(sparse: bool) -> Callable:
        return lambda: program.OneTable(sizes, partial(_looked_up, sparse=sparse), **shape)

    in_pinned = [[tensor.pin_memory() if device.type == "cuda" else tensor for tensor in batch] for batch in host]
    apart, quiet = partial(dlrm.DLRM, sizes, **shape), {"work": dlrm.step, "non_blocking": True}
    yield first, _rung(apart, optimizer, host, device)
    yield "the loss not read", _rung(apart, optimizer, host, device, dlrm.step)
    yield "non_blocking", _rung(apart, optimizer, host, device, **quiet)
    yield "from pinned memory", _rung(apart, optimizer, in_pinned, device, **quiet)
    yield "one table", _rung(one(False), optimizer, in_pinned, device, **quiet)
    yield "a sparse gradient", _rung(one(True), optimizer, in_pinned, device, **quiet)


def _rung(
    make: Callable, optimizer: Callable, batches: list, device: torch.device, work: Callable = program.reading,
    non_blocking: bool = False,
) -> Callable:
    torch.manual_seed(0)
    with torch.device(device):
        model = make().to(device)
    return program.loop(
        model, optimizer(model), batches,
        lambda tensor: tensor.to(device, non_blocking=non_blocking), work,
    )


def _looked_up(table: Tensor, rows: Tensor, sparse: bool) -> Tensor:
    return F.embedding(rows, table, sparse=sparse)


def _dense_look_up(found: torch.nn.Module, rows: Tensor) -> Tensor:
    return F.embedding(rows + found.starts, found.weight)


def measure(
    variants: Iterator[tuple[str, Callable, bool]], device: torch.device, rounds: int, block: int, count: bool = False
) -> list[dict]:
    """A row a variant: variant, ms of each round, match; count: also its launches and the µs of its kernels."""
    rows, steps, expected = [], {}, None
    for name, step, same in variants:
        losses = torch.stack([step().detach() for _ in range(WARM_UP)])
        expected = losses if expected is None else expected
        error = (losses - expected).abs().max().item() if same else 0.0 if losses.isfinite().all() else float("inf")
        match = "ok" if error <= TOLERANCE else f"FAILED: a loss differs by {error:.2g}"
        row = {"variant": name, "match": match}
        if count and device.type == "cuda":
            row |= kernels_of(step)
        rows.append(row)
        steps[name] = step
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
        found = measure(variants(chosen, self.device), self.device, self.sizes.rounds, self.sizes.block, count)
        for row in found:
            self.add(part, None, row.pop("match"), step=number, **labels, **row)
        self._release()

    def _release(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


main = PaperCuts.main
