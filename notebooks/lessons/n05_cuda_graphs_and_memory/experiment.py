"""What CUDA graphs cost and bring: `python -m lessons.n05_cuda_graphs_and_memory --save`, on a GPU.

By parts:

    modes     the top MLP of `main` on 2048 rows, inference: eager and torch.compile's modes; µs a call, host included,
              and the s of the first call
    late      what is found in an output that is read after the next run, which has run 0 to 3 times before
    pending   eight forwards of `main`'s top MLP under reduce-overhead whose backward never runs: ms of the last, MB
              reserved, plain, with cudagraph_mark_step_begin before each, and with no_grad, a process each
    memory    the story's step 18, with tables of 13,428 ids: MB allocated and reserved, in the graph's pool and
              outside, before, warmed up, captured, replayed, when the graph is gone
    pools     the same forward captured for 2048 and for 1024 rows: MB of private pools, one each and one for both
    replay    n kernels on x of so many bytes: µs a call eagerly, and as a copy of x and a replay
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from lessons.n05_cuda_graphs_and_memory.graph_capture import Graph, capture
from lessons.shared.experiment import Experiment
from model.config import preset
from model.dlrm import DLRM
from model.profiling.recording import step_times
from model.profiling.tables import TRACES
from model.profiling.traced_steps import TRACED_STEPS, drawn_batches, make_optimizer, shape_of
from model.step import GraphedStep, on_the_device

CHILD = """
import json, sys, torch
from lessons.n05_cuda_graphs_and_memory.experiment import pending
print(json.dumps(next(pending(torch.device(sys.argv[1]), names=sys.argv[2:]))))
"""
MODES = ("eager", "default", "reduce-overhead", "max-autotune")
PLAIN, MARKED, NO_GRAD = "plain", "marked", "no_grad"
OWN, ONE = "a pool each", "one pool"
FORWARDS = 8
KERNELS, BYTES = (1, 8, 64), tuple(1 << log2 for log2 in range(12, 29, 4))
PHASES = ("before", "warmed up", "captured", "replayed", "graph deleted")


def top_mlp(device: torch.device) -> nn.Sequential:
    """Linear layers with a ReLU between, as wide as `main`'s top, from the 367 numbers of 27 vectors' products."""
    torch.manual_seed(0)
    widths = (16 + 27 * 26 // 2, *preset("main").model.top)
    layers = [(nn.Linear(i, o, device=device), nn.ReLU()) for i, o in itertools.pairwise(widths)]
    return nn.Sequential(*itertools.chain(*layers))[:-1]


def modes(device: torch.device, rounds: int, names: Sequence[str] = MODES, rows: int = 2048) -> Iterator[dict]:
    from torch._inductor.utils import fresh_cache

    mlp, x = top_mlp(device), torch.randn(rows, 367, device=device)
    with torch.no_grad():
        expected = mlp(x)
        for name in names:
            torch._dynamo.reset()
            run = mlp if name == "eager" else torch.compile(mlp, mode=name)
            with fresh_cache():  # an empty folder for all that Inductor and Triton keep
                start = time.perf_counter()
                out = run(x)
                _wait(device)
                seconds = time.perf_counter() - start
            torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-2)
            us = _us({name: lambda run=run: run(x)}, 20, rounds)[name]
            yield {"variant": name, "first_s": seconds, "us": us}


def late(device: torch.device, mode: str = "reduce-overhead") -> Iterator[dict]:
    for before in range(4):
        torch._dynamo.reset()
        double = torch.compile(lambda x: 2 * x, mode=mode)
        for _ in range(before):
            double(torch.ones(4, device=device))
        first = double(torch.ones(4, device=device))
        double(torch.full((4,), 5.0, device=device))
        try:
            found = first.tolist()[0]
            found = {2.0: "its own", 10.0: "the next run's"}.get(found, str(found))
        except RuntimeError:
            found = "RuntimeError"
        yield {"variant": mode, "before": before, "found": found}


def pending_alone(device: torch.device) -> Iterator[dict]:
    """Each in a process of its own: the graphs of one would be counted with those of the next."""
    for name in (PLAIN, MARKED, NO_GRAD):
        path = os.pathsep.join([str(TRACES.parent), *filter(None, sys.path)])
        command = [sys.executable, "-c", CHILD, str(device), name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path})
        if done.returncode:
            raise RuntimeError(f"pending, {name}: the process ended with status {done.returncode}")
        yield json.loads(done.stdout.splitlines()[-1])


def pending(
    device: torch.device, mode: str = "reduce-overhead", forwards: int = FORWARDS,
    names: Sequence[str] = (PLAIN, MARKED, NO_GRAD),
) -> Iterator[dict]:
    for name in names:
        torch._dynamo.reset()
        _free(device)
        mlp, x = top_mlp(device), torch.randn(2048, 367, device=device)
        run = torch.compile(mlp, mode=mode)
        with torch.set_grad_enabled(name != NO_GRAD):
            for _ in range(forwards):
                if name == MARKED:
                    torch.compiler.cudagraph_mark_step_begin()
                start = time.perf_counter()
                out = run(x)
                _wait(device)
                ms = 1e3 * (time.perf_counter() - start)
        del out
        yield {"variant": name, "last_ms": ms} | pools_of(device)


def memory(device: torch.device) -> Iterator[dict]:
    """As model.train does it, GraphedStep, which warms up on batches of its own."""
    chosen = replace(next(step for step in TRACED_STEPS if step.number == "18"), largest_table=2000)
    torch.manual_seed(0)
    model = DLRM(shape_of(chosen)).to(device)
    optimizer = make_optimizer(model, chosen)
    turns = itertools.cycle(drawn_batches(chosen, device))
    step = GraphedStep(partial(on_the_device, model, optimizer), optimizer.advance, chosen.batch_size, device)

    def found(phase: str) -> dict:
        return {"variant": phase} | pools_of(device)

    yield found(PHASES[0])
    while step.warm_up:
        step(*next(turns))
    yield found(PHASES[1])
    step(*next(turns))  # captures, and replays
    yield found(PHASES[2])
    for _ in range(5):
        step(*next(turns))
    yield found(PHASES[3])
    del step
    _free(device)
    yield found(PHASES[4])


def pools(device: torch.device) -> Iterator[dict]:
    mlp = top_mlp(device)
    for name in (OWN, ONE):
        _free(device)
        pool, kept = None, []
        with torch.no_grad():
            for rows in (2048, 1024):
                x = torch.randn(rows, 367, device=device)
                mlp(x)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool if name == ONE else None):
                    out = mlp(x)
                pool = graph.pool()
                kept.append((graph, x, out))
        yield {"variant": name} | pools_of(device)
        del kept, graph, out, x


def replay(
    device: torch.device, rounds: int, kernels: Sequence[int] = KERNELS, sizes: Sequence[int] = BYTES
) -> Iterator[dict]:
    for count, size in itertools.product(kernels, sizes):
        given, buffer = (torch.ones(size // 4, device=device) for _ in range(2))
        chain = _chain(count)
        graph, out = capture(chain, buffer)
        replayed = partial(copied_and_replayed, graph, buffer, given)
        out.fill_(float("nan"))
        replayed()
        torch.testing.assert_close(out, chain(given))
        ways = {"eager": partial(chain, given), "copy and replay": replayed, "replay": graph.replay}
        for name, us in _us(ways, 10, rounds).items():
            yield {"variant": name, "kernels": count, "bytes": size, "us": us}


def copied_and_replayed(graph: Graph, buffer: Tensor, given: Tensor) -> None:
    buffer.copy_(given)
    graph.replay()


def _chain(count: int) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        for _ in range(count):
            x = x + 1
        return x

    return run


def pools_of(device: torch.device) -> dict:
    """MB now: allocated and reserved outside any graph's pool, and in the graphs', most of which is
    held for a replay and not allocated. Empty without a GPU."""
    if device.type != "cuda":
        return {}
    torch.cuda.synchronize()
    found = dict.fromkeys(("allocated", "reserved", "graph_allocated", "graph_reserved"), 0.0)
    for segment in torch.cuda.memory_snapshot():
        private = "graph_" if tuple(segment["segment_pool_id"]) != (0, 0) else ""
        found[f"{private}allocated"] += segment["allocated_size"] / 1e6
        found[f"{private}reserved"] += segment["total_size"] / 1e6
    return {f"{name}_mb": value for name, value in found.items()}


def _us(steps: Mapping[str, Callable], block: int, rounds: int) -> dict[str, list[float]]:
    ms = step_times(dict(steps), block, rounds)
    return {name: [float(f"{1e3 * value:.5g}") for value in ms[name]] for name in steps}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Sizes:
    """rounds: in which the ways take turns. modes, rows: of the top MLP. kernels, bytes: of the chains."""

    rounds: int = 10
    modes: tuple[str, ...] = MODES
    rows: int = 2048
    kernels: tuple[int, ...] = KERNELS
    bytes: tuple[int, ...] = BYTES


class Graphs(Experiment):
    """What cuda_graphs.json has; us: a number a round. What counts memory comes first, before others leave some."""

    NAME = "cuda_graphs"
    PARTS = ("memory", "pools", "replay", "pending", "late", "modes")
    FULL = Sizes()
    SMALL = Sizes(rounds=2, modes=("eager",), rows=8, kernels=(1, 4), bytes=(4096,))

    def memory(self) -> None:
        self._on_gpu("memory", memory)

    def pools(self) -> None:
        self._on_gpu("pools", pools)

    def replay(self) -> None:
        sizes = self.sizes
        self._rows("replay", replay(self.device, sizes.rounds, sizes.kernels, sizes.bytes))

    def pending(self) -> None:
        self._on_gpu("pending", pending_alone)

    def late(self) -> None:
        self._on_gpu("late", late)

    def modes(self) -> None:
        self._rows("modes", modes(self.device, self.sizes.rounds, self.sizes.modes, self.sizes.rows))

    def _on_gpu(self, part: str, found: Callable[[torch.device], Iterator[dict]]) -> None:
        if self.device.type == "cuda":
            self._rows(part, found(self.device))

    def _rows(self, part: str, found: Iterator[dict]) -> None:
        _free(self.device)
        for row in found:
            self.add(part, None, True, **row)


main = Graphs.main
