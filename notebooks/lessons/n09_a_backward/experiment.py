"""What the notebook on a backward says in µs: `python -m lessons.n09_a_backward --save`, on a GPU.

    step       a sum over the rows of [rows, 512] float32 by sum_rows (one warp a program), sum_tiles (four), PyTorch
    warps      sum_tiles by the warps of a program
    chunks     sum_atomic, and sum_chunk (the kernel two_stage, launched twice), by the number of chunks
    order      some runs of a step on one input: in how many columns they differ, and how far from the exact sums
    op         add_mul_activation's backward in Triton, with all its sums, by chunks: row_chunks takes the fastest
    backward   of relu(x + 0.5 y + bias), by eager and by the lesson's own kernel and two_stage
    training   add_mul_activation and its backward together, by each implementation; kept: bytes that the forward
               leaves for the backward, beside its inputs and its output

What is compared was measured by turns, as replays of CUDA graphs with a swept L2.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels import add_mul_activation
from kernels.device.launch import cdiv
from kernels.inductor.lower import fresh
from kernels.ops.add_mul_activation import eager
from kernels.ops.add_mul_activation.triton_launch import backward
from lessons.n09_a_backward import puzzles, recorded
from lessons.shared.experiment import Experiment, Outputs, Way, tensors

TILE = {"ROWS": 32, "BLOCK": 32}  # rows that a program reads at once, columns
STEPS = ("sum_rows", "sum_tiles", "torch")
MULTIPLIER = 0.5


def launch(step: str, x: Tensor, chunks: int = recorded.CHUNKS, warps: int = 4) -> Tensor:
    """x [rows, columns] summed over its rows, float32: by a kernel of the cells, by "sum_chunk" or "torch". warps: of a
    program; sum_rows has one, for a lane a column."""
    if step == "torch":
        return x.sum(0)
    (rows, columns), chunk = x.shape, cdiv(len(x), chunks)
    result = (x.new_zeros if step == "sum_atomic" else x.new_empty)(columns)  # the zeros are one launch more
    if step == "sum_chunk":
        workspace = x.new_empty(cdiv(rows, chunk), columns)
        puzzles.launch_two_stage(puzzles.lectures("two_stage"), x, result, workspace, chunk, **TILE)
        return result
    kernel, given = puzzles.lectures(step), (chunk,) if step == "sum_atomic" else ()
    tile = {name: size for name, size in TILE.items() if name in kernel.arg_names}
    grid, warps = (cdiv(columns, TILE["BLOCK"]), cdiv(rows, chunk) if given else 1), 1 if step == "sum_rows" else warps
    kernel[grid](x, result, rows, *given, COLUMNS=columns, **tile, num_warps=warps)
    return result


def whole_backward(grad: Tensor, out: Tensor, chunks: int) -> tuple[Tensor, Tensor, Tensor]:
    """(grad_x, grad_bias, grad_y) of relu(x + MULTIPLIER · y + bias), by the lesson's kernel and its two_stage."""
    (_, columns), chunk = grad.shape, cdiv(len(grad), chunks)
    grad_x, grad_y, sums = (grad.new_empty(rows, columns) for rows in (len(grad), len(grad), cdiv(len(grad), chunk)))
    kernel, add_up, grad_bias = *map(puzzles.lectures, ("whole_backward", "two_stage")), grad.new_empty(columns)
    puzzles.launch_whole_backward(kernel, grad, out, grad_x, grad_y, sums, MULTIPLIER, chunk, ROWS=4, BLOCK=128)
    grid = (cdiv(columns, TILE["BLOCK"]), 1)
    add_up[grid](sums, grad_bias, len(sums), len(sums), COLUMNS=columns, **TILE)
    return grad_x, grad_bias, grad_y


@dataclass(frozen=True)
class Sizes:
    """rows, columns: of all tensors. runs: of each step, to see whether they differ."""

    rows: int = recorded.ROWS
    columns: int = recorded.COLUMNS
    warps: tuple[int, ...] = (1, 2, 4, 8)
    chunks: tuple[int, ...] = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
    op_chunks: tuple[int, ...] = (64, 128, 256, 384, 512, 768, 1024, 2048, 4096)
    backward_chunks: int = 256
    runs: int = 50


