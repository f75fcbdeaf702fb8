"""05, CUDA graphs and memory: traced steps, the whole model's, the record of graphs, and what the notebook counts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from lessons.n05_cuda_graphs_and_memory import puzzles, recorded
from lessons.n05_cuda_graphs_and_memory.experiment import BYTES, MARKED, NO_GRAD, ONE, OWN, PLAIN
from lessons.n05_cuda_graphs_and_memory.pictures import disturbed
from lessons.n05_cuda_graphs_and_memory.recorded import (
    COMPILED,
    FUSED,
    GRAPHED,
    GRAPHS,
    REDUCED,
    SMALL,
    rounds_us,
    step,
)
from lessons.shared.claim import claim
from lessons.shared.records import copy_us, device, yardstick
from model.dlrm import DLRM
from model.profiling.traced_steps import TRACED_STEPS, shape_of

NOTEBOOK = Path(__file__).resolve().parents[2] / "05_cuda_graphs_and_memory.ipynb"
say = partial(claim, "05")
MIDDLE, LARGEST = BYTES[-2:]


def _median(*arguments) -> float:
    return float(np.median(rounds_us(*arguments)))


def _row(name: str) -> tuple:
    """launches, ms of the kernels, ms of the step."""
    found = step(name)
    return found["launches"], found["busy_ms"], found["ms"]


def _time_between() -> tuple:
    """The kernels' time stays, the step's goes down to less than half."""
    before, after = step(COMPILED), step(REDUCED)
    assert abs(after["busy_ms"] / before["busy_ms"] - 1) < 0.05
    assert abs(after["kernels"] - before["kernels"]) < 5
    assert after["ms"] < before["ms"] / 2
    return ()


def _floor() -> tuple:
    before, after = step(FUSED), step(GRAPHED)
    assert after["launches"] == 4
    assert after["busy_ms"] > 0.9 * after["ms"]
    assert abs(after["busy_ms"] / before["busy_ms"] - 1) < 0.05
    return ()


def _late() -> tuple:
    assert [recorded.late(runs) for runs in range(4)] == ["RuntimeError"] * 2 + ["the next call's"] * 2
    return ()


def _pending() -> tuple:
    found = [recorded.last_forward(name) for name in (PLAIN, MARKED, NO_GRAD)]
    assert found[0] > 2 * max(found[1:])
    return tuple(found)


def _stored(cell: str) -> str:
    """What the cell of this id has printed, as it is stored."""
    (found,) = (each for each in json.loads(NOTEBOOK.read_text())["cells"] if each["id"] == cell)
    return "".join(line for output in found["outputs"] for line in output.get("text", ()))


def _alive() -> tuple:
    """MB made and at the peak."""
    made, peak = (float(mb) for mb in re.findall(r"counted ([\d.]+) MB", _stored("alive")))
    assert made > 2 * peak
    return made, peak


def _pairs_mb() -> tuple:
    """All products of a row's 27 vectors, for 2048 rows."""
    return (2048 * 27 * 27 * 4 / 1e6,)


def _memory(phase: str) -> dict:
    return GRAPHS.one("memory", variant=phase)


def _captured() -> tuple:
    warm, captured = _memory("warmed up"), _memory("captured")
    return warm["reserved_mb"], captured["reserved_mb"], captured["graph_reserved_mb"]


def _gradients() -> tuple:
    captured, gone = _memory("captured"), _memory("graph deleted")
    model = DLRM(shape_of(replace(next(each for each in TRACED_STEPS if each.number == "18"), largest_table=2000)))
    dense = sum(p.numel() for name, p in model.named_parameters() if "tables" not in name)
    assert np.isclose(captured["graph_allocated_mb"], 4 * dense / 1e6, atol=0.01), "it is not the MLPs' gradients"
    return captured["graph_allocated_mb"], gone["graph_reserved_mb"]


def _peaks() -> tuple:
    return step(COMPILED)["peak_mb"], step(REDUCED)["peak_mb"]


def _pools() -> tuple:
    own, one = (GRAPHS.one("pools", variant=name) for name in (OWN, ONE))
    assert one["graph_reserved_mb"] < own["graph_reserved_mb"]
    return own["graph_reserved_mb"], one["graph_reserved_mb"]


