"""What CUDA graphs cost and bring: `python -m lessons.n05_cuda_graphs_and_memory --save`, on a GPU.

By parts:

    memory    a training step with our kernels (the trace 18's, with tables of 13,428 ids): MB allocated and reserved,
              in the graph's pool and outside, before, warmed up, captured, replayed, when the graph is gone
    pools     a forward captured for 2048 and for 1024 rows: MB of private pools, one each and one for both
    replay    n kernels on x of so many bytes: µs a call eagerly, and as a copy of x and a replay
    own_step  the reader's step (notebook 01), eagerly and as a graph: µs, host included
    pending   eight forwards of `main`'s top MLP under reduce-overhead whose backward never runs: ms of the last:
              plain, with cudagraph_mark_step_begin before each, and with no_grad, a process each
    late      what is found in a result that is read after the next call, which 0 to 3 calls came before
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from data.synthetic import SyntheticConfig
from lessons.n05_cuda_graphs_and_memory import program
from lessons.n05_cuda_graphs_and_memory.graph_capture import Graph, capture
from lessons.shared import dlrm
from lessons.shared.experiment import Experiment
from model.dlrm import DLRM
from model.profiling.recording import step_times
from model.profiling.tables import TRACES
from model.profiling.traced_steps import TRACED_STEPS, drawn_batches, make_optimizer, shape_of
from model.step import GraphedStep, on_the_device

CHILD = """
import sys
from lessons.n05_cuda_graphs_and_memory import program
print(program.last_forward(marked=sys.argv[1] == "marked", gradients=sys.argv[1] != "no_grad"))
"""
PLAIN, MARKED, NO_GRAD = "plain", "marked", "no_grad"
OWN, ONE = "a pool each", "one pool"
KERNELS, BYTES = (1, 8, 64), tuple(1 << log2 for log2 in range(12, 29, 4))
PHASES = ("before", "warmed up", "captured", "replayed", "graph deleted")


def late() -> Iterator[dict]:
    for before in range(4):
        yield {"variant": "reduce-overhead", "before": before, "found": program.late(before)}


def pending() -> Iterator[dict]:
    """Each in a process of its own: the graphs of one would be counted with those of the next."""
    for name in (PLAIN, MARKED, NO_GRAD):
        path = os.pathsep.join([str(TRACES.parent), *filter(None, sys.path)])
        command = [sys.executable, "-c", CHILD, name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path})
        if done.returncode:
            raise RuntimeError(f"pending, {name}: the process ended with status {done.returncode}")
        yield {"variant": name, "last_ms": float(done.stdout.split()[-1])}


def own_step(device: torch.device, rounds: int, rows: int) -> Iterator[dict]:
    """The losses of the graph must be eager's."""
    sizes = SyntheticConfig(2000).cardinalities
    ids = torch.randint(1 << 32, (rows, len(sizes)), device=device)
    batch = torch.randint(2, (rows,), device=device).float(), torch.randn(rows, 13, device=device), ids
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        model = dlrm.DLRM(sizes).to(device)
        models.append((model, torch.optim.SGD(model.parameters(), lr=0.1)))
    steps = {"eager": partial(dlrm.step, *models[0], *batch)}
    if device.type == "cuda":
        steps["graph"] = partial(program.graphed(*models[1], batch), *batch)
    losses = [torch.stack([step() for _ in range(3)]) for step in steps.values()]
    for values in losses:
        torch.testing.assert_close(values, losses[0])
    for name, us in _us(steps, 5, rounds).items():
        yield {"variant": name, "us": us}


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
    mlp = dlrm.mlp(367, 512, 256, 1)[:-1].to(device)
    for name in (OWN, ONE):
        _free(device)
        pool, kept = None, []
        with torch.no_grad():
            for rows in (2048, 1024):
                x = torch.randn(rows, 367, device=device)
                mlp(x)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    kept.append((graph, x, mlp(x)))
                pool = graph.pool() if name == ONE else None
        yield {"variant": name} | pools_of(device)
        del kept, graph, x


def replay(
    device: torch.device, rounds: int, kernels: Sequence[int] = KERNELS, sizes: Sequence[int] = BYTES
) -> Iterator[dict]:
    for count, size in itertools.product(kernels, sizes):
        source, buffer = (torch.ones(size // 4, device=device) for _ in range(2))
        chain = _chain(count)
        graph, out = capture(chain, buffer)
        replayed = partial(copied_and_replayed, graph, buffer, source)
        out.fill_(float("nan"))
        replayed()
        torch.testing.assert_close(out, chain(source))
        ways = {"eager": partial(chain, source), "copy and replay": replayed, "replay": graph.replay}
        for name, us in _us(ways, 10, rounds).items():
            yield {"variant": name, "kernels": count, "bytes": size, "us": us}


def copied_and_replayed(graph: Graph, buffer: Tensor, source: Tensor) -> None:
    buffer.copy_(source)
    graph.replay()


def _chain(count: int) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        for _ in range(count):
            x = x + 1
        return x

    return run


def pools_of(device: torch.device) -> dict:
    """MB now: allocated and reserved outside any graph's pool, and in the graphs'."""
    torch.cuda.synchronize()
    sizes = {}
    for prefix, place in (("", "cache"), ("graph_", "pools")):
        sizes[f"{prefix}reserved_mb"], sizes[f"{prefix}allocated_mb"] = program.held()[place]
    return sizes


def _us(steps: Mapping[str, Callable], block: int, rounds: int) -> dict[str, list[float]]:
    ms = step_times(dict(steps), block, rounds)
    return {name: [float(f"{1e3 * value:.5g}") for value in ms[name]] for name in steps}


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Sizes:
    """rounds: in which the ways take turns. rows: of the reader's batch. kernels, bytes: of the chains."""

    rounds: int = 10
    rows: int = 2048
    kernels: tuple[int, ...] = KERNELS
    bytes: tuple[int, ...] = BYTES


class Graphs(Experiment):
    """What cuda_graphs.json has; us: a number a round. What counts memory comes first, before others leave some."""

    NAME = "cuda_graphs"
    PARTS = ("memory", "pools", "replay", "own_step", "pending", "late")
    FULL = Sizes()
    SMALL = Sizes(rounds=2, rows=8, kernels=(1, 4), bytes=(4096,))

    def memory(self) -> None:
        self._on_gpu("memory", partial(memory, self.device))

    def pools(self) -> None:
        self._on_gpu("pools", partial(pools, self.device))

    def replay(self) -> None:
        sizes = self.sizes
        self._rows("replay", replay(self.device, sizes.rounds, sizes.kernels, sizes.bytes))

    def own_step(self) -> None:
        self._rows("own_step", own_step(self.device, self.sizes.rounds, self.sizes.rows))

    def pending(self) -> None:
        self._on_gpu("pending", pending)

    def late(self) -> None:
        self._on_gpu("late", late)

    def _on_gpu(self, part: str, make_rows: Callable[[], Iterator[dict]]) -> None:
        if self.device.type == "cuda":
            self._rows(part, make_rows())

    def _rows(self, part: str, rows: Iterator[dict]) -> None:
        _free(self.device)
        for row in rows:
            self.add(part, None, True, **row)


main = Graphs.main
