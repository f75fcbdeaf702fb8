"""Three puzzles on CUDA graphs: a call of one, a step whose rate changes, what a graph saves.

    call           (graph, buffers, out, inputs) → the graph's result for the inputs, which no later call changes
    falling_rate   (weight, grad, steps): steps += 1, weight -= grad / steps; captured once, replayed
    saved          (launches, launch_us, kernels_us, replay_us, copy_us) → µs a step that a graph saves, or loses: < 0
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels import runtime
from kernels.check import Call, Case, Spec
from lessons.n05_cuda_graphs_and_memory import program
from lessons.n05_cuda_graphs_and_memory.graph_capture import Graph, capture
from lessons.shared.puzzle import Judge, OfNumbers
from lessons.shared.puzzle.in_triton import checked
from lessons.shared.puzzle.reader import alone

REPLAYS = 3


@dataclass(frozen=True)
class OnGraphs:
    """run(answer, *the call's arguments) captures and replays a graph; first a model of one on the CPU, where nothing
    that goes wrong ends the process; then, if there is a GPU, a graph."""

    spec: Spec
    run: Callable

    def judge(self, name: str, answer: Callable) -> str:
        function = partial(self.run, alone(answer))
        return "\n".join(
            checked(name, function, self.spec, device) for device in dict.fromkeys(("cpu", runtime.device().type))
        )


# call


def scaled_sum(xs: Tensor, ys: Tensor, factor: Tensor) -> Tensor:
    return factor * xs + ys


def _call(answer: Callable, xs: Tensor, ys: Tensor, factor: Tensor) -> Tensor:
    buffers = torch.zeros_like(xs[0]), torch.zeros_like(ys[0])
    factor = factor.clone()
    graph, out = capture(lambda x, y: factor * x + y, *buffers)
    addresses, results = [buffer.data_ptr() for buffer in buffers], []
    pairs = [(x.clone(), y.clone()) for x, y in zip(xs, ys, strict=True)]
    for inputs in pairs:
        before = graph.replays
        results.append(_tensor(answer(graph, buffers, out, inputs)))
        _once(graph, before)
        if [buffer.data_ptr() for buffer in buffers] != addresses:
            raise AssertionError(
                "a buffer has another address now, but the graph reads the address that it was captured with\n"
                "Hint: Leave the buffer where it is, and copy the input into its memory."
            )
        held = all(torch.equal(buffer, tensor) for buffer, tensor in zip(buffers, inputs, strict=True))
        if not held and torch.equal(results[-1], scaled_sum(*inputs, factor)):
            raise AssertionError(
                "the buffers do not hold the inputs, so the graph has computed another result than yours"
            )
    kept = zip(pairs, xs, ys, strict=True)
    if any(not (torch.equal(x, own_x) and torch.equal(y, own_y)) for (x, y), own_x, own_y in kept):
        raise AssertionError("an input was written to, but it belongs to the caller")
    return torch.stack(results)


def _once(graph: Graph, before: int) -> None:
    if graph.replays != before + 1:
        raise AssertionError(f"the graph was replayed {graph.replays - before} times in a call: replay it exactly once")


def _tensor(value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise AssertionError(f"must return a tensor; got {type(value).__name__}")
    return value


def _call_calls(case: Case, device: torch.device) -> Iterator[Call]:
    count, width = case.shape
    xs = torch.arange(1.0, 1 + count * width, device=device).reshape(count, width)
    ys = 1000 + xs
    runs = "one call" if count == 1 else f"{count} calls, whose results are all read after the last"
    yield Call(
        f"{runs}, {width} elements per input", (xs, ys, torch.full((1,), 2.0 + width, device=device)),
        hint="A nan means that no replay has computed the element. A 0 means that nothing was copied into the buffers. "
        "Each buffer needs its own input. Another call's numbers mean that a later replay overwrote the result.",
    )


# falling_rate

READS = "Hint: .item(), float() and `if` read a value on the host. Compute with the tensor steps: it stays on the GPU."


def counted_step(weight: Tensor, grad: Tensor, steps: Tensor) -> None:
    for _ in range(REPLAYS):
        steps += 1
        weight -= grad / steps


def _step(answer: Callable, weight: Tensor, grad: Tensor, steps: Tensor) -> None:
    buffer, printed = torch.zeros_like(grad), io.StringIO()
    try:
        with redirect_stdout(printed):
            graph, _ = capture(lambda w, g, s: answer(w, g, s), weight, buffer, steps)
    except RuntimeError as error:
        raise AssertionError(f"it cannot be captured: {str(error).splitlines()[0]}\n{READS}") from error
    if printed.getvalue():
        raise AssertionError(
            f"it printed while it was captured: {printed.getvalue().splitlines()[0]!r}\nHint: A replay runs no "
            "Python, so it prints nothing. During the capture no value is computed. Print after a replay, outside."
        )
    buffer.copy_(grad)
    for _ in range(REPLAYS):
        graph.replay()
    if not torch.equal(buffer, grad):
        raise AssertionError("grad was changed\nHint: Only read grad. The next replay needs its old values.")


def _step_calls(case: Case, device: torch.device) -> Iterator[Call]:
    width = case.shape[-1]
    weight, grad = case.tensor(1, device), case.tensor(2, device)
    for begin in (0, 4):
        steps = torch.full((), float(begin), device=device)
        yield Call(
            f"{width} weights, {REPLAYS} replays after {begin} steps", (weight, grad, steps),
            hint="The first replay divides by steps + 1. A count in Python becomes a constant of the graph. So count "
            "in the tensor steps, in place, and change weight in place.",
        )


# saved


def saved(launches: float, launch_us: float, kernels_us: float, replay_us: float, copy_us: float) -> float:
    eager = max(launches * launch_us, kernels_us)
    graph = max(launch_us + replay_us, copy_us + kernels_us)
    return eager - graph


# The answer is one difference, so a hint names both times: the reader can tell which one is wrong.
SAID = "{:g} launches of {:g} µs; the kernels take {:g} µs, the replay {:g} µs, the copy {:g} µs"
SITUATIONS = {
    "03's step, with our kernels for the tables": (
        (96.0, 28.7, 695.0, 3.2, 4.0),
        "Without a graph, a step takes as long as the host's 96 launches: 2755 µs. With one, it takes as long as the "
        "GPU's copy and kernels: 699 µs.",
    ),
    "kernels that take longer than their launches": (
        (40.0, 10.0, 3000.0, 10.0, 5.0),
        "Without a graph, a step takes as long as the GPU's kernels: 3000 µs. With one, it takes as long as the GPU's "
        "copy and kernels: 3005 µs.",
    ),
    "one kernel on a large input": (
        (1.0, 10.0, 400.0, 10.0, 200.0),
        "Without a graph, a step takes as long as the GPU's kernel: 400 µs. With one, it takes 600 µs, because the "
        "copy is the GPU's work, too.",
    ),
    "a replay that costs more than its kernels": (
        (4.0, 10.0, 8.0, 30.0, 2.0),
        "Without a graph, a step takes as long as the host's 4 launches: 40 µs. With one, it takes 40 µs, too: the "
        "host launches the copy and calls the replay.",
    ),
}


# What the notebook's later cells use until the reader's own passes.
OURS = {"call": program.call, "saved": saved}
CASES = {"call": ((1, 3), (4, 2), (3, 50)), "falling_rate": ((3,), (100,))}
PUZZLES = {
    "call": OnGraphs(
        Spec(scaled_sum, _call_calls, cases=lambda names: [Case(shape) for shape in CASES["call"]]), _call
    ),
    "falling_rate": OnGraphs(
        Spec(
            counted_step, _step_calls, (), ("weight", "steps"),
            cases=lambda names: [Case(shape) for shape in CASES["falling_rate"]],
        ),
        _step,
    ),
    "saved": OfNumbers(
        saved,
        [
            (f"{name} ({SAID.format(*values)})", values, hint)
            for name, (values, hint) in SITUATIONS.items()
        ],
        unit="µs",
    ),
}
JUDGE = Judge(PUZZLES)
SOLVED, attempt = JUDGE.solved, JUDGE.attempt


def passed(name: str) -> Callable:
    """The reader's function, if it passed when it was last tried; else the lecture's."""
    return SOLVED.get(name, OURS[name])
