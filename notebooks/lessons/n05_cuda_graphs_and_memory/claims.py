"""05, CUDA graphs and memory: traced steps, the whole model's, the record of graphs, and what the notebook counts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from lessons.n05_cuda_graphs_and_memory import puzzles, recorded
from lessons.n05_cuda_graphs_and_memory.experiment import BYTES, MARKED, NO_GRAD, PLAIN
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
from lessons.shared.claim import claim, printed
from lessons.shared.records import copy_us
from model.dlrm import DLRM
from model.profiling.traced_steps import TRACED_STEPS, shape_of

NOTEBOOK = Path(__file__).resolve().parents[2] / "05_cuda_graphs_and_memory.ipynb"
say = partial(claim, "05")
MIDDLE, LARGEST = BYTES[-2:]


def _median(*arguments) -> float:
    return float(np.median(rounds_us(*arguments)))


def _row(name: str) -> tuple:
    """launches, ms of the kernels, ms of the step."""
    row = step(name)
    return row["launches"], row["busy_ms"], row["ms"]


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


def _own_step() -> tuple:
    """ms of 01's step as a graph, by the stored run, and of such a step's kernels. In eager the rounds differ more."""
    rounds = re.findall(r"eager: +([\d,]+) µs a step +graph: +([\d,]+)", printed("05", "cell-21", on="H200"))
    eager, graph = (sorted(int(us.replace(",", "")) for us in way) for way in zip(*rounds, strict=True))
    assert eager[-1] / eager[0] > 1.1 > 1.01 > graph[-1] / graph[0]
    ms, kernels = graph[1] / 1e3, step("04_modulus")["busy_ms"]
    assert kernels < ms < 1.03 * kernels
    return ms, kernels


def _late() -> tuple:
    assert [recorded.late(runs) for runs in range(4)] == ["RuntimeError"] * 2 + ["the next call's"] * 2
    return ()


def _pending() -> tuple:
    times = [recorded.last_forward(name) for name in (PLAIN, MARKED, NO_GRAD)]
    assert times[0] > 2 * max(times[1:])
    return tuple(times)


def _stored(cell: str) -> str:
    """What the cell of this id has printed, as it is stored."""
    (entry,) = (entry for entry in json.loads(NOTEBOOK.read_text())["cells"] if entry["id"] == cell)
    return "".join(line for output in entry["outputs"] for line in output.get("text", ()))


def _alive() -> tuple:
    """MB made and at the peak."""
    total, peak = (float(mb) for mb in re.findall(r"counted ([\d.]+) MB", _stored("alive")))
    assert total > 2 * peak
    return total, peak


def _pairs_mb() -> tuple:
    """A number for each product of two of a row's 27 vectors, for 2048 rows."""
    return (2048 * 27 * 27 * 4 / 1e6,)


def _memory(phase: str) -> dict:
    return GRAPHS.one("memory", variant=phase)


def _captured() -> tuple:
    warm, captured = _memory("warmed up"), _memory("captured")
    return warm["reserved_mb"], captured["reserved_mb"], captured["graph_reserved_mb"]


def _gradients() -> tuple:
    captured, gone = _memory("captured"), _memory("graph deleted")
    model = DLRM(shape_of(replace(next(item for item in TRACED_STEPS if item.number == "18"), largest_table=2000)))
    dense = sum(p.numel() for name, p in model.named_parameters() if "tables" not in name)
    assert np.isclose(captured["graph_allocated_mb"], 4 * dense / 1e6, atol=0.01), "it is not the MLPs' gradients"
    assert gone["graph_reserved_mb"] > captured["graph_allocated_mb"], "they do not outlive it"
    return (captured["graph_allocated_mb"],)


def _peaks() -> tuple:
    return step(COMPILED)["peak_mb"], step(REDUCED)["peak_mb"]


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
    assert not low <= formula <= high
    return *(f"{value:.1f}".replace("-", "−") for value in (formula, middle)), *more


def _idle_kernels() -> tuple:
    return _miss(64, SMALL, _median("replay", 64, SMALL) / 64)


def _gap(size: int) -> float:
    """µs between the beginnings of two kernels of a chain of 64: how many more without a graph than in one."""
    return (_median("eager", 64, size) - _median("replay", 64, size)) / 64


