"""What an op's bench.py is written with: cells, calls, the usual implementations; and the row that each figure gets.

An op's bench.py has cells(quick), TARGETS, what its figures must show (kernels.measure.judge), and SHOWN, the labels of
the cells whose times stand in the READMEs, one line a dtype.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

import torch
from torch import Tensor

from .. import dispatch
from ..check.spec import Spec

OURS = ("triton", "cuda")
Labels = Mapping[str, "int | str"]


class Labelled:
    """What cells and rows share: labels, {"rows": 65536, "columns": 512, "dtype": "float32"} say."""

    labels: Labels

    @property
    def dtype(self) -> torch.dtype:
        """That of the label `dtype`; float32 if there is none."""
        return getattr(torch, self.labels.get("dtype", "float32"))

    @property
    def shape(self) -> tuple[int, ...]:
        """The labels that are numbers, in order."""
        return tuple(value for value in self.labels.values() if isinstance(value, int))


@dataclass(frozen=True)
class Cell(Labelled):
    """Implementations of one op on inputs of one kind, measured together.

    part: what the figures are for: bandwidth | grid | auto | backward | ….
    form: functional | in place | backward.
    labels: what tells the cell apart; they stand in its rows.
    inputs: inputs(draw, ids, *shared) → one set of the op's tensors, None for one that is not given. draw(*shape) gives
        normal values of `dtype`; ids(*shape, below=n, zipf=0.0) int64 from 0 to n - 1, uniform or, with zipf > 0, id i
        about (i + 1)^-zipf as often as id 0.
    shared: shared(draw) → tensors that all sets have in common, weights or a table. They stay in the L2 if they fit,
        and the rows say whether they do.
    implementations: name → a function without arguments that builds f(*tensors) → output or outputs.
    options: the op's further positional arguments, which each f has bound.
    bytes, flops: what one call must move and compute. Bytes that hang on the values (of ids, which rows) are a function
        of the first set of inputs.
    waits: only the time of a call as its user sees it is measured, the GPU's work included, by batches that end in a
        synchronisation; in place of the GPU's time alone beside the call's.
    smaller: gives the cell to measure if this one does not fit into the GPU's memory, or None.
    spec: what holds the results, if not the op's own (an op whose public functions take other arguments).
    needs: implementation → the package without which it is not measured, and counted as skipped.
    """

    op: str
    part: str
    form: str
    labels: Labels
    inputs: Callable[..., tuple[Tensor, ...]]
    implementations: Mapping[str, Callable[[], Callable]]
    bytes: int | Callable[..., int] = 0
    flops: int = 0
    options: tuple = ()
    shared: Callable[[Callable[..., Tensor]], tuple[Tensor, ...]] | None = None
    waits: bool = False
    smaller: Callable[[], Cell | None] = lambda: None
    spec: Spec | None = None
    needs: Mapping[str, str] = field(default_factory=dict)

    def without(self, names: Container[str]) -> Cell:
        """The cell without these of its implementations; nor has a smaller cell that is measured in its place."""
        left = {name: build for name, build in self.implementations.items() if name not in names}

        def smaller() -> Cell | None:
            cell = self.smaller()
            return cell and cell.without(names)

        return replace(self, implementations=left, smaller=smaller)

    def missing(self) -> dict[str, str]:
        """Implementations whose package is missing: {name: package}."""
        return {
            name: package for name, package in self.needs.items()
            if name in self.implementations and importlib.util.find_spec(package) is None
        }


@dataclass(frozen=True)
class Latency(Cell):
    """Calls one after the other, as a server makes them, each timed by itself (kernels.measure.latency).

    captured: the implementations that are also measured as a CUDA graph of one call.
    """

    captured: tuple[str, ...] = ()


FRESH, IN_A_GRAPH = ", fresh inputs", ", in a graph"  # behind an implementation's name


@dataclass(frozen=True)
class Calls(Labelled):
    """Statements that a user would write, timed from Python on small tensors, whose variables are `names`.

    form: functional | in place | with a gradient (recorded: the floating-point inputs require one).
    statements: implementation → expression of the variables, the op's function and `eager`, its reference.
    baseline: the one of them that is no implementation of the op, but what their cost is compared with; or "".
    spec: what holds the results, if not the op's own, as of a Cell.
    """

    op: str
    form: str
    labels: Labels
    inputs: Callable[..., tuple[Tensor, ...]]
    names: tuple[str, ...]
    baseline: str
    statements: Mapping[str, str]
    options: tuple = ()
    part: str = "calls"
    spec: Spec | None = None


@dataclass(frozen=True)
class FirstCall(Labelled):
    """The first call of a fresh process, with what it needs on disk: the statements of `calls` for these backends.

    compiles: without the cubins of CUDA source that is generated, which the call has to compile then.
    """

    calls: Calls
    implementations: tuple[str, ...] = OURS
    compiles: bool = False
    form: str = "functional"
    part: str = "first call"

    @property
    def op(self) -> str:
        return self.calls.op

    @property
    def labels(self) -> Labels:
        return self.calls.labels


@dataclass(frozen=True)
class Lengths(Labelled):
    """Calls from Python whose ids are of another number N each time, `count` of them that are new, beside as many calls
    of one N, `fixed`.

    inputs: inputs(draw, ids, n, *shared) → a set of the op's tensors with N = n. The rest is as of a Cell.
    """

    op: str
    labels: Labels
    inputs: Callable[..., tuple[Tensor, ...]]
    implementations: Mapping[str, Callable[[], Callable]]
    fixed: int = 1000
    count: int = 200
    options: tuple = ()
    shared: Callable[[Callable[..., Tensor]], tuple[Tensor, ...]] | None = None
    spec: Spec | None = None
    form: str = "functional"
    part: str = "lengths"


ANOTHER_LENGTH = ", another N a call"  # behind an implementation's name


@dataclass(frozen=True)
class Row(Labelled):
    """One implementation on one cell. Times in µs, None where not measured; match: ok | baseline | FAILED: why.

    us_…: one call's time on the GPU: percentiles over replays.
    call_us: a call's time from Python, the median; call_us_low, call_us_high: of a statement the least and the most of
        its repeats, of a cell that waits the 20th and the 80th percentile.
    call_us_mean, call_us_p99: of calls that were timed one by one.
    note: what was not as asked for: a smaller shape, fewer sets; and whether shared tensors stay in the L2.
    """

    op: str
    part: str
    form: str
    implementation: str
    labels: Labels = field(default_factory=dict)
    us_p20: float | None = None
    us_p50: float | None = None
    us_p80: float | None = None
    call_us: float | None = None
    call_us_low: float | None = None
    call_us_high: float | None = None
    call_us_mean: float | None = None
    call_us_p99: float | None = None
    bytes: int | None = None
    flops: int | None = None
    tb_per_s: float | None = None
    percent_of_copy: float | None = None
    match: str = "ok"
    note: str = ""

    @property
    def failed(self) -> bool:
        return self.match.startswith("FAILED")

    def flat(self) -> dict:
        """{field: value}, the labels among them: a line of a record, or of a table."""
        values = {}
        for name in _FIELDS:
            values |= self.labels if name == "labels" else {name: getattr(self, name)}
        return values

    @classmethod
    def of(cls, flat: Mapping) -> Row:
        """The row whose `flat` this is."""
        known = {name: flat[name] for name in _FIELDS if name in flat}
        return cls(**known, labels={name: value for name, value in flat.items() if name not in _FIELDS})


_FIELDS = tuple(field.name for field in fields(Row))


def label(labelled: Labelled) -> str:
    """The labels in a few words: 65536×512 float32 sigmoid."""
    words = [str(value) for value in labelled.labels.values() if not isinstance(value, int)]
    return " ".join(filter(None, ["×".join(map(str, labelled.shape)), *words]))


def describe(error: Exception) -> str:
    """The error in one short line, without the folders of paths."""
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return re.sub(r"(?<![\w.])/(?:[^\s/'\":]+/)+", "", line)[:200]


def note_failure(failed: dict[str, str], name: str, work: Callable[[], object]) -> None:
    """Do the work; an error, but for a want of memory, goes into `failed` under the name."""
    try:
        work()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        failed[name] = describe(error)


# ------------------------------------------------------------------------------------------------------------------
# The usual implementations and statements.


def reference(op: str) -> Callable:
    """The op's function in its eager.py; of an op that has an in-place form, with an underscore behind, that one's."""
    if op in dispatch.names():
        return dispatch.find(op).eager
    return dispatch.find(op.removesuffix("_")).eager_in_place


def public(op: str) -> Callable:
    """The op's function in kernels; of an op whose public functions have other names, the one in its op.py."""
    name = op.removesuffix("_")
    return getattr(importlib.import_module("kernels"), op, None) or getattr(
        importlib.import_module(f"kernels.ops.{name}.op"), op
    )


