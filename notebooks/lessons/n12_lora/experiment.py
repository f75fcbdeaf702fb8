"""What the notebook on LoRA says in µs: `python -m lessons.n12_lora --save`, on a GPU.

    layer      relu(x Wᵀ + bias + multiplier (x A) B), forward, bfloat16, by all ways of the notebook; of several shapes
    training   its forward and backward: eager, torch.compile, what follows the products in one op

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
from lessons.shared.experiment import Experiment, Outputs, Way, tensors

EAGER, COMPILED, AUTOTUNED, KERNEL, MERGED = "eager", "torch.compile", "max-autotune", "LoRA kernel", "merged"
ONE_PRODUCT, RELU_INSIDE, IN_PLACE = "one product", "one product, relu inside", "addmm_"
# The length of the error beside the result's. A gradient's is more: where z is nearly 0, rounding decides whether
# relu lets it through, and one column in some hundreds is let through or not.
CLOSE, CLOSE_GRADIENT = 0.02, 0.1


@dataclass(frozen=True)
class Sizes:
    """shapes: (rows, width) of the layers; the last one is autotuned. calls: of a batch whose calls are timed."""

    shapes: tuple[tuple[int, int], ...] = ((64, 1024), (8192, 1024), (8192, 4096))
    rank: int = 16
    calls: int = 20
    compiler: str = "inductor"


class Lora(Experiment):
    """What lora.json has."""

    NAME = "lora"
    PARTS = ("layer", "training")
    FULL = Sizes()
    SMALL = Sizes(((4, 16),), calls=1, compiler="eager")

    def __init__(self, device: torch.device, sizes: Sizes | None = None):
        super().__init__(device, sizes)
        self.dtype = torch.bfloat16 if self.gpu else torch.float32
        self.backends = [name for name, why in runtime.backends(device).items() if name != "eager" and not why]
        torch.manual_seed(0)

    def _rows(
        self, part: str, calls: Mapping[str, Callable], judged: Mapping[str, tuple], count: int, **labels
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
                {"variant": name, "calls": count},
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