def _apart(size: int) -> tuple:
    """The gaps explain the difference: the formula leaves them out."""
    formula, saved, gap = _formula_us(64, size), recorded.saved_us(64, size)[1], _gap(size)
    assert abs(saved - (formula + 64 * gap)) < 0.1 * 64 * gap
    return _miss(64, size, gap)


def _gaps() -> tuple:
    """What the copy costs is what copy and replay take beyond the replay."""
    assert 64 * _gap(MIDDLE) > _median("copy and replay", 64, MIDDLE) - _median("replay", 64, MIDDLE)
    return ()


def _lost() -> tuple:
    """A loss beyond the spread, which the replay alone does not have: it is the copy's."""
    for kernels in (1, 8, 64):
        eager, copied = rounds_us("eager", kernels, LARGEST), rounds_us("copy and replay", kernels, LARGEST)
        assert np.quantile(eager, 0.8) < np.quantile(copied, 0.2)
        assert _median("replay", kernels, LARGEST) < np.median(eager)
    return ()


def _end(before: str, after: str) -> tuple:
    return step(before)["ms"], step(after)["ms"]


say("## 1 · {:.0f} launches in place of {:.0f}", lambda: (step(REDUCED)["launches"], step(COMPILED)["launches"]))
say("Without it, the compiled step takes {:.2f} ms in this record.", lambda: (step(COMPILED)["ms"],))
for name, which in {
    "compiled": COMPILED, "compiled, `reduce-overhead`": REDUCED, "one launch after the other": FUSED,
    "as one graph": GRAPHED,
}.items():
    say(f"| {name} | {{:.0f}} | {{:.2f}} | {{:.2f}} |", partial(_row, which))
say("The kernels take as long as before, and only the time between them has shrunk.", _time_between)
say(
    "In the stored run, on an H200, a step takes {:.2f} ms as a graph. What is left is the kernels' own time: notebook "
    "02 found {:.2f} ms of it in such a step.",
    _own_step,
)
say(
    "The four launches are three copies (labels, dense features, ids) and a replay. The step takes hardly longer than "
    "its kernels.",
    _floor,
)
say("The first two late reads are errors, and the other two give the next call's numbers.", _late)
say("takes {:.2f} ms at the eighth call. With the mark it takes {:.2f} ms, and with `no_grad` {:.2f} ms.", _pending)
say("The step makes {:.1f} MB of tensors, and at most {:.1f} MB are alive at once.", _alive)
say("There, the gradient of all products of two vectors takes {:.1f} MB.", _pairs_mb)
say(
    "After the warm-up {:.0f} MB are reserved. Before the capture, `torch.cuda.graph` returns the unused part to CUDA, "
    "and {:.0f} MB are left. Then the graph takes a pool of {:.0f} MB that nothing else can use.",
    _captured,
)
say("only {:.1f} MB of the pool are allocated: the gradients of the MLPs,", _gradients)
say("It counts {:.0f} MB in section 1's compiled step, but only {:.0f} MB with `reduce-overhead`", _peaks)
say("The replay of one small kernel gives `replay_us`: {:.1f} µs.", lambda: (recorded.replay_us(),))
say("The formula is {:.1f} % too high.", _formula)
say("In the record, no kernel runs for {:.0f} µs of each replayed step.", _idle)
say("In a long chain, a launch costs the host {:.1f} µs.", lambda: (recorded.launch_us(),))
say("A graph of one kernel loses at every size.", _one_loses)
say("| 4 KiB | {} | {} | In a graph, a kernel with next to no work still takes {:.1f} µs. |", _idle_kernels)
for name, size in {"16 MiB": MIDDLE, "256 MiB": LARGEST}.items():
    say(f"| {name} | {{}} | {{}} | Eager's kernels begin {{:.1f}} µs further apart. |", partial(_apart, size))
say("At 16 MiB these gaps cost more than the graph's copy.", _gaps)
say("At 256 MiB every graph loses, because of the copy.", _lost)
say("an input of {} KiB to {} MiB.", lambda: (BYTES[0] >> 10, BYTES[-1] >> 20))
say("| `main`, compiled | {:.2f} | {:.2f} |", partial(_end, COMPILED, REDUCED))
say("| 03's step, with our kernels for the tables | {:.2f} | {:.2f} |", partial(_end, FUSED, GRAPHED))
say("its kernels, {:.2f} ms |", lambda: (step(GRAPHED)["busy_ms"],))
