"""What is measured of look-ups and interaction in one: `python -m kernels.measure bench lookup_interact`.

26 tables of Criteo's Kaggle data, one id each, and rows filled up to multiples of 8. The peers are our two kernels, in
full float32, and PyTorch's operators, whose products are in the cell's precision. Of the kinds fm and flat the second
of the two is what torch.compile makes of the vectors of the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels

from ...inductor import together
from ...measure.cells import Cell, Row, implementations, in_precision
from ...measure.judge import AtMost, NeverSlower, Verdict
from ..dot_interaction import eager as interaction
from ..dot_interaction.op import OP as INTERACTION
from ..embedding_bags.bench import CAPPED, FEATURES, HEIGHTS
from . import eager
from .spec import SPECS

OP = "lookup_interact"
PAD_TO = 8
SHOWN = {"rows": 65536, "columns": 16}
OURS = ("cuda",)
TWO = "our two kernels"
NAMES = ("eager", "torch.compile", TWO, "cuda")
FLOPS: Mapping[str, Callable[[int, int], int]] = {
    "dot": lambda rows, columns: interaction.forward_flops(rows, FEATURES, columns),
    "fm": lambda rows, columns: 3 * rows * FEATURES * columns,
    "flat": lambda rows, columns: 0,
}


@dataclass(frozen=True)
class ByTensorCores(AtMost):
    """AtMost, of tf32 and halves. In full float32 gradients take up to twice as long as of vectors that were kept, and
    have no limit."""

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        of_them = [row for row in rows if row.labels["precision"] == "tf32" or row.labels["dtype"] != "float32"]
        return AtMost.judge(self, of_them, copies)


TARGETS = (
    ByTensorCores(1.0, TWO, "gradients", OURS),
    AtMost(0.8, TWO, "bandwidth", OURS), NeverSlower(TWO, OURS), NeverSlower("torch.compile", OURS),
    NeverSlower(TWO, OURS, "wide"), NeverSlower("torch.compile", OURS, "wide"), NeverSlower("eager", ("auto",), "auto"),
    AtMost(0.8, TWO, "columns", OURS), NeverSlower("torch.compile", OURS, "columns"),
    NeverSlower(TWO, OURS, "columns gradients"),
)  # fmt: skip


def _two(kind: str) -> Callable:
    interact = functools.partial(eager.interact, pad_to=PAD_TO, kind=kind)
    second = kernels.dot_interaction if kind == "dot" else torch.compile(interact, dynamic=False)
    more = (PAD_TO,) if kind == "dot" else ()

    def two(dense: Tensor, *look_up) -> Tensor:
        return second(dense, kernels.embedding_bags(*look_up), *more)

    return two


def _peer(heights: tuple[int, ...], precision: str, kind: str, options: dict | None) -> Callable:
    """Table by table and as a product, as one would write it; options: of torch.compile, None: not compiled."""
    pairs = interaction.pairs(FEATURES, torch.device("cuda"))

    def interact(dense: Tensor, tables: Tensor, row_offsets: Tensor, indices: Tensor, offsets: Tensor | None) -> Tensor:
        parts = tables.split(heights)
        vectors = torch.stack([F.embedding(indices[:, f], part) for f, part in enumerate(parts)], dim=1)
        if kind == "dot":
            return interaction.interact(dense, vectors, pairs, PAD_TO)
        return eager.interact(dense, vectors, PAD_TO, kind)

    compiled = interact if options is None else torch.compile(interact, dynamic=False, options=options or None)
    return in_precision(precision)(compiled)


def _offsets(heights: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.tensor([0, *heights], device=like.device).cumsum(0)


def _cell(
    part: str, rows: int, columns: int, dtype: str, precision: str, names: tuple[str, ...] = NAMES,
    heights: tuple[int, ...] = HEIGHTS, kind: str = "dot", **more,
) -> Cell:
    def shared(draw: Callable) -> tuple[Tensor, ...]:
        tables = draw(sum(heights), columns)
        return tables, _offsets(heights, tables)

    def inputs(draw: Callable, ids: Callable, tables: Tensor, row_offsets: Tensor) -> tuple[Tensor | None, ...]:
        indices = torch.stack([ids(rows, below=height) for height in heights], dim=1)
        return draw(rows, columns), tables, row_offsets, indices, None

    def forward_bytes(dense: Tensor, tables: Tensor, row_offsets: Tensor, indices: Tensor, offsets: None) -> int:
        return eager.forward_bytes(dense, tables, row_offsets, indices, PAD_TO, kind)

    options = PAD_TO, precision, kind
    built = {
        "eager": functools.partial(_peer, heights, precision, kind, None),
        "torch.compile": functools.partial(_peer, heights, precision, kind, {}),
        TWO: functools.partial(_two, kind), **implementations(OP, options, ("auto", *OURS)),
    }  # fmt: skip
    if any(name.startswith("torch.compile, ") for name in names):  # to ask for settings imports Triton
        for setting, of_setting in together().items():
            built[f"torch.compile, {setting}"] = functools.partial(_peer, heights, precision, kind, of_setting)
    smaller = functools.partial(_cell, part, rows, columns, dtype, precision, names, CAPPED, kind, **more)
    of_tables = "all rows" if heights == HEIGHTS else f"at most {max(heights):,} rows a table"
    return Cell(
        OP, part, "functional",
        {"rows": rows, "features": FEATURES, "columns": columns, "dtype": dtype, "ids": "uniform", "tables": of_tables,
         "precision": precision} | ({} if kind == "dot" else {"kind": kind}),
        shared=shared,
        inputs=inputs,
        implementations={name: built[name] for name in names},
        options=options,
        bytes=forward_bytes,
        flops=FLOPS[kind](rows, columns),
        smaller=lambda: smaller() if heights != CAPPED else None,
        **more,
    )  # fmt: skip


def _gradients(
    rows: int, columns: int, dtype: str, precision: str, heights: tuple[int, ...] = HEIGHTS, kind: str = "dot"
) -> Cell:
    """The vectors' gradients, beside those of vectors that were kept: dot_interaction's; of the other kinds what
    torch.compile makes of PyTorch's operators."""
    forward = _cell("gradients" if kind == "dot" else "columns gradients", rows, columns, dtype, precision, (), heights,
                    kind)  # fmt: skip
    kept: dict[int, Tensor] = {}  # of each set, by the place of its ids in memory

    def inputs(draw: Callable, ids: Callable, tables: Tensor, row_offsets: Tensor) -> tuple[Tensor | None, ...]:
        of_forward = forward.inputs(draw, ids, tables, row_offsets)
        indices = of_forward[3]
        vectors = kernels.embedding_bags(tables, row_offsets, indices)
        kept[indices.data_ptr()] = vectors if kind == "dot" else torch.cat([of_forward[0].unsqueeze(1), vectors], 1)
        return draw(rows, eager.width(FEATURES, columns, PAD_TO, kind)), *of_forward

    by_column = torch.compile(functools.partial(eager.gradients_by_column, kind=kind), dynamic=False)

    def two(grad: Tensor, dense: Tensor, tables: Tensor, row_offsets: Tensor, indices: Tensor, _: None) -> list[Tensor]:
        vectors = kept[indices.data_ptr()]
        if kind == "dot":
            return INTERACTION.overload("cuda", "backward")(grad, dense, vectors, PAD_TO, [True, True])
        return [*by_column(grad, vectors)]

    def moved(grad: Tensor, dense: Tensor, tables: Tensor, row_offsets: Tensor, indices: Tensor, _: None) -> int:
        return eager.gradient_bytes(dense, tables, row_offsets, indices, PAD_TO, kind)

    options = precision, kind
    return replace(
        forward, inputs=inputs, options=options, bytes=moved, flops=2 * forward.flops,
        implementations={TWO: lambda: two, **implementations("lookup_interact_gradients", options, OURS)},
        smaller=lambda: _gradients(rows, columns, dtype, precision, CAPPED, kind) if heights != CAPPED else None,
        spec=SPECS["lookup_interact_gradients"],
    )


