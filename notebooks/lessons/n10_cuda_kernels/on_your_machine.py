"""The lesson's experiments on this machine: a call in another process, a kernel's sectors and µs."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from kernels import runtime
from kernels.check.host import inline, programs
from kernels.check.isolated import Ended, run_apart
from lessons.n10_cuda_kernels import texts
from lessons.n10_cuda_kernels.counting import STEPS
from lessons.shared.puzzle.in_cuda import explain

SHAPE = (65536, 512)
X_AND_BIAS = "torch::Tensor forward(torch::Tensor x, torch::Tensor bias, int64_t threads) {"


def call_apart(function: Callable, *numbers: int) -> None:
    """function(*numbers), with what it prints; an error is a line. On a GPU in another process, which it may end;
    without one it runs here, as each kernel there is a program of its own."""
    try:
        if runtime.device().type == "cuda":
            print(run_apart(function, f"{__name__}:called", *map(str, numbers), seconds=300), end="")
        else:
            called(function, *map(str, numbers))
    except (AssertionError, Ended) as error:
        print(f"{type(error).__name__}: {error}")


def called(function: Callable, *numbers: str) -> None:
    """What runs there."""
    try:
        function(*map(int, numbers))
    except inline.Refused as refused:
        message = explain(refused.outcome, X_AND_BIAS, refused.sizes, lambda name: "the guard.", "the block.")
        print("RuntimeError:", message.partition("\n")[0])
    except RuntimeError as error:
        print("RuntimeError:", str(error).strip().splitlines()[0])


# ------------------------------------------------------------------------------------------------------------- add_relu


def watch(kernel: str) -> tuple[float, float]:
    """(sectors that a warp's read of x touches, on average; those of a write to out), counted on the host. kernel: a
    text, called as one of STEPS."""
    text = _launching(kernel)
    x = np.ones((16, 512), np.float32)
    outcome = programs.run(programs.build(text), [x, x[0], np.zeros_like(x)], (512, x.size))
    if outcome.status != "ok":
        raise AssertionError(explain(outcome, text, [x.size, 512, x.size], lambda name: "the guard", "the grid"))
    (reads, read, *_), _, (*_, writes, written) = outcome.counts
    return read / reads, written / writes


def steps_us(*kernels: str) -> dict[str, float]:
    """µs of the ladder's steps on this GPU, by name; of these the kernels' own texts. {} without a GPU."""
    if runtime.device().type != "cuda" or not runtime.nvcc():
        return {}
    own = {_name(kernel): kernel for kernel in kernels}
    return {name: launch_us(_launching(own.get(name) or texts.text_of(name))) for name in STEPS}


def _name(kernel: str) -> str:
    return re.search(r"void (\w+)\(", kernel)[1]


def _launching(kernel: str) -> str:
    return texts.launching(kernel, STEPS[_name(kernel)])


def launch_us(text: str) -> float:
    """µs of launch() on this GPU, in a process of its own."""
    buffers = [np.zeros(SHAPE, np.float32), np.zeros(SHAPE[1], np.float32), np.zeros(SHAPE, np.float32)]
    sizes = SHAPE[1], SHAPE[0] * SHAPE[1]
    outcome = programs.run(programs.build(text, gpu=True), buffers, sizes, times=True)
    if outcome.status != "ok":
        raise AssertionError(f"{outcome.status}: {outcome.text}")
    return outcome.us
