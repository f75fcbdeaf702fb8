"""Three problems on the way to reading a trace, in plain Python: what each must give.

queue   (launch_us, kernel_us) → when each kernel ends: the host launches one after the other, the GPU runs them so
clock   (call, wait, now, times) → µs a call, by the host's clock, of a call that returns before its work is done
floor   (kernels, bandwidth, peak, launch_us) → the least µs of a step: kernels are (bytes, FLOPs)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lessons.shared.puzzle import Judge, OfNumbers


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


def queue(launch_us: list[float], kernel_us: list[float]) -> list[float]:
    host = gpu = 0.0
    ends = []
    for launch, kernel in zip(launch_us, kernel_us, strict=True):
        host += launch
        gpu = max(host, gpu) + kernel
        ends.append(gpu)
    return ends


def clock(call: Callable, wait: Callable, now: Callable, times: int) -> float:
    call()
    wait()
    start = now()
    for _ in range(times):
        call()
    wait()
    return (now() - start) / times


def floor(kernels: list[tuple[float, float]], bandwidth: float, peak: float, launch_us: float) -> float:
    gpu = sum(max(moved / bandwidth, flops / peak) for moved, flops in kernels)
    return max(1e6 * gpu, launch_us * len(kernels))


_HOLD = (
    "Is the queue empty when the clock starts, and when it stops? Wait before, and once after the last call. And are "
    "there `times` calls between, and their µs divided by `times`?"
)
_SIDE = (
    "Host and GPU work side by side: the slower one counts, over the whole step. Of one step among many not even the "
    "first launch comes on top."
)
_LIMITS = (4.28e12, 67e12)  # bytes and FLOPs a second
# name → its cases: what it is called, the arguments as numbers, and what to think of if it is the first that fails.
_CASES = {
    "queue": (
        ("short kernels", ([5.0] * 4, [1.0] * 4), "A kernel begins after its launch; the host waits for none."),
        ("long kernels", ([5.0] * 4, [20.0] * 4), "A kernel begins when it is launched and the one before has ended."),
        ("a long one first", ([5.0] * 6, [30.0, 1, 1, 1, 1, 1]), "The host goes on launching while the GPU works."),
        ("launches that differ", ([5.0, 40, 5, 5], [20.0, 3, 30, 3]), "Each launch and each kernel has its own µs."),
        ("nothing", ([], []), "A step that launches nothing."),
    ),
    "clock": (
        ("long kernels", (5.0, 30.0, 0.0, 0.0, 10), f"A call returns when its kernel is queued. {_HOLD}"),
        ("short kernels", (5.0, 1.0, 0.0, 0.0, 20), _HOLD),
        ("a busy GPU", (5.0, 30.0, 500.0, 0.0, 10), f"Another kernel still runs when you begin. {_HOLD}"),
        ("a slow first call", (5.0, 30.0, 0.0, 9000.0, 10), "It loads libraries: make one call before."),
    ),
    "floor": (
        ("one kernel that copies", ([8.56e6], [0.0], *_LIMITS, 1.0), f"bytes / bandwidth are seconds. {_SIDE}"),
        ("one kernel that multiplies", ([8.56e6], [6.7e9], *_LIMITS, 1.0), "Bytes and FLOPs go on side by side."),
        ("one of each", ([428e6, 4e6], [1e3, 6.7e9], *_LIMITS, 1.0), "One kernel after the other: each has its floor."),
        ("many small ones", ([428e3] * 50, [1e3] * 50, *_LIMITS, 7.7), f"All of them must be launched. {_SIDE}"),
        ("a long one and small ones", ([428e6] + [428.0] * 20, [0.0] * 21, *_LIMITS, 7.7), _SIDE),
    ),
}


def _machines(launch: float, kernel: float, queued: float, first: float, times: int) -> tuple:
    machine = Machine(launch, kernel, queued, first)
    return machine.call, machine.wait, machine.now, times


def _kernels(moved: list[float], flops: list[float], *limits: float) -> tuple:
    return list(zip(moved, flops, strict=True)), *limits


PUZZLES = {
    "queue": OfNumbers(queue, _CASES["queue"], unit="µs"),
    "clock": OfNumbers(clock, _CASES["clock"], _machines, unit="µs"),
    "floor": OfNumbers(floor, _CASES["floor"], _kernels, unit="µs"),
}
attempt = Judge(PUZZLES).attempt