def cells(quick: bool = False) -> Iterator[Cell]:
    """Cells by part: 16 columns against the two kernels, wider vectors, the gradients, the kinds whose columns do not
    meet, what auto is."""
    ours = tuple(name for name in NAMES if name != "torch.compile")
    set_best = () if quick else tuple(f"torch.compile, {setting}" for setting in together())
    for rows in (65536,) if quick else (65536, 2048):
        yield _cell("bandwidth", rows, 16, "float32", "tf32", (*(ours if quick else NAMES), *set_best))
        for dtype, precision in () if quick else (("float32", "ieee"), ("bfloat16", "ieee")):
            yield _cell("bandwidth", rows, 16, dtype, precision, ours)
        for columns in (64,) if quick else (64, 128):
            yield _cell("wide", rows, columns, "float32", "tf32", ours if quick else NAMES, CAPPED)
        for dtype, precision in (("float32", "tf32"), ("bfloat16", "ieee"), *(() if quick else (("float32", "ieee"),))):
            yield _gradients(rows, 16, dtype, precision)
    for kind in ("fm", "flat"):
        for rows in (65536,) if quick else (65536, 2048):
            for dtype in ("float32",) if quick else ("float32", "bfloat16"):
                names = ours if quick or dtype != "float32" else (*NAMES, *set_best)
                yield _cell("columns", rows, 16, dtype, "ieee", names, kind=kind)
                yield _gradients(rows, 16, dtype, "ieee", kind=kind)
            if not quick:
                yield _cell("columns", rows, 128, "float32", "ieee", ours, CAPPED, kind=kind)
                yield _gradients(rows, 128, "float32", "ieee", CAPPED, kind)
        yield _cell("auto", 2048, 16, "float32", "ieee", ("eager", "auto"), CAPPED, kind, waits=True)
    yield _cell("auto", 2048, 16, "float32", "tf32", ("eager", "auto"), CAPPED, waits=True)
