"""What is measured of dlrm_forward: `python -m kernels.measure bench dlrm`.

"mini" has three tables of 10, 20 and 30 rows of 4, a bottom MLP 13-8-4 and a top MLP 10-8-1; "16 tables" has the same
MLPs behind 16. All implementations get the same tensors: dense and ids, another set each time, and the tables, weights
and biases, which stay in the L2 cache as a model's do. GPU time is of a captured graph for all alike: torch.compile's
is what mode="reduce-overhead" reaches. A call from Python is measured beside it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from kernels.check import Call, Spec
from kernels.inductor import has_option
from kernels.measure.cells import Calls, Cell, FirstCall, Row
from kernels.measure.judge import AtMost, FirstCallWithin, Verdict, name
from kernels.ops.dlrm.eager import dlrm_forward
from kernels.ops.dlrm.spec import Layers
from kernels.ops.dot_interaction.eager import interact
from kernels.ops.fused_mlp.eager import fused_mlp

OP = "dlrm_forward"
ACTIVATIONS = ("relu", "relu", "relu", "sigmoid")
# The best-set peer: one kernel for the look-ups of up to 32 tables, where Inductor's defaults stop at 8.
TOGETHER = "torch.compile, 32 look-ups a kernel"
OURS = ("cuda",)


@dataclass(frozen=True)
class Within:
    """At most so many µs of the GPU's time, and of a call from Python."""

    us: float
    call_us: float
    part: str

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        ours = [row for row in rows if row.implementation in OURS]
        met = [(row.us_p50 or math.inf) <= self.us and (row.call_us or math.inf) <= self.call_us for row in ours]
        times = ", ".join(f"{row.us_p50} µs, a call {row.call_us} µs" for row in ours)
        misses = [name(row) for row, is_met in zip(ours, met, strict=True) if not is_met]
        return Verdict(self.part, bool(ours) and not misses, f"{times}; limits {self.us} and {self.call_us} µs", misses)


SHOWN = {"model": "mini", "rows": 2048}
# Against graphs of the peers: measured ones of eager took 61 µs for mini, of max-autotune 25.
TARGETS = (
    AtMost(0.1, "eager", "bandwidth", OURS), AtMost(0.2, "torch.compile", "bandwidth", OURS),
    AtMost(0.2, "eager", "16 tables", OURS), Within(3.0, 15.0, "bandwidth"), Within(5.0, 15.0, "16 tables"),
    FirstCallWithin(who=OURS), FirstCallWithin(2000.0, "first call, compiled", OURS),
)


@dataclass(frozen=True)
class Model:
    """heights: of the tables; bottom, top: widths, as Shape has them."""

    name: str
    heights: tuple[int, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]

    @property
    def layers(self) -> list[tuple[int, int]]:
        return [*itertools.pairwise(self.bottom), *itertools.pairwise(self.top)]

    def arguments(self, tensors: Sequence) -> list:
        """dlrm_forward's, of tensors, or their names, that lie one after the other."""
        rest = iter(tensors)
        dense, *lists = next(rest), *([next(rest) for _ in self.heights] for _ in range(2))
        layers = [[next(rest) for _ in itertools.pairwise(widths)] for widths in (self.bottom, self.top) for _ in "wb"]
        return [dense, *lists, [], *layers, *ACTIVATIONS]

    @property
    def products(self) -> int:
        """Multiply-adds of a row."""
        pairs = len(self.heights) * (len(self.heights) + 1) // 2
        return sum(inputs * outputs for inputs, outputs in self.layers) + pairs * self.bottom[-1]

    def names(self) -> list[str]:
        counts = {"table": len(self.heights), "ids": len(self.heights)}
        for mlp, widths in (("bottom", self.bottom), ("top", self.top)):
            counts |= {f"{mlp}_weight": len(widths) - 1, f"{mlp}_bias": len(widths) - 1}
        return ["dense", *(f"{kind}_{k}" for kind, count in counts.items() for k in range(count))]

    def bytes(self, rows: int) -> int:
        """Dense, ids, the rows that they name, out, and the weights once."""
        features, width = len(self.heights), self.bottom[-1]
        weights = sum((inputs + 1) * outputs for inputs, outputs in self.layers)  # and the biases
        return rows * (4 * self.bottom[0] + features * (8 + 4 * width) + 4 * self.top[-1]) + 4 * weights


