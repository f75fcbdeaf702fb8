"""What the notebook on Triton kernels says in µs: `python -m lessons.n08_triton_kernels --save`, on a GPU.

    add_relu   relu(x + bias): the six lines, the op's kernel, torch.compile
    step       sigmoid(x + 0.5 y + bias): each step from the generated kernel to the general one, torch.compile
    gelu       the same with gelu, by erf and as the op has it, torch.compile
    relu       relu(x) in three forms; values: what each makes of VALUES
    copy       PyTorch's copy of as many bytes as the kernels beside it move

Shapes are 65536 × 512 ("even") and 65535 × 511 ("odd"). What is of one part, shape and dtype was measured by turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.check import TOLERANCES, maximum_as_compiled
from kernels.inductor.machine_code import accesses, sass
from kernels.ops.add_mul_activation.triton_launch import forward as add_mul
from kernels.ops.add_relu.triton_launch import forward as add_relu
from lessons.n08_triton_kernels import pointwise_kernels, steps
from lessons.shared.experiment import Experiment, Launch, Outputs, Way

VALUES = (float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 0.0, 2.5)
BLOCK = 1024
Calls = Mapping[str, Callable[[], Outputs]]


class Pointwise(Experiment):
    """What pointwise.json has; the sizes are the shapes by name."""

    NAME = "pointwise"
    PARTS = ("add_relu", "step", "gelu", "relu")
    FULL = steps.SHAPES
    SMALL = MappingProxyType({"even": (2, 512), "odd": (1, 511)})

    def draw(self, shape: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """x, bias, y, out"""
        rows, columns = self.sizes[shape]
        x, bias, y = (self.normal(*size, dtype=dtype) for size in ((rows, columns), (columns,), (rows, columns)))
        return x, bias, y, torch.empty_like(x)

    @torch.no_grad()
    def by_turns(self, part: str, shape: str, dtype: str, calls: Calls, exact: Tensor, moved: int) -> None:
        """A row for each call, with a copy of as many bytes."""

        def right(out: Tensor) -> bool:
            return close(out, exact, steps.DTYPES[dtype])

        ways = [Way({"name": name}, [call], right, partial(code, call)) for name, call in calls.items()]
        copy = self.copied(moved, of=part)
        self.compare(part, [*ways, copy], captured=False, shape=shape, dtype=dtype, bytes=moved)

    # ------------------------------------------------------------------------------------------------------ the parts

    def add_relu(self) -> None:
        for shape, dtype in (("even", "float32"), ("odd", "float32"), ("even", "bfloat16")):
            x, bias, _, out = self.draw(shape, steps.DTYPES[dtype])
            grid = (-(-x.numel() // BLOCK),)
            six = partial(pointwise_kernels.six_lines[grid], x, bias, out, x.numel(), COLUMNS=x.shape[1], BLOCK=BLOCK)
            calls = {"the op": Launch(partial(add_relu, x, bias, out), out)}
            if dtype == "float32" or self.gpu:  # the interpreter adds no bfloat16
                calls = {"six lines": Launch(six, out)} | calls
            calls |= self.compiled(lambda x, bias: torch.relu(x + bias), x, bias)
            exact = torch.relu(x.double() + bias.double())
            self.by_turns("add_relu", shape, dtype, calls, exact, 2 * x.nbytes + bias.nbytes)

    def step(self) -> None:
        for shape in self.sizes:
            for dtype in steps.DTYPES:
                self.formula("step", shape, dtype, steps.STEPS, torch.sigmoid, "sigmoid")

    def gelu(self) -> None:
        for dtype in steps.DTYPES:
            self.formula("gelu", "even", dtype, steps.GELUS, F.gelu, "gelu")

    def formula(self, part: str, shape: str, dtype: str, chosen: Sequence[steps.Step], act: Callable, name: str):
        """act(x + 0.5 y + bias) by each of the steps that are for the dtype, by the op and by torch.compile."""
        x, bias, y, out = self.draw(shape, steps.DTYPES[dtype])
        calls = {
            step.name: Launch(partial(step.launch, x, bias, y, out), out)
            for step in chosen if step.in_half or dtype == "float32"
        }
        calls["the op"] = Launch(partial(add_mul, x, bias, y, steps.MULTIPLIER, name, out), out)
        calls |= self.compiled(lambda x, bias, y: act(x + 0.5 * y + bias), x, bias, y)
        exact = act(x.double() + 0.5 * y.double() + bias.double())
        self.by_turns(part, shape, dtype, calls, exact, 3 * x.nbytes + bias.nbytes)

    def compiled(self, function: Callable, *inputs: Tensor) -> Calls:
        """torch.compile's, on a GPU: on a CPU it is another compiler."""
        if self.gpu is None:
            return {}
        torch.compiler.reset()  # what is compiled of one code counts against a limit
        return {"torch.compile": partial(torch.compile(function, dynamic=False), *inputs)}

    def relu(self) -> None:
        x, _, _, out = self.draw("even", torch.float32)
        special = torch.tensor(VALUES, device=self.device)
        made = torch.empty_like(special)
        grid = (-(-x.numel() // BLOCK),)
        calls, values = {}, {}
        for form in steps.RELUS:
            launch = partial(pointwise_kernels.relu_forms[grid], x, out, x.numel(), FORM=form, BLOCK=BLOCK)
            calls[form] = Launch(launch, out)
            with maximum_as_compiled():
                pointwise_kernels.relu_forms[(1,)](special, made, len(special), FORM=form, BLOCK=16)
            values[form] = [str(value) for value in made.tolist()]
        self.by_turns("relu", "even", "float32", calls, torch.relu(x.double()), 2 * x.nbytes)
        values["eager"] = [str(value) for value in torch.relu(special).tolist()]
        for name, texts in values.items():
            self.add("values", None, True, name=name, values=texts)


def close(result: Tensor, exact: Tensor, dtype: torch.dtype) -> bool:
    relative, absolute = TOLERANCES[dtype]
    return bool(((result.double() - exact).abs() <= absolute + relative * exact.abs()).all())


def code(call: Callable) -> dict:
    """Registers, instructions and accesses of a launch; {} in the interpreter, and of the op's own launcher, which
    returns nothing."""
    assembly = getattr(getattr(call, "compiled", None), "asm", None)
    if not assembly:
        return {}
    lines = sass(assembly["cubin"]) or []
    return call.code() | {
        "instructions": len(lines), "accesses": accesses(assembly["ptx"]),
        "branches": sum("BRA" in line or "CALL" in line for line in lines),
    }


main = Pointwise.main
