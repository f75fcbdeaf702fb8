"""What `kernels.check` takes embedding_bags through, and how far its results may be off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...check import Call, Case, Dimension, Spec, Sums
from ...check.comparison import gradients
from .eager import embedding_bags

HEIGHTS = (37, 1, 8)
HOSTILE = (-1, 8, 37, 2**31 - 1, -(2**31))
HOSTILE_64 = (*HOSTILE, 2**32 + 5, 2**63 - 1, -(2**63))


def draw_ids(generator: torch.Generator, features: Tensor, heights: tuple[int, ...] = HEIGHTS) -> Tensor:
    """An id of its table for each of the features [N]."""
    fractions = torch.rand(features.shape, generator=generator, dtype=torch.float64)
    return (fractions * torch.tensor(heights)[features]).long()


def draw_bags(generator: torch.Generator, rows: int, features: int) -> tuple[Tensor, Tensor]:
    """(the feature of each of the N ids, offsets int64 [F B + 1]) of bags of 0 to 4 ids, one in twenty of 13."""
    lengths = torch.randint(5, (features * rows,), generator=generator)
    lengths[torch.rand(lengths.shape, generator=generator) < 0.05] = 13
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    return torch.arange(features * rows).repeat_interleave(lengths) // max(rows, 1), offsets


def _spoiled(ids: Tensor, generator: torch.Generator, values: tuple[int, ...]) -> Tensor:
    """The ids, one in five of them out of range."""
    chosen = torch.randint(len(values), ids.shape, generator=generator)
    return torch.where(torch.rand(ids.shape, generator=generator) < 0.2, torch.tensor(values)[chosen], ids)


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    *leading, width = case.shape
    rows, heights = math.prod(leading), HEIGHTS[: case.sizes[0] if case.sizes else None]
    features = len(heights)
    generator = torch.Generator().manual_seed(sum(case.shape))
    plain = Case(case.shape, case.dtype)
    tables = (case if case.only in ("", "tables") else plain).tensor(1, device, (sum(heights), width))
    if case.values == "huge":
        tables = tables / 1024  # a dozen of them, weighted, must not overflow in one order and stay finite in another
    row_offsets = torch.tensor([0, *heights]).cumsum(0).to(device)
    single = draw_ids(generator, torch.arange(features).expand(rows, features), heights)
    of_ids, offsets = draw_bags(generator, rows, features)
    ragged = draw_ids(generator, of_ids, heights)
    weighted = case if case.only in ("", "per_sample_weights") else plain

    def call(name: str, ids: Tensor, bounds: Tensor | None, mode: str, weights: bool, *options) -> Call:
        numbers = weighted.tensor(2, device, tuple(ids.shape)) if weights else None
        bounds = None if bounds is None else bounds.to(device)
        return Call(f"{case} {name}", (tables, row_offsets, ids.to(device), bounds, mode, numbers), options)

    yield call("bags sum weighted", ragged, offsets, "sum", True, -1, "error")
    yield call("one id", single, None, "sum", False, -1, "error")
    yield call("bags mean padding int32", ragged.int(), offsets.int(), "mean", False, 2, "error")
    yield call("bags max", ragged, offsets, "max", False, -1, "error")
    spoiled = _spoiled(single, generator, HOSTILE)
    yield call("one id hostile int32", spoiled.int(), None, "sum", False, 3, "zero")
    yield call("one id weighted hostile", _spoiled(single, generator, HOSTILE_64), None, "sum", True, -1, "count")
    yield call("bags mean hostile", _spoiled(ragged, generator, HOSTILE_64), offsets, "mean", False, 0, "zero")
    yield call("bags max hostile int32", _spoiled(ragged, generator, HOSTILE).int(), offsets, "max", False, 1, "count")


@dataclass(frozen=True)
class _Pooled(Sums):
    """A maximum's gradient goes to the row that is the largest, of the absolute values that may be another. Results
    below
    the smallest normal number may be zero, and float16's are spaced by 2^-24 there."""

    def errors(self, reference, call, exact):
        return [error + _smallest(call) for error in super().errors(reference, call, exact)]

    def gradients(self, reference, call, needed, grads, rounds):
        pairs = super().gradients(reference, call, needed, grads, rounds)
        return [pair and (pair[0], pair[1] + _smallest(call)) for pair in pairs]


def _smallest(call: Call) -> float:
    number = torch.finfo(call.tensors[0].dtype)
    return max(4 * torch.finfo(torch.float32).tiny, number.tiny * number.eps)


def _gradient_magnitude(call: Call, incoming: list[Tensor]) -> list[Tensor | None]:
    kept = call.tensors[:1] if "max" in call.tensors else ()
    others = call.tensors[len(kept) :]
    absolute = (t.abs() if isinstance(t, Tensor) and t.is_floating_point() else t for t in others)
    call = replace(call, tensors=(*kept, *absolute))
    needed = [leaf.is_floating_point() for leaf in call.leaves()]
    return gradients(embedding_bags, call, needed, incoming)


def _cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(0, 5), (5, 0), (1, 1), (7, 1), (120, 4), (1, 4097), (3, 1025), (33, 129), (9,), (2, 0, 3)]
    cases = [Case(shape, every_option=False) for shape in shapes]
    cases += [Case((6, 24), layout=layout) for layout in ("transposed", "strided", "expanded", "misaligned")]
    cases += [Case((1, 7)), Case((13, 40), values="special"), Case((40, 16), values="tiny")]
    cases += [Case((6, 24), layout="strided", only=only) for only in ("tables", "per_sample_weights")]
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        cases += [Case((13, 24), dtype), Case((6, 24), dtype, "misaligned"), Case((7, 5), dtype, values="special")]
    return cases


def _wide_cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(4099, 16), (2048, 128), (1031, 1024), (517, 1023), (26215, 4)]
    return [Case(shape, dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)]


SPEC = Spec(
    embedding_bags,
    _calls,
    # A row's gradient adds up to some hundred terms in another order than the reference, which in float64 is no better.
    scale=_Pooled(k=16.0, gradient_magnitude=_gradient_magnitude),
    cases=_cases,
    wide_cases=_wide_cases,
    # The others have one table, for as many bags as rows; and long rows, of which a program of the forward takes few.
    dimensions=(
        Dimension(lambda n: Case((1, n)), least=128), Dimension(lambda n: Case((n, 5), sizes=(1,)), large=48, least=16),
        Dimension(lambda n: Case((n, 1025), sizes=(1,)), large=128, least=64),
    ),
)
