"""The puzzles of 02_where_the_time_goes.ipynb: what each must give, and attempt(), which judges an answer.

clock        (call, wait, now, times) → µs per call, by the host's clock, of a call that returns before its work is done
marked_step  one step of training, whose four phases record_function names → its loss
queue        (launch_us, kernel_us) → when each kernel ends: the host launches one after the other, the GPU runs them so
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode

from lessons.shared import step_profile
from lessons.shared.dlrm import step
from lessons.shared.puzzle import Judge, OfNumbers, Own, reader


def queue(launch_us: list[float], kernel_us: list[float]) -> list[float]:
    host = gpu = 0.0
    ends = []
    for launch, kernel in zip(launch_us, kernel_us, strict=True):
        host += launch
        gpu = max(host, gpu) + kernel
        ends.append(gpu)
    return ends


# -------------------------------------------------------------------------------------------------- clock and queue


@dataclass
class Machine:
    """A host with a clock, and a GPU with a queue, in µs.

    launch: of the host, a call. kernel: of the GPU, a call's work. queued: what the GPU has to do at the beginning;
    then when it is done. first: what the first call costs the host beyond others.
    """

    launch: float
    kernel: float
    queued: float = 0.0
    first: float = 0.0
    time: float = 0.0

    def call(self) -> None:
        """Put a kernel in the queue."""
        self.time += self.launch + self.first
        self.first = 0.0
        self.queued = max(self.queued, self.time) + self.kernel

    def wait(self) -> None:
        """Until the queue is empty."""
        self.time = max(self.time, self.queued)

    def now(self) -> float:
        return self.time


_HOLD = (
    "Is the queue empty when the clock starts, and when it stops? Wait before the clock starts, and once after the "
    "last call. Are there `times` calls in between? Are their µs divided by `times`?"
)
# name → its cases: what it is called, the arguments as numbers, and what to think of if it is the first that fails.
_CASES = {
    "queue": (
        ("short kernels", ([5.0] * 4, [1.0] * 4), "A kernel begins after its launch. The host waits for no kernel."),
        (
            "long kernels", ([5.0] * 4, [20.0] * 4),
            "A kernel begins when it is launched and the kernel before it has ended.",
        ),
        ("a long kernel first", ([5.0] * 6, [30.0, 1, 1, 1, 1, 1]), "The host goes on launching while the GPU works."),
        ("launches that differ", ([5.0, 40, 5, 5], [20.0, 3, 30, 3]), "Each launch and each kernel has its own time."),
        ("no launches", ([], []), "This step launches nothing."),
    ),
    "clock": (
        ("long kernels", (5.0, 30.0, 0.0, 0.0, 10), f"A call returns when its kernel is queued. {_HOLD}"),
        ("short kernels", (5.0, 1.0, 0.0, 0.0, 20), _HOLD),
        ("a busy GPU", (5.0, 30.0, 500.0, 0.0, 10), f"Another kernel still runs when your function begins. {_HOLD}"),
        (
            "a slow first call", (5.0, 30.0, 0.0, 9000.0, 10),
            "The first call loads libraries. Make one call before the clock starts.",
        ),
    ),
}


def _machines(launch: float, kernel: float, queued: float, first: float, times: int) -> tuple:
    machine = Machine(launch, kernel, queued, first)
    return machine.call, machine.wait, machine.now, times


# -------------------------------------------------------------------------------------------------------- marked_step

PHASES = ["forward", "loss", "backward", "optimizer"]
RUNS = dict(zip(PHASES, ("the model", "the log loss", "backward()", "optimizer.step()"), strict=True))
ZEROED = "The gradients are cleared for the backward: put zero_grad() in its range."
FIRST_HINT = 'A range is a block: write `with record_function("loss"):`, and indent the lines that belong to it.'


@dataclass
class _Ranges:
    """Which of record_function's ranges are open, and in which each part of a step ran: [(phase, open ranges)]."""

    open: list[str] = field(default_factory=list)
    parts: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def note(self, phase: str) -> None:
        self.parts.append((phase, tuple(self.open)))


class _Model(nn.Module):
    """A model of 13 numbers, which notes when it runs, and when a gradient comes to its bias."""

    def __init__(self, ranges: _Ranges):
        super().__init__()
        self.ranges, self.linear, self.table = ranges, nn.Linear(3, 1), nn.Embedding(9, 1)
        self.linear.bias.register_hook(self.came)

    def came(self, grad: Tensor) -> None:
        self.ranges.note("backward")

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.ranges.note("zero_grad")
        super().zero_grad(set_to_none)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        self.ranges.note("forward")
        return (self.linear(dense) + self.table(ids)).squeeze(1)


class _Sgd(torch.optim.SGD):
    """SGD that notes when it updates, and when gradients are cleared."""

    ranges: _Ranges

    def zero_grad(self, set_to_none: bool = True):
        self.ranges.note("zero_grad")
        super().zero_grad(set_to_none)

    def step(self, closure=None):
        self.ranges.note("optimizer")
        return super().step(closure)


_SGD_STEP = _Sgd.step  # the first optimizer puts a function of torch's in its place


