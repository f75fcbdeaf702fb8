"""What the notebook on Triton kernels says in µs: `python -m lessons.n08_triton_kernels --save`, on a GPU.

    add_relu   relu(x + bias): the six lines, the same with a mask in the last program only ("two ways"), the op,
               torch.compile, eager
    block      the six lines by BLOCK and num_warps
    autotune   ms of the first call, of one config and of all of CONFIGS; µs from Python of a later call (call_us)
    step       sigmoid(x + 0.5 y + bias): the lesson's last kernel ("two ways"), the library's with its offsets in 32
               bits ("16 bytes a lane") and in 64 ("64-bit places"), the op, torch.compile, eager
    gelu       the same with gelu, by erf and by the library's polynomial, the op, torch.compile, eager
    same       those two forms where all programs take the same elements, so that only the arithmetic is left
    relu       relu(x) in two forms; values: what each makes of VALUES
    copy       PyTorch's copy of as many bytes as the kernels beside it move

Shapes are 65536 × 512 ("even") and 65535 × 511 ("odd"). What is of one part, shape and dtype was measured by turns: one
launch with an empty L2, as do_bench does it, and replay_us by replaying a CUDA graph of COUNT launches.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.check import TOLERANCES, maximum_as_compiled
from kernels.device.launch import cdiv
from kernels.device.pointwise_launch import pointwise_block
from kernels.inductor.machine_code import accesses, sass
from kernels.ops.add_mul_activation.triton_kernel import general
from kernels.ops.add_mul_activation.triton_launch import forward as add_mul
from kernels.ops.add_relu.triton_launch import forward as add_relu
from lessons.n08_triton_kernels import pointwise_kernels
from lessons.shared.experiment import Experiment, Launch, Outputs, Way

VALUES = (float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 0.0, 2.5)
SHAPES = {"even": (65536, 512), "odd": (65535, 511)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RELUS = ("maximum", "where")
GELUS = {"gelu by erf": "erf", "gelu, fitted": "fitted"}
BLOCK, MULTIPLIER, SAME = 1024, 0.5, 2**16
COUNT = 20  # launches in a graph
CONFIGS = ((256, 4), (512, 4), (1024, 4), (2048, 4), (1024, 1), (1024, 8))  # BLOCK, num_warps
Calls = Mapping[str, Callable[[], Outputs]]


class Pointwise(Experiment):
    """What pointwise.json has; the sizes are the shapes by name."""

    NAME = "pointwise"
    PARTS = ("add_relu", "block", "autotune", "step", "gelu", "relu")
    FULL = SHAPES
    SMALL = MappingProxyType({"even": (2, 512), "odd": (1, 511)})

    def draw(self, shape: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """x, bias, y, out"""
        rows, columns = self.sizes[shape]
        x, bias, y = (self.normal(*size, dtype=dtype) for size in ((rows, columns), (columns,), (rows, columns)))
        return x, bias, y, torch.empty_like(x)

    @torch.no_grad()
    def by_turns(self, part: str, shape: str, dtype: str, calls: Calls, exact: Tensor, moved: int) -> None:
        """A row for each call, with a copy of as many bytes."""

        def judge(name: str) -> Callable[[Tensor], bool]:
            rounds = name == "eager" and dtype == "bfloat16"  # after each operation, numbers of up to 8
            return lambda out: close(out, exact, DTYPES[dtype], 0.06 if rounds else 0.0)

        ways = [Way({"name": name}, [call], judge(name), partial(code, call)) for name, call in calls.items()]
        ways.append(self.copied(moved, of=part))
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
            for dtype in DTYPES:
                x, bias, _, out = self.draw(shape, DTYPES[dtype])
                calls = {"the op": Launch(partial(add_relu, x, bias, out), out)}
                if dtype == "float32" or self.gpu:  # the interpreter adds no bfloat16
                    calls["six lines"] = self.launched(pointwise_kernels.add_relu, x, bias, out)
                    calls["two ways"] = self.launched(pointwise_kernels.two_ways, x, bias, out)
                calls |= self.compiled(lambda x, bias: torch.relu(x + bias), x, bias)
                exact = torch.relu(x.double() + bias.double())
                self.by_turns("add_relu", shape, dtype, calls, exact, 2 * x.nbytes + bias.nbytes)

    def launched(self, kernel, x: Tensor, bias: Tensor, out: Tensor, block: int = BLOCK, warps: int = 4) -> Launch:
        grid, n, columns = (cdiv(x.numel(), block),), x.numel(), len(bias)
        launch = kernel[grid]
        return Launch(partial(launch, x, bias, out, n, COLUMNS=columns, BLOCK=block, num_warps=warps), out)

    @torch.no_grad()
    def block(self) -> None:
        x, bias, _, out = self.draw("even", torch.float32)
        exact, ways = torch.relu(x.double() + bias.double()), []
        for block, warps in CONFIGS:
            call = self.launched(pointwise_kernels.add_relu, x, bias, out, block, warps)
            labels = {"block": block, "warps": warps}
            ways.append(Way(labels, [call], lambda result: close(result, exact, torch.float32), partial(code, call)))
        moved = 2 * x.nbytes + bias.nbytes
        self.compare("block", ways, captured=False, also=self.replayed, bytes=moved)

    @torch.no_grad()
    def autotune(self) -> None:
        """Each with an empty cache, as on a machine that never saw the kernel. The interpreter tunes nothing."""
        import triton

        x, bias, _, out = self.draw("even", torch.float32)
        exact, n = torch.relu(x.double() + bias.double()), x.numel()
        for name, count in {"one config": 1, "autotuned": len(CONFIGS)}.items():
            kernel = triton.jit(pointwise_kernels.add_relu.fn)
            configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in CONFIGS[-count:]]
            call = partial(kernel[(cdiv(n, BLOCK),)], x, bias, out, n, COLUMNS=len(bias), BLOCK=BLOCK)
            if self.gpu and count > 1:
                kernel = triton.autotune(configs, key=["n"])(kernel)
                call = partial(kernel[lambda chosen: (cdiv(n, chosen["BLOCK"]),)], x, bias, out, n, len(bias))
            with tempfile.TemporaryDirectory() as empty, mock.patch.dict(os.environ, TRITON_CACHE_DIR=empty):
                self.synchronize()
                start = time.perf_counter()
                call()
                self.synchronize()
                ms = 1e3 * (time.perf_counter() - start)
            best = getattr(kernel, "best_config", None)
            kept = {"block": best.kwargs["BLOCK"], "warps": best.num_warps} if best else {}
            later = sorted(self.call_times({"": call}, 50 if self.gpu else 1, 5, waits=False)[""])[2]
            right = close(out, exact, torch.float32)
            self.add("autotune", [ms], right, "ms", name=name, configs=count, call_us=later, **kept)

    def step(self) -> None:
        for shape in self.sizes:
            for dtype in DTYPES:
                self.formula("step", shape, dtype, torch.sigmoid, "sigmoid")

    def gelu(self) -> None:
        for dtype in DTYPES:
            self.formula("gelu", "even", dtype, F.gelu, "gelu")
            self.same(dtype)

    def formula(self, part: str, shape: str, dtype: str, act: Callable, activation: str) -> None:
        """act(x + 0.5 y + bias) by the lesson's kernels, by the op, by eager and torch.compile."""
        x, bias, y, out = self.draw(shape, DTYPES[dtype])
        if part == "gelu":
            calls = {name: gelu_call(form, x, bias, y, out) for name, form in GELUS.items()}
        else:
            calls = {
                "two ways": self.last(x, bias, y, out, activation), "16 bytes a lane": library(x, bias, y, out, False),
                "64-bit places": library(x, bias, y, out, True),
            }
        calls["the op"] = Launch(partial(add_mul, x, bias, y, MULTIPLIER, activation, out), out)
        calls |= self.compiled(lambda x, bias, y: act(x + 0.5 * y + bias), x, bias, y)
        exact = act(x.double() + 0.5 * y.double() + bias.double())
        self.by_turns(part, shape, dtype, calls, exact, 3 * x.nbytes + bias.nbytes)

    def last(self, x: Tensor, bias: Tensor, y: Tensor, out: Tensor, activation: str) -> Launch:
        """The answer to the last puzzle."""
        kernel = pointwise_kernels.add_mul_activation[(cdiv(x.numel(), BLOCK),)]
        names = {"COLUMNS": len(bias), "ACTIVATION": activation, "WIDE": False, "BLOCK": BLOCK}
        return Launch(partial(kernel, x, bias, y, out, MULTIPLIER, x.numel(), **names), out)

    @torch.no_grad()
    def same(self, dtype: str) -> None:
        """gelu's two forms with the bytes taken away: the first SAME elements again and again."""
        x, bias, y, out = self.draw("even", DTYPES[dtype])
        first = slice(None, min(SAME, x.numel()))
        x, y, out = (tensor.flatten()[first] for tensor in (x, y, out))
        z = (x.double() + 0.5 * y.double()).view(-1, len(bias)) + bias.double()
        exact, ways = F.gelu(z).flatten(), []
        for name, form in GELUS.items():
            call = gelu_call(form, x, bias, y, out, n=torch.Size(self.sizes["even"]).numel(), same=len(x))
            right = lambda result: close(result, exact, DTYPES[dtype])  # noqa: E731
            ways.append(Way({"name": name}, [call], right, partial(code, call)))
        self.compare("same", ways, captured=False, dtype=dtype)

    def relu(self) -> None:
        x, _, _, out = self.draw("even", torch.float32)
        special = torch.tensor(VALUES, device=self.device)
        result = torch.empty_like(special)
        grid = (cdiv(x.numel(), BLOCK),)
        calls, values = {}, {}
        for form in RELUS:
            launch = partial(pointwise_kernels.relu_forms[grid], x, out, x.numel(), FORM=form, BLOCK=BLOCK)
            calls[form] = Launch(launch, out)
            with maximum_as_compiled():
                pointwise_kernels.relu_forms[(1,)](special, result, len(special), FORM=form, BLOCK=16)
            values[form] = [str(value) for value in result.tolist()]
        self.by_turns("relu", "even", "float32", calls, torch.relu(x.double()), 2 * x.nbytes)
        values["eager"] = [str(value) for value in torch.relu(special).tolist()]
        for name, texts in values.items():
            self.add("values", None, True, name=name, values=texts)


def gelu_call(form: str, x: Tensor, bias: Tensor, y: Tensor, out: Tensor, n: int = 0, same: int = 0) -> Launch:
    n = n or x.numel()
    names = {"COLUMNS": len(bias), "FORM": form, "SAME": same, "BLOCK": BLOCK}
    return Launch(partial(pointwise_kernels.gelu[(cdiv(n, BLOCK),)], x, bias, y, out, MULTIPLIER, n, **names), out)


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
    """Registers, instructions and accesses of a launch; {} in the interpreter, and of what returns nothing that was
    compiled: the op's own launcher, eager."""
    assembly = getattr(getattr(call, "compiled", None), "asm", None)
    if not assembly:
        return {}
    lines = sass(assembly["cubin"]) or []
    return call.code() | {
        "instructions": len(lines), "accesses": accesses(assembly["ptx"]),
        "branches": sum("BRA" in line or "CALL" in line for line in lines),
    }


main = Pointwise.main
