"""From a cell to its rows. A row is timed only if what it gives matches the exact result before and after.

n calls on n different sets of inputs are captured into one CUDA graph, whose replay's time is divided by n; the replays
of one cell's implementations take turns, so that a change of clock or temperature meets all of them alike. Each call
allocates its output, as a user's does. A cell that does not fit into the GPU's memory gets fewer sets, then a smaller
shape, and its rows say so.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch

from .cells import Calls, Cell, FirstCall, Latency, Lengths, Row, describe, label, public, reference
from .clock import Gpu, batches, percentiles, timed, timer
from .first_call import measure_first_call
from .latency import measure_latency
from .lengths import measure_lengths
from .match import Match
from .runs import BackwardRun, ForwardRun, Sets, WaitedRun, generators

REPEATS = 5  # of a statement's time per call
LONG_CALL = 50e-6  # seconds: of a statement that takes k times as long a k-th of a batch's calls is made
BATCH_US = 2000  # a batch of calls that are waited for


def measure(cell: Cell | Calls | FirstCall | Lengths, gpu: Gpu) -> list[Row]:
    """A row for each of the cell's implementations, FAILED for one that raises or does not match."""
    if isinstance(cell, FirstCall):
        return measure_first_call(cell)
    if isinstance(cell, Calls):
        return measure_calls(cell, gpu)
    if isinstance(cell, Lengths):
        return measure_lengths(cell, gpu)
    if isinstance(cell, Latency):
        return measure_latency(cell, gpu)
    asked, note = cell, ""
    while True:
        try:
            return [replace(row, note="; ".join(filter(None, (note, row.note)))) for row in _measure(cell, gpu)]
        except torch.OutOfMemoryError as error:
            smaller = cell.smaller()
            if smaller is None:
                return _failed(cell, dict.fromkeys(cell.implementations, describe(error)))
        gpu.clear()
        cell = smaller
        note = f"in place of {label(asked)}, for which the GPU's memory is too small"


def _measure(cell: Cell, gpu: Gpu) -> list[Row]:
    torch._dynamo.reset()
    backward = cell.form == "backward"
    # torch.compile's backward writes into what its forward saved ("donated buffers"), so that it runs once only; here
    # it runs again and again on the same forward (retain_graph).
    again = torch._functorch.config.patch(donated_buffer=False) if backward else nullcontext()
    runs, failed = {}, {}
    with torch.set_grad_enabled(backward), again:
        try:
            sets = Sets(cell, gpu)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return _failed(cell, dict.fromkeys(cell.implementations, describe(error)))
        make = BackwardRun if backward else WaitedRun if cell.waits else ForwardRun
        for name, build in cell.implementations.items():
            with _noting(failed, name):
                runs[name] = make(sets, gpu, name, build())
                runs[name].check()
        good = {name: run for name, run in runs.items() if name not in failed}
        rows = _waited(cell, good, gpu) if cell.waits else _replayed(cell, good, len(sets.all), gpu)
        for name, run in good.items():
            with _noting(failed, name):
                run.check()
    rows |= {row.implementation: row for row in _failed(cell, failed)}
    moved = cell.bytes(*sets.all[0]) if callable(cell.bytes) else cell.bytes
    return [
        replace(rows[name], bytes=moved or None, flops=cell.flops or None, note=sets.note)
        for name in cell.implementations
    ]


def _replayed(cell: Cell, runs: dict, calls: int, gpu: Gpu) -> dict[str, Row]:
    times = gpu.times({name: run.replay for name, run in runs.items()})
    per_call = batches({name: timer(run.call) for name, run in runs.items()}, 20, 3, gpu.synchronize)
    return {
        name: replace(timed(_row(cell, name), times[name], calls), call_us=percentiles(per_call[name])[1])
        for name in runs
    }


def _waited(cell: Cell, runs: dict, gpu: Gpu) -> dict[str, Row]:
    timers = {name: timer(run.call) for name, run in runs.items()}
    longest = max((max(times) for times in batches(timers, 3, 2, gpu.synchronize, waits=True).values()), default=0.0)
    calls = max(3, min(100, int(BATCH_US / max(longest, 1.0))))
    found = batches(timers, calls, 15, gpu.synchronize, waits=True)
    rows = {}
    for name, times in found.items():
        p20, p50, p80 = percentiles(times)
        rows[name] = replace(_row(cell, name), call_us=p50, call_us_low=p20, call_us_high=p80)
    return rows


def measure_calls(calls: Calls, gpu: Gpu, batch: int = 200, count: int = 9) -> list[Row]:
    """A row for each statement, with its time per call: of REPEATS repeats, each the median of `count` batches."""
    torch._dynamo.reset()
    recorded = calls.form == "with a gradient"
    good, failed = {}, {}
    with torch.set_grad_enabled(recorded):
        for name, statement in calls.statements.items():
            with _noting(failed, name):
                good[name] = _statement(calls, statement, gpu.device, recorded, check=name != calls.baseline)
        repeats = [batches(good, batch, count, gpu.synchronize) for _ in range(REPEATS)]
    rows = {row.implementation: row for row in _failed(calls, failed)}
    for name in good:
        medians = [percentiles(repeat[name])[1] for repeat in repeats]
        match = "baseline" if name == calls.baseline else "ok"
        rows[name] = replace(
            _row(calls, name), call_us=percentiles(medians)[1], call_us_low=min(medians), call_us_high=max(medians),
            match=match,
        )
    return [rows[name] for name in calls.statements]


def _statement(
    calls: Calls, statement: str, device: torch.device, recorded: bool, *, check: bool
) -> Callable[[int], float]:
    """A timer of the statement, on inputs of its own; raises if what it gives does not match."""
    in_place = calls.form == "in place"
    tensors = calls.inputs(*generators(calls.dtype, device))
    with torch.no_grad():
        match = Match(calls, tensors) if check else None
    if recorded:
        tensors = tuple(t.detach().requires_grad_(t.is_floating_point()) for t in tensors)
    op = calls.op + "_" * in_place
    variables = dict(zip(calls.names, tensors, strict=True)) | {op: public(op), "eager": reference(op)}
    output = eval(statement, variables)
    if match:
        match.check(tuple(tensor.detach() for tensor in output) if isinstance(output, tuple) else output.detach())
    seconds = timeit.Timer(statement, globals=variables).timeit
    fewer = max(1.0, seconds(3) / 3 / LONG_CALL)

    def of_batch(calls: int) -> float:
        repeats = max(1, int(calls / fewer))
        return seconds(repeats) * calls / repeats

    return of_batch


class _noting:
    """failed[name] = what is raised in here, in a line; a lack of memory is passed on."""

    def __init__(self, failed: dict[str, str], name: str) -> None:
        self._failed, self._name = failed, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, traceback) -> bool:
        if not isinstance(error, Exception) or isinstance(error, torch.OutOfMemoryError):
            return False
        self._failed[self._name] = describe(error)
        return True


def _row(cell: Cell | Calls, name: str) -> Row:
    return Row(cell.op, cell.part, cell.form, name, cell.labels)


def _failed(cell: Cell | Calls, failed: dict[str, str]) -> list[Row]:
    return [replace(_row(cell, name), match=f"FAILED: {why}") for name, why in failed.items()]
