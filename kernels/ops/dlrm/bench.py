"""What is measured of dlrm_forward: `python -m kernels.measure bench dlrm`, and `… --sweep`.

"mini" has three tables of 10, 20 and 30 rows of 4, a bottom MLP 13-8-4 and a top MLP 10-8-1; "16 tables" has the same
MLPs behind 16. "main" is Criteo's Kaggle model: 26 tables of 33.8 million rows of 16 in all, 13-512-256-64-16 and
367-512-256-1, in tf32 and in bfloat16. Its ids are uniform, so that most look-ups go to memory.

All implementations get the same tensors: dense and ids, another set each time, and the tables, weights and biases,
which stay in the L2 cache as a model's do, but for main's tables. GPU time is of a captured graph for all alike:
torch.compile's is what mode="reduce-overhead" reaches. A call from Python is measured beside it.

"latency" is of calls one after the other, each between two events, as they come and as a CUDA graph, on the same inputs
and on fresh ones. There the model is also what torch.compile(backend="fused_kernels") makes of it as it is written, and
AOTInductor's package, whose weights are its own.

cuBLAS is slow on main's rows of 367 numbers, which are no multiple of 16 bytes. "padded" is the model whose interaction
writes a zero more, before a top MLP whose first weight has a column more, filled up once.

--sweep is the small MLPs behind 3 to 26 tables, for 256 to 65536 rows: who is the fastest where.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels

from ...check import Call, Spec
from ...check.comparison import double
from ...check.tf32 import RoundedProducts
from ...inductor import together
from ...measure.cells import IN_A_GRAPH, Calls, Cell, FirstCall, Latency, Row, in_precision, label
from ...measure.judge import AtMost, FirstCallWithin, Verdict, by_cell, name
from ..dot_interaction.eager import interact
from ..embedding_bags.bench import HEIGHTS, SMALL
from ..fused_mlp.eager import fused_mlp
from .eager import dlrm_forward
from .spec import Layers

OP = "dlrm_forward"
ACTIVATIONS = ("relu", "relu", "relu", "sigmoid")
OURS = ("cuda",)
FUSED = 8  # tables whose look-ups Inductor writes in one kernel by default
PADDED = ", padded"  # behind a peer's name
FOUND = "fused_kernels backend"  # the model as it is written, through our backend


@dataclass(frozen=True)
class Within:
    """At most so many µs of the GPU's time, and of a call from Python."""

    us: float
    call_us: float
    part: str
    labels: Mapping[str, int | str] = field(default_factory=dict)  # of the rows that are judged

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        ours = [row for row in rows if row.implementation in OURS and self.labels.items() <= row.labels.items()]
        met = [(row.us_p50 or math.inf) <= self.us and (row.call_us or math.inf) <= self.call_us for row in ours]
        us = {label(row): (row.us_p50 or math.inf, row.call_us or math.inf) for row in ours}
        shown = (f"{row}: {on_gpu:.2f} µs, a call {called:.1f} µs" for row, (on_gpu, called) in us.items())
        times = ", ".join(shown) or f"no row of {dict(self.labels)} was measured"
        misses = [name(row) for row, is_met in zip(ours, met, strict=True) if not is_met]
        return Verdict(self.part, bool(ours) and not misses, f"{times}; limits {self.us} and {self.call_us} µs", misses)


@dataclass(frozen=True)
class ByEvents:
    """Calls by these take at most so many µs, the median between two events; in rows of these labels."""

    limits: tuple[tuple[str, float], ...]
    labels: Mapping[str, int | str] = field(default_factory=dict)
    part: str = "latency"

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        judged = (row for row in rows if self.labels.items() <= row.labels.items())
        us = {row.implementation: row.call_us or math.inf for row in judged}
        times = {who: (us.get(who, math.inf), limit) for who, limit in self.limits}
        misses = [f"{who}: {us:.1f} µs, {limit} asked" for who, (us, limit) in times.items() if us > limit]
        figure = ", ".join(f"{who} {us:.1f} µs (limit {limit})" for who, (us, limit) in times.items())
        return Verdict(self.part, not misses, figure, misses)


@dataclass(frozen=True)
class Winners:
    """Who is the fastest in each cell, by the GPU's time: ours in all of them."""

    part: str

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        wins, misses = dict.fromkeys(OURS, 0), []
        cells = by_cell(rows)
        for cell in cells:
            times = {who: row.us_p50 for who, row in cell.items() if row.us_p50}
            first = min(times, key=times.__getitem__, default="none that was measured")
            wins[first] = wins.get(first, 0) + 1
            if first not in OURS:
                order = ", ".join(f"{who} {us:.2f} µs" for who, us in sorted(times.items(), key=lambda pair: pair[1]))
                misses.append(f"{label(next(iter(cell.values())))}: {order}")
        figure = ", ".join(f"{who} in {count}" for who, count in wins.items())
        return Verdict(self.part, bool(cells) and not misses, f"fastest of {len(cells)} cells: {figure}", misses)