class _Losses(TorchDispatchMode):
    """Notes when a log loss is computed, or whether anything is in the range "loss": there are other ways to one."""

    def __init__(self, ranges: _Ranges):
        super().__init__()
        self.ranges, self.others = ranges, False

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is torch.ops.aten.binary_cross_entropy_with_logits.default:
            self.ranges.note("loss")
        self.others |= self.ranges.open[-1:] == ["loss"]
        return operator(*args, **(kwargs or {}))


@contextmanager
def _watched(ranges: _Ranges) -> Iterator[tuple[Callable, Callable]]:
    """What record_function opens and closes meanwhile is noted. Yields the functions that do it."""
    enter, leave = record_function.__enter__, record_function.__exit__

    def opened(self):
        ranges.open.append(self.name)
        return enter(self)

    def closed(self, *error):
        ranges.open.remove(self.name)
        return leave(self, *error)

    with patch.multiple(record_function, __enter__=opened, __exit__=closed):
        yield opened, closed


def _trained(function: Callable, ranges: _Ranges, steps: int, rows: int) -> tuple[list[Tensor], list]:
    """The weights and the losses after so many steps on random rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rows)
        model = _Model(ranges)
        optimizer = _Sgd(model.parameters(), lr=0.5)
        optimizer.ranges = ranges
        losses = []
        for _ in range(steps):
            batch = torch.randint(2, (rows,)).float(), torch.randn(rows, 3), torch.randint(9, (rows,))
            losses.append(function(model, optimizer, *batch))
    return [weight.detach() for weight in model.parameters()], losses


def _check_marked_step(answer: Callable) -> str:
    ranges = _Ranges()
    with _watched(ranges) as allowed, _Losses(ranges) as losses:
        _trained(reader.alone(answer, (*allowed, _SGD_STEP)), ranges, 1, 4)
    for phase in PHASES:
        runs = [open_ for part, open_ in ranges.parts if part == phase]
        if not runs and not (phase == "loss" and losses.others):
            hint = "Keep the lines of the step, and put ranges around them."
            raise AssertionError(f"{RUNS[phase]} does not run\nHint: {hint}")
        if len(runs) > 1 and phase != "backward":
            hint = "Name the phases of one step. Each of them runs once."
            raise AssertionError(f"{RUNS[phase]} runs {len(runs)} times\nHint: {hint}")
        for open_ in runs:
            _in_range(phase, open_)
    for open_ in (open_ for part, open_ in ranges.parts if part == "zero_grad"):
        _in_range("backward", open_, "zero_grad()", ZEROED)
    if ranges.open:
        raise AssertionError(f"the range {ranges.open[-1]!r} stays open\nHint: {FIRST_HINT}")
    with _watched(ranges := _Ranges()) as allowed:
        got = _trained(reader.alone(answer, (*allowed, _SGD_STEP)), ranges, 3, 7)
    want = _trained(step, _Ranges(), 3, 7)
    for number, (loss, expected) in enumerate(zip(got[1], want[1], strict=True), 1):
        if not isinstance(loss, Tensor | float) or (isinstance(loss, Tensor) and loss.requires_grad):
            kind = "a loss with its graph" if isinstance(loss, Tensor) else type(loss).__name__
            raise AssertionError(f"must return the loss; got {kind}\nHint: The last line is `return loss.detach()`.")
        if abs(float(loss) - float(expected)) > 1e-4:
            text = f"the loss of step {number}: expected {float(expected):.6g}, got {float(loss):.6g} (tolerance 1e-4)"
            hint = "The loss is the mean over the rows."
            if number > 1:
                hint = "Is the order zero_grad(), backward(), step()?"
            raise AssertionError(f"{text}\nHint: {hint}")
    if not all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got[0], want[0], strict=True)):
        raise AssertionError("the weights after 3 steps are not those of 01's step\nHint: Only the ranges are new.")
    return "marked_step: each phase has its name, and the step trains as before"


def _in_range(phase: str, open_: tuple[str, ...], what: str = "", why: str = "") -> None:
    """AssertionError if other ranges than this phase's, of the four, are open, or none. what: runs there, default: the
    phase's own part; why: it belongs there."""
    what = what or RUNS[phase]
    named = [name for name in open_ if name in PHASES]
    if named == [phase]:
        return
    own = [name for name in open_ if not name.startswith("Optimizer.")]  # torch.optim names what it does itself
    where = " and ".join(map(repr, named or own[-1:])) or "no range"
    hint = f"{FIRST_HINT} The four names are {', '.join(PHASES)}."
    if len(named) > 1:
        hint = "One phase ends before the next begins. End the block, or its time counts twice."
    elif named:
        hint = f"Give {what} a range of its own: {phase!r}."
    raise AssertionError(f"{what} runs in {where}; expected {phase!r} alone\nHint: {why or hint}")


PUZZLES = {
    "clock": OfNumbers(step_profile.clock, _CASES["clock"], _machines, unit="µs"),
    "marked_step": Own(_check_marked_step),
    "queue": OfNumbers(queue, _CASES["queue"], unit="µs"),
}
JUDGE = Judge(PUZZLES)
SOLVED, attempt = JUDGE.solved, JUDGE.attempt  # solved: the reader's functions that passed, by puzzle
OURS = {"clock": step_profile.clock, "marked_step": step_profile.marked_step, "queue": queue}


def passed(name: str) -> Callable:
    """The reader's function, if it passed when it was last tried; else the lecture's."""
    return SOLVED.get(name, OURS[name])
