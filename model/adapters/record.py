"""What the notebook on LoRA says in µs: `python -m model.adapters --save`, on a GPU.

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
Python. call_us: from call to call, the last one waited for. A part that fails is a row FAILED, and the others go on.
Saved in traces/results/<gpu>/lora.json.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import runtime
from kernels.measure.clock import batches, percentiles, timer
from model import lora
from model.adapters import ways
from model.dlrm import DLRM
from model.gpu.record import Clock
from model.lora import LinearWithLoRA
from model.paper_cuts.record import kernels_of
from model.profiling.story import STORY, drawn_batches, shape_of
from model.recorder import head

PROG = "python -m model.adapters"
NAME = "lora"
PARTS = ("layer", "training", "pieces", "adapters", "model", "copy")
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


SMALL = Sizes(((4, 16),), 2, (4, 16), (6, 16, 3, 2), rows=4, table=20, calls=1, compiler="eager")


class Recorder:
    """Measures the parts; rows are printed as they come."""

    def __init__(self, device: torch.device, sizes: Sizes):
        self.device, self.sizes, self.clock = device, sizes, Clock(device)
        self.cuda = device.type == "cuda"
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        self.rows: list[dict] = []
        self.backends = [name for name, why in runtime.backends(device).items() if name != "eager" and not why]
        torch.manual_seed(0)

    def measure(self, parts: Sequence[str] = PARTS) -> list[dict]:
        for part in parts:
            try:
                getattr(self, part)()
            except Exception as error:  # one part's failure does not lose the others
                traceback.print_exc()
                text = str(error).strip().partition("\n")[0][:200]
                self.rows.append({"part": part, "match": f"FAILED: {type(error).__name__}: {text}"})
                print(line(self.rows[-1]), flush=True)
            torch._dynamo.reset()
            if self.clock.gpu:
                self.clock.gpu.clear()
        return self.rows

    # ------------------------------------------------------------------------------------------------- one layer

    def layer(self) -> None:
        for shape in self.sizes.shapes:
            torch._dynamo.reset()
            with torch.no_grad():
                plain, inputs = self._layer(*shape)
                variants = self._fused(plain) | {"one product": ways.OneProduct(plain)}
                merged = copy.deepcopy(plain).eval()
                merged.merge()
                variants |= {"merged": merged, FROZEN: nn.Sequential(plain.linear, nn.ReLU())}
                exact = exactly(plain, inputs[0])
                calls = {name: partial(_forward, layer, inputs) for name, layer in variants.items()}
                judged = {name: () if name == FROZEN else (exact,) for name in calls}
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
            }  # fmt: skip
            for name in self.backends:
                calls[f"epilogue, {name}"] = lambda k=0, name=name: ways.epilogue(
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
        count = min(16, max(1, 2**28 // (rows * width * self.dtype.itemsize))) if self.cuda else 2
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
        exact = ways.one_by_one(inputs[0].float(), A.float(), B.float(), adapter)
        calls = {
            name: lambda k=0, way=way: way(inputs[k], A, B, adapter) for name, way in ways.MANY.items()
        }  # fmt: skip
        try:
            calls[ways.GROUPED]()
        except Exception as error:  # this PyTorch, or this device, has no product of groups
            print(f"{ways.GROUPED}: left out, {type(error).__name__}: {str(error)[:100]}", flush=True)
            del calls[ways.GROUPED]
        calls |= {"one adapter": lambda k=0: (inputs[k] @ A[0]) @ B[0]}
        judged = {name: () if name == "one adapter" else (exact,) for name in calls}
        peaks = {name: self._peak(call) for name, call in calls.items()}
        labels = {"rows": rows, "width": width, "adapters": count, "rank": rank}
        self._rows("adapters", calls, judged, len(inputs), peaks, **labels)

    def _peak(self, call: Callable) -> dict:
        call()
        if not self.cuda:
            return {"peak_bytes": 0}
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return {"peak_bytes": torch.cuda.max_memory_allocated() - before}

    # ------------------------------------------------------------------------------------------------ the model

    def model(self) -> None:
        """Every variant begins with the same weights, B being 0; so its first loss is the same."""
        (chosen,) = (step for step in STORY if step.number == STEP)
        chosen = ways.changed(chosen, self.sizes.rows, self.sizes.table)
        with torch.device(self.device):
            base = DLRM(shape_of(chosen)).to(self.device)
        batch = drawn_batches(chosen, self.device)[0]
        steps, judged, more = {}, {}, {}
        expected = None
        for name, options in (
            ("all trained", None), ("LoRA, eager", {}), *((f"LoRA, fused, {n}", {"fused": True, "backend": n})
            for n in self.backends), ("LoRA, torch.compile", {}),
        ):  # fmt: skip
            model = copy.deepcopy(base)
            if options is not None:
                lora.apply_lora(model, self.sizes.rank // 2, self.sizes.rank, "*.mlp.*", **options)
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            forward = torch.compile(model, backend=self.sizes.compiler) if "compile" in name else model
            steps[name] = partial(_step, forward, trained, *batch)
            loss = steps[name]().float()
            expected = loss if expected is None else expected
            judged[name] = (loss - expected).abs().item() <= 1e-3
            counted = kernels_of(steps[name]) if self.cuda else {"launches": 0, "kernel_us": 0.0}
            more[name] = {"trained": sum(p.numel() for p in trained)} | counted
        self._rows("model", steps, judged, 1, more, rows=self.sizes.rows)

    def copy(self) -> None:
        if self.clock.gpu is None:
            return
        row = self.clock.gpu.copy(NAME)
        self.rows.append({"part": "copy", "variant": "copy", "bytes": row.bytes, "us_p20": row.us_p20,
                          "us_p50": row.us_p50, "us_p80": row.us_p80, "match": row.match})  # fmt: skip
        print(line(self.rows[-1]), flush=True)

    # ------------------------------------------------------------------------------------------------- the clock

    def _rows(
        self, part: str, calls: Mapping[str, Callable], judged: Mapping[str, tuple | bool], count: int,
        more: Mapping[str, dict] | None = None, **labels,
    ) -> None:  # fmt: skip
        """A row a call: judged before and after it is timed, by what it must give, or by what was found already. count:
        how many calls are captured together, call(0), call(1), …"""
        match = {name: self._match(calls[name], judged[name]) for name in calls}
        right = {name: call for name, call in calls.items() if match[name] == "ok"}
        heavy = labels.get("rows", 0) * labels.get("width", 1) >= 2**24
        gpu = self._gpu_times(right, count)
        for name, (_, given) in gpu.items():
            if given and not isinstance(judged[name], bool):
                match[name] = close(given(), judged[name])
        synchronize = self.clock.gpu.synchronize if self.clock.gpu else lambda: None
        timers = {name: timer(call) for name, call in right.items()}
        calls_of_batch = max(1, self.sizes.calls // 4) if heavy else self.sizes.calls
        host = batches(timers, min(5, calls_of_batch), 9, synchronize)
        whole = batches(timers, calls_of_batch, 7, synchronize, waits=True)
        for name in calls:
            row = {"part": part, "variant": name, **labels, **(more or {}).get(name, {}), "match": match[name]}
            if match[name] == "ok":
                if name in gpu:
                    row |= dict(zip(("us_p20", "us_p50", "us_p80"), percentiles(gpu[name][0]), strict=True))
                row |= {"calls": count, "host_us": percentiles(host[name])[1]}
                row |= dict(zip(("call_us_low", "call_us", "call_us_high"), percentiles(whole[name]), strict=True))
            self.rows.append(row)
            print(line(row), flush=True)
        if self.clock.gpu:
            self.clock.gpu.clear()

    def _match(self, call: Callable, judged: tuple | bool) -> str:
        if isinstance(judged, bool):
            return "ok" if judged else "FAILED: another loss"
        return close(call(), judged)

    def _gpu_times(self, calls: Mapping[str, Callable], count: int) -> dict[str, tuple[list[float], Callable | None]]:
        """name → (µs of one call, what gives the first call's outputs of a replay). Left out: what cannot be
        captured."""
        gpu = self.clock.gpu
        if gpu is None:
            return {name: (times, None) for name, times in self.clock.times(calls).items()}
        replays, outputs = {}, {}
        for name, call in calls.items():
            for _ in range(3):
                gpu.on_side_stream(call)
            try:
                replays[name], outputs[name] = gpu.capture(partial(_first_of, call, count))
            except Exception as error:
                print(f"{name}: not captured, {type(error).__name__}: {str(error)[:200]}", flush=True)
        for replay in replays.values():
            replay()
        found = gpu.times(replays)

        def given(name: str):
            replays[name]()
            torch.cuda.synchronize()
            return outputs[name]

        return {name: ([us / count for us in found[name]], partial(given, name)) for name in replays}


def _first_of(call: Callable, count: int) -> tuple[Tensor, ...]:
    """What call(0) gives, after call(1), …; no two of them share their memory."""
    given = [call(k) if k else call() for k in range(count)]
    first = given[0]
    return (first,) if isinstance(first, Tensor) else first


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


def close(given: Tensor | Sequence[Tensor], wanted: Sequence[Tensor]) -> str:
    """"ok" if each is as near as CLOSE, what follows the first as CLOSE_GRADIENT; nothing wanted: if all is finite."""
    found = (given,) if isinstance(given, Tensor) else tuple(given)
    if not wanted:
        return "ok" if all(bool(tensor.isfinite().all()) for tensor in found) else "FAILED: not finite"
    for place, (tensor, expected) in enumerate(zip(found, wanted, strict=True)):
        error = ((tensor.float() - expected).norm() / expected.norm()).item()
        if not error <= (CLOSE_GRADIENT if place else CLOSE):
            return f"FAILED: off by {error:.2g} of its length"
    return "ok"


def line(row: Mapping) -> str:
    """The row as a line of text."""
    labels = " ".join(str(row[name]) for name in ("part", "variant", "rows", "width", "adapters") if row.get(name))
    shown = ""
    if "us_p50" in row:
        shown = f"{row['us_p50']:10.2f} µs ({row['us_p20']:.2f} to {row['us_p80']:.2f})"
    if "call_us" in row:
        shown += f", host {row['host_us']:.1f}, a call {row['call_us']:.1f}"
    return f"{labels:44} {shown}  {row['match']}"


def record(device: torch.device, parts: Sequence[str] = PARTS, sizes: Sizes | None = None) -> dict:
    """What is saved in traces/results/<gpu>/lora.json."""
    rows = Recorder(device, sizes or Sizes()).measure(parts)
    return head(NAME, PROG) | {"rows": rows}
