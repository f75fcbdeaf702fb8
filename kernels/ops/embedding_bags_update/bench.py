"""What is measured of the embedding tables' updates: `python -m kernels.measure bench embedding_bags_update`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

import kernels

from ...measure import fbgemm
from ...measure.cells import OURS, Cell, Lengths, Row, label
from ...measure.judge import AnyLength, AtMost, CopyShare, Verdict, by_cell
from ...measure.runs import generators
from ..embedding_bags_sort.eager import embedding_bags_sort
from . import eager
from .op import OP as DECLARED
from .op import RULES
from .spec import EPS, whole

OP = "embedding_bags_update"
# The cardinalities of C1 to C26 of Criteo's Kaggle data, and a row a table for what is not known: 33.8 million in all.
KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
HEIGHTS = tuple(cardinality + 1 for cardinality in KAGGLE)
# Rows of 512 bytes would take 17 GB, and several times that to compare with. A batch of 65536 still meets 97 % of its
# ids once only, over a million rows.
CAPPED = tuple(min(height, 1_000_000) for height in HEIGHTS)
SMALL = tuple(min(height, 50_000) for height in HEIGHTS)
FEATURES = len(HEIGHTS)
BATCHES = (2048, 16384, 65536)
ZIPF = 1.05
RATE = 0.01
ATOMICS = "cuda, by atomics"
TBE_OPTIMIZERS = {"sgd": "EXACT_SGD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD"}
SHOWN = {"rows": 65536, "width": 16, "ids": "uniform", "rule": "sgd"}


@dataclass(frozen=True)
class SortShare:
    """Says what part of an update's time its sort takes: it has no limit."""

    part: str = "bandwidth"

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        figures = []
        for cell in by_cell(rows):
            for who in OURS:
                both, walk = (cell.get(name) for name in (who, f"{who}, sorted before"))
                if both and walk and both.us_p50 and walk.us_p50:
                    figures.append(f"{who} {label(both)} {100 * (1 - walk.us_p50 / both.us_p50):.0f} %")
        return Verdict(self.part, bool(figures), f"the sort's share: {', '.join(figures)}")


@dataclass(frozen=True)
class LargestShare(CopyShare):
    """CopyShare, of the cells of 65536 rows of 128: the smaller ones are a handful of launches."""

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        largest = [row for row in rows if row.labels["rows"] == 65536 and row.labels["width"] == 128]
        return CopyShare(self.at_least, self.part).judge(largest, copies)


# An update that is waited for must take at most a fifth of what eager's sparse gradient and its update take.
TARGETS = (LargestShare(lambda labels: 60.0), SortShare(), AtMost(0.2, "eager", "waits"), AnyLength())


