"""What the notebook on softmax and products says in numbers: `python -m model.products --save`, on a GPU.

    step       relu(x weightᵀ + bias) of squares in bfloat16, by each step's kernel, and by cuBLAS; of the largest, also
               by the step `descriptors` whose tiles are stored in two parts: two programs have room in an SM
    candidate  of the largest square: every configuration that the tuned step was chosen from
    layer      DLRM's layers in bfloat16: the fastest of the candidates, and cuBLAS
    order      the step `grouped` with other sizes of the group, of a square that the L2 does not hold
    epilogue   the steps `grouped` and `persistent`, as the product alone and with bias and relu
    exact      the largest error of fp32, tf32 and bf16, as part of the largest magnitude Σ |x| |weight|
    banks      the CUDA kernel of tiled.cuh, whose rows in shared memory are 32 numbers apart, or 33
    racecheck  what compute-sanitizer says of that kernel without its second barrier

cuBLAS: torch.mm alone ("mm"), torch.addmm and relu ("addmm, relu"), and with the epilogue in its kernel ("fused").
Saved in traces/results/<gpu>/products.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.measure.clock import Gpu, batches, percentiles, timer
from model.config import Precision
from model.device import settings
from model.products import cuda
from model.products.launch import CANDIDATES, IN_PARTS, STEPS, TUNED, Config, fits, launch
from model.recorder import head

NAME = "products"
PARTS = ("step", "layer", "order", "epilogue", "exact", "banks", "racecheck")
TUNING_SECONDS = 60  # in all; what is not tried until then is not a candidate
IN_FLOAT32 = 2.0**-18  # a product may be off by this part of Σ |x| |weight|, and by eps of the result's own rounding
# DLRM's layers that are products of two matrices, in the notebooks' names: depth, columns, columns apart of the rows.
# `filled up` is as large as if x and the weight had a 368th column of zeros.
LAYERS = {
    "bottom 1": (13, 512, 13), "bottom 2": (512, 256, 512), "bottom 3": (256, 64, 256), "bottom 4": (64, 16, 64),
    "top 1": (367, 512, 367), "top 1 padded": (367, 512, 368), "top 1 filled up": (368, 512, 368),
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """squares: the largest first. batches: rows of the layers. banks: of its square. largest: tile's sides, of the
    interpreter, which is slow."""

    squares: tuple[int, ...] = (4096, 2048)
    batches: tuple[int, ...] = (2048, 65536)
    order: int = 8192
    groups: tuple[int, ...] = (1, 4, 8, 16)
    exact: int = 2048
    banks: int = 2048
    naive: int = 4096
    largest: int = 1024


# Through Triton's interpreter, to see that it runs.
SMALL = Sizes(squares=(64,), batches=(32,), order=64, groups=(1, 2), exact=32, banks=32, naive=4, largest=32)


class Clock:
    """µs of functions, by turns: on a GPU as CUDA graphs, each with a swept L2 (kernels.measure.clock.Gpu)."""

    def __init__(self, device: torch.device):
        self.gpu = Gpu() if device.type == "cuda" else None

    def times(self, functions: Mapping[str, Sequence[Callable]]) -> dict[str, list[float]]:
        """name → calls that differ in their operands only → µs of one of them."""
        if self.gpu is None:
            return batches({name: timer(calls[0]) for name, calls in functions.items()}, 1, 1, lambda: None)
        replays = {}
        for name, calls in functions.items():
            for call in calls[:2]:
                self.gpu.on_side_stream(call)
            replays[name], _ = self.gpu.capture(lambda calls=calls: tuple(call() for call in calls))
        found = self.gpu.times(replays)
        self.gpu.clear()
        return {name: [us / len(functions[name]) for us in times] for name, times in found.items()}

    def quick(self, call: Callable, count: int = 5) -> float:
        """The least µs of a few calls, which follow each other."""
        if self.gpu is None:
            return min(batches({"": timer(call)}, 1, 1, lambda: None)[""])
        call()
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        torch.cuda._sleep(1_000_000)  # until all are enqueued
        for start, end in events:
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return min(1e3 * start.elapsed_time(end) for start, end in events)


class Operands:
    """x, weight, bias and out of a shape, in several sets that together are more than the L2 holds."""

    def __init__(self, recorder: Recorder, rows: int, depth: int, columns: int, apart: int, dtype: torch.dtype):
        draw = recorder.normal
        moved = (rows * (apart + columns) + columns * apart) * dtype.itemsize
        count = 1 if moved > 2**27 or recorder.clock.gpu is None else min(16, max(2, 2**27 // moved))
        self.x = [draw(rows, apart, dtype=dtype)[:, :depth] for _ in range(count)]
        self.weight = draw(columns, apart, dtype=dtype)[:, :depth]
        self.bias = draw(columns, dtype=dtype)
        self.out = [torch.empty(rows, columns, dtype=dtype, device=recorder.device) for _ in range(count)]
        self.labels = {"rows": rows, "depth": depth, "columns": columns, "apart": apart}
        self.labels |= {"bytes": moved, "flops": 2 * rows * depth * columns}

    def ours(self, config: Config, epilogue: bool = True) -> list[Callable]:
        def call(x: Tensor, out: Tensor) -> Callable:
            def run():
                launch(config, x, self.weight, self.bias, out, epilogue)
                return out

            return run

        return [call(x, out) for x, out in zip(self.x, self.out, strict=True)]

    def cublas(self) -> dict[str, list[Callable]]:
        w, bias = self.weight.T, self.bias
        ways = {"mm": lambda x: torch.mm(x, w), "addmm, relu": lambda x: torch.addmm(bias, x, w).relu_()}
        if self.x[0].is_cuda:
            ways["fused"] = lambda x: torch._addmm_activation(bias, x, w)
        return {name: [lambda x=x, way=way: way(x) for x in self.x] for name, way in ways.items()}

    def right(self, result: Tensor, epilogue: bool = True, library: bool = False, some: int = 64) -> bool:
        """Whether the first and last rows are as exact as sums in float32 allow. library: cuBLAS may round sums of
        parts of K to bfloat16, each about as large as the root of its terms' squares."""
        rows = sorted({*range(min(some, len(result))), *range(max(0, len(result) - some), len(result))})
        x, got = self.x[0][rows].double(), result[rows].double()
        w, bias = self.weight.double(), self.bias.double()
        exact, size, eps = x @ w.T, x.abs() @ w.abs().T, torch.finfo(result.dtype).eps
        if epilogue:
            exact, size = (exact + bias).relu(), size + bias.abs()
        allowed = eps * exact.abs() + IN_FLOAT32 * size
        if library:
            allowed += 4 * eps * ((x * x) @ (w * w).T + bias * bias).sqrt()
        return bool(((got - exact).abs() <= allowed).all())