def _workspace() -> tuple:
    """32 MiB, all but 5 % of what is allocated in the pools; section 2's kind of capture has none in its pool."""
    workspace = (1 << 25) / 1e6
    assert all(workspace < GRAPHS.one("pools", variant=n)["graph_allocated_mb"] < 1.05 * workspace for n in (OWN, ONE))
    assert _memory("captured")["graph_allocated_mb"] < workspace / 10
    return (workspace,)


def _formula() -> tuple:
    """By how many per cent the formula is above what is recorded of 03's step."""
    before, after = step(FUSED), step(GRAPHED)
    launch = 1e3 * before["ms"] / before["launches"]
    arguments = before["launches"], launch, 1e3 * before["busy_ms"], recorded.replay_us(), after["copy_us"]
    return (100 * (puzzles.saved(*arguments) / (1e3 * (before["ms"] - after["ms"])) - 1),)


def _idle() -> tuple:
    after = step(GRAPHED)
    return (1e3 * (after["ms"] - after["busy_ms"]),)


def _one_loses() -> tuple:
    assert all(_median("eager", 1, size) < _median("copy and replay", 1, size) for size in BYTES)
    return ()


def _formula_us(kernels: int, size: int) -> float:
    copy = copy_us(2 * size)
    return puzzles.saved(kernels, recorded.launch_us(), kernels * copy, recorded.replay_us(), copy)


def _miss(kernels: int, size: int, *more: float) -> tuple:
    """µs saved by the formula and as recorded, with the sign that prose has; apart beyond the spread."""
    formula, (low, middle, high) = _formula_us(kernels, size), recorded.saved_us(kernels, size)
    assert not low <= formula <= high or kernels == 1
    return *(f"{value:.1f}".replace("-", "−") for value in (formula, middle)), *more


def _alone() -> tuple:
    """What the formula takes for each launch, what the kernel's took, and the copy's."""
    launch, kernel = recorded.launch_us(), _median("eager", 1, SMALL)
    copy = _median("copy and replay", 1, SMALL) - recorded.replay_us()
    assert copy < launch < kernel, "it is not the kernel's launch that makes the formula's loss too large"
    return _miss(1, SMALL, launch, kernel, copy)


def _idle_kernels() -> tuple:
    return _miss(64, SMALL, _median("replay", 64, SMALL) / 64)


def _l2() -> tuple:
    kernel, both = _median("replay", 64, MIDDLE) / 64, 2 * MIDDLE
    rate = both / kernel / 1e6
    assert rate > yardstick()
    assert both < device("L2_cache_size")
    more = kernel, copy_us(both), rate, yardstick(), both / 1e6, device("L2_cache_size") / 1e6
    return _miss(64, MIDDLE, *more)


def _apart() -> tuple:
    gap = (_median("eager", 64, LARGEST) - _median("replay", 64, LARGEST)) / 64
    assert abs((_median("eager", 8, LARGEST) - _median("replay", 8, LARGEST)) / 8 - gap) < 0.1, "8 say another gap"
    return _miss(64, LARGEST, gap)


def _sign() -> tuple:
    eager, graph = (_median(way, 64, MIDDLE) / 64 for way in ("eager", "replay"))
    assert eager > graph
    assert _formula_us(64, MIDDLE) < 0 < recorded.saved_us(64, MIDDLE)[0]
    return MIDDLE >> 20, eager, graph


def _hollow() -> tuple:
    """One dot alone."""
    assert [(k, s) for k in (1, 8, 64) for s in BYTES if disturbed(k, s)] == [(64, BYTES[1])]
    return (_median("eager", 64, BYTES[1]) / _median("eager", 64, BYTES[2]),)


def _lost() -> tuple:
    """A loss beyond the spread, which the replay alone does not have: it is the copy's."""
    for kernels in (1, 8, 64):
        eager, copied = rounds_us("eager", kernels, LARGEST), rounds_us("copy and replay", kernels, LARGEST)
        assert np.quantile(eager, 0.8) < np.quantile(copied, 0.2)
        assert _median("replay", kernels, LARGEST) < np.median(eager)
    return ()


def _end(before: str, after: str) -> tuple:
    return step(before)["ms"], step(after)["ms"]