def _offsets(heights: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([0, *accumulate(heights)], device=device)


@functools.cache
def distinct_rows(heights: tuple[int, ...], batch: int, zipf: float) -> int:
    """How many rows a batch of such ids names, counted on a draw of its own."""
    ids = generators(torch.float32, torch.device("cpu"))[1]
    return sum(len(ids(batch, below=height, zipf=zipf).unique()) for height in heights)


def _update(rule: str, backend: str, **more) -> Callable:
    """The public function on (tables, state, row_offsets, indices, grad, …)."""

    def update(tables, state, row_offsets, indices, grad, keys, positions, bags=None, offsets=None):
        function = getattr(eager if backend == "eager" else kernels, f"embedding_bags_{rule}_")
        options = more | {"offsets": offsets} | ({} if backend == "eager" else {"backend": backend})
        if rule == "sgd":
            function(tables, row_offsets, indices, grad, RATE, **options)
        else:
            function(tables, state, row_offsets, indices, grad, RATE, eps=EPS, **options)

    return update


def _walk(rule: str, backend: str) -> Callable:
    """The walk alone, of ids that were sorted before."""

    def walk(tables, state, row_offsets, indices, grad, keys, positions, bags=None, offsets=None):
        grad = grad.view(-1, tables.shape[1])
        DECLARED.call(backend, tables, state, keys, positions, grad, None, None, None, RATE, rule, EPS, 0)

    return walk


def _table_batch(rule: str) -> Callable:
    """FBGEMM's backward and update. Its look-up, without which there is no backward, is made at the first call."""
    outputs = []

    def update(tables, state, row_offsets, indices, grad, keys, positions, bags=None, offsets=None):
        if not outputs:
            options = {"learning_rate": RATE} | ({} if rule == "sgd" else {"state": state, "eps": EPS})
            module = fbgemm.table_batch(tables, row_offsets, TBE_OPTIMIZERS[rule], **options)
            with torch.enable_grad():
                outputs.append(module(*fbgemm.by_feature(indices)))
        torch.autograd.backward(outputs[0], grad.flatten(1), retain_graph=True)

    return update


def _implementations(rule: str, names: tuple[str, ...]) -> dict[str, Callable]:
    builders = {"torch.compile": lambda: torch.compile(_update(rule, "eager"), dynamic=False)}
    builders[ATOMICS] = functools.partial(_update, rule, "cuda", deterministic=False)
    builders[fbgemm.NAME] = functools.partial(_table_batch, rule)
    for backend in ("eager", *OURS):
        builders[backend] = functools.partial(_update, rule, backend)
        builders[f"{backend}, sorted before"] = functools.partial(_walk, rule, backend)
    return {name: builders[name] for name in names}


def _cell(part: str, rule: str, heights: tuple[int, ...], batch: int, width: int, zipf: float, names) -> Cell:
    def shared(draw: Callable) -> tuple[Tensor, ...]:
        tables = draw(sum(heights), width)
        shape = {"sgd": (0,), "adagrad": tables.shape, "rowwise_adagrad": tables.shape[:1]}[rule]
        return tables, draw(*shape).abs_(), _offsets(heights, tables.device)

    def inputs(draw, ids, tables, state, row_offsets) -> tuple[Tensor, ...]:
        indices = torch.stack([ids(batch, below=height, zipf=zipf) for height in heights], dim=1)
        keys, positions, *_ = embedding_bags_sort(indices, row_offsets, None, sum(heights))
        return tables, state, row_offsets, indices, draw(batch, FEATURES, width), keys, positions, None, None

    smaller = SMALL if heights == CAPPED else CAPPED if heights == HEIGHTS else None
    ids = batch * FEATURES
    kind = {HEIGHTS: "all rows", CAPPED: "10^6 rows a table", SMALL: "50000 rows a table"}[heights]
    return Cell(
        OP, part, "functional",
        {"rows": batch, "width": width, "ids": "zipf" if zipf else "uniform", "rule": rule, "tables": kind},
        inputs=inputs,
        shared=shared,
        implementations=_implementations(rule, names),
        options=(RATE,),
        bytes=eager.necessary_bytes(
            rule, ids, 8, ids, distinct_rows(heights, batch, zipf), width, torch.float32
        ),
        flops=2 * ids * width,
        waits=part == "waits",
        smaller=lambda: _cell(part, rule, smaller, batch, width, zipf, names) if smaller else None,
        spec=whole(rule),
        needs=fbgemm.NEEDS,
    )


def _lengths(rule: str) -> Lengths:
    """Four tables and 64 rows, so that the GPU is done before the next call comes."""
    rows, heights, width = 64, (1000,) * 4, 16

    def shared(draw: Callable) -> tuple[Tensor, ...]:
        tables = draw(sum(heights), width)
        return tables, draw(0), _offsets(heights, tables.device)

    def inputs(draw, ids, n, tables, state, row_offsets) -> tuple[Tensor, ...]:
        indices = ids(n, below=heights[0])
        ends = ids(rows * len(heights) - 1, below=n).sort().values
        offsets = torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), n)])
        keys, positions, bags, _ = embedding_bags_sort(indices, row_offsets, offsets, sum(heights))
        return tables, state, row_offsets, indices, draw(rows, len(heights), width), keys, positions, bags, offsets

    return Lengths(
        OP, {"rows": rows, "width": width, "ids": "ragged", "rule": rule}, inputs,
        _implementations(rule, ("eager", *OURS)), options=(RATE,), shared=shared, spec=whole(rule),
    )


def cells(quick: bool = False) -> Iterator[Cell | Lengths]:
    """By part: on the GPU alone, whole, without the sort, and SGD by atomics; then against eager, whose sizes hang on
    the ids: it cannot be captured, so there a call is waited for, FBGEMM's too, whose backward is autograd's; last
    calls whose number of ids is another one each time."""
    ours = ("cuda", "cuda, sorted before", "triton", "triton, sorted before")
    for width, heights in ((16, HEIGHTS), (128, CAPPED)):
        for batch in BATCHES[-1:] if quick else BATCHES:
            for zipf in (0.0, ZIPF):
                for rule in RULES[:1] if quick else RULES:
                    names = (*ours, ATOMICS) if rule == "sgd" else ours
                    yield _cell("bandwidth", rule, heights, batch, width, zipf, names)
    for batch in BATCHES[:1] if quick else BATCHES:
        for rule in RULES:
            tbe = (fbgemm.NAME,) * (rule in TBE_OPTIMIZERS)
            names = ("eager", "torch.compile", "triton", "cuda", *tbe)
            yield _cell("waits", rule, HEIGHTS, batch, 16, ZIPF, names)
            if batch == 65536 and tbe:  # whose time on the GPU the READMEs show
                yield _cell("waits", rule, HEIGHTS, batch, 16, 0.0, names)
    yield _lengths("sgd")
