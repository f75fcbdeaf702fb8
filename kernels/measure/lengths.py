"""What a call costs from Python where ids come in another number N each time, beside calls that all have one N.

A plan, a compilation or a kernel that hangs on N is made where an N comes for the first time, and is gone the second
time. So each N of a pass is new to the implementation, and the pass is measured once. By turns with it, batch by batch,
goes the same number of calls of one N. The garbage collector is off, as in timeit.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from .cells import ANOTHER_LENGTH, Lengths, Row, note_failure
from .clock import Gpu, percentiles
from .match import Match, fused
from .runs import generators

BATCH = 10  # calls between two synchronisations: few, so that no call waits for a place in the GPU's queue
WARM_UP = 2  # lengths before the pass


def measure_lengths(cell: Lengths, gpu: Gpu) -> list[Row]:
    """Two rows for each implementation, of one N and of another N a call: call_us is the mean of cell.count calls,
    call_us_low and call_us_high are percentiles of the batches."""
    torch._dynamo.reset()
    draw, ids = generators(cell.dtype, gpu.device)
    shared = cell.shared(draw) if cell.shared else ()

    def shared_again() -> tuple:
        return cell.shared(generators(cell.dtype, gpu.device)[0]) if cell.shared else ()

    passes, failed = {}, {}
    with torch.no_grad():
        own = iter(_lengths(cell))
        for name, build in cell.implementations.items():
            fixed, *others = (cell.inputs(draw, ids, n, *shared) for n in (cell.fixed, *next(own)))
            matches = [Match(cell, tensors, shared, shared_again) for tensors in (fixed, others[-1])]
            passes[name] = _Pass(build, fixed, others, matches, rounds=not fused(name))
            note_failure(failed, name, passes[name].warm_up)
        good = {name: run for name, run in passes.items() if name not in failed}
        with _no_collector():
            for batch in range(cell.count // BATCH):
                for name, run in good.items():
                    if name not in failed:
                        note_failure(failed, name, lambda run=run, batch=batch: run.batch(batch, gpu.synchronize))
        for name, run in good.items():
            if name not in failed:
                note_failure(failed, name, run.check_last)
    rows = []
    for name in cell.implementations:
        for variant, index in ((name, 0), (name + ANOTHER_LENGTH, 1)):
            row = Row(cell.op, cell.part, cell.form, variant, cell.labels)
            if name in failed:
                rows.append(replace(row, match=f"FAILED: {failed[name]}"))
                continue
            times = passes[name].times[index]
            low, _, high = percentiles(times)
            mean = sum(times) / len(times)
            rows.append(replace(row, call_us=mean, call_us_low=low, call_us_high=high))
    return rows


def _lengths(cell: Lengths) -> Iterator[list[int]]:
    """For each implementation WARM_UP lengths in a row, and `count` in an order that is drawn, which no other gets. All
    lie around `fixed`, so that the calls have as much to do as those of one N."""
    every = len(cell.implementations)
    total = every * (WARM_UP + cell.count)
    first = max(1, cell.fixed - total // 2)
    numbers = [n for n in range(first, first + total + 1) if n != cell.fixed]
    beyond = numbers[every * WARM_UP :]
    order = torch.randperm(cell.count * every, generator=torch.Generator().manual_seed(0)).tolist()
    for k in range(every):
        yield [*numbers[k * WARM_UP : (k + 1) * WARM_UP], *(beyond[i] for i in order[k::every])]


class _Pass:
    """One implementation's calls. times: µs a call of each batch, of one N and of another N a call."""

    def __init__(self, build: Callable, fixed: tuple, others: list[tuple], matches: list[Match], rounds: bool) -> None:
        self._build, self._fixed, self._matches, self._rounds = build, fixed, matches, rounds
        self._warm, self._others = others[:WARM_UP], others[WARM_UP:]
        self.times: tuple[list[float], list[float]] = ([], [])

    def warm_up(self) -> None:
        self._function = self._build()
        self._check(self._matches[0], self._fixed)
        for tensors in (*self._warm, self._fixed, self._fixed):
            self._function(*tensors)

    def batch(self, number: int, synchronize: Callable[[], None]) -> None:
        others = self._others[number * BATCH : (number + 1) * BATCH]
        for sets, times in zip(([self._fixed] * BATCH, others), self.times, strict=True):
            synchronize()
            start = time.perf_counter()
            for tensors in sets:
                self._function(*tensors)
            times.append(1e6 * (time.perf_counter() - start) / len(sets))
        synchronize()

    def check_last(self) -> None:
        self._check(self._matches[1], self._others[-1])

    def _check(self, match: Match, tensors: tuple) -> None:
        match.restore()
        match.check(self._function(*tensors), rounds=self._rounds)


@contextmanager
def _no_collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
