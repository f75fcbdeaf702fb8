"""What the notebook on a backward says in µs: `python -m lessons.n09_a_backward --save`, on a GPU.

    step       a sum over the rows of [rows, 512] float32 by sum_rows (one warp a program), by sum_tiles (four), and by
               PyTorch
    warps      sum_tiles by the warps of a program
    chunks     sum_atomic, and sum_chunk (the kernel two_stage, launched twice), by the number of chunks
    order      some runs of a step on one input: in how many columns they differ, and how far from the exact sums
    backward   of relu(x + 0.5 y + bias), by eager and by the lesson's own kernel and two_stage
    training   add_mul_activation and its backward together, by each implementation; kept: bytes that the forward
               leaves for the backward, beside its inputs and its output

What is compared was measured by turns, as replays of CUDA graphs with a swept L2.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels import add_mul_activation
from kernels.device.launch import cdiv
from kernels.inductor.lower import fresh
from kernels.ops.add_mul_activation import eager
from lessons.n09_a_backward import puzzles, sum_kernels
from lessons.shared.experiment import Experiment, Outputs, Way, tensors

CHUNKS = 128  # of the sum alone: the best of the record for atomics, and as good as 64 in two stages
TILE = {"ROWS": 32, "BLOCK": 32}  # rows that a program reads at once, columns
STEPS = ("sum_rows", "sum_tiles", "torch")
MULTIPLIER = 0.5


def launch(step: str, x: Tensor, chunks: int = CHUNKS, warps: int = 4) -> Tensor:
    """x [rows, columns] summed over its rows, float32: by a kernel of sum_kernels.py, by "sum_chunk" or "torch". warps:
    of a program; sum_rows has one, for a lane a column."""
    if step == "torch":
        return x.sum(0)
    rows, columns = x.shape
    tiles, chunk = cdiv(columns, TILE["BLOCK"]), cdiv(rows, chunks)
    sizes = {"COLUMNS": columns, "num_warps": warps} | TILE
    result = (x.new_zeros if step == "sum_atomic" else x.new_empty)(columns)  # the zeros are one launch more
    if step == "sum_rows":
        sum_kernels.sum_rows[(tiles,)](x, result, rows, columns, TILE["BLOCK"], num_warps=1)
    elif step == "sum_tiles":
        sum_kernels.sum_tiles[(tiles,)](x, result, rows, **sizes)
    elif step == "sum_atomic":
        sum_kernels.sum_atomic[(tiles, cdiv(rows, chunk))](x, result, rows, chunk, **sizes)
    else:
        workspace = x.new_empty(cdiv(rows, chunk), columns)
        puzzles.launch_two_stage(puzzles.passed("two_stage"), x, result, workspace, chunk, **TILE)
    return result


def whole_backward(grad: Tensor, out: Tensor, multiplier: float, chunks: int) -> tuple[Tensor, Tensor, Tensor]:
    """(grad_x, grad_bias, grad_y) of relu(x + multiplier · y + bias), by the lesson's kernel and its two_stage."""
    (rows, columns), chunk = grad.shape, cdiv(len(grad), chunks)
    grad_x, grad_y, grad_bias = grad.new_empty(grad.shape), grad.new_empty(grad.shape), grad.new_empty(columns)
    sums = grad.new_empty(cdiv(rows, chunk), columns)
    given = grad, out, grad_x, grad_y, sums, multiplier, chunk
    puzzles.launch_whole_backward(puzzles.passed("whole_backward"), *given, ROWS=4, BLOCK=128)
    add_up = puzzles.passed("two_stage")[(cdiv(columns, TILE["BLOCK"]), 1)]
    add_up(sums, grad_bias, len(sums), len(sums), COLUMNS=columns, **TILE)
    return grad_x, grad_bias, grad_y


@dataclass(frozen=True)
class Sizes:
    """rows, columns: of all tensors. runs: of each step, to see whether they differ."""

    rows: int = 65536
    columns: int = 512
    warps: tuple[int, ...] = (1, 2, 4, 8)
    chunks: tuple[int, ...] = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
    backward_chunks: int = 256
    runs: int = 50