SHOWN = {"model": "main", "rows": 2048}
# Against graphs of the peers: of one call of mini an H200 took 60 µs with eager and 34 with torch.compile.
TARGETS = (
    AtMost(0.1, "eager", "bandwidth", OURS), AtMost(0.2, "torch.compile", "bandwidth", OURS),
    AtMost(0.2, "eager", "16 tables", OURS), Within(3.0, 15.0, "bandwidth"), Within(5.0, 15.0, "16 tables"),
    FirstCallWithin(who=OURS), FirstCallWithin(2000.0, "first call, compiled", OURS),
    ByEvents(((FOUND, 15.0), (OURS[0] + IN_A_GRAPH, 6.0)), {"model": "mini"}),
    Within(20.0, math.inf, "main", {"rows": 128, "precision": "tf32"}),
    Within(30.0, math.inf, "main", {"rows": 2048, "precision": "tf32"}),
    Winners("main"), Winners("main autotuned"),
)
SWEEP_TARGETS = (Winners("grid"),)


@dataclass(frozen=True)
class Model:
    """heights: of the tables; bottom, top: widths, as Shape has them; precision: of float32 products."""

    name: str
    heights: tuple[int, ...]
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    precision: str = "ieee"
    dtype: str = "float32"

    def labels(self, rows: int) -> dict[str, int | str]:
        labels = {"model": self.name, "rows": rows, "dtype": self.dtype}
        return labels | ({"precision": self.precision} if self.precision != "ieee" else {})

    @property
    def layers(self) -> list[tuple[int, int]]:
        return [*itertools.pairwise(self.bottom), *itertools.pairwise(self.top)]

    def arguments(self, tensors: Sequence) -> list:
        """dlrm_forward's, of tensors, or their names, that lie one after the other."""
        rest = iter(tensors)
        dense, *lists = next(rest), *([next(rest) for _ in self.heights] for _ in range(2))
        layers = [[next(rest) for _ in itertools.pairwise(widths)] for widths in (self.bottom, self.top) for _ in "wb"]
        return [dense, *lists, [], *layers, *ACTIVATIONS, self.precision]

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
        features, width, size = len(self.heights), self.bottom[-1], getattr(torch, self.dtype).itemsize
        weights = sum((inputs + 1) * outputs for inputs, outputs in self.layers)  # and the biases
        return rows * (size * (self.bottom[0] + features * width + self.top[-1]) + 8 * features) + size * weights


