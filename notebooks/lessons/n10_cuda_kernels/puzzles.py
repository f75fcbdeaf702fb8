"""The puzzles in CUDA: each answer is a text, which the host build looks through access by access; on a GPU it then
runs there too.

guard               out = relu(x + bias), one element a thread: a kernel and launch()
coalesced           the same, 16 elements a thread: as few sectors as there are; on a GPU, as fast as a copy
column_sum          out = the sums of the columns of x, by blocks of 32 columns and 8 warps
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
from kernels.check import Call, Case, Spec, Sums
from kernels.check.host import programs
from kernels.check.host.programs import DoesNotCompile, Outcome
from lessons.n10_cuda_kernels.op_puzzles import DECLARATION, FEW, GRID, GUARD, NUMBERS_A_THREAD, OpPuzzle
from lessons.shared.puzzle import Judge
from lessons.shared.puzzle.in_cuda import Wrong, explain, not_on_host, pointers
from lessons.shared.puzzle.in_triton import checked
from lessons.shared.puzzle.judge import SECONDS
from lessons.shared.records import SECTOR

SMALL = 2**13  # elements, which one warp is too few for; a larger tensor may have no more threads
MANY = 2**18  # threads that are not too many for any size: 1,024 blocks of 256
FAST = 3  # times the copy's time, on a GPU
TIMED = (65536, 512)
ALONE = """right, but the kernel does not use its shared array: one thread sums a whole column
Hint: The eight warps of a block share the rows. Each warp writes its own sums into part[warp][lane]."""

NEIGHBOURS = (
    "The 32 lanes of a warp execute one instruction together. In each iteration of the loop, neighbouring lanes must "
    "take neighbouring elements."
)


# ------------------------------------------------------------------------------------------------------ running a text


def _explain(outcome: Outcome, source: str, sizes: Sequence[int], hint: str = GUARD) -> str:
    """A sentence and a hint for an outcome that is not ok."""

    def hint_at(name: str) -> str:
        if name != "bias":
            return hint
        columns = sizes[[pointer for pointer, _ in pointers(source)].index(name)]
        return f"The bias has {columns:,} elements, one for each column: in which column does element i lie?"

    return explain(outcome, source, sizes, hint_at, GRID)


class Runner:
    """launch() of a text as a function of tensors; a second run takes blocks and threads in the reverse order."""

    def __init__(self, source: str, gpu: bool = False):
        self.source, self.gpu, self.runs = source, gpu, 0
        self.program = programs.build(source, gpu)
        self.last = Outcome("ok")

    def __call__(
        self, inputs: Sequence[Tensor], out: Tensor, integers: Sequence[int], hint: str = GUARD
    ) -> list[np.ndarray]:
        buffers = [tensor.numpy() for tensor in (*inputs, out)]
        sizes = [buffer.size for buffer in buffers]
        outcome = programs.run(self.program, buffers, integers, backwards=self.runs % 2 == 1)
        self.runs += 1
        self.last = outcome
        if outcome.status != "ok":
            raise Wrong(_explain(outcome, self.source, sizes, hint))
        if not self.gpu and sizes[-1] >= 512 and 0 < outcome.threads * NUMBERS_A_THREAD < min(sizes[-1], SMALL):
            raise Wrong(FEW.format(n=sizes[-1], threads=outcome.threads, s="s" * (outcome.threads != 1)))
        if outcome.launched > max(4 * sizes[0], MANY):
            raise Wrong(f"the launch starts {outcome.launched:,} threads for {sizes[0]:,} elements\nHint: {GRID}")
        for number, (before, after) in enumerate(zip(buffers[:-1], outcome.buffers, strict=False)):
            if before.tobytes() != after[0].tobytes():
                name, _ = pointers(self.source)[number]
                raise Wrong(f"{name} was changed\nHint: A kernel may write to the last pointer only.")
        return outcome.buffers[-1]


def _dense(
    runner: Runner, inputs: Sequence[Tensor], shape: Sequence[int], integers: Sequence[int], hint: str
) -> Tensor:
    out = torch.empty(tuple(shape))
    (result,) = runner([tensor.contiguous() for tensor in inputs], out, integers, hint)
    out.copy_(torch.from_numpy(result).view(out.shape))
    return out


# --------------------------------------------------------------------------------------------------------- the puzzles


def relu(x: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(x + bias)


def _run_relu(runner: Runner, x: Tensor, bias: Tensor) -> Tensor:
    n = x.numel()
    return _dense(runner, (x, bias), x.shape, (x.shape[-1], n), GUARD)


def _relu_calls(case: Case, device: torch.device, per_thread: int = 1) -> Iterator[Call]:
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
    out = _run_relu(runner, x, bias)
    if not runner.gpu and x.numel() >= 4096:
        reads, sectors, writes, written = (runner.last.counts[k][j] for k, j in ((0, 0), (0, 1), (2, 2), (2, 3)))
        fewest = 4 * x.numel() / SECTOR
        if max(sectors, written) > 1.2 * fewest + 8:
            raise Wrong(
                f"{reads:,} reads of warps touch {sectors:,} sectors of x, and {writes:,} writes touch {written:,} "
                f"sectors of out; {fewest:,.0f} sectors hold either tensor\nHint: {NEIGHBOURS}"
            )
        if runner.last.launched > x.numel() // 8:
            raise Wrong(
                f"the launch starts {runner.last.launched:,} threads for {x.numel():,} elements\n"
                "Hint: Leave the launch as it was: a thread takes 16 elements."
            )
    return out


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def _run_sum(runner: Runner, x: Tensor) -> Tensor:
    rows, columns = x.shape
    guard = f"A block takes 32 of the {columns} columns. Does the last block have lanes without a column?"
    out = _dense(runner, (x,), (columns,), (rows, columns), guard)
    reads, fewest = runner.last.counts[0][0], rows * -(-columns // 32)
    is_right = torch.allclose(out, column_sum(x), rtol=1e-3, atol=1e-3)
    if not runner.gpu and is_right and reads > 2 * fewest:
        raise Wrong(
            f"right, but the warps read {reads:,} times; {fewest:,} reads of 32 elements would be enough for x\n"
            "Hint: Each row belongs to one warp: warp w adds up rows w, w + 8, and so on."
        )
    return out


def _sum_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, columns = case.shape
    if columns > 32:
        hint = f"There are {columns} columns, and blockIdx.x says which 32 of them a block takes."
    elif rows == 1:
        hint = "There is one row: only warp 0 has an element to add, and the other seven warps have none."
    else:
        hint = (
            f"There are {rows} rows, and warp w adds up rows w, w + 8, and so on. "
            "Add the eight sums of a column."
        )
    yield Call(f"{rows}×{columns}", (case.tensor(0, device),), hint=hint)


@dataclass(frozen=True)
class Puzzle:
    """spec: its cases. run: (runner, the call's arguments) → the output."""

    spec: Spec
    run: Callable

    def judge(self, name: str, source: object) -> str:
        return _watched(name, self, source)


def _spec(reference: Callable, calls: Callable, cases: Sequence[Case], **more) -> Spec:
    return Spec(reference, calls, cases=lambda names: list(cases), **more)


_SHAPES = ((1, 7), (8, 256), (5, 7), (3, 1000), (40, 33))
_LONG = ((1, 7), (8, 1024), (16, 512), (3, 1000), (33, 250))
_RELU = [*map(Case, (*_SHAPES, (300, 1000))), Case((4, 64), values="special")]
_OF_16 = partial(_relu_calls, per_thread=16)
PUZZLES = {
    "guard": Puzzle(_spec(relu, _relu_calls, _RELU), _run_relu),
    "coalesced": Puzzle(_spec(relu, _OF_16, [*map(Case, _LONG), Case((4, 64), values="special")]), _run_coalesced),
    "column_sum": Puzzle(
        _spec(column_sum, _sum_calls, [*map(Case, ((8, 32), (1, 32), (40, 32), (13, 5), (64, 96), (50, 77)))],
              scale=Sums()), _run_sum),
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
        if name == "column_sum" and not runner.last.shared:
            raise Wrong(f"{name}: {ALONE}")
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
    text = checked(name, lambda *arguments: puzzle.run(runner, *arguments), puzzle.spec, "cpu")
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
