"""What `kernels.check` takes outer_linear through, and how far its results may be off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from ...check import Call, Case, Dimension, Spec, Sums
from ...check import calls as calls_of_case
from ...check.comparison import double, exact_gradients
from ...check.tf32 import EPS as TF32_EPS
from .eager import outer_linear

WIDEST = 33  # columns of c: the weight has as many squared, and beyond three blocks of 16 there is nothing new
OUTPUTS = (5, 1, 16, 40)
STEP = 8  # of tf32's products, by mma.sync m16n8k8


def sizes(case: Case) -> tuple[int, int, int]:
    """B, C and H of a case: what is wider than WIDEST is narrowed. H is its `sizes`, if it has them."""
    *leading, columns = case.shape
    narrow = columns if columns <= WIDEST else 2 + columns % 31
    outputs = case.sizes or (OUTPUTS[(sum(leading) + columns) % len(OUTPUTS)],)
    return math.prod(leading), narrow, *outputs


def calls(case: Case, device: torch.device) -> Iterator[Call]:
    """With relu, and without."""
    rows, columns, outputs = sizes(case)
    shapes = {"c": (rows, columns), "weight": (outputs, columns**2), "bias": (outputs,)}
    for call in calls_of_case(case, device, shapes, [("relu", "ieee"), ("identity", "ieee")][: 1 + case.every_option]):
        if case.values == "huge" and case.only in ("", "c"):  # of which sums of products must be numbers, too
            c, *others = call.tensors
            most = torch.finfo(c.dtype).max ** 0.5 / 512
            call = replace(call, tensors=(c.clamp(-most, most), *others))
        yield call


@dataclass(frozen=True)
class Products(Sums):
    """What goes through tensor cores is rounded to their dtype before it is multiplied: of halves c_i c_j, or the sum
    of two weights, by eps / 2; each term may be off by that. In tf32 it is c_i c_j, formed in float32, and a weight or
    the sum of two; there the errors of the terms add up as squares: twice tf32's eps times the root of theirs. And a
    tensor core adds STEP products at once and cuts what its float32 sum has no place for, half a unit of the sum in the
    mean and always towards zero: of C = 432, 23,328 times, or 0.14 % of the sum.

    The derivative of relu goes by the output's sign. Where an exact output is so small that its error may change that,
    the gradient may have this output's terms or not.
    """

    k: float = 16.0
    reference: Callable = outer_linear

    def errors(self, reference, call, exact):
        magnitude = self.reference(*absolute(call).tensors)
        epsilon = torch.finfo(call.tensors[0].dtype).eps
        operands = 0.0
        if _is_tf32(call):
            root = self.reference(*squared(call).tensors).sqrt()
            cuts = call.tensors[1].shape[1] / STEP * torch.finfo(torch.float32).eps / 2
            operands = 2 * TF32_EPS * root + cuts * (exact[0].abs() + root)
        return [epsilon * exact[0].abs() + self._share(call, False) * magnitude + operands + least(call)]

    def gradients(self, reference, call, needed, grads, rounds):
        z = outer_linear(*call.map(double).tensors)
        (error,) = self.errors(reference, call, [z])
        of_all, of_doubtful = (
            exact_gradients(outer_linear, Call("", absolute(call).tensors), needed, [grads[0].abs() * where])
            for where in (torch.ones_like(z), ~(z.abs() > error))
        )
        operands = [0.0] * len(needed)
        if _is_tf32(call):
            squares = Call("", squared(call).tensors)
            of_squares = exact_gradients(outer_linear, squares, needed, [grads[0].double().square()])
            operands = [None if one is None else 2 * TF32_EPS * one.sqrt() for one in of_squares]
        exact = exact_gradients(reference, call, needed, grads)
        epsilon = torch.finfo(call.tensors[0].dtype).eps
        share, relu = self._share(call, rounds), "relu" in call.options
        return [
            None if one is None
            else (one, epsilon * one.abs() + share * size + operand + relu * doubt + least(call))
            for one, size, operand, doubt in zip(exact, of_all, operands, of_doubtful, strict=True)
        ]

    def _share(self, call: Call, rounds: bool) -> float:
        """Part of its magnitude that a sum may be off by."""
        dtype = call.tensors[0].dtype
        eps = torch.finfo(dtype).eps
        operands = eps if dtype.itemsize < 4 else 0.0
        return self.k * (eps if rounds else torch.finfo(torch.promote_types(dtype, torch.float32)).eps) + operands


def absolute(call: Call) -> Call:
    """The call with the absolute values of its tensors, in float64."""
    return call.map(lambda tensor: double(tensor).abs())


def squared(call: Call) -> Call:
    """The call with the squares of its tensors, in float64."""
    return call.map(lambda tensor: double(tensor).square())


def _is_tf32(call: Call) -> bool:
    return "tf32" in call.options and call.tensors[0].dtype == torch.float32


def least(call: Call) -> float:
    """Below the smallest normal number results may be zero; float16's are spaced by 2^-24 there."""
    number = torch.finfo(call.tensors[0].dtype)
    return max(4 * torch.finfo(torch.float32).tiny * (number.bits < 64), number.tiny * number.eps)


def cases(names: tuple[str, ...]) -> list[Case]:
    """Rows, columns and outputs at the edges of blocks and tiles; each layout, each kind of value."""
    shapes = [(0, 5), (5, 0), (1, 1), (1, 3), (7, 16), (7, 33), (129, 17), (2, 32)]
    result = [Case(shape, every_option=False) for shape in shapes]
    result += [Case((6, 17), layout=layout) for layout in ("transposed", "strided", "expanded", "misaligned")]
    result += [Case((13, 17), values=values) for values in ("special", "tiny", "large")]
    for only in names:
        result += [Case((6, 17), layout=layout, only=only, every_option=False) for layout in ("strided", "misaligned")]
        result += [Case((13, 17), values="special", only=only, every_option=False)]
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        result += [Case((13, 24), dtype), Case((6, 17), dtype, "misaligned"), Case((7, 5), dtype, values="special")]
    return result


def wide_cases(names: tuple[str, ...]) -> list[Case]:
    """Several row tiles, and enough rows that the weight is folded on the way."""
    shapes = [(1031, 32), (517, 33), (4099, 16), (300, 32)]
    return [Case(shape, dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)]


SPEC = Spec(
    outer_linear,
    calls,
    scale=Products(),
    cases=cases,
    wide_cases=wide_cases,
    dimensions=(
        Dimension(lambda rows: Case((rows, 5)), large=600, least=16, most=64),
        Dimension(lambda n: Case((2, n)), large=WIDEST, least=16),
        Dimension(lambda outputs: Case((2, 5), sizes=(outputs,)), large=300, least=64),
    ),
    overload=lambda arguments: (*arguments, False),
)