class Backward(Experiment):
    """What backward.json has."""

    NAME = "backward"
    PARTS = ("step", "warps", "chunks", "order", "backward", "training")
    FULL = Sizes()
    SMALL = Sizes(rows=32, columns=20, warps=(4,), chunks=(2,), backward_chunks=2, runs=2)

    def sums(self, part: str, ways: dict[tuple[tuple[str, object], ...], tuple], **labels) -> None:
        """Ways to sum a tensor over its rows: labels → what `launch` takes beside it."""
        x = self.whole(self.sizes.rows, self.sizes.columns)
        exact = x.double().sum(0).float()
        self.compare(
            part,
            [
                Way(dict(key), [partial(launch, step, x, *rest)], lambda out: torch.equal(out, exact))
                for key, (step, *rest) in ways.items()
            ],
            bytes=x.nbytes,
            **labels,
        )

    def step(self) -> None:
        self.sums("step", {(("step", step),): (step,) for step in STEPS})

    def warps(self) -> None:
        ways = {(("warps", warps),): ("sum_tiles", CHUNKS, warps) for warps in self.sizes.warps}
        self.sums("warps", ways, step="sum_tiles")

    def chunks(self) -> None:
        self.sums("chunks", {
            (("step", step), ("chunks", chunks)): (step, chunks)
            for chunks in self.sizes.chunks for step in ("sum_atomic", "sum_chunk")
        })

    def order(self) -> None:
        """Columns of normal numbers: in how many some runs give different bits."""
        x = self.normal(self.sizes.rows, self.sizes.columns)
        exact, size = x.double().sum(0), x.double().abs().sum(0)
        for step in (*STEPS, "sum_atomic", "sum_chunk"):
            runs = torch.stack([launch(step, x) for _ in range(self.sizes.runs)])
            errors = (runs[0].double() - exact).abs()
            self.add(
                "order", None, bool((errors <= 1e-5 * size).all()), step=step, runs=self.sizes.runs,
                differing=int((runs != runs[0]).any(0).sum()), columns=self.sizes.columns, error=float(errors.median()),
            )

    def backward(self) -> None:
        """A forward on the stream that is captured, once; then its backward, again and again."""
        leaves, grad, right = self._leaves("relu")
        apart = self.gpu.on_side_stream if self.gpu else lambda work: work()
        out = apart(partial(implementation("eager", "relu"), *leaves))
        ways = {
            "eager": partial(torch.autograd.grad, out, leaves, grad, retain_graph=True),
            "the lesson's": partial(whole_backward, grad, out.detach(), MULTIPLIER, self.sizes.backward_chunks),
        }
        self.compare(
            "backward", [Way({"implementation": name}, [call], right) for name, call in ways.items()],
            activation="relu", bytes=16 * grad.numel(),
        )

    def _leaves(self, activation: str) -> tuple[tuple[Tensor, ...], Tensor, Callable[[Outputs], bool]]:
        """x, bias and y, which want gradients, the gradient of the output, and whether theirs are right."""
        rows, columns = self.sizes.rows, self.sizes.columns
        x, bias, y, grad = (self.normal(*shape) for shape in ((rows, columns), (columns,), *[(rows, columns)] * 2))
        if activation == "relu":  # where z is near 0, rounding would decide which side of the kink it is on
            z = eager.add_mul_activation(x, bias, y, MULTIPLIER, "identity")
            x = x + torch.where(z > 0, 0.5, -0.5)
        leaves = tuple(tensor.requires_grad_() for tensor in (x, bias, y))
        exact = [tensor.detach().double().requires_grad_() for tensor in leaves]
        gradients = torch.autograd.grad(implementation("eager", activation)(*exact), exact, grad.double())
        return leaves, grad, partial(close, exact=gradients)

    def training(self) -> None:
        for activation in ("relu", "gelu"):
            leaves, grad, right = self._leaves(activation)
            functions = {
                name: implementation(name, activation)
                for name in ("eager", "triton", *["torch.compile"] * (self.gpu is not None))
            }

            def both(function, leaves=leaves, grad=grad):
                return torch.autograd.grad(function(*leaves), leaves, grad)

            self.compare("training", [
                Way({"implementation": name, "kept": self._kept(function, leaves)}, [partial(both, function)], right)
                for name, function in functions.items()
            ], activation=activation)

    def _kept(self, function: Callable, leaves: Sequence[Tensor]) -> int:
        """Bytes that are allocated after a forward, beyond its output's."""
        if self.gpu is None:
            return 0
        self.gpu.on_side_stream(lambda: function(*leaves).shape)  # compiles
        gc.collect()
        before = torch.cuda.memory_allocated()
        out = self.gpu.on_side_stream(lambda: function(*leaves))
        return torch.cuda.memory_allocated() - before - out.nbytes


def implementation(name: str, activation: str) -> Callable:
    """f(x, bias, y) → out."""
    if name == "triton":
        return lambda x, bias, y: add_mul_activation(x, bias, y, MULTIPLIER, activation, backend=name)

    def formula(x, bias, y):
        return eager.add_mul_activation(x, bias, y, MULTIPLIER, activation)

    return torch.compile(fresh(formula), dynamic=False) if name == "torch.compile" else formula


def close(outputs: Outputs, exact: Sequence[Tensor]) -> bool:
    """To within some roundings; of a sum over rows, grad_bias, to within some of its terms' magnitude."""
    for got, want in zip(tensors(outputs), exact, strict=True):
        epsilon = torch.finfo(got.dtype).eps
        size = want.abs() if got.dim() > 1 else exact[0].abs().sum(0)
        # Eager rounds each step in between to its dtype: what cancels keeps the error of its terms.
        if not ((got.double() - want).abs() <= 16 * epsilon * (size + 1)).all():
            return False
    return True


main = Backward.main
