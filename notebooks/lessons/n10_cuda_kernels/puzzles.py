"""The puzzles in CUDA: each answer is a text, which the host build looks through access by access; on a GPU it then
runs there too.

guard               out = relu(x + bias), one element a thread: a kernel and launch()
coalesced           the same, 16 elements a thread: as few sectors as there are; on a GPU, as fast as a copy
add_mul_activation  the op, as load_inline takes it: a kernel and forward(), by the op's contract in float32
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kernels import runtime
from kernels.check import Call, Case, Spec
from kernels.check.host import programs
from kernels.check.host.programs import DoesNotCompile, Outcome
from lessons.n10_cuda_kernels.op_puzzles import DECLARATION, GRID, GUARD, OpPuzzle, hold_shares
from lessons.shared.puzzle import Judge
from lessons.shared.puzzle.in_cuda import Wrong, explain, not_on_host, pointers
from lessons.shared.puzzle.in_triton import checked
from lessons.shared.puzzle.judge import SECONDS
from lessons.shared.records import SECTOR

MANY = 2**18  # threads that are not too many for any size: 1,024 blocks of 256
FAST = 3  # times the copy's time, on a GPU
TIMED = (65536, 512)
BEYOND = "Some elements are written more than once. Which elements are a block's, and does its loop go beyond them?"
NEIGHBOURS = (
    "The 32 lanes of a warp execute one instruction together. In each iteration of the loop, neighbouring lanes must "
    "take neighbouring elements."
)


# ------------------------------------------------------------------------------------------------------ running a text


def _explain(outcome: Outcome, source: str, sizes: Sequence[int]) -> str:
    """A sentence and a hint for an outcome that is not ok."""

    def hint_at(name: str) -> str:
        if name != "bias":
            return GUARD
        columns = sizes[[pointer for pointer, _ in pointers(source)].index(name)]
        return f"The bias has {columns:,} elements, one for each column: in which column does element i lie?"

    return explain(outcome, source, sizes, hint_at, GRID)


class Runner:
    """launch() of a text as a function of x and the bias; every other run takes blocks and threads backwards."""

    def __init__(self, source: str, gpu: bool = False):
        self.source, self.gpu, self.runs = source, gpu, 0
        self.program = programs.build(source, gpu)
        self.last = Outcome("ok")

    def __call__(self, x: Tensor, bias: Tensor) -> Tensor:
        out = torch.empty(x.shape)  # which the checker has poisoned
        buffers = [tensor.contiguous().numpy() for tensor in (x, bias, out)]
        sizes = [buffer.size for buffer in buffers]
        outcome = programs.run(self.program, buffers, (x.shape[-1], x.numel()), backwards=self.runs % 2 == 1)
        self.runs += 1
        self.last = outcome
        if outcome.status != "ok":
            raise Wrong(_explain(outcome, self.source, sizes))
        if not self.gpu:
            hold_shares(outcome, sizes[-1])
        if outcome.launched > max(4 * sizes[0], MANY):
            raise Wrong(f"the launch starts {outcome.launched:,} threads for {sizes[0]:,} elements\nHint: {GRID}")
        for number, (before, after) in enumerate(zip(buffers[:-1], outcome.buffers, strict=False)):
            if before.tobytes() != after[0].tobytes():
                name, _ = pointers(self.source)[number]
                raise Wrong(f"{name} was changed\nHint: A kernel may write to the last pointer only.")
        (result,) = outcome.buffers[-1]
        return out.copy_(torch.from_numpy(result).view(x.shape))


# --------------------------------------------------------------------------------------------------------- the puzzles


def relu(x: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(x + bias)


def _calls(case: Case, device: torch.device, per_thread: int = 1) -> Iterator[Call]:
    """per_thread: elements that a thread takes."""
    rows, columns = case.shape
    n = rows * columns
    if per_thread > 1 and n <= 256:
        hint = f"Element i lies in column i % {columns}. The guard must stop every access beyond the last element."
    elif per_thread > 1:
        hint = (
            f"A block takes {256 * per_thread:,} elements, and blockIdx.x says which. "
            "Do the iterations of its loop cover all of them?"
        )
    elif n <= 256:
        hint = f"Element i lies in column i % {columns}."
    elif n % 256:
        hint = f"There are {n:,} elements. {GRID} The guard must let the last element through."
    else:
        hint = f"{n:,} elements take several blocks, so the index depends on blockIdx too. {GRID}"
    name = f"{rows}×{columns}" + (" with NaN and Inf" if case.values != "normal" else "")
    yield Call(name, (case.tensor(0, device), case.tensor(1, device, (columns,))), hint=hint)


def _run_coalesced(runner: Runner, x: Tensor, bias: Tensor) -> Tensor:
    out = runner(x, bias)
    if not runner.gpu and x.numel() >= 4096:
        reads, sectors, writes, written = (runner.last.counts[k][j] for k, j in ((0, 0), (0, 1), (2, 2), (2, 3)))
        fewest = 4 * x.numel() / SECTOR
        if max(sectors, written) > 1.2 * fewest + 8:
            raise Wrong(
                f"{reads:,} reads of warps touch {sectors:,} sectors of x, and {writes:,} writes touch {written:,} "
                f"sectors of out; {fewest:,.0f} sectors hold either tensor\nHint: {NEIGHBOURS}"
            )
        if written > fewest + 8:
            raise Wrong(
                f"{writes:,} writes touch {written:,} sectors of out, which has {fewest:,.0f}\nHint: {BEYOND}"
            )
        if runner.last.launched > x.numel() // 8:
            raise Wrong(
                f"the launch starts {runner.last.launched:,} threads for {x.numel():,} elements\n"
                "Hint: Leave the launch as it was: a thread takes 16 elements."
            )
    return out


@dataclass(frozen=True)
class Puzzle:
    """calls, cases: of its Spec. run: (runner, x, bias) → the output."""

    calls: Callable
    cases: Sequence[Case]
    run: Callable = Runner.__call__

    def judge(self, name: str, source: object) -> str:
        return _watched(name, self, source)


_SHAPES = ((1, 7), (8, 256), (5, 7), (3, 1000), (40, 33), (300, 1000))
_LONG = ((1, 7), (8, 1024), (16, 512), (3, 1000), (33, 250))
_SPECIAL = Case((4, 64), values="special")
PUZZLES = {
    "guard": Puzzle(_calls, [*map(Case, _SHAPES), _SPECIAL]),
    "coalesced": Puzzle(partial(_calls, per_thread=16), [*map(Case, _LONG), _SPECIAL], _run_coalesced),
    "add_mul_activation": OpPuzzle(),
}
attempt = Judge(PUZZLES, seconds=300 if runtime.device().type == "cuda" else SECONDS).attempt
__all__ = ["DECLARATION", "PUZZLES", "attempt"]


def _watched(name: str, puzzle: Puzzle, source: object) -> str:
    """Whether the text is right, on the host and, if there is one, on the GPU; what to print."""
    if not isinstance(source, str):
        raise Wrong(f"give the kernel's text; got {type(source).__name__}")
    try:
        runner = Runner(source)
        lines = [_hold(name, puzzle, runner)]
        if runtime.device().type == "cuda" and runtime.nvcc():
            lines.append(_hold(name, puzzle, Runner(source, gpu=True)))
            if name == "coalesced":
                lines.append(_time(source))
    except DoesNotCompile as error:
        if hint := not_on_host(str(error)):
            raise Wrong(f"{error}\nHint: {hint}") from None
        raise
    except AssertionError as error:
        text = str(error).replace("And the mask: does it let every element", "Does the guard let every element")
        raise Wrong(text) from error
    return "\n".join(lines)


def _hold(name: str, puzzle: Puzzle, runner: Runner) -> str:
    spec = Spec(relu, puzzle.calls, cases=lambda names: list(puzzle.cases))
    text = checked(name, partial(puzzle.run, runner), spec, "cpu")
    return text.replace("passed on cpu", "passed on the " + ("GPU" if runner.gpu else "host"))


def _time(source: str, shape: tuple[int, int] = TIMED) -> str:
    """On the GPU: as fast as a copy of as many bytes, within FAST."""
    rows, columns = shape
    buffers = [np.zeros(shape, np.float32), np.zeros(columns, np.float32), np.zeros(shape, np.float32)]
    outcome = programs.run(programs.build(source, gpu=True), buffers, (columns, rows * columns), times=True)
    if outcome.status != "ok":
        raise Wrong(_explain(outcome, source, [buffer.size for buffer in buffers]))
    moved = 8 * rows * columns
    text = f"{moved / outcome.us / 1e3:,.0f} GB/s; a copy reaches {moved / outcome.copy_us / 1e3:,.0f} GB/s"
    if outcome.us > FAST * outcome.copy_us:
        raise Wrong(
            f"coalesced, on the GPU: {text}. The kernel may take at most {FAST} times as long as the copy\n"
            f"Hint: {NEIGHBOURS}"
        )
    return text
