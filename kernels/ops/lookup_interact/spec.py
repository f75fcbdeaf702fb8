"""What `kernels.check` takes lookup_interact through, and how far its results may be off."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...check import Call, Case, Dimension, Spec, Sums
from ...check.tf32 import EPS as TF32_EPS
from ..embedding_bags.eager import embedding_bags
from .eager import KINDS, lookup_interact, lookup_interact_gradients, width

HEIGHTS = (37, 1, 8, 100)  # of the tables, by turns


def draw_ids(rows: int, heights: tuple[int, ...], bags: bool, seed: int = 0) -> tuple[Tensor, Tensor | None]:
    """(indices, offsets): an id a row and table, or bags of 0 to 3, one in twenty of 13."""
    generator, features = torch.Generator().manual_seed(seed), len(heights)
    if bags:
        lengths = torch.randint(4, (features * rows,), generator=generator)
        lengths[torch.rand(lengths.shape, generator=generator) < 0.05] = 13
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        of_ids = torch.arange(features * rows).repeat_interleave(lengths) // max(rows, 1)
    else:
        offsets, of_ids = None, torch.arange(features).expand(rows, features)
    fractions = torch.rand(of_ids.shape, generator=generator, dtype=torch.float64)
    return (fractions * torch.tensor(heights, dtype=torch.float64)[of_ids]).long(), offsets


def draw(
    case: Case, rows: int, features: int, columns: int, bags: bool, device: torch.device,
    ids: torch.dtype = torch.int64, pad_to: int = 1, precision: str = "ieee", kind: str = "dot",
) -> Call:
    """A call for these sizes."""
    plain = Case(case.shape, case.dtype)

    def drawn(name: str, seed: int, shape: tuple[int, ...]) -> Tensor:
        return (case if case.only in ("", name) else plain).tensor(seed, device, shape)

    heights = tuple(HEIGHTS[f % len(HEIGHTS)] for f in range(features))
    indices, offsets = draw_ids(rows, heights, bags)
    row_offsets = torch.tensor([0, *heights]).cumsum(0).to(device)
    offsets = offsets if offsets is None else offsets.to(device, ids)
    tensors = (drawn("dense", 1, (rows, columns)), drawn("tables", 2, (sum(heights), columns)), row_offsets,
               indices.to(device, ids), offsets)
    name = f"{case} {kind} {features} tables {'bags' if bags else 'one id'} {ids} to {pad_to} {precision}"
    return Call(name, tensors, (pad_to, precision, kind))


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    """Rows and columns are the case's, and so are the features if it has `sizes`; else there are few and many features,
    bags and one id each, and rows of the output padded to an alignment; of dot first."""
    *leading, columns = case.shape
    rows = math.prod(leading)
    if case.sizes:
        for kind in KINDS:
            yield draw(case, rows, case.sizes[0], columns, False, device, kind=kind)
        return
    yield draw(case, rows, 3, columns, True, device)
    yield draw(case, rows, 26, columns, False, device, torch.int32, 8, "tf32")
    yield draw(case, rows, 26, columns, False, device)
    yield draw(case, rows, 17, columns, True, device, torch.int32, 4, "tf32")
    yield draw(case, rows, 1, columns, False, device)
    for kind in ("fm", "flat"):
        yield draw(case, rows, 26, columns, False, device, torch.int32, 8, kind=kind)
        yield draw(case, rows, 3, columns, True, device, kind=kind)


@dataclass(frozen=True)
class _Products(Sums):
    """Tensor cores round to tf32; a half's bag is rounded to the dtype before it is multiplied, a vector's gradient
    before a table's is added up. Products below the smallest normal number may be zero, and float16's results are
    spaced by 2^-24 there."""

    def _with(self, call: Call, rounds: bool) -> Sums:
        """With a k for these roundings; rounds: to the dtype."""
        dtype = call.tensors[0].dtype
        own = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
        tf32 = TF32_EPS if dtype == torch.float32 and "tf32" in call.options else own
        return Sums(max(self.k, 2 * max(torch.finfo(dtype).eps if rounds else own, tf32) / own), self.magnitude)

    def errors(self, reference, call, exact):
        *_, offsets = call.tensors
        errors = self._with(call, offsets is not None).errors(reference, call, exact)
        return [error + _smallest(call) for error in errors]

    def gradients(self, reference, call, needed, grads, rounds):
        pairs = self._with(call, True).gradients(reference, call, needed, grads, rounds)
        return [pair and (pair[0], pair[1] + _smallest(call)) for pair in pairs]


def _sizes(dense: Tensor, *arguments) -> Tensor:
    """The magnitude of a forward. Of fm eager subtracts the squares from that of the sum, and may be off by both."""
    *look_up, _, _, kind = arguments
    out = lookup_interact(dense, *arguments)
    if kind != "fm":
        return out
    squares = _vectors(dense, *look_up).square().sum(1)
    return out + F.pad(squares, (dense.shape[1], out.shape[1] - 2 * dense.shape[1]))


def _gradient_sizes(grad_out: Tensor, dense: Tensor, *arguments) -> tuple[Tensor, Tensor]:
    """The same of the gradients, of which fm's have a vector subtracted from the sum of all."""
    *look_up, _, kind = arguments
    grad_dense, grad_sparse = lookup_interact_gradients(grad_out, dense, *arguments)
    if kind != "fm":
        return grad_dense, grad_sparse
    columns = dense.shape[1]
    own = 2 * grad_out[:, columns : 2 * columns].unsqueeze(1) * _vectors(dense, *look_up)
    return grad_dense + own[:, 0], grad_sparse + own[:, 1:]