def of_tables(count: int) -> Model:
    """mini's MLPs, behind so many tables of width 4."""
    heights = tuple(10 * (1 + f % 3) for f in range(count))
    return Model(f"{count} tables", heights, (13, 8, 4), (4 + count * (count + 1) // 2, 8, 1))


MINI = Model("mini", (10, 20, 30), (13, 8, 4), (10, 8, 1))
MAIN = Model("main", HEIGHTS, (13, 512, 256, 64, 16), (367, 512, 256, 1), "tf32")
MAINS = MAIN, replace(MAIN, precision="ieee", dtype="bfloat16")


class _OfTensors(Layers):
    """As the op's own, of a call whose tensors lie one after the other.

    For layers as wide as main's that is more than any probability: it grows by the sums of absolute values, layer by
    layer. In tf32 and halves an element may therefore be off by TIMES the most that rounding makes an element of the
    same call: in tf32 of rounded operands, in halves of all that eager rounds. Tensor cores that cut operands are
    off by twice that.
    """

    TIMES = 8

    def __init__(self, model: Model) -> None:
        super().__init__()
        object.__setattr__(self, "model", model)

    def errors(self, reference, call, exact):
        arguments = self.model.arguments(call.tensors)
        (worst,) = self.worst(Call("", tuple(arguments[:8]), tuple(arguments[8:])))
        if self.model.dtype == "float32" and self.model.precision == "ieee":
            return [worst]
        in_double = call.map(double).tensors
        if self.model.dtype == "float32":
            with RoundedProducts():
                rounded = reference(*in_double)
        else:
            rounded = reference(*call.tensors)
        most = (rounded.double() - reference(*in_double)).abs().max().item()
        return [worst.clamp(max=self.TIMES * most)]


@functools.cache
def _spec(model: Model) -> Spec:
    def reference(*tensors: Tensor) -> Tensor:
        return dlrm_forward(*model.arguments(tensors))

    names = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in model.names()]
    reference.__signature__ = inspect.Signature(names)
    return Spec(reference, lambda case, device: iter(()), scale=_OfTensors(model))


def _forward(model: Model, held: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensor:
    """The reference as a model has it: nobody looks at the ids, for which the GPU would be waited for. held: the pairs'
    indices, and the top MLP's first weight, which has more columns than there are features if it is padded."""
    pairs, weight = held
    dense, tables, indices, _, *layers, between, last, top_between, top_last, _ = model.arguments(tensors)
    vector = fused_mlp(dense, *layers[:2], between, last)
    looked_up = torch.stack([F.embedding(ids, table) for ids, table in zip(indices, tables, strict=True)], 1)
    features = interact(vector, looked_up, pairs)
    if weight.shape[1] != features.shape[1]:
        features = F.pad(features, (0, weight.shape[1] - features.shape[1]))
    return fused_mlp(features, [weight, *layers[2][1:]], layers[3], top_between, top_last)


def _held(model: Model, tensors: Sequence[Tensor], padded: bool = False) -> tuple[Tensor, Tensor]:
    """What a model has besides, as _forward takes it."""
    size = len(model.heights) + 1
    weight = model.arguments(tensors)[6][0]
    if padded:
        weight = F.pad(weight, (0, -weight.shape[1] % (16 // weight.itemsize)))
    return torch.tril_indices(size, size, -1, device=weight.device), weight


def held(tensor: Tensor) -> Tensor:
    """The tensor as a module's own is for torch.compile: it lies where it lies, so that a graph need not copy it."""
    torch._dynamo.mark_static_address(tensor)
    return tensor


def _peer(
    model: Model, mode: str | None = None, compiled: bool = True, backend: str = "inductor", padded: bool = False,
    **options,
) -> Callable:
    forward, besides = functools.partial(_forward, model), []
    if compiled:
        forward = torch.compile(forward, dynamic=False, backend=backend, mode=mode, options=options or None)

    @in_precision(model.precision)
    def call(*tensors: Tensor) -> Tensor:
        if not besides:
            besides.extend(map(held, _held(model, tensors, padded)))
        return forward(besides, tensors)

    return call


class _Served(nn.Module):
    """The model with tensors of its own, (dense, *ids) → out, as it is exported."""

    def __init__(self, model: Model, tensors: tuple[Tensor, ...]) -> None:
        super().__init__()
        self._model, self._count = model, len(model.heights)
        for buffer, tensor in zip(("pairs", "weight"), _held(model, tensors), strict=True):
            self.register_buffer(buffer, tensor)
        for k, tensor in enumerate(tensors[1 : 1 + self._count] + tensors[1 + 2 * self._count :]):
            self.register_buffer(f"held_{k}", tensor)
        self._held = len(tensors) - 1 - self._count

    def forward(self, dense: Tensor, *ids: Tensor) -> Tensor:
        own = [getattr(self, f"held_{k}") for k in range(self._held)]
        tensors = dense, *own[: self._count], *ids, *own[self._count :]
        return _forward(self._model, (self.pairs, self.weight), tensors)


def _aot_inductor(model: Model) -> Callable:
    """Exported, compiled and loaded at its first call."""
    count, loaded = len(model.heights), []

    @in_precision(model.precision)
    def call(*tensors: Tensor) -> Tensor:
        sample = (tensors[0], *tensors[1 + count : 1 + 2 * count])
        if not loaded:
            served = _Served(model, tensors)
            program = torch.export.export(served, sample)
            # Another g++ than the system's may link its libstdc++ statically, and then loading ends the process.
            with tempfile.TemporaryDirectory() as folder:
                options = {"cpp.cxx": (None, _CXX), "aot_inductor.package_constants_in_so": False}
                path = torch._inductor.aoti_compile_and_package(
                    program, package_path=f"{folder}/model.pt2", inductor_configs=options
                )
                loaded.append(torch._inductor.aoti_load_package(path))
            own = dict(served.named_buffers(remove_duplicate=False))
            constants = {name: own[name] for name in loaded[0].get_constant_fqns()}
            loaded[0].load_constants(constants, check_full_update=True)  # copied: nothing else keeps them
        return loaded[0](*sample)

    return call


_CXX = shutil.which("g++", path="/usr/bin") or "g++"


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


def _tensors(model: Model, rows: int, draw: Callable, ids: Callable, *own: Tensor) -> tuple[Tensor, ...]:
    """Those of a call, one after the other; own: the parameters, or none, and they are drawn too."""
    own, count = own or _parameters(model, draw), len(model.heights)
    indices = [ids(rows, below=height) for height in model.heights]
    return (draw(rows, model.bottom[0]), *own[:count], *indices, *own[count:])


def first_calls(quick: bool = False) -> Iterator[FirstCall]:
    """Mini's and main's, apart because `cells` asks torch.compile for its settings before it has all cells."""
    yield from _first_calls_of(MINI, 2048)
    if not quick:
        yield from _first_calls_of(replace(MAIN, heights=SMALL), 2048)


def _first_calls_of(model: Model, rows: int) -> Iterator[FirstCall]:
    """A process's first call of a model, from the disk, and with NVRTC."""
    tensors, options = model.arguments(model.names())[:8], model.arguments(model.names())[8:]
    lists = [name if isinstance(name, str) else f"[{', '.join(name)}]" for name in tensors]
    arguments = ", ".join([*lists, *map(repr, options)])
    statements = {"eager": f"eager({arguments})"}
    statements |= {backend: f"dlrm_forward({arguments}, backend={backend!r})" for backend in OURS}
    call = Calls(
        OP, "functional", model.labels(rows),
        inputs=functools.partial(_tensors, model, rows), names=tuple(model.names()), baseline="", statements=statements,
        spec=_spec(model),
    )
    yield FirstCall(call, OURS)
    yield FirstCall(call, OURS, compiles=True, part="first call, compiled")


def _all_of_ours(model: Model) -> dict[str, Callable]:
    return {name: functools.partial(_ours, model, name) for name in OURS}


def _cell_of(kind: type[Cell], part: str, model: Model, rows: int, **more) -> Cell:
    return kind(
        OP, part, "functional", model.labels(rows),
        shared=lambda draw: tuple(map(held, _parameters(model, draw))),
        inputs=functools.partial(_tensors, model, rows),
        bytes=model.bytes(rows),
        flops=2 * rows * model.products,
        spec=_spec(model),
        **more,
    )


def _cell(part: str, model: Model, rows: int, autotuned: bool = False) -> Cell:
    peers = {
        "eager": functools.partial(_peer, model, compiled=False),
        "torch.compile": functools.partial(_peer, model),
    }
    if len(model.heights) > FUSED:
        for setting, options in together().items():
            peers[f"torch.compile, {setting}"] = functools.partial(_peer, model, **options)
    if autotuned:
        peers["max-autotune"] = functools.partial(_peer, model, "max-autotune-no-cudagraphs")
    if model in MAINS:
        peers |= {name + PADDED: functools.partial(build, padded=True) for name, build in peers.items()}
    return _cell_of(Cell, part, model, rows, implementations={**peers, **_all_of_ours(model)})


def _latency(model: Model, rows: int, quick: bool) -> Latency:
    """quick: without the peers that take long to compile."""
    peers = {
        "eager": functools.partial(_peer, model, compiled=False),
        "reduce-overhead": functools.partial(_peer, model, "reduce-overhead"),
    }
    if not quick:
        peers |= {
            "torch.compile": functools.partial(_peer, model),
            "max-autotune": functools.partial(_peer, model, "max-autotune"),
            "AOTInductor": functools.partial(_aot_inductor, model),
        }
    peers[FOUND] = functools.partial(_peer, model, backend="fused_kernels")
    return _cell_of(
        Latency, "latency", model, rows,
        implementations={**peers, **_all_of_ours(model)},
        captured=("eager", "torch.compile", *OURS),
    )


def cells(quick: bool = False) -> Iterator[Cell | FirstCall]:
    """Cells by part: a process's first call; mini, and 16 tables; calls one after the other; main, last with
    max-autotune, which takes minutes to choose."""
    yield from first_calls(quick)
    yield _cell("bandwidth", MINI, 2048, autotuned=not quick)
    yield _cell("16 tables", of_tables(16), 4096, autotuned=not quick)
    yield _latency(MINI, 2048, quick)
    for model in MAINS[:1] if quick else MAINS:
        for rows in (2048,) if quick else (128, 2048, 16384, 65536):
            yield _cell("main", model, rows)
    if not quick:
        yield _latency(MAIN, 2048, quick)
        for rows in (128, 2048):
            yield _cell("main autotuned", MAIN, rows, autotuned=True)


def sweep() -> Iterator[Cell]:
    """A grid of tables and rows."""
    for count in (3, 8, 16, 26):
        for rows in (256, 1024, 2048, 4096, 16384, 65536):
            yield _cell("grid", of_tables(count), rows)