def of_tables(count: int) -> Model:
    """mini's MLPs, behind so many tables of width 4."""
    heights = tuple(10 * (1 + f % 3) for f in range(count))
    return Model(f"{count} tables", heights, (13, 8, 4), (4 + count * (count + 1) // 2, 8, 1))


MINI = Model("mini", (10, 20, 30), (13, 8, 4), (10, 8, 1))


class _OfTensors(Layers):
    """As the op's own, of a call whose tensors lie one after the other."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        object.__setattr__(self, "model", model)

    def errors(self, reference, call, exact):
        *tensors, _, _, _, _ = self.model.arguments(call.tensors)
        return super().errors(reference, Call("", tuple(tensors), ACTIVATIONS), exact)


@functools.cache
def _spec(model: Model) -> Spec:
    def reference(*tensors: Tensor) -> Tensor:
        return dlrm_forward(*model.arguments(tensors))

    names = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in model.names()]
    reference.__signature__ = inspect.Signature(names)
    return Spec(reference, lambda case, device: iter(()), scale=_OfTensors(model))


def _as_written(model: Model) -> tuple[Callable, Callable]:
    """The reference as a model has it: nobody looks at the ids, for which the GPU would be waited for; the pairs'
    indices are a buffer."""

    @functools.cache
    def pairs(device: torch.device) -> Tensor:
        return torch.tril_indices(len(model.heights) + 1, len(model.heights) + 1, -1, device=device)

    def forward(indices_of_pairs: Tensor, *tensors: Tensor) -> Tensor:
        dense, tables, indices, _, *layers, between, last, top_between, top_last = model.arguments(tensors)
        vector = fused_mlp(dense, *layers[:2], between, last)
        looked_up = torch.stack([F.embedding(ids, table) for ids, table in zip(indices, tables, strict=True)], 1)
        return fused_mlp(interact(vector, looked_up, indices_of_pairs), *layers[2:], top_between, top_last)

    def with_pairs(function: Callable) -> Callable:
        return lambda *tensors: function(pairs(tensors[0].device), *tensors)

    return forward, with_pairs


def _peer(model: Model, mode: str | None = None, compiled: bool = True, **options) -> Callable:
    forward, with_pairs = _as_written(model)
    if compiled:
        forward = torch.compile(forward, dynamic=False, mode=mode, options=options or None)
    return with_pairs(forward)


def _ours(model: Model, backend: str) -> Callable:
    return lambda *tensors: kernels.dlrm_forward(*model.arguments(tensors), backend=backend)


def _parameters(model: Model, draw: Callable) -> tuple[Tensor, ...]:
    """Tables, weights and biases."""
    layers = [
        draw(*shape) / math.sqrt(inputs) if len(shape) == 2 else draw(*shape)
        for widths in (model.bottom, model.top) for kind in ("weight", "bias")
        for inputs, outputs in itertools.pairwise(widths)
        for shape in [(outputs, inputs) if kind == "weight" else (outputs,)]
    ]
    return (*(draw(height, model.bottom[-1]) for height in model.heights), *layers)


def _tensors(model: Model, rows: int, draw: Callable, ids: Callable, *held: Tensor) -> tuple[Tensor, ...]:
    """Those of a call, one after the other; held: the parameters, or none, and they are drawn too."""
    held, count = held or _parameters(model, draw), len(model.heights)
    indices = [ids(rows, below=height) for height in model.heights]
    return (draw(rows, model.bottom[0]), *held[:count], *indices, *held[count:])


def _first_calls(model: Model, rows: int) -> Iterator[FirstCall]:
    """A process's first call of a model, from the disk and with NVRTC."""
    *tensors, _, _, _, _ = model.arguments(model.names())
    lists = [each if isinstance(each, str) else f"[{', '.join(each)}]" for each in tensors]
    arguments = ", ".join([*lists, *map(repr, ACTIVATIONS)])
    statements = {"eager": f"eager({arguments})"}
    statements |= {backend: f"dlrm_forward({arguments}, backend={backend!r})" for backend in OURS}
    call = Calls(
        OP, "functional", {"model": model.name, "rows": rows, "dtype": "float32"},
        inputs=functools.partial(_tensors, model, rows), names=tuple(model.names()), baseline="", statements=statements,
    )
    yield FirstCall(call, OURS)
    yield FirstCall(call, OURS, compiles=True, part="first call, compiled")


def _cell(part: str, model: Model, rows: int, autotuned: bool = False) -> Cell:
    most = {name: 32 for name in ("max_pointwise_cat_inputs", "max_complex_pointwise_cat_inputs") if has_option(name)}
    peers = {
        "eager": functools.partial(_peer, model, compiled=False),
        "torch.compile": functools.partial(_peer, model),
        TOGETHER: functools.partial(_peer, model, **most),
    }
    if autotuned:
        peers["max-autotune"] = functools.partial(_peer, model, "max-autotune-no-cudagraphs")
    return Cell(
        OP, part, "functional", {"model": model.name, "rows": rows, "dtype": "float32"},
        shared=functools.partial(_parameters, model),
        inputs=functools.partial(_tensors, model, rows),
        implementations={**peers, **{name: functools.partial(_ours, model, name) for name in OURS}},
        bytes=model.bytes(rows),
        flops=2 * rows * model.products,
        spec=_spec(model),
    )


def cells(quick: bool = False) -> Iterator[Cell | FirstCall]:
    """Cells by part: a process's first call of mini; mini, and 16 tables; then a sweep over tables and rows, which
    shows who is fastest where."""
    yield from _first_calls(MINI, 2048)
    yield _cell("bandwidth", MINI, 2048, autotuned=not quick)
    yield _cell("16 tables", of_tables(16), 4096, autotuned=not quick)
    for count in () if quick else (3, 8, 16, 26):
        for rows in (256, 1024, 2048, 4096, 16384, 65536):
            yield _cell("sweep", of_tables(count), rows)
