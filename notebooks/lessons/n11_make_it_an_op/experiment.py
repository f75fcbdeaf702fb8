"""What a call costs, by what stands around the kernel: `python -m lessons.n11_make_it_an_op --save`, on a GPU.

    call       relu(x + bias) of 64×64 float32, µs a call from Python: PyTorch's x + 1 and its two kernels, Triton's
               launcher, the op by torch.library (custom_op; define and impl, around PyTorch's formula too), by
               TORCH_LIBRARY in C++, our declaration (a cubin, CUDA), and a call in the replay of a CUDA graph
    gradient   the same with a gradient recorded
    wall       relu(x + bias) * 2 by torch.compile, 65536×512 float32, GPU time: the formula, and the op as a node

"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import kernels as ops
from kernels import runtime
from lessons.n11_make_it_an_op import by_hand, cpp_texts
from lessons.shared.experiment import Experiment, Way

TOGETHER = 20  # calls in the larger CUDA graph


@dataclass(frozen=True)
class Sizes:
    """small: of a call; large: of `wall`. calls in a batch, and batches of each function."""

    small: tuple[int, int] = (64, 64)
    large: tuple[int, int] = (65536, 512)
    calls: int = 500
    batches: int = 25
    backend: str = "inductor"  # of torch.compile


@functools.cache
def declared() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """The op of torch.library alone, in two ways around Triton's launcher, and around PyTorch's formula."""
    return {
        "torch.library": by_hand.by_custom_op("lecture::decorated", by_hand.launch_add_relu),
        "torch.library, define": by_hand.by_define("lecture::defined", by_hand.launch_add_relu),
        "formula in torch.library, define": by_hand.by_define("lecture::defined_formula", by_hand.formula),
    }


@functools.cache
def in_cpp() -> Callable[[Tensor, Tensor], Tensor]:
    """The notebook's C++ op, built by nvcc, with its fake and its backward in Python."""
    from torch.utils.cpp_extension import load_inline

    os.environ["PATH"] = runtime.path_with_python()  # where ninja is
    text = cpp_texts.KERNEL + cpp_texts.OP
    load_inline("lecture_cpp", cpp_sources="", cuda_sources=text, is_python_module=False, no_implicit_headers=True)
    op = torch.ops.lecture_cpp.add_relu.default
    torch.library.register_fake(op, by_hand.fake)
    torch.library.register_autograd(op, by_hand.backward, setup_context=by_hand.setup_context)
    return op


class MakeOp(Experiment):
    """What make_op.json has."""

    NAME = "make_op"
    PARTS = ("call", "gradient", "wall")
    FULL = Sizes()
    SMALL = Sizes(small=(4, 8), large=(8, 16), calls=1, batches=1, backend="aot_eager")

    def operands(self, shape: tuple[int, int], requires_grad: bool = False) -> tuple[Tensor, Tensor]:
        x, bias = self.normal(*shape), self.normal(shape[1])
        return x.requires_grad_(requires_grad), bias.requires_grad_(requires_grad)

    def calls(self, part: str, ways: list[Way]) -> None:
        """µs a call of each, by turns, until the GPU has done them; the label `calls`: how often one function calls."""

        def clock(functions: Mapping[int, Callable]) -> dict[int, list[float]]:
            samples = self.call_times(functions, self.sizes.calls, self.sizes.batches)
            return {number: [us / ways[number].labels["calls"] for us in times] for number, times in samples.items()}

        rows, columns = self.sizes.small
        self.compare(part, ways, captured=False, clock=clock, rows=rows, columns=columns)

    def ways(self, x: Tensor, bias: Tensor) -> dict[str, Callable[[], Tensor]]:
        """The ways to relu(x + bias) that take a gradient."""
        ways = {
            "relu(x + bias)": lambda: torch.relu(x + bias),
            **{name: partial(op, x, bias) for name, op in declared().items()},
            "triton": lambda: ops.add_relu(x, bias, backend="triton"),
        }
        if self.gpu and not runtime.why_not("cuda", "cuda"):
            with self.caught("build", name="C++"):  # the other rungs are measured all the same
                ways["C++"] = partial(in_cpp(), x, bias)
            ways["cuda"] = lambda: ops.add_relu(x, bias, backend="cuda")
        return ways

    def call(self) -> None:
        x, bias = self.operands(self.sizes.small)
        out, expected = torch.empty_like(x), torch.relu(x + bias)
        functions = {
            "launcher": lambda: by_hand.launch_add_relu(x, bias),
            "launcher, output given": lambda: by_hand.launch(x, bias, out),
            **self.ways(x, bias),
        }
        right = partial(torch.equal, expected)
        ways = [Way({"name": "x + 1", "calls": 1}, [lambda: x + 1], partial(torch.equal, x + 1))]
        ways += [Way({"name": name, "calls": 1}, [function], right) for name, function in functions.items()]
        for count in (1, TOGETHER) if self.gpu else ():
            ways.append(Way({"name": f"graph of {count}", "calls": count}, [self._replay(x, bias, count)], right))
        with torch.no_grad():
            self.calls("call", ways)

    def _replay(self, x: Tensor, bias: Tensor, count: int) -> Callable[[], Tensor]:
        ops.add_relu(x, bias, backend="triton")  # what is built at the first call is not captured
        replay, outputs = self.gpu.capture(lambda: [ops.add_relu(x, bias, backend="triton") for _ in range(count)])

        def run() -> Tensor:
            replay()
            return outputs[-1]

        return run

    def gradient(self) -> None:
        x, bias = self.operands(self.sizes.small, requires_grad=True)
        expected = torch.relu(x + bias).detach()
        exact = torch.autograd.grad(torch.relu(x + bias).square().sum(), (x, bias))

        def right(out: Tensor, function: Callable) -> bool:
            """A gradient that is wrong is a row without a time."""
            gradients = torch.autograd.grad(function().square().sum(), (x, bias))
            close = (torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(gradients, exact, strict=True))
            return torch.equal(out, expected) and all(close)

        self.calls("gradient", [
            Way({"name": name, "calls": 1}, [function], partial(right, function=function))
            for name, function in self.ways(x, bias).items()
        ])

    def wall(self) -> None:
        """GPU time of what torch.compile makes; of the op it knows its fake alone."""
        x, bias = self.operands(self.sizes.large)
        op, expected = declared()["torch.library"], torch.relu(x + bias) * 2
        written = {"formula": lambda x, bias: torch.relu(x + bias) * 2, "op": lambda x, bias: op(x, bias) * 2}
        ways = []
        for name, function in written.items():
            compiled = torch.compile(function, fullgraph=True, backend=self.sizes.backend)
            ways.append(Way({"name": name}, [partial(compiled, x, bias)], partial(torch.equal, expected)))
        with torch.no_grad():
            self.compare("wall", ways, rows=x.shape[0], columns=x.shape[1])


main = MakeOp.main