class Recorder:
    """Measures the parts; rows are printed as they come. A part that fails is a row with its error."""

    def __init__(self, device: torch.device, sizes: Sizes):
        self.device, self.sizes, self.clock = device, sizes, Clock(device)
        self.rows: list[dict] = []
        self.generator = torch.Generator(device).manual_seed(0)
        self.tuning = 0.0

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device, dtype=torch.float32).to(dtype)

    def add(self, part: str, times: Sequence[float] | None, match: bool | str, **labels) -> None:
        """A row; without times if what was computed is wrong."""
        said = match if isinstance(match, str) else "ok" if match else "FAILED: the result is wrong"
        row = {"part": part, **labels, "match": said}
        if said == "ok" and times is not None:
            row |= dict(zip(("us_p20", "us_p50", "us_p80"), percentiles(list(times)), strict=True))
        self.rows.append(row)
        print(line(row), flush=True)

    def cell(self, part: str, operands: Operands, configs: Mapping[str, Config], **labels) -> None:
        """cuBLAS and these configurations on the same operands, by turns; a row each."""
        calls, said, compiled = {}, {}, {}
        for name, config in configs.items():
            try:
                operands.out[0].fill_(float("nan"))
                made = launch(config, operands.x[0], operands.weight, operands.bias, operands.out[0])
                said[name] = operands.right(operands.out[0])
                compiled[name] = {"registers": getattr(made, "n_regs", None), "spills": getattr(made, "n_spills", None),
                                  "shared": getattr(getattr(made, "metadata", None), "shared", None)}  # fmt: skip
            except Exception as error:  # one configuration that cannot be compiled does not lose the others
                said[name] = f"FAILED: {type(error).__name__}: {str(error)[:200]}"
            if said[name] is True:
                calls[name] = operands.ours(config)
        for name, ways in operands.cublas().items():
            try:
                said[name] = operands.right(ways[0](), epilogue=name != "mm", library=True)
            except Exception as error:
                said[name] = f"FAILED: {type(error).__name__}: {str(error)[:200]}"
            calls[name] = ways
        times = self.clock.times({name: some for name, some in calls.items() if said[name] is True})
        for name, match in said.items():
            config = {"config": str(configs[name]), **compiled.get(name, {})} if name in configs else {}
            self.add(part, times.get(name), match, name=name, **operands.labels, **config, **labels)

    def fastest(self, operands: Operands, record: bool = False) -> Config | None:
        """Of the candidates that these operands allow, by a few runs each, until the time for tuning is spent."""
        found: dict[Config, float] = {}
        for config in map(self.shrunk, CANDIDATES):
            if not fits(config, operands.x[0], operands.weight, operands.out[0]):
                continue
            if self.tuning > TUNING_SECONDS:
                break
            start, call = time.perf_counter(), operands.ours(config)[0]
            try:
                operands.out[0].fill_(float("nan"))
                match = operands.right(call())
                us = self.clock.quick(call) if match else None
            except Exception as error:  # too much shared memory, say: then it is not the fastest
                match, us = f"not run: {type(error).__name__}: {str(error)[:200]}", None
            self.tuning += time.perf_counter() - start
            if us is not None:
                found[config] = us
            if record or us is None:
                self.add("candidate", [us] if us else None, match, config=str(config), **operands.labels)
        return min(found, key=found.get) if found else None

    def shrunk(self, config: Config) -> Config:
        """With tiles that the interpreter can take in a second."""
        most = self.sizes.largest
        sides = {name: min(getattr(config, name), most) for name in ("rows", "columns", "step")}
        return replace(config, **sides)

    def step(self) -> None:
        for size in self.sizes.squares:
            operands = Operands(self, size, size, size, size, torch.bfloat16)
            configs = {name: self.shrunk(config) for name, config in STEPS.items()}
            if size == self.sizes.squares[0]:
                configs[IN_PARTS] = replace(configs["descriptors"], parts=2)
            if size > self.sizes.naive:
                configs.pop("naive")
            if tuned := self.fastest(operands, record=size == self.sizes.squares[0]):
                configs[TUNED] = tuned
            self.cell("step", operands, configs)
            del operands

    def layer(self) -> None:
        for rows in self.sizes.batches:
            for name, (depth, columns, apart) in LAYERS.items():
                operands = Operands(self, rows, depth, columns, apart, torch.bfloat16)
                tuned = self.fastest(operands)
                self.cell("layer", operands, {TUNED: tuned} if tuned else {}, layer=name)
                del operands

    def order(self) -> None:
        size = self.sizes.order
        operands, calls, match = Operands(self, size, size, size, size, torch.bfloat16), {}, {}
        for group in self.sizes.groups:
            config = replace(self.shrunk(STEPS["grouped"]), group=group)
            operands.out[0].fill_(float("nan"))
            calls[group] = operands.ours(config)
            match[group] = operands.right(calls[group][0]())
        for group, times in self.clock.times(calls).items():
            self.add("order", times, match[group], group=group, **operands.labels)

    def epilogue(self) -> None:
        size = self.sizes.squares[0]
        operands = Operands(self, size, size, size, size, torch.bfloat16)
        for name, config in (("grouped", STEPS["grouped"]), ("persistent", STEPS["persistent"])):
            config, calls, made, match = self.shrunk(config), {}, {}, {}
            for epilogue in (False, True):
                arguments = config, operands.x[0], operands.weight, operands.bias, operands.out[0], epilogue
                made[epilogue] = getattr(launch(*arguments), "n_regs", None)
                match[epilogue] = operands.right(operands.out[0], epilogue)
                calls[epilogue] = operands.ours(config, epilogue)
            times = self.clock.times(calls)
            for epilogue in calls:
                labels = {"name": name, "with_epilogue": epilogue, "registers": made[epilogue]}
                self.add("epilogue", times[epilogue], match[epilogue], **labels, **operands.labels)

    def exact(self) -> None:
        """cuBLAS in each precision. Each is a number of its own: no time."""
        n = self.sizes.exact
        x, w = self.normal(n, n), self.normal(n, n)
        for precision in Precision:
            if precision is Precision.TF32 and self.device.type != "cuda":
                continue
            dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
            a, b = x.to(dtype), w.to(dtype)
            with settings(0, precision):
                got = torch.mm(a, b.T).double()
            size = x.double().abs() @ w.double().abs().T
            error = ((got - x.double() @ w.double().T).abs() / size).max()
            self.add("exact", None, True, precision=str(precision), depth=n, error=float(error))

    def banks(self) -> None:
        if self.device.type != "cuda":
            return
        n = self.sizes.banks
        x, weight, out = self.normal(n, n), self.normal(n, n), torch.empty(n, n, device=self.device)
        calls, right = {}, {}
        with settings(0, Precision.FP32):
            expected = x @ weight.T
        for pad in (0, 1):
            run = cuda.compiled(pad)
            calls[pad] = [lambda run=run: run(x, weight, out)]
            calls[pad][0]()
            right[pad] = torch.allclose(out, expected, rtol=1e-3, atol=1e-2)
            out.fill_(float("nan"))
        for pad, times in self.clock.times(calls).items():
            self.add("banks", times, right[pad], apart=32 + pad, rows=n, flops=2 * n**3)

    def racecheck(self) -> None:
        lines, why = cuda.racecheck() if self.device.type == "cuda" else ([], "not run")
        self.rows.append({"part": "racecheck", "lines": lines, "why": why, "match": "ok"})
        print(f"racecheck {len(lines)} lines {why}", flush=True)

    def measure(self, parts: Sequence[str] = PARTS) -> list[dict]:
        for part in parts:
            try:
                getattr(self, part)()
            except Exception as error:  # the other parts are still measured
                self.add(part, None, f"FAILED: {type(error).__name__}: {str(error)[:300]}")
            if self.clock.gpu:
                self.clock.gpu.clear()
        return self.rows


