"""What the notebook says in numbers: `python -m lessons.n13_softmax_to_matrix_product --save`, on a GPU.

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
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from lessons.n13_softmax_to_matrix_product import tiled_cuda
from lessons.n13_softmax_to_matrix_product.launch import CANDIDATES, IN_PARTS, STEPS, TUNED, Config, fits, launch
from lessons.shared.experiment import Experiment, Launch, Way, failure
from model.config import Precision
from model.device import settings

TUNING_SECONDS = 60  # in all; what is not tried until then is not a candidate
IN_FLOAT32 = 2.0**-18  # a product may be off by this part of Σ |x| |weight|, and by eps of the result's own rounding
# DLRM's layers that are products of two matrices, in the notebooks' names: depth, columns, columns apart of the rows.
# `filled up` is as large as if x and the weight had a 368th column of zeros.
LAYERS = {
    "bottom 1": (13, 512, 13), "bottom 2": (512, 256, 512), "bottom 3": (256, 64, 256), "bottom 4": (64, 16, 64),
    "top 1": (367, 512, 367), "top 1 padded": (367, 512, 368), "top 1 filled up": (368, 512, 368),
}


@dataclass(frozen=True)
class Sizes:
    """squares: the largest first. batches: rows of the layers. banks: of its square. largest: tile's sides, of the
    interpreter, which is slow."""

    squares: tuple[int, ...] = (4096, 2048)
    batches: tuple[int, ...] = (2048, 65536)
    order: int = 8192
    layers: tuple[str, ...] = tuple(LAYERS)
    groups: tuple[int, ...] = (1, 4, 8, 16)
    exact: int = 2048
    banks: int = 2048
    naive: int = 4096
    largest: int = 1024


class Operands:
    """x, weight, bias and out of a shape, in several sets."""

    def __init__(self, experiment: Products, rows: int, depth: int, columns: int, apart: int, dtype: torch.dtype):
        draw = experiment.normal
        moved = (rows * (apart + columns) + columns * apart) * dtype.itemsize
        count = experiment.sets(moved)
        self.x = [draw(rows, apart, dtype=dtype)[:, :depth] for _ in range(count)]
        self.weight = draw(columns, apart, dtype=dtype)[:, :depth]
        self.bias = draw(columns, dtype=dtype)
        self.out = [torch.empty(rows, columns, dtype=dtype, device=experiment.device) for _ in range(count)]
        self.labels = {"rows": rows, "depth": depth, "columns": columns, "apart": apart}
        self.labels |= {"bytes": moved, "flops": 2 * rows * depth * columns}

    def ours(self, config: Config, epilogue: bool = True) -> list[Launch]:
        return [
            Launch(partial(launch, config, x, self.weight, self.bias, out, epilogue), out)
            for x, out in zip(self.x, self.out, strict=True)
        ]

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


class Products(Experiment):
    """What products.json has."""

    NAME = "products"
    PARTS = ("step", "layer", "order", "epilogue", "exact", "banks", "racecheck")
    COMMANDS = ("launch_once",)
    FULL = Sizes()
    SMALL = Sizes(
        squares=(16,), batches=(16,), order=16, groups=(1, 2), exact=32, banks=32, naive=4, largest=16,
        layers=("bottom 4",),
    )
    tuning = 0.0  # seconds until now

    def way(self, operands: Operands, config: Config, epilogue: bool = True, /, **labels) -> Way:
        launches = operands.ours(config, epilogue)

        def code() -> dict:
            shared = getattr(getattr(launches[0].compiled, "metadata", None), "shared", None)
            return launches[0].code() | ({} if shared is None else {"shared": shared})

        return Way(labels, launches, partial(operands.right, epilogue=epilogue), code)

    def cell(self, part: str, operands: Operands, configs: Mapping[str, Config], **labels) -> None:
        """cuBLAS and these configurations on the same operands, by turns; a row each."""
        ways = [self.way(operands, config, name=name, config=str(config)) for name, config in configs.items()]
        for name, calls in operands.cublas().items():
            right = partial(operands.right, epilogue=name != "mm", library=True)
            ways.append(Way({"name": name}, calls, right))
        self.compare(part, ways, **operands.labels, **labels)

    def quick(self, call: Callable, count: int = 5) -> float:
        """The least µs of a few calls, which follow each other."""
        if self.gpu is None:
            return self.times({"": call})[""][0]
        call()
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        torch.cuda._sleep(1_000_000)  # until all are enqueued
        for start, end in events:
            start.record()
            call()
            end.record()
        self.synchronize()
        return min(1e3 * start.elapsed_time(end) for start, end in events)

    def fastest(self, operands: Operands, record: bool = False) -> Config | None:
        """The candidate that is, of those that these operands allow, by a few runs each, until the time for tuning is
        spent."""
        times: dict[Config, float] = {}
        for config in map(self.shrunk, CANDIDATES):
            if not fits(config, operands.x[0], operands.weight, operands.out[0]):
                continue
            if self.tuning > TUNING_SECONDS:
                break
            start, call = time.perf_counter(), operands.ours(config)[0]
            try:
                operands.out[0].fill_(float("nan"))
                match = operands.right(*call())
                us = self.quick(call) if match else None
            except Exception as error:  # too much shared memory, say: then it is not the fastest
                match, us = failure(error).replace("FAILED", "not run"), None
            self.tuning += time.perf_counter() - start
            if us is not None:
                times[config] = us
            if record or us is None:
                self.add("candidate", [us] if us else None, match, config=str(config), **operands.labels)
        return min(times, key=times.get) if times else None

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

    def layer(self) -> None:
        for rows in self.sizes.batches:
            for name in self.sizes.layers:
                depth, columns, apart = LAYERS[name]
                operands = Operands(self, rows, depth, columns, apart, torch.bfloat16)
                tuned = self.fastest(operands)
                self.cell("layer", operands, {TUNED: tuned} if tuned else {}, layer=name)

    def order(self) -> None:
        size = self.sizes.order
        operands = Operands(self, size, size, size, size, torch.bfloat16)
        grouped = self.shrunk(STEPS["grouped"])
        ways = [self.way(operands, replace(grouped, group=group), group=group) for group in self.sizes.groups]
        self.compare("order", ways, **operands.labels)

    def epilogue(self) -> None:
        size = self.sizes.squares[0]
        operands = Operands(self, size, size, size, size, torch.bfloat16)
        for name in ("grouped", "persistent"):
            config = self.shrunk(STEPS[name])
            ways = [self.way(operands, config, epilogue, with_epilogue=epilogue) for epilogue in (False, True)]
            self.compare("epilogue", ways, name=name, **operands.labels)

    def exact(self) -> None:
        """cuBLAS in each precision. Each is a number of its own: no time."""
        n = self.sizes.exact
        x, w = self.normal(n, n), self.normal(n, n)
        for precision in Precision:
            if precision is Precision.TF32 and self.gpu is None:
                continue
            dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
            a, b = x.to(dtype), w.to(dtype)
            with settings(0, precision):
                got = torch.mm(a, b.T).double()
            size = x.double().abs() @ w.double().abs().T
            error = ((got - x.double() @ w.double().T).abs() / size).max()
            self.add("exact", None, bool(error <= 0.01), precision=str(precision), depth=n, error=float(error))

    def banks(self) -> None:
        if self.gpu is None:
            return
        n = self.sizes.banks
        x, weight, out = self.normal(n, n), self.normal(n, n), torch.empty(n, n, device=self.device)
        with settings(0, Precision.FP32):
            expected = x @ weight.T
        ways = [
            Way({"apart": 32 + pad}, [Launch(partial(tiled_cuda.compiled(pad), x, weight, out), out)],
                lambda out: torch.allclose(out, expected, rtol=1e-3, atol=1e-2))
            for pad in (0, 1)
        ]
        self.compare("banks", ways, rows=n, flops=2 * n**3)

    def racecheck(self) -> None:
        lines, why = tiled_cuda.racecheck() if self.gpu else ([], "not run")
        self.add("racecheck", None, True, lines=lines, why=why)

    def launch_once(self) -> None:
        """only start the larger square by some steps and by cuBLAS, once each: for ncu"""
        operands = Operands(self, *[self.sizes.squares[0]] * 4, torch.bfloat16)
        for name in ("grouped", "wider tiles", "persistent"):
            operands.ours(self.shrunk(STEPS[name]))[0]()
        operands.cublas()["mm"][0]()


main = Products.main