def _whole(part: str) -> tuple:
    found = tuple(recorded.whole_ms(part, how) for how in ("fused", "fused graph"))
    assert found[1] < found[0]
    return found


say("## 1 · One call in place of {:.0f}", lambda: (step(COMPILED)["launches"],))
say("Without it the first step takes {:.2f} ms.", lambda: (step(COMPILED)["ms"],))
for name, which in {
    "compiled": COMPILED, "compiled, `reduce-overhead`": REDUCED, "one launch after the other": FUSED,
    "as one graph": GRAPHED,
}.items():
    say(f"| {name} | {{:.0f}} | {{:.2f}} | {{:.2f}} |", partial(_row, which))
say("The kernels take as long as before. The time between them has shrunk.", _time_between)
say("The four launches are three copies (labels, dense, ids) and a replay. The kernels are the floor", _floor)
say("In the record, the first two late reads are errors, and the others give the next call's numbers.", _late)
say("the eighth takes {:.2f} ms. With the mark it takes {:.2f} ms, and with `no_grad` {:.2f}.", _pending)
say("A step makes tensors of {:.1f} MB, and at most {:.1f} MB are alive at once.", _alive)
say("where the products of all pairs take {:.1f} MB.", _pairs_mb)
say(
    "After the warm-up PyTorch has {:.0f} MB reserved. `torch.cuda.graph` empties the cache before it captures, down "
    "to {:.0f} MB, and then takes a pool of {:.0f} MB.",
    _captured,
)
say(
    "Only {:.1f} MB of it are allocated: the MLPs' gradients, which outlive the graph. When it is deleted, {:.0f} MB "
    "of its pool stay reserved.",
    _gradients,
)
say("It counts {:.0f} MB in section 1's compiled step, and {:.0f} MB with `reduce-overhead`", _peaks)
say("Two graphs of `main`'s top MLP reserve {:.1f} MB with a pool each, and {:.1f} with one.", _pools)
say("Of both, {:.1f} MB are a workspace of cuBLAS", _workspace)
say("A replay of one small kernel takes {:.1f} µs.", lambda: (recorded.replay_us(),))
say("The formula is {:.0f} % too high.", _formula)
say("In the record no kernel runs for {:.0f} µs of each replayed step", _idle)
say("In a chain of 64 a launch costs {:.1f} µs.", lambda: (recorded.launch_us(),))
say("One kernel loses at every size", _one_loses)
say(
    "| 1 kernel, 4 KiB | {} | {} | The formula takes {:.1f} µs for each launch. `x + 1` alone takes the host "
    "{:.1f}, and the copy {:.1f}. |",
    _alone,
)
say("| 64 kernels, 4 KiB | {} | {} | A kernel without work still takes {:.1f} µs in a graph. |", _idle_kernels)
say(
    "| 64 kernels, 16 MiB | {} | {} | A kernel takes {:.1f} µs, not {:.1f}. That is {:.1f} TB/s, more than the copy's "
    "{:.1f}: x and the result, {:.1f} MB, stay in the L2 cache of {:.1f} MB. |",
    _l2,
)
say("| 64 kernels, 256 MiB | {} | {} | Eager's kernels begin {:.1f} µs further apart than the graph's. |", _apart)
say(
    "At {} MiB even the sign is wrong. A kernel of eager's begins every {:.1f} µs there, and one of the graph's every "
    "{:.1f} µs.",
    _sign,
)
say("the host was disturbed, and eager took {:.1f} times as long as with more bytes.", _hollow)
say("At 256 MiB every graph loses by its copy.", _lost)
say("on an x of {} KiB to {} MiB.", lambda: (BYTES[0] >> 10, BYTES[-1] >> 20))
say("| `main`, compiled | {:.2f} | {:.2f} |", partial(_end, COMPILED, REDUCED))
say("| 03's step, its tables by our kernels | {:.2f} | {:.2f} |", partial(_end, FUSED, GRAPHED))
say("its kernels, {:.2f} ms |", lambda: (step(GRAPHED)["busy_ms"],))
for part in ("dot", "outer"):
    say(f"| all by our kernels, `{part}` | {{:.2f}} | {{:.2f}} |", partial(_whole, part))
