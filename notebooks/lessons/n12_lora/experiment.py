"""What the notebook on LoRA says in µs: `python -m lessons.n12_lora --save`, on a GPU.

    layer      relu(x Wᵀ + bias + multiplier (x A) B), forward, bfloat16, by all ways of the notebook; of several shapes
    training   its forward and backward: eager, torch.compile, what follows the products in one op
    tiles      LoRA's kernel alone, by its tile
    adapters   (x A) B where each row chooses one of many adapters, by several ways; peak_bytes: at most, beside what
               went in
    crossing   the same with more and with fewer adapters: from how many on groups are faster than the mask

us_p20 to us_p80: of a call on the GPU, by replays of a CUDA graph of `calls` calls, the L2 swept before each; each call
has an input of its own, together more than the L2 holds, but for the smallest shape. host_us: until a call is back in
Python. call_us: from call to call, the last one waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import add_mul_activation, runtime
from kernels.measure.clock import percentiles
from lessons.n12_lora import ways
from lessons.n12_lora.lora_kernel import launch, lora_kernel
from lessons.shared.experiment import Experiment, Outputs, Way, tensors

EAGER, COMPILED, AUTOTUNED, KERNEL, MERGED = "eager", "torch.compile", "max-autotune", "LoRA kernel", "merged"
ONE_PRODUCT, RELU_INSIDE, IN_PLACE = "one product", "one product, relu inside", "addmm_"
MASKED, GROUPED = "all, masked", "sorted, groups"  # as the record has them
# The length of the error beside the result's. A gradient's is more: where z is nearly 0, rounding decides whether
# relu lets it through, and one column in some hundreds is let through or not.
CLOSE, CLOSE_GRADIENT = 0.02, 0.1


@dataclass(frozen=True)
class Sizes:
    """shapes: (rows, width) of the layers; the last one is autotuned, and taken apart. tiles: (rows, columns) of
    LoRA's kernel. adapters: (rows, width, how many, their rank); counts: how many in `crossing`. calls: of a batch
    whose calls are timed."""

    shapes: tuple[tuple[int, int], ...] = ((64, 1024), (8192, 1024), (8192, 4096))
    rank: int = 16
    tiles: tuple[tuple[int, int], ...] = ((32, 128), (64, 64), (64, 128), (64, 256), (128, 128))
    adapters: tuple[int, int, int, int] = (4096, 4096, 100, 16)
    counts: tuple[int, ...] = (50, 200, 400)
    calls: int = 20
    compiler: str = "inductor"


class Lora(Experiment):
    """What lora.json has."""

    NAME = "lora"
    PARTS = ("layer", "training", "tiles", "adapters", "crossing")
    FULL = Sizes()
    SMALL = Sizes(((4, 16),), 16, ((16, 16),), (6, 16, 3, 8), (2, 3), calls=1, compiler="eager")

    def __init__(self, device: torch.device, sizes: Sizes | None = None):
        super().__init__(device, sizes)
        self.dtype = torch.bfloat16 if self.gpu else torch.float32
        self.backends = [name for name, why in runtime.backends(device).items() if name != "eager" and not why]
        torch.manual_seed(0)

    def _rows(
        self, part: str, calls: Mapping[str, Callable], judged: Mapping[str, tuple], count: int,
        more: Mapping[str, dict] | None = None, **labels,
    ) -> None:
        """A row a call, judged by what it must give. count: how many are captured together, call(0), call(1), …"""
        heavy = labels.get("rows", 0) * labels.get("width", 1) >= 2**24
        calls_of_batch = max(1, self.sizes.calls // 4) if heavy else self.sizes.calls

        def from_python(functions: Mapping[int, Callable]) -> dict[int, dict]:
            host = self.call_times(functions, min(5, calls_of_batch), 9, waits=False)
            whole = self.call_times(functions, calls_of_batch, 7)
            names = ("call_us_low", "call_us", "call_us_high")
            return {
                number: {"host_us": percentiles(host[number])[1]}
                | dict(zip(names, percentiles(whole[number]), strict=True))
                for number in functions
            }

        candidates = [
            Way(
                {"variant": name, "calls": count, **(more or {}).get(name, {})},
                [call, *(partial(call, k) for k in range(1, count))],
                partial(close, wanted=judged[name]),
            )
            for name, call in calls.items()
        ]
        self.compare(part, candidates, also=from_python, **labels)

    # ------------------------------------------------------------------------------------------------- one layer

    def layer(self) -> None:
        for shape in self.sizes.shapes:
            torch._dynamo.reset()
            self._forwards(shape)

    @torch.no_grad()
    def _forwards(self, shape: tuple[int, int]) -> None:
        inputs, (W, bias, A, B, multiplier) = self._layer(*shape)
        layer = W, bias, A, B, multiplier
        both, merged = torch.cat([W, B.T], 1), ways.merge(W, A, B, multiplier)
        exact = ways.eager(*(x.float() for x in (inputs[0], W, bias, A, B)), multiplier)
        functions = self._trainable() | {KERNEL: ways.by_kernel, IN_PLACE: ways.in_place}
        if self.gpu and shape == self.sizes.shapes[-1]:
            functions[AUTOTUNED] = torch.compile(ways.eager, dynamic=False, mode="max-autotune-no-cudagraphs")
        calls = {name: lambda k=0, f=function: f(inputs[k], *layer) for name, function in functions.items()}
        calls |= {
            ONE_PRODUCT: lambda k=0: ways.one_product(inputs[k], both, bias, A, multiplier),
            RELU_INSIDE: lambda k=0: ways.relu_inside(inputs[k], both, bias, A, multiplier),
            MERGED: lambda k=0: torch.relu(F.linear(inputs[k], merged, bias)),
        }
        self._rows("layer", calls, dict.fromkeys(calls, (exact,)), len(inputs), **self._labels(shape))

    def training(self) -> None:
        for shape in self.sizes.shapes:
            torch._dynamo.reset()
            self._backwards(shape)

    def _backwards(self, shape: tuple[int, int]) -> None:
        inputs, (W, bias, A, B, multiplier) = self._layer(*shape)
        leaves = [tensor.requires_grad_() for tensor in (A, B)]
        grad = torch.randn(inputs[0].shape, device=self.device, dtype=self.dtype)

        def trained(k: int = 0, function: Callable = ways.eager) -> tuple[Tensor, ...]:
            x = inputs[k].requires_grad_()
            out = function(x, W, bias, A, B, multiplier)
            return out.detach(), *torch.autograd.grad(out, (x, *leaves), grad)

        calls = {name: partial(trained, function=function) for name, function in self._trainable().items()}
        expected = tuple(tensor.float() for tensor in trained())
        self._rows("training", calls, dict.fromkeys(calls, expected), len(inputs), **self._labels(shape))

    @torch.no_grad()
    def tiles(self) -> None:
        inputs, (W, bias, A, B, multiplier) = self._layer(*self.sizes.shapes[-1])
        linear, thin = [x @ W.T for x in inputs], [x @ A for x in inputs]
        calls = {
            f"{tile[0]}×{tile[1]}": lambda k=0, tile=tile: launch(
                lora_kernel, linear[k], thin[k], B, bias, multiplier, *tile
            )
            for tile in self.sizes.tiles
        }
        exact = torch.relu(linear[0].float() + multiplier * (thin[0].float() @ B.float()) + bias.float())
        self._rows("tiles", calls, dict.fromkeys(calls, (exact,)), len(inputs), **self._labels(self.sizes.shapes[-1]))

    def _layer(self, rows: int, width: int) -> tuple[list[Tensor], tuple]:
        """Inputs, so many that together they are four times the L2, 16 at most; W, bias, A, B as if trained, 1.5."""
        count = self.sets(rows * width * self.dtype.itemsize) if self.gpu else 2
        draw = lambda *shape, std=1.0: (std * self.normal(*shape)).to(self.dtype)  # noqa: E731
        inputs, rank, std = [draw(rows, width) for _ in range(count)], self.sizes.rank, width**-0.5
        parts = draw(width, width, std=std), draw(width), draw(width, rank, std=std), draw(rank, width, std=0.02)
        return inputs, (*parts, 1.5)

    def _trainable(self) -> dict[str, Callable]:
        """Eager, compiled, and with one op behind the products, by each backend that is here."""
        compiled = torch.compile(ways.eager, fullgraph=True, dynamic=False, backend=self.sizes.compiler)
        return {EAGER: ways.eager, COMPILED: compiled} | {
            f"fused, {name}": partial(_with_op, backend=name) for name in self.backends
        }

    def _labels(self, shape: tuple[int, int]) -> dict:
        return {"rows": shape[0], "width": shape[1], "rank": self.sizes.rank, "dtype": str(self.dtype)[6:]}

    # ------------------------------------------------------------------------------------------- many adapters

    @torch.no_grad()
    def adapters(self) -> None:
        rows, width, count, rank = self.sizes.adapters
        inputs, A, B, adapter, exact = self._chosen(count)
        functions = {"gathered": ways.gathered, MASKED: ways.masked, GROUPED: ways.grouped}
        calls = {name: lambda k=0, f=f: f(inputs[k], A, B, adapter) for name, f in functions.items()}
        calls |= {"one adapter": lambda k=0: (inputs[k] @ A[0]) @ B[0]}
        judged = {name: () if name == "one adapter" else (exact,) for name in calls}
        peaks = {name: self._peak(call) for name, call in calls.items()}
        labels = {"rows": rows, "width": width, "adapters": count, "rank": rank}
        self._rows("adapters", calls, judged, len(inputs), peaks, **labels)

    @torch.no_grad()
    def crossing(self) -> None:
        rows, width, _, rank = self.sizes.adapters
        for count in self.sizes.counts:
            inputs, A, B, adapter, exact = self._chosen(count)
            calls = {
                name: lambda k=0, f=f, inputs=inputs, A=A, B=B, adapter=adapter: f(inputs[k], A, B, adapter)
                for name, f in {MASKED: ways.masked, GROUPED: ways.grouped}.items()
            }
            labels = {"rows": rows, "width": width, "adapters": count, "rank": rank}
            self._rows("crossing", calls, dict.fromkeys(calls, (exact,)), len(inputs), **labels)

    def _chosen(self, count: int) -> tuple:
        """Inputs, A and B of `count` adapters, the adapter of each row, and what the first input must give."""
        rows, width, _, rank = self.sizes.adapters
        inputs, _ = self._layer(rows, width)
        A, B = self.normal(count, width, rank) / width**0.5, self.normal(count, rank, width) / rank**0.5
        A, B = A.to(self.dtype), B.to(self.dtype)
        adapter = torch.randint(count, (rows,), device=self.device)
        return inputs, A, B, adapter, ways.masked(inputs[0].float(), A.float(), B.float(), adapter)

    def _peak(self, call: Callable) -> dict:
        call()
        if self.gpu is None:
            return {"peak_bytes": 0}
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return {"peak_bytes": torch.cuda.max_memory_allocated() - before}


def _with_op(x: Tensor, W: Tensor, bias: Tensor, A: Tensor, B: Tensor, multiplier: float, backend: str) -> Tensor:
    return add_mul_activation(x @ W.T, bias, (x @ A) @ B, multiplier, "relu", backend=backend)


def close(outputs: Outputs, wanted: Sequence[Tensor]) -> bool | str:
    """Whether each is as near as CLOSE, what follows the first as CLOSE_GRADIENT; nothing is wanted: whether all is
    finite."""
    results = tensors(outputs)
    if not wanted:
        return all(bool(tensor.isfinite().all()) for tensor in results)
    for place, (tensor, expected) in enumerate(zip(results, wanted, strict=True)):
        error = ((tensor.float() - expected).norm() / expected.norm()).item()
        if not error <= (CLOSE_GRADIENT if place else CLOSE):
            return f"FAILED: off by {error:.2g} of its length"
    return True


main = Lora.main
