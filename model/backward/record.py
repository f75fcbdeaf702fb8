"""What the notebook on a backward says in µs: `python -m model.backward --save`, on a GPU.

    step       a sum over the rows of [rows, 512] float32, by each step of kernels.py, and by PyTorch
    chunks     the last two steps, by the number of chunks
    tile       the last step, by the rows that a program reads at once
    order      some runs of a step on one input: in how many columns they differ, and how far from the exact sums
    op         add_mul_activation's backward, relu and gelu, by the number of chunks; sums: whether it has grad_bias
    training   its forward with gradients, and forward and backward together, by each implementation; kept: bytes that
               the forward leaves for the backward, beside its inputs and its output
    generated  what torch.compile writes for forward and backward: loads and stores
    copy       PyTorch's copy of 1 GiB

What is compared was measured by turns, as replays of CUDA graphs with a swept L2. Saved in
traces/results/<gpu>/backward.json. A part that fails is a row that says so, and the others go on.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels import add_mul_activation
from kernels.inductor.lower import fresh
from kernels.measure.clock import percentiles
from kernels.ops.add_mul_activation import eager
from kernels.ops.add_mul_activation.triton_launch import backward
from model.backward import here
from model.backward.facts import NAME, STEPS
from model.backward.steps import CHUNKS, launch
from model.gpu.record import Clock
from model.recorder import head

PARTS = ("step", "chunks", "tile", "order", "op", "training", "generated", "copy")
MULTIPLIER = 0.5


@dataclass(frozen=True)
class Sizes:
    """rows, columns: of all tensors. runs: of each step, to see whether they differ."""

    rows: int = 65536
    columns: int = 512
    step_chunks: int = CHUNKS
    chunks: tuple[int, ...] = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
    tiles: tuple[tuple[int, int], ...] = ((1, 32), (4, 32), (8, 32), (32, 32), (128, 32), (4, 128), (16, 128))
    op_chunks: tuple[int, ...] = (64, 128, 256, 384, 512, 768, 1024, 2048, 4096)
    runs: int = 50


# Through Triton's interpreter, to see that it runs.
SMALL = Sizes(rows=32, columns=20, step_chunks=2, chunks=(2,), tiles=((4, 32),), op_chunks=(2,), runs=2)


class Recorder:
    """Measures the parts; rows are printed as they come."""

    def __init__(self, device: torch.device, sizes: Sizes):
        self.device, self.sizes, self.clock = device, sizes, Clock(device)
        self.gpu = self.clock.gpu
        self.rows: list[dict] = []
        self.generated_code: dict[str, dict[str, list[str]]] = {}
        self.generator = torch.Generator(device).manual_seed(0)

    def whole(self) -> Tensor:
        """Numbers from -3 to 3: their sums are exact in float32, in any order."""
        shape = self.sizes.rows, self.sizes.columns
        return torch.randint(-3, 4, shape, generator=self.generator, device=self.device).float()

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device).to(dtype)

    def add(self, part: str, times: Sequence[float] | None, right: bool, **labels) -> None:
        """A row; without times if what was computed is wrong."""
        row = {"part": part, **labels, "match": "ok" if right else "FAILED: the result is wrong"}
        if right and times is not None:
            row |= dict(zip(("us_p20", "us_p50", "us_p80"), percentiles(list(times)), strict=True))
        self.rows.append(row)
        print(line(row), flush=True)

    def compare(self, part: str, calls: Mapping, right: Callable, **labels) -> None:
        """Rows of calls, {((label, value), …): call}; right(what a call returned): whether it is."""
        replays, kept, matches = {}, {}, {}
        for key, call in calls.items():
            if self.gpu is None:
                replays[key] = call
                matches[key] = right(call())
                continue
            self.gpu.on_side_stream(lambda call=call: [call() for _ in range(2)])  # compiles
            replays[key], kept[key] = self.gpu.capture(call)
            matches[key] = self._replayed(replays[key], kept[key], right)
        times = self.clock.times({key: replays[key] for key, match in matches.items() if match})
        for key, match in matches.items():
            if match and self.gpu is not None:  # once more: what is timed is what is checked
                match = self._replayed(replays[key], kept[key], right)
            self.add(part, times.get(key), match, **dict(key), **labels)
        if self.gpu is not None:
            replays.clear()
            kept.clear()
            self.gpu.clear()

    def _replayed(self, replay: Callable, result, right: Callable) -> bool:
        """Whether a replay gives what is right, where before there was NaN."""
        for tensor in (result,) if isinstance(result, Tensor) else result:
            tensor.detach().fill_(float("nan"))
        replay()
        torch.cuda.synchronize()
        return right(result)

    def step(self) -> None:
        x = self.whole()
        exact = x.double().sum(0).float()
        chunks = self.sizes.step_chunks
        calls = {(("step", step), ("chunks", chunks)): partial(launch, step, x, chunks) for step in STEPS}
        self.compare("step", calls, lambda result: torch.equal(result, exact), bytes=x.nbytes)

    def chunks(self) -> None:
        x = self.whole()
        exact = x.double().sum(0).float()
        calls = {(("step", step), ("chunks", chunks)): partial(launch, step, x, chunks)
                 for chunks in self.sizes.chunks for step in ("sum_atomic", "sum_chunk")}  # fmt: skip
        self.compare("chunks", calls, lambda result: torch.equal(result, exact), bytes=x.nbytes)

    def tile(self) -> None:
        x = self.whole()
        exact = x.double().sum(0).float()
        chunks = self.sizes.step_chunks
        calls = {(("tile_rows", rows), ("block", block)): partial(launch, "sum_chunk", x, chunks, rows, block)
                 for rows, block in self.sizes.tiles}  # fmt: skip
        self.compare("tile", calls, lambda result: torch.equal(result, exact), bytes=x.nbytes, chunks=chunks)

    def order(self) -> None:
        """Of columns whose numbers are normal: those in which some runs give different bits."""
        x = self.normal(self.sizes.rows, self.sizes.columns)
        exact, size = x.double().sum(0), x.double().abs().sum(0)
        for step in STEPS:
            runs = torch.stack([launch(step, x, self.sizes.step_chunks) for _ in range(self.sizes.runs)])
            differing = int((runs != runs[0]).any(0).sum())
            most = max(len(column.unique()) for column in runs.T)
            errors = (runs[0].double() - exact).abs()
            self.add(
                "order", None, bool((errors <= 1e-5 * size).all()), step=step, runs=self.sizes.runs,
                differing=differing, columns=self.sizes.columns, most=most,
                error=float(errors.median()), worst=float(errors.max()),
            )  # fmt: skip

    def op(self) -> None:
        shape = self.sizes.rows, self.sizes.columns
        x, y, bias, grad = (self.whole(), self.whole(), self.whole()[0].clone(), self.whole())
        for activation in ("relu", "gelu"):
            out = eager.add_mul_activation(x, bias, y, MULTIPLIER, activation)
            exact = gradients(eager.add_mul_activation, (x, bias, y), grad, activation, torch.float64)
            read = (out, None, None, None) if activation == "relu" else (None, x, bias, y)

            def call(chunks: int, sums: bool, read=read, activation=activation):
                grad_x, grad_y = torch.empty_like(grad), torch.empty_like(grad)
                grad_bias = grad.new_empty(shape[1]) if sums else None
                backward(grad, *read, MULTIPLIER, activation, grad_x, grad_bias, grad_y, chunks=chunks)
                return (grad_x, grad_bias, grad_y) if sums else (grad_x, grad_y)

            def right(found, exact=exact):
                return close(found, exact if len(found) == 3 else exact[::2])

            calls = {(("chunks", chunks), ("sums", sums)): partial(call, chunks, sums)
                     for chunks in self.sizes.op_chunks for sums in (True, False)}  # fmt: skip
            self.compare("op", calls, right, activation=activation)

    def training(self) -> None:
        names = ["eager", "triton"] + ["torch.compile"] * (self.gpu is not None)
        for activation in ("relu", "gelu"):
            self._training(activation, names)

    def _training(self, activation: str, names: Sequence[str], dtype: torch.dtype = torch.float32) -> None:
        rows, columns = self.sizes.rows, self.sizes.columns
        x, bias, y = (self.normal(*shape, dtype=dtype) for shape in ((rows, columns), (columns,), (rows, columns)))
        if activation == "relu":  # where z is near 0, rounding would decide which side of the kink it is on
            z = eager.add_mul_activation(x, bias, y, MULTIPLIER, "identity")
            x = x + torch.where(z > 0, 0.5, -0.5).to(dtype)
        leaves = tuple(each.detach().requires_grad_() for each in (x, bias, y))
        grad = self.normal(rows, columns, dtype=dtype)
        exact = gradients(eager.add_mul_activation, leaves, grad, activation, torch.float64)
        out_exact = eager.add_mul_activation(*(each.detach().double() for each in leaves), MULTIPLIER, activation)
        functions = {name: implementation(name, activation) for name in names}
        labels = {"activation": activation, "dtype": str(dtype).removeprefix("torch.")}

        def both(function):
            return torch.autograd.grad(function(*leaves), leaves, grad)

        kept = {name: self._kept(function, leaves) for name, function in functions.items()}
        for what, make in (("forward", lambda f: partial(f, *leaves)), ("both", lambda f: partial(both, f))):
            calls = {(("what", what), ("implementation", name), ("kept", kept[name])): make(function)
                     for name, function in functions.items()}  # fmt: skip
            expected = (out_exact,) if what == "forward" else exact
            self.compare("training", calls, lambda found, e=expected: close(found, e), **labels)

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
        for activation in ("relu", "gelu"):
            forward, after = here.modules(activation, self.sizes.rows)
            found = {"forward": here.lines_of(forward), "backward": here.lines_of(after)}
            self.generated_code[activation] = found
            print(*(text for lines in found.values() for text in lines), sep="\n", flush=True)

    def copy(self) -> None:
        if self.gpu is None:
            return
        row = self.gpu.copy(NAME)
        self.rows.append({"part": "copy", "bytes": row.bytes, "us_p20": row.us_p20, "us_p50": row.us_p50,
                          "us_p80": row.us_p80, "match": row.match})  # fmt: skip
        print(line(self.rows[-1]), flush=True)

    def measure(self, parts: Sequence[str] = PARTS) -> list[dict]:
        for part in parts:
            try:
                getattr(self, part)()
            except Exception as error:  # the other parts' rows are worth having
                traceback.print_exc()
                self.rows.append({"part": part, "match": f"FAILED: {type(error).__name__}: {str(error)[:300]}"})
            if self.gpu is not None:
                self.gpu.clear()
        return self.rows


def implementation(name: str, activation: str) -> Callable:
    """f(x, bias, y) → out."""
    if name == "triton":
        return lambda x, bias, y: add_mul_activation(x, bias, y, MULTIPLIER, activation, backend="triton")

    def formula(x, bias, y):
        return eager.add_mul_activation(x, bias, y, MULTIPLIER, activation)

    return torch.compile(fresh(formula), dynamic=False) if name == "torch.compile" else formula


def gradients(
    function: Callable, inputs: Sequence[Tensor], grad: Tensor, activation: str, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Of x, bias and y, computed in dtype."""
    leaves = [each.detach().to(dtype).requires_grad_() for each in inputs]
    return torch.autograd.grad(function(*leaves, MULTIPLIER, activation), leaves, grad.to(dtype))