def line(row: Mapping) -> str:
    """The row as a line of text."""
    labels = " ".join(
        f"{name} {row[name]}" for name in
        ("layer", "name", "rows", "depth", "columns", "apart", "config", "precision", "with_epilogue", "registers",
         "spills", "shared") if row.get(name) is not None
    )  # fmt: skip
    shown = f"{row['error']:.3g}" if "error" in row else ""
    if "us_p50" in row:
        shown = f"{row['us_p50']:.2f} µs ({row['us_p20']:.2f} to {row['us_p80']:.2f})"
        shown += f", {row['flops'] / row['us_p50'] / 1e6:.1f} TFLOP/s" if "flops" in row else ""
    return f"{row['part']:9} {labels:60} {shown}  {row['match']}"


def launch_once(device: torch.device, sizes: Sizes) -> None:
    """The larger square by the steps `grouped`, `wider tiles` and `persistent` and by cuBLAS, once each: for ncu."""
    recorder = Recorder(device, sizes)
    operands = Operands(recorder, *[sizes.squares[0]] * 4, torch.bfloat16)
    for name in ("grouped", "wider tiles", "persistent"):
        operands.ours(recorder.shrunk(STEPS[name]))[0]()
    operands.cublas()["mm"][0]()


def record(device: torch.device, parts: Sequence[str] = PARTS, sizes: Sizes | None = None) -> dict:
    """What is saved in traces/results/<gpu>/products.json."""
    rows = Recorder(device, sizes or Sizes()).measure(parts)
    return head(NAME, "python -m model.products") | {"rows": rows}