class Backward(Experiment):
    NAME = "backward"
    PARTS = ("step", "warps", "chunks", "order", "op", "backward", "training")
    FULL = Sizes()
    SMALL = Sizes(rows=32, columns=20, warps=(4,), chunks=(2,), op_chunks=(2,), backward_chunks=2, runs=2)

    def sums(self, part: str, ways: Iterable[tuple[str, dict]]) -> None:
        """Ways to sum a tensor over its rows: the step, and what else `launch` takes."""
        x = self.whole(self.sizes.rows, self.sizes.columns)
        exact = x.double().sum(0).float()
        self.compare(part, [
            Way({"step": step} | given, [partial(launch, step, x, **given)], lambda out: torch.equal(out, exact))
            for step, given in ways
        ], bytes=x.nbytes)

    def step(self) -> None:
        self.sums("step", ((step, {}) for step in STEPS))

    def warps(self) -> None:
        self.sums("warps", (("sum_tiles", {"warps": warps}) for warps in self.sizes.warps))

    def chunks(self) -> None:
        counts = ({"chunks": chunks} for chunks in self.sizes.chunks)
        self.sums("chunks", ((step, given) for given in counts for step in recorded.WAYS.values()))

    def order(self) -> None:
        """Columns of normal numbers: in how many some runs give different bits."""
        x = self.normal(self.sizes.rows, self.sizes.columns)
        exact, size = x.double().sum(0), x.double().abs().sum(0)
        for step in (*STEPS, *recorded.WAYS.values()):
            runs = torch.stack([launch(step, x) for _ in range(self.sizes.runs)])
            errors = (runs[0].double() - exact).abs()
            self.add(
                "order", None, bool((errors <= 1e-5 * size).all()), step=step, chunks=recorded.CHUNKS,
                runs=len(runs), differing=int((runs != runs[0]).any(0).sum()), columns=self.sizes.columns,
                error=float(errors.median()),
            )

    def op(self) -> None:
        for activation in ("relu", "gelu"):
            leaves, grad, right = self._leaves(activation)
            x, bias, y = (leaf.detach() for leaf in leaves)
            out = eager.add_mul_activation(x, bias, y, MULTIPLIER, activation)
            read = (out, None, None, None) if activation == "relu" else (None, x, bias, y)

            def call(chunks: int, read=read, like=(x, bias, y), grad=grad, activation=activation):
                grad_x, grad_bias, grad_y = made = tuple(map(torch.empty_like, like))
                backward(grad, *read, MULTIPLIER, activation, grad_x, grad_bias, grad_y, chunks=chunks)
                return made

            counts = ({"chunks": chunks, "sums": True} for chunks in self.sizes.op_chunks)
            ways = [Way(labels, [partial(call, labels["chunks"])], right) for labels in counts]
            self.compare("op", ways, activation=activation)

    def backward(self) -> None:
        """A forward on the stream that is captured, once; then its backward, again and again."""
        leaves, grad, right = self._leaves("relu")
        apart = self.gpu.on_side_stream if self.gpu else lambda work: work()
        out = apart(partial(implementation("eager", "relu"), *leaves))
        ways = {
            "eager": partial(torch.autograd.grad, out, leaves, grad, retain_graph=True),
            "the lesson's": partial(whole_backward, grad, out.detach(), self.sizes.backward_chunks),
        }
        ways = [Way({"implementation": name}, [call], right) for name, call in ways.items()]
        self.compare("backward", ways, activation="relu", bytes=16 * grad.numel())

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
        both = lambda function, leaves, grad: torch.autograd.grad(function(*leaves), leaves, grad)  # noqa: E731
        for activation in ("relu", "gelu"):
            leaves, grad, right = self._leaves(activation)
            ways = []
            for name in ("eager", "triton", *["torch.compile"] * (self.gpu is not None)):
                function = implementation(name, activation)
                labels = {"implementation": name, "kept": self._kept(function, leaves)}
                ways.append(Way(labels, [partial(both, function, leaves, grad)], right))
            self.compare("training", ways, activation=activation)

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
    function = partial(add_mul_activation, backend=name) if name == "triton" else eager.add_mul_activation

    def formula(x, bias, y):
        return function(x, bias, y, MULTIPLIER, activation)

    return torch.compile(fresh(formula), dynamic=False) if name == "torch.compile" else formula


def close(outputs: Outputs, exact: Sequence[Tensor]) -> bool:
    """To within 2e-6 of the largest number."""
    pairs = zip(tensors(outputs), exact, strict=True)
    return all(bool((got.double() - want).abs().max() <= 2e-6 * want.abs().max()) for got, want in pairs)


main = Backward.main
