"""What the notebook on LoRA says in µs: `python -m lessons.n12_lora --save`, on a GPU.

    layer      act(x Wᵀ + bias + multiplier (x A) B), forward, bfloat16, relu: eager, torch.compile, fused, as one
               product, merged, and the frozen layer alone; of several shapes
    training   the layer's forward and backward: eager, torch.compile, fused
    pieces     what eager launches in one layer, each operator alone
    adapters   (x A) B where each row chooses one of many adapters, by several ways; peak_bytes: at most, beside what
               went in
    model      a step of the story's 08, its MLPs with LoRA; launches and kernel_us: of an uncaptured step
    copy       PyTorch's copy of 1 GiB

us_p20 to us_p80: of a call on the GPU, by replays of a CUDA graph of `calls` calls, the L2 swept before each; each call
has an input of its own, together more than the L2 holds, but for the smallest shape. host_us: until a call is back in
Python. call_us: from call to call, the last one waited for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import runtime
from kernels.measure.clock import percentiles
from lessons.n12_lora import formulations
from lessons.shared.experiment import Experiment, Outputs, Way, kernels_of, tensors
from model import lora
from model.dlrm import DLRM
from model.lora import LinearWithLoRA
from model.profiling.traced_steps import TRACED_STEPS, drawn_batches, shape_of

STEP = "08"  # of the story
EAGER, COMPILED, FROZEN = "eager", "torch.compile", "frozen layer"
# The length of the error beside the result's. Of a gradient it is more: where z is nearly 0, rounding decides whether
# relu lets it through, and one column in some hundreds is let through or not.
CLOSE, CLOSE_GRADIENT = 0.02, 0.1


@dataclass(frozen=True)
class Sizes:
    """shapes: (rows, width) of the layers. pieces: of the one that is taken apart. adapters: (rows, width, how many,
    their rank). rows, table: of DLRM's step. calls: of a batch whose calls are timed."""

    shapes: tuple[tuple[int, int], ...] = ((64, 1024), (8192, 1024), (8192, 4096), (32768, 4096))
    rank: int = 16
    pieces: tuple[int, int] = (8192, 4096)
    adapters: tuple[int, int, int, int] = (4096, 4096, 100, 16)
    rows: int = 2048
    table: int | None = None
    calls: int = 20
    compiler: str = "inductor"