def _vectors(dense: Tensor, *look_up) -> Tensor:
    """[B, F + 1, D]; an id of no row counts as zeros."""
    rows, columns = dense.shape
    sparse = embedding_bags(*look_up, out_of_range="zero").view(rows, len(look_up[1]) - 1, columns)
    return torch.cat([dense.unsqueeze(1), sparse], dim=1)


def _smallest(call: Call) -> float:
    dtype, columns = call.tensors[0].dtype, call.tensors[1].shape[1]
    number, computed = torch.finfo(dtype), torch.finfo(torch.promote_types(dtype, torch.float32))
    return max((40 + columns) * computed.tiny, number.tiny * number.eps)


def _cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(0, 5), (5, 0), (1, 1), (1, 1025), (3, 130), (9,), (2, 0, 3), (129, 4)]
    cases = [Case(shape, every_option=False) for shape in shapes]
    cases += [Case((7, 24), layout=layout, every_option=False) for layout in ("transposed", "strided", "expanded")]
    cases += [Case((7, 16), layout="misaligned", only=only) for only in ("", "dense", "tables")]
    cases += [Case((19, 16)), Case((7, 3)), Case((3, 64)), Case((2, 130)), Case((5, 20)), Case((3, 128))]
    cases += [Case((13, 16), values=values) for values in ("special", "tiny", "large")]
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        cases += [Case((7, 16), dtype), Case((5, 40), dtype), Case((3, 128), dtype), Case((3, 17), dtype)]
        cases += [Case((3, 16), dtype, values=values, every_option=False) for values in ("special", "tiny")]
    return cases


def _wide_cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(4099, 16), (8461, 16), (2049, 64), (1031, 128), (26215, 4)]
    return [Case(shape, dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)]


def _gradient_calls(case: Case, device: torch.device) -> Iterator[Call]:
    for call in _calls(case, device):
        dense, _, row_offsets, *_ = call.tensors
        pad_to, precision, kind = call.options
        wide = width(len(row_offsets) - 1, dense.shape[1], pad_to, kind)
        own = case if case.only in ("", "grad_out") else Case(case.shape, case.dtype)
        yield Call(call.name, (own.tensor(3, device, (len(dense), wide)), *call.tensors), (precision, kind))


_DIMENSIONS = (
    Dimension(lambda n: Case((1, n)), large=512), Dimension(lambda n: Case((n, 4)), large=512),
    Dimension(lambda features: Case((2, 4), sizes=(features,)), large=40),
)
_spec = functools.partial(Spec, cases=_cases, wide_cases=_wide_cases, dimensions=_DIMENSIONS)
SPECS = {
    "lookup_interact": _spec(lookup_interact, _calls, scale=_Products(8.0, _sizes)),
    "lookup_interact_gradients": _spec(
        lookup_interact_gradients, _gradient_calls, ("grad_dense", "grad_sparse"),
        scale=_Products(8.0, _gradient_sizes),
    ),
}  # fmt: skip
