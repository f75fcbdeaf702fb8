"""What a call costs, by what stands around the kernel: `python -m model.make_op --save`, on a GPU.

    call       relu(x + bias) of 64×64 float32, µs a call from Python: PyTorch's x + 1 and its two kernels, Triton's
               launcher, the op by torch.library (custom_op; define and impl; both around PyTorch's formula too), our
               declaration (a cubin, CUDA), and a call in the replay of a CUDA graph
    gradient   the same with a gradient recorded
    wall       relu(x + bias) * 2 by torch.compile, 65536×512 float32, GPU time: the formula, and the op as a node

Saved in traces/results/<gpu>/make_op.json. A part that fails is a row that says so; the others are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import kernels as ops
from kernels import runtime
from kernels.measure.clock import Gpu, batches, percentiles, timer
from model.make_op import kernels, library
from model.make_op.facts import NAME
from model.recorder import head

PARTS = ("call", "gradient", "wall")
TOGETHER = 20  # calls in the larger CUDA graph


@dataclass(frozen=True)
class Sizes:
    """small: of a call; large: of `wall`. calls in a batch, and batches of each function."""

    small: tuple[int, int] = (64, 64)
    large: tuple[int, int] = (65536, 512)
    calls: int = 500
    batches: int = 25
    backend: str = "inductor"  # of torch.compile


# Through Triton's interpreter, to see that it runs.
SMALL = Sizes(small=(4, 8), large=(8, 16), calls=1, batches=1, backend="aot_eager")


class Recorder:
    """Measures the parts; rows are printed as they come."""

    def __init__(self, device: torch.device, sizes: Sizes):
        self.device, self.sizes = device, sizes
        self.gpu = Gpu() if device.type == "cuda" else None
        self.rows: list[dict] = []

    def operands(self, shape: tuple[int, int], requires_grad: bool = False) -> tuple[Tensor, Tensor]:
        generator = torch.Generator(self.device).manual_seed(0)
        x, bias = (torch.randn(*s, generator=generator, device=self.device) for s in (shape, shape[1:]))
        return x.requires_grad_(requires_grad), bias.requires_grad_(requires_grad)

    def add(self, part: str, name: str, times: Iterable[float] | None, match: str, **labels) -> None:
        """A row; without times if what was computed is wrong."""
        row = {"part": part, "name": name, **labels, "match": match}
        if match in ("ok", "baseline") and times is not None:
            row |= dict(zip(("us_p20", "us_p50", "us_p80"), percentiles(list(times)), strict=True))
        self.rows.append(row)
        print(line(row), flush=True)

    def _synchronize(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def time_calls(
        self, part: str, functions: Mapping[str, Callable[[], Tensor]], expected: Tensor, each: Mapping[str, int]
    ) -> None:
        """µs a call of each, by turns, until the GPU has done them. Their results are looked at before; `each`: how
        often one function calls."""
        matches = {name: "baseline" if name == "x + 1" else matched(run(), expected) for name, run in functions.items()}
        timers = {name: timer(run) for name, run in functions.items() if matches[name] in ("ok", "baseline")}
        found = batches(timers, self.sizes.calls, self.sizes.batches, self._synchronize, waits=True)
        for name, match in matches.items():
            if match == "ok":
                match = matched(functions[name](), expected)
            many = each.get(name, 1)
            us = [us / many for us in found[name]] if name in found else None
            self.add(part, name, us, match, rows=expected.shape[0], columns=expected.shape[1], calls=many)

    def ways(self, x: Tensor, bias: Tensor) -> dict[str, Callable[[], Tensor]]:
        """The ways to relu(x + bias) that take a gradient."""
        decorated, defined = library.by_decorator(), library.by_define()
        decorated_torch, defined_torch = library.by_decorator("torch"), library.by_define("torch")
        found = {
            "relu(x + bias)": lambda: torch.relu(x + bias),
            "torch.library": lambda: decorated(x, bias),
            "torch.library, define": lambda: defined(x, bias),
            "formula in torch.library": lambda: decorated_torch(x, bias),
            "formula in torch.library, define": lambda: defined_torch(x, bias),
            "triton": lambda: ops.add_relu(x, bias, backend="triton"),
        }
        if self.gpu and not runtime.why_not("cuda", "cuda"):
            found["cuda"] = lambda: ops.add_relu(x, bias, backend="cuda")
        return found

    def call(self) -> None:
        x, bias = self.operands(self.sizes.small)
        out, expected = torch.empty_like(x), torch.relu(x + bias)
        functions = {
            "x + 1": lambda: x + 1,
            "launcher": lambda: kernels.add_relu(x, bias),
            "launcher, output given": lambda: kernels.launch(x, bias, out),
            **self.ways(x, bias),
        }
        each = {}
        if self.gpu:
            for count in (1, TOGETHER):
                name = f"graph of {count}"
                functions[name], each[name] = self._replay(x, bias, count), count
        with torch.no_grad():
            self.time_calls("call", functions, expected, each)

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
        for name, run in self.ways(x, bias).items():  # a gradient that is wrong is a row without a time
            both = run, lambda: torch.relu(x + bias)
            got, right = (torch.autograd.grad(function().square().sum(), (x, bias)) for function in both)
            if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(got, right, strict=True)):
                self.add("gradient", name, None, "FAILED: the gradient is wrong")
        failed = {row["name"] for row in self.rows if row["part"] == "gradient"}
        ways = {name: run for name, run in self.ways(x, bias).items() if name not in failed}
        self.time_calls("gradient", ways, expected, {})

    def wall(self) -> None:
        """GPU time of what torch.compile makes; of the op it knows its fake alone."""
        x, bias = self.operands(self.sizes.large)
        op, expected = library.by_decorator(), torch.relu(x + bias) * 2
        written = {"formula": lambda x, bias: torch.relu(x + bias) * 2, "op": lambda x, bias: op(x, bias) * 2}
        for name, function in written.items():
            compiled = torch.compile(function, fullgraph=True, backend=self.sizes.backend)
            with torch.no_grad():
                match = matched(compiled(x, bias), expected)
                times = self._gpu_times(compiled, x, bias) if match == "ok" else None
            self.add("wall", name, times, match, rows=x.shape[0], columns=x.shape[1])
        torch._dynamo.reset()

    def _gpu_times(self, compiled: Callable, x: Tensor, bias: Tensor) -> list[float]:
        if self.gpu is None:
            return batches({"": timer(lambda: compiled(x, bias))}, 1, 1, lambda: None)[""]
        self.gpu.on_side_stream(lambda: compiled(x, bias))
        replay, _ = self.gpu.capture(lambda: compiled(x, bias))
        found = self.gpu.times({"": replay})[""]
        self.gpu.clear()
        return found

    def measure(self, parts: Sequence[str] = PARTS) -> list[dict]:
        for part in parts:
            try:
                getattr(self, part)()
            except Exception as error:
                self.add(part, "all", None, f"FAILED: {type(error).__name__}: {str(error)[:300]}")
            if self.gpu:
                self.gpu.clear()  # a pool of memory ends with its graphs, and no graph may be captured into it then
        return self.rows


def matched(got: Tensor, expected: Tensor) -> str:
    """relu(x + bias) is one addition: any way to it gives the same bits, the sign of a zero aside."""
    return "ok" if torch.equal(got, expected) else "FAILED: the result is wrong"


def line(row: Mapping) -> str:
    """The row as a line of text."""
    shown = f"{row['us_p50']:.2f} µs ({row['us_p20']:.2f} to {row['us_p80']:.2f})" if "us_p50" in row else ""
    return f"{row['part']:9} {row['name']:34} {shown}  {row['match']}"


def record(device: torch.device, parts: Sequence[str] = PARTS, sizes: Sizes | None = None) -> dict:
    """What is saved in traces/results/<gpu>/make_op.json."""
    rows = Recorder(device, sizes or Sizes()).measure(parts)
    return head(NAME, "python -m model.make_op") | {"rows": rows}
