"""What the notebook on Triton kernels says in µs: `python -m lessons.n08_triton_kernels --save`, on a GPU.

    add_relu   relu(x + bias): the six lines, the same with a mask in the last program only ("two ways"), the op,
               torch.compile, eager
    step       sigmoid(x + 0.5 y + bias): the lesson's last kernel ("two ways"), the library's with its offsets in 32
               bits ("16 bytes a lane") and in 64 ("64-bit places"), the op, torch.compile, eager
    gelu       the same with gelu: the op, torch.compile, eager
    relu       relu(x) in two forms

Shapes are 65536 × 512 ("even") and 65535 × 511 ("odd"). What is of one part, shape and dtype was measured by turns: one
launch after another buffer was read, so that no input is in the L2, and replay_us by replaying a CUDA graph of COUNT
launches. instructions: of the kernel, where the launch returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.check import TOLERANCES
from kernels.device.launch import cdiv
from kernels.device.pointwise_launch import pointwise_block
from kernels.inductor.machine_code import sass
from kernels.ops.add_mul_activation.triton_kernel import general
from kernels.ops.add_mul_activation.triton_launch import forward as add_mul
from kernels.ops.add_relu.triton_launch import forward as add_relu
from lessons.n08_triton_kernels import pointwise_kernels
from lessons.shared.experiment import Experiment, Launch, Outputs, Way

SHAPES = {"even": (65536, 512), "odd": (65535, 511)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RELUS = ("maximum", "where")
RELU_STEPS = {"six lines": pointwise_kernels.add_relu, "two ways": pointwise_kernels.two_ways}
BLOCK, MULTIPLIER = 1024, 0.5
COUNT = 20  # launches in a graph
Calls = Mapping[str, Callable[[], Outputs]]


class Pointwise(Experiment):
    """What pointwise.json has; the sizes are the shapes by name."""

    NAME = "pointwise"
    PARTS = ("add_relu", "step", "gelu", "relu")
    FULL = SHAPES
    SMALL = MappingProxyType({"even": (2, 512), "odd": (1, 511)})

    def draw(self, shape: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """x, bias, y, out"""
        rows, columns = self.sizes[shape]
        x, bias, y = (self.normal(*size, dtype=dtype) for size in ((rows, columns), (columns,), (rows, columns)))
        return x, bias, y, torch.empty_like(x)

    @torch.no_grad()
    def by_turns(self, part: str, shape: str, dtype: str, calls: Calls, exact: Tensor, moved: int) -> None:
        """A row for each call."""

        def judge(name: str) -> Callable[[Tensor], bool]:
            rounds = name == "eager" and dtype == "bfloat16"  # after each operation, numbers of up to 8
            return lambda out: close(out, exact, DTYPES[dtype], 0.06 if rounds else 0.0)

        ways = [Way({"name": name}, [call], judge(name), partial(code, call)) for name, call in calls.items()]
        labels = {"shape": shape, "dtype": dtype, "bytes": moved}
        self.compare(part, ways, captured=False, also=self.replayed, **labels)

    def replayed(self, calls: Mapping[int, Callable]) -> dict[int, dict]:
        """replay_us of each: µs of a launch where COUNT follow one another in a CUDA graph."""
        if self.gpu is None:
            return {}

        def repeat(call: Callable) -> None:
            for _ in range(COUNT):
                call()

        replays = {number: self.gpu.capture(partial(repeat, call))[0] for number, call in calls.items()}
        return {number: {"replay_us": sorted(us)[len(us) // 2] / COUNT} for number, us in self.times(replays).items()}

    def compiled(self, function: Callable, *inputs: Tensor) -> Calls:
        """Eager, and torch.compile's on a GPU: on a CPU it is another compiler."""
        eager = {"eager": partial(function, *inputs)}
        if self.gpu is None:
            return eager if inputs[0].dtype == torch.float32 else {}
        torch.compiler.reset()  # what is compiled of one code counts against a limit
        return eager | {"torch.compile": partial(torch.compile(function, dynamic=False), *inputs)}

    # ------------------------------------------------------------------------------------------------------ the parts

    def add_relu(self) -> None:
        for shape in self.sizes:
            x, bias, _, out = self.draw(shape, torch.float32)
            grid, calls = (cdiv(x.numel(), BLOCK),), {"the op": Launch(partial(add_relu, x, bias, out), out)}
            for name, kernel in RELU_STEPS.items():
                launch = partial(kernel[grid], x, bias, out, x.numel(), COLUMNS=len(bias), BLOCK=BLOCK)
                calls[name] = Launch(launch, out)
            calls |= self.compiled(lambda x, bias: torch.relu(x + bias), x, bias)
            exact = torch.relu(x.double() + bias.double())
            self.by_turns("add_relu", shape, "float32", calls, exact, 2 * x.nbytes + bias.nbytes)

    def step(self) -> None:
        for shape in self.sizes:
            for dtype in DTYPES:
                self.formula("step", shape, dtype, torch.sigmoid, "sigmoid")

    def gelu(self) -> None:
        for dtype in DTYPES:
            self.formula("gelu", "even", dtype, F.gelu, "gelu")

    def formula(self, part: str, shape: str, dtype: str, act: Callable, activation: str) -> None:
        """act(x + 0.5 y + bias) by the lesson's kernels, by the op, by eager and torch.compile."""
        x, bias, y, out = self.draw(shape, DTYPES[dtype])
        calls = {"the op": Launch(partial(add_mul, x, bias, y, MULTIPLIER, activation, out), out)}
        if part == "step":
            calls |= {
                "two ways": self.last(x, bias, y, out, activation), "16 bytes a lane": library(x, bias, y, out, False),
                "64-bit places": library(x, bias, y, out, True),
            }
        calls |= self.compiled(lambda x, bias, y: act(x + 0.5 * y + bias), x, bias, y)
        exact = act(x.double() + 0.5 * y.double() + bias.double())
        self.by_turns(part, shape, dtype, calls, exact, 3 * x.nbytes + bias.nbytes)

    def last(self, x: Tensor, bias: Tensor, y: Tensor, out: Tensor, activation: str) -> Launch:
        """The answer to the last puzzle."""
        kernel = pointwise_kernels.add_mul_activation[(cdiv(x.numel(), BLOCK),)]
        names = {"COLUMNS": len(bias), "ACTIVATION": activation, "WIDE": False, "BLOCK": BLOCK}
        return Launch(partial(kernel, x, bias, y, out, MULTIPLIER, x.numel(), **names), out)

    def relu(self) -> None:
        x, _, _, out = self.draw("even", torch.float32)
        kernel, calls = pointwise_kernels.relu_forms[(cdiv(x.numel(), BLOCK),)], {}
        for form in RELUS:
            calls[form] = Launch(partial(kernel, x, out, x.numel(), FORM=form, BLOCK=BLOCK), out)
        self.by_turns("relu", "even", "float32", calls, torch.relu(x.double()), 2 * x.nbytes)


def library(x: Tensor, bias: Tensor, y: Tensor, out: Tensor, wide: bool) -> Launch:
    """The library's kernel for sigmoid, with its offsets in 64 bits or in 32."""
    block = pointwise_block(x.numel(), x.itemsize)
    names = {"COLUMNS": len(bias), "ACTIVATION": "sigmoid", "WIDE": wide, "BLOCK": block}
    return Launch(partial(general[(cdiv(x.numel(), block),)], x, bias, y, out, MULTIPLIER, x.numel(), **names), out)


def close(result: Tensor, exact: Tensor, dtype: torch.dtype, more: float = 0.0) -> bool:
    """more: what each element may be off by besides the dtype's tolerance."""
    relative, absolute = TOLERANCES[dtype]
    return bool(((result.double() - exact).abs() <= more + absolute + relative * exact.abs()).all())


def code(call: Callable) -> dict:
    """The instructions of a launch; {} in the interpreter, and of what returns nothing that was compiled: the op's own
    launcher, eager."""
    assembly = getattr(getattr(call, "compiled", None), "asm", None)
    return {"instructions": len(sass(assembly["cubin"]) or [])} if assembly else {}


main = Pointwise.main