class Lora(Experiment):
    """What lora.json has."""

    NAME = "lora"
    PARTS = ("layer", "training", "pieces", "adapters", "model", "copy")
    FULL = Sizes()
    SMALL = Sizes(((4, 16),), 2, (4, 16), (6, 16, 3, 2), rows=4, table=20, calls=1, compiler="eager")

    def __init__(self, device: torch.device, sizes: Sizes | None = None):
        super().__init__(device, sizes)
        self.dtype = torch.bfloat16 if self.gpu else torch.float32
        self.backends = [name for name, why in runtime.backends(device).items() if name != "eager" and not why]
        torch.manual_seed(0)

    def _rows(
        self, part: str, calls: Mapping[str, Callable], judged: Mapping[str, tuple | bool], count: int,
        more: Mapping[str, dict] | None = None, **labels,
    ) -> None:
        """A row a call, judged by what it must give, or by what was found already. count: how many calls are captured
        together, call(0), call(1), …"""
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

        ways = [
            Way(
                {"variant": name, "calls": count, **(more or {}).get(name, {})},
                [call, *(partial(call, k) for k in range(1, count))],
                partial(close, wanted=judged[name]),
            )
            for name, call in calls.items()
        ]
        self.compare(part, ways, also=from_python, **labels)

    # ------------------------------------------------------------------------------------------------- one layer

    def layer(self) -> None:
        for shape in self.sizes.shapes:
            torch._dynamo.reset()
            with torch.no_grad():
                plain, inputs = self._layer(*shape)
                variants = self._fused(plain) | {"one product": formulations.OneProduct(plain)}
                merged = copy.deepcopy(plain).eval()
                merged.merge()
                variants |= {"merged": merged, FROZEN: nn.Sequential(plain.linear, nn.ReLU())}
                exact = exactly(plain, inputs[0])
                frozen = torch.relu(F.linear(*(t.float() for t in (inputs[0], plain.linear.weight, plain.linear.bias))))
                calls = {name: partial(_forward, layer, inputs) for name, layer in variants.items()}
                judged = {name: (frozen if name == FROZEN else exact,) for name in calls}
                self._rows("layer", calls, judged, len(inputs), **self._labels(shape))

    def training(self) -> None:
        for shape in self.sizes.shapes:
            torch._dynamo.reset()
            plain, inputs = self._layer(*shape)
            for x in inputs:
                x.requires_grad_()
            grad = torch.randn(inputs[0].shape, device=self.device, dtype=self.dtype)
            calls = {name: partial(_trained, layer, inputs, grad) for name, layer in self._fused(plain).items()}
            expected = tuple(tensor.float() for tensor in calls[EAGER]())
            self._rows("training", calls, dict.fromkeys(calls, expected), len(inputs), **self._labels(shape))

    def pieces(self) -> None:
        layer, inputs = self._layer(*self.sizes.pieces)
        W, bias, A, B = layer.linear.weight, layer.linear.bias, layer.lora.A, layer.lora.B
        multiplier, without = layer.lora.multiplier, torch.zeros_like(layer.linear.bias)
        with torch.no_grad():
            linear = [F.linear(x, W, bias) for x in inputs]
            thin = [x @ A for x in inputs]
            y = [each @ B for each in thin]
            scaled = [multiplier * each for each in y]
            total = [a + b for a, b in zip(linear, scaled, strict=True)]
            calls = {
                "x Wᵀ + bias": lambda k=0: F.linear(inputs[k], W, bias), "x A": lambda k=0: inputs[k] @ A,
                "(x A) B": lambda k=0: thin[k] @ B, "scale": lambda k=0: multiplier * y[k],
                "add": lambda k=0: linear[k] + scaled[k], "activate": lambda k=0: torch.relu(total[k]),
            }
            for name in self.backends:
                calls[f"epilogue, {name}"] = lambda k=0, name=name: formulations.epilogue(
                    linear[k], without, y[k], multiplier, name
                )
            judged = {name: (torch.relu(total[0]).float(),) if "epilogue" in name else () for name in calls}
            self._rows("pieces", calls, judged, len(inputs), **self._labels(self.sizes.pieces))

    def _layer(self, rows: int, width: int) -> tuple[LinearWithLoRA, list[Tensor]]:
        """An eager layer whose B is as if trained, and inputs."""
        rank, where = self.sizes.rank, {"device": self.device, "dtype": self.dtype}
        layer = LinearWithLoRA(nn.Linear(width, width, **where), rank, alpha=1.5 * rank, activation="relu")
        layer.lora.reset_parameters(b_std=0.02)
        return layer, self._inputs(rows, width)

    def _inputs(self, rows: int, width: int) -> list[Tensor]:
        """So many that together they are four times the L2, 16 at most."""
        count = self.sets(rows * width * self.dtype.itemsize) if self.gpu else 2
        return [torch.randn(rows, width, device=self.device, dtype=self.dtype) for _ in range(count)]

    def _fused(self, plain: LinearWithLoRA) -> dict[str, Callable]:
        """Eager, compiled, and fused by each backend that is here."""
        compiled = torch.compile(copy.deepcopy(plain), fullgraph=True, dynamic=False, backend=self.sizes.compiler)
        variants = {EAGER: plain, COMPILED: compiled}
        for name in self.backends:
            variants[f"fused, {name}"] = fused = copy.deepcopy(plain)
            fused.fused, fused.backend = True, name
        return variants

    def _labels(self, shape: tuple[int, int]) -> dict:
        return {"rows": shape[0], "width": shape[1], "rank": self.sizes.rank, "dtype": str(self.dtype)[6:]}

    # ------------------------------------------------------------------------------------------- many adapters

    @torch.no_grad()
    def adapters(self) -> None:
        rows, width, count, rank = self.sizes.adapters
        where = {"device": self.device, "dtype": self.dtype}
        inputs, A = self._inputs(rows, width), torch.randn(count, width, rank, **where) / width**0.5
        B = torch.randn(count, rank, width, **where) / rank**0.5
        adapter = torch.randint(count, (rows,), device=self.device)
        exact = formulations.one_by_one(inputs[0].float(), A.float(), B.float(), adapter)
        calls = {
            name: lambda k=0, way=way: way(inputs[k], A, B, adapter) for name, way in formulations.MANY.items()
        }
        try:
            calls[formulations.GROUPED]()
        except Exception as error:  # this PyTorch, or this device, has no product of groups
            print(f"{formulations.GROUPED}: left out, {type(error).__name__}: {str(error)[:100]}", flush=True)
            del calls[formulations.GROUPED]
        calls |= {"one adapter": lambda k=0: (inputs[k] @ A[0]) @ B[0]}
        judged = {name: () if name == "one adapter" else (exact,) for name in calls}
        peaks = {name: self._peak(call) for name, call in calls.items()}
        labels = {"rows": rows, "width": width, "adapters": count, "rank": rank}
        self._rows("adapters", calls, judged, len(inputs), peaks, **labels)

    def _peak(self, call: Callable) -> dict:
        call()
        if self.gpu is None:
            return {"peak_bytes": 0}
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return {"peak_bytes": torch.cuda.max_memory_allocated() - before}

    # ------------------------------------------------------------------------------------------------ the model

    def model(self) -> None:
        """Every variant begins with the same weights, B being 0; so its first loss is the same."""
        (chosen,) = (step for step in TRACED_STEPS if step.number == STEP)
        chosen = formulations.changed(chosen, self.sizes.rows, self.sizes.table)
        with torch.device(self.device):
            base = DLRM(shape_of(chosen)).to(self.device)
        batch = drawn_batches(chosen, self.device)[0]
        steps, judged, more = {}, {}, {}
        expected = None
        for name, options in (
            ("all trained", None), ("LoRA, eager", {}), *((f"LoRA, fused, {n}", {"fused": True, "backend": n})
            for n in self.backends), ("LoRA, torch.compile", {}),
        ):
            model = copy.deepcopy(base)
            if options is not None:
                lora.apply_lora(model, self.sizes.rank // 2, self.sizes.rank, "*.mlp.*", **options)
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            forward = torch.compile(model, backend=self.sizes.compiler) if "compile" in name else model
            steps[name] = partial(_step, forward, trained, *batch)
            loss = steps[name]().float()
            expected = loss if expected is None else expected
            judged[name] = (loss - expected).abs().item() <= 1e-3  # the next ones differ
            counted = kernels_of(steps[name]) if self.gpu else {"launches": 0, "kernel_us": 0.0}
            more[name] = {"trained": sum(p.numel() for p in trained)} | counted
        self._rows("model", steps, judged, 1, more, rows=self.sizes.rows)


def _forward(layer: Callable, inputs: Sequence[Tensor], k: int = 0) -> Tensor:
    return layer(inputs[k])


def _trained(layer: Callable, inputs: Sequence[Tensor], grad: Tensor, k: int = 0) -> tuple[Tensor, ...]:
    """The output, and the gradients of x, A and B."""
    own, x = getattr(layer, "_orig_mod", layer), inputs[k]
    out = layer(x)
    return out.detach(), *torch.autograd.grad(out, (x, own.lora.A, own.lora.B), grad)


def _step(model: Callable, trained: list[Tensor], labels: Tensor, dense: Tensor, sparse: Tensor) -> Tensor:
    """A step of plain SGD on what is trained; its loss."""
    loss = F.binary_cross_entropy_with_logits(model(dense, sparse), labels)
    gradients = torch.autograd.grad(loss, trained)
    with torch.no_grad():
        torch._foreach_add_(trained, gradients, alpha=-1e-3)
    return loss.detach()


def exactly(layer: LinearWithLoRA, x: Tensor) -> Tensor:
    """The layer's output, computed in float32."""
    linear, thin = layer.linear, layer.lora
    out = x.float() @ linear.weight.float().T + linear.bias.float()
    return torch.relu(out + thin.multiplier * ((x.float() @ thin.A.float()) @ thin.B.float()))


def close(outputs: Outputs, wanted: Sequence[Tensor] | bool) -> bool | str:
    """Whether each is as near as CLOSE, what follows the first as CLOSE_GRADIENT; nothing is wanted: whether all is
    finite; wanted is a bool: whether it is, and it."""
    found = tensors(outputs)
    if not wanted or wanted is True:
        return wanted is not False and all(bool(tensor.isfinite().all()) for tensor in found)
    for place, (tensor, expected) in enumerate(zip(found, wanted, strict=True)):
        error = ((tensor.float() - expected).norm() / expected.norm()).item()
        if not error <= (CLOSE_GRADIENT if place else CLOSE):
            return f"FAILED: off by {error:.2g} of its length"
    return True


main = Lora.main
