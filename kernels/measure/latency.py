"""What a call costs where calls come one after the other, each between two events of the GPU's stream.

Each implementation is called on the same tensors, and on tensors that are others at each call. A CUDA graph reads the
same tensors always: there others are copied into these before, by a launch for each dtype. All take turns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..check.comparison import as_tuple
from .cells import FRESH, IN_A_GRAPH, Latency, Row, note_failure
from .clock import Gpu, percentiles
from .match import fused
from .runs import Sets, poison

CALLS, REPEATS, WARM_UP = 200, 5, 20


@dataclass
class _Way:
    """call(k), on tensors of the k-th set or of the first. before(): makes it show whether call(0) gives the result of
    the first set."""

    implementation: str
    call: Callable[[int], object]
    before: Callable[[], None] = lambda: None


def measure_latency(cell: Latency, gpu: Gpu) -> list[Row]:
    """Rows for each implementation, in each way: call_us is the median of all calls, call_us_mean and call_us_p99 are
    theirs too, call_us_low and call_us_high the least and the greatest median of the repeats."""
    torch._dynamo.reset()
    ways, failed, times = {}, {}, {}

    def check(name: str) -> None:
        way = ways[name]
        sets.match.restore()
        way.before()
        sets.match.check(way.call(0), rounds=not fused(way.implementation))

    with torch.no_grad():
        sets = Sets(cell, gpu)
        for name, build in cell.implementations.items():
            ways_of = functools.partial(_ways, cell, sets, gpu, name)
            note_failure(failed, name, lambda build=build, ways_of=ways_of: ways.update(ways_of(build())))
        for _ in range(REPEATS):
            for name, way in ways.items():
                if way.implementation not in failed:
                    gpu.calls(way.call, WARM_UP)
                    times.setdefault(name, []).append(gpu.calls(way.call, CALLS))
        for name, way in ways.items():
            note_failure(failed, way.implementation, lambda name=name: check(name))
        moved = cell.bytes(*sets.all[0]) if callable(cell.bytes) else cell.bytes
    rows = []
    for implementation in cell.implementations:
        row = Row(
            cell.op, cell.part, cell.form, implementation, cell.labels, bytes=moved or None, flops=cell.flops or None,
            note=sets.note,
        )
        if implementation in failed:
            rows.append(replace(row, match=f"FAILED: {failed[implementation]}"))
            continue
        for name in (name for name, way in ways.items() if way.implementation == implementation):
            rows.append(_timed(replace(row, implementation=name), times[name]))
    return rows


def _timed(row: Row, repeats: list[list[float]]) -> Row:
    every = torch.tensor([us for repeat in repeats for us in repeat], dtype=torch.float64)
    medians = [percentiles(repeat)[1] for repeat in repeats]
    return replace(
        row, call_us=every.quantile(0.5).item(), call_us_low=min(medians), call_us_high=max(medians),
        call_us_mean=every.mean().item(), call_us_p99=every.quantile(0.99).item(),
    )


def _ways(cell: Latency, sets: Sets, gpu: Gpu, name: str, function: Callable) -> dict[str, _Way]:
    """The ways of one implementation, each called so often that it is compiled, and captured."""
    first, count = sets.all[0], len(sets.all)
    for _ in range(3):
        function(*first)
    ways = {
        name: _Way(name, lambda k: function(*first)),
        name + FRESH: _Way(name, lambda k: function(*sets.all[k % count])),
    }
    if name not in cell.captured:
        return ways
    # What all sets share is read where it lies.
    own = [k for k, tensor in enumerate(first) if tensor is not None and tensor is not sets.all[-1][k]]
    inputs = list(first)
    for k in own:
        inputs[k] = first[k].clone()
    dtypes = [[k for k in own if first[k].dtype == dtype] for dtype in {first[k].dtype for k in own}]

    def copy_in(tensors: tuple[Tensor | None, ...]) -> None:
        for of_one in dtypes:
            torch._foreach_copy_([inputs[k] for k in of_one], [tensors[k] for k in of_one])

    gpu.on_side_stream(lambda: [function(*inputs) for _ in range(3)])
    replay, (output,) = gpu.capture(lambda: [function(*inputs)])

    def replayed(k: int) -> object:
        replay()
        return output

    def copied(k: int) -> object:
        copy_in(sets.all[k % count])
        return replayed(k)

    def before(tensors: tuple[Tensor | None, ...]) -> None:
        copy_in(tensors)
        for tensor in as_tuple(output):
            poison(tensor)

    return ways | {
        name + IN_A_GRAPH: _Way(name, replayed, lambda: before(first)),
        name + IN_A_GRAPH + FRESH: _Way(name, copied, lambda: before(sets.all[1])),
    }