def close(found: Tensor | Sequence[Tensor], exact: Sequence[Tensor]) -> bool:
    """To within some roundings; of a sum over rows, grad_bias, to within some of its terms' magnitude."""
    for got, want in zip((found,) if isinstance(found, Tensor) else found, exact, strict=True):
        epsilon = torch.finfo(got.dtype).eps
        size = want.abs() if got.dim() > 1 else exact[0].abs().sum(0)
        # Eager rounds each step in between to its dtype: what cancels keeps the error of its terms.
        if not ((got.double() - want).abs() <= 16 * epsilon * (size + 1)).all():
            return False
    return True


def line(row: Mapping) -> str:
    """The row as a line of text."""
    hidden = {"part", "match", "us_p20", "us_p50", "us_p80", "bytes"}
    labels = " ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
                      for name, value in row.items() if name not in hidden)  # fmt: skip
    shown = ""
    if "us_p50" in row:
        shown = f"{row['us_p50']:.2f} µs ({row['us_p20']:.2f} to {row['us_p80']:.2f})"
    return f"{row['part']:8} {labels:70} {shown}  {row['match']}"


def record(device: torch.device, parts: Sequence[str] = PARTS, sizes: Sizes | None = None) -> dict:
    """What is saved in traces/results/<gpu>/backward.json."""
    recorder = Recorder(device, sizes or Sizes())
    rows = recorder.measure(parts)
    return head(NAME, "python -m model.backward") | {"generated": recorder.generated_code, "rows": rows}