@contextmanager
def in_precision(precision: str) -> Iterator[None]:
    """Float32 products of PyTorch's are "tf32" in here, or "ieee"; it decorates a function too."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def implementations(op: str, options: tuple, names: Iterable[str], *, in_place: bool = False) -> dict[str, Callable]:
    """Builders of the op's usual implementations: eager, torch.compile, max-autotune, auto, triton, cuda."""
    eager = _bound(reference(op + "_" * in_place), options)
    # Without CUDA graphs of its own: the harness captures all implementations alike.
    autotune = functools.partial(torch.compile, eager, dynamic=False, mode="max-autotune-no-cudagraphs")
    builders = {
        "eager": lambda: eager,
        "torch.compile": functools.partial(torch.compile, eager, dynamic=False),
        "max-autotune": autotune,
    }
    for backend in ("auto", *OURS):
        builders[backend] = lambda backend=backend: _bound(public(op + "_" * in_place), options, backend=backend)
    return {name: builders[name] for name in names}


def _bound(function: Callable, options: tuple, **keywords) -> Callable:
    def bound(*tensors):
        return function(*tensors, *options, **keywords)

    return bound


def calls(
    op: str,
    labels: Labels,
    inputs: Callable[..., tuple[Tensor, ...]],
    names: tuple[str, ...],
    options: tuple = (),
    forms: Iterable[str] = ("functional", "in place", "with a gradient"),
    backends: Iterable[str] = OURS,
) -> Iterator[Calls | FirstCall]:
    """A call's cost in each of the forms, for eager and these backends beside PyTorch's smallest call of that form; and
    a process's first call."""
    arguments = ", ".join([*names, *map(repr, options)])
    baselines = {"functional": f"{names[0]} + 1", "in place": f"{names[0]}.add_(1)", "with a gradient": ""}
    for form in forms:
        function = op + "_" * (form == "in place")
        statements = {baselines[form]: baselines[form]} if baselines[form] else {}
        statements["eager"] = f"eager({arguments})"
        statements |= {name: f"{function}({arguments}, backend='{name}')" for name in ("auto", *backends)}
        cell = Calls(op, form, labels, inputs, names, baselines[form], MappingProxyType(statements), options)
        yield cell
        if form == "functional":
            yield FirstCall(cell, tuple(backends))
