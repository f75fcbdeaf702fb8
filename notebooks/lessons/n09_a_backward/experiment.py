"""What the notebook on a backward says in µs: `python -m lessons.n09_a_backward --save`, on a GPU.

    step       a sum over the rows of [rows, 512] float32 by sum_rows (one warp a program), by sum_tiles (four), and by
               PyTorch
    warps      sum_tiles by the warps of a program
    chunks     sum_atomic, and sum_chunk (the kernel two_stage, launched twice), by the number of chunks
    order      some runs of a step on one input: in how many columns they differ, and how far from the exact sums
    op         add_mul_activation's backward in Triton, relu and gelu, by the number of chunks; sums: whether it has
               grad_bias
    backward   its backward by each implementation, and, of relu, by the lesson's own kernel
    training   its forward with gradients, and forward and backward together, by each implementation; kept: bytes that
               the forward leaves for the backward, beside its inputs and its output
    generated  what torch.compile writes for forward and backward: loads and stores
    copy       PyTorch's copy of 1 GiB

What is compared was measured by turns, as replays of CUDA graphs with a swept L2.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch._functorch import config as functorch

from kernels import add_mul_activation
from kernels.inductor.lower import fresh
from kernels.ops.add_mul_activation import eager
from kernels.ops.add_mul_activation.triton_launch import backward
from lessons.n09_a_backward import inductor_lines
from lessons.n09_a_backward.arithmetic import KEPT, backward_bytes
from lessons.n09_a_backward.sum_launch import CHUNKS, ROWS, STEPS, launch, whole_backward
from lessons.shared.experiment import Experiment, Outputs, Way, tensors

MULTIPLIER = 0.5


@dataclass(frozen=True)
class Sizes:
    """rows, columns: of all tensors. runs: of each step, to see whether they differ, with so many chunks."""

    rows: int = 65536
    columns: int = 512
    warps: tuple[int, ...] = (1, 2, 4, 8)
    chunks: tuple[int, ...] = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
    op_chunks: tuple[int, ...] = (64, 128, 256, 384, 512, 768, 1024, 2048, 4096)
    op_default: int = 256
    runs: int = 50
    order_chunks: int = CHUNKS


class Backward(Experiment):
    """What backward.json has; generated: the lines of the compiler's kernels, by activation and direction."""

    NAME = "backward"
    PARTS = ("step", "warps", "chunks", "order", "op", "backward", "training", "generated", "copy")
    FULL = Sizes()
    SMALL = Sizes(
        rows=32, columns=20, warps=(4,), chunks=(2,), op_chunks=(2,), op_default=2, runs=2, order_chunks=2
    )

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
        ways = {(("warps", warps),): ("sum_tiles", CHUNKS, ROWS, warps) for warps in self.sizes.warps}
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
            runs = torch.stack([launch(step, x, self.sizes.order_chunks) for _ in range(self.sizes.runs)])
            differing = int((runs != runs[0]).any(0).sum())
            most = max(len(column.unique()) for column in runs.T)
            errors = (runs[0].double() - exact).abs()
            self.add(
                "order", None, bool((errors <= 1e-5 * size).all()), step=step, runs=self.sizes.runs,
                chunks=self.sizes.order_chunks, differing=differing, columns=self.sizes.columns, most=most,
                error=float(errors.median()), worst=float(errors.max()),
            )

    def op(self) -> None:
        x, y, grad = (self.whole(self.sizes.rows, self.sizes.columns) for _ in range(3))
        bias = self.whole(self.sizes.columns)
        for activation in ("relu", "gelu"):
            out = eager.add_mul_activation(x, bias, y, MULTIPLIER, activation)
            exact = gradients(eager.add_mul_activation, (x, bias, y), grad, activation, torch.float64)
            read = (out, None, None, None) if activation == "relu" else (None, x, bias, y)

            def call(chunks: int, sums: bool, read=read, activation=activation):
                grad_x, grad_y = torch.empty_like(grad), torch.empty_like(grad)
                grad_bias = torch.empty_like(bias) if sums else None
                backward(grad, *read, MULTIPLIER, activation, grad_x, grad_bias, grad_y, chunks=chunks)
                return (grad_x, grad_bias, grad_y) if sums else (grad_x, grad_y)

            def right(outputs, exact=exact):
                return close(outputs, exact if len(outputs) == 3 else exact[::2])

            self.compare("op", [
                Way({"chunks": chunks, "sums": sums}, [partial(call, chunks, sums)], right)
                for chunks in self.sizes.op_chunks for sums in (True, False)
            ], activation=activation)

    def backward(self) -> None:
        """A forward on the stream that is captured, once; then its backward, again and again."""
        on_gpu = self.gpu is not None
        names = ["eager", "triton", *["torch.compile", "cuda"] * on_gpu]
        for activation in KEPT:
            # torch.compile's backward writes into what its forward saved, unless it is told that it runs again.
            with self.caught("backward", activation=activation), functorch.patch(donated_buffer=False):
                self._backward(activation, names)

    def _backward(self, activation: str, names: Sequence[str]) -> None:
        leaves, grad = self._leaves(activation)
        exact = gradients(eager.add_mul_activation, leaves, grad, activation, torch.float64)
        apart = self.gpu.on_side_stream if self.gpu else lambda work: work()
        ways = []
        for name in names:
            with self.caught("backward", implementation=name, activation=activation):
                out = apart(partial(implementation(name, activation), *leaves))
                call = partial(torch.autograd.grad, out, leaves, grad, retain_graph=True)
                moved = backward_bytes(name, activation) * grad.numel()
                labels = {"implementation": name, "bytes": moved}
                ways.append(Way(labels, [call], lambda outputs: close(outputs, exact)))
        if activation == "relu":
            out = eager.add_mul_activation(*(leaf.detach() for leaf in leaves), MULTIPLIER, activation)
            call = partial(whole_backward, grad, out, MULTIPLIER, self.sizes.op_default)
            labels = {"implementation": "the lesson's", "bytes": backward_bytes("triton", activation) * grad.numel()}
            ways.append(Way(labels, [call], lambda outputs: close(outputs, exact)))
        self.compare("backward", ways, activation=activation, dtype="float32")

    def _leaves(self, activation: str) -> tuple[tuple[Tensor, ...], Tensor]:
        """x, bias and y, which want gradients, and the gradient of the output."""
        rows, columns = self.sizes.rows, self.sizes.columns
        x, bias, y = (self.normal(*shape) for shape in ((rows, columns), (columns,), (rows, columns)))
        if activation == "relu":  # where z is near 0, rounding would decide which side of the kink it is on
            z = eager.add_mul_activation(x, bias, y, MULTIPLIER, "identity")
            x = x + torch.where(z > 0, 0.5, -0.5)
        return tuple(tensor.detach().requires_grad_() for tensor in (x, bias, y)), self.normal(rows, columns)

    def training(self) -> None:
        for activation in ("relu", "gelu"):
            self._training(activation, ["eager", "triton"] + ["torch.compile"] * (self.gpu is not None))

    def _training(self, activation: str, names: Sequence[str]) -> None:
        leaves, grad = self._leaves(activation)
        exact = gradients(eager.add_mul_activation, leaves, grad, activation, torch.float64)
        out_exact = eager.add_mul_activation(*(leaf.detach().double() for leaf in leaves), MULTIPLIER, activation)
        functions = {name: implementation(name, activation) for name in names}

        def both(function):
            return torch.autograd.grad(function(*leaves), leaves, grad)

        kept = {name: self._kept(function, leaves) for name, function in functions.items()}
        for what, make, expected in (
            ("forward", lambda function: partial(function, *leaves), (out_exact,)),
            ("both", lambda function: partial(both, function), exact),
        ):
            self.compare("training", [
                Way({"what": what, "implementation": name, "kept": kept[name]}, [make(function)],
                    lambda outputs, expected=expected: close(outputs, expected))
                for name, function in functions.items()
            ], activation=activation, dtype="float32")

    def _kept(self, function: Callable, leaves: Sequence[Tensor]) -> int:
        """Bytes that are allocated after a forward, beyond its output's."""
        if self.gpu is None:
            return 0
        self.gpu.on_side_stream(lambda: function(*leaves).shape)  # compiles
        gc.collect()
        before = torch.cuda.memory_allocated()
        out = self.gpu.on_side_stream(lambda: function(*leaves))
        return torch.cuda.memory_allocated() - before - out.nbytes

    def generated(self) -> None:
        lines = self.extra.setdefault("generated", {})
        for activation in ("relu", "gelu") if self.gpu else ():
            forward, after = inductor_lines.modules(activation, self.sizes.rows)
            modules = {"forward": forward, "backward": after}
            lines[activation] = {name: inductor_lines.lines_of(module) for name, module in modules.items()}
            print(*(text for some in lines[activation].values() for text in some), sep="\n", flush=True)


def implementation(name: str, activation: str) -> Callable:
    """f(x, bias, y) → out."""
    if name in ("triton", "cuda"):
        return lambda x, bias, y: add_mul_activation(x, bias, y, MULTIPLIER, activation, backend=name)

    def formula(x, bias, y):
        return eager.add_mul_activation(x, bias, y, MULTIPLIER, activation)

    return torch.compile(fresh(formula), dynamic=False) if name == "torch.compile" else formula


def gradients(
    function: Callable, inputs: Sequence[Tensor], grad: Tensor, activation: str, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """The gradients of x, bias and y, computed in dtype."""
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs]
    return torch.autograd.grad(function(*leaves, MULTIPLIER, activation), leaves, grad.to(dtype))


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
