"""What `kernels.check` takes dot_interaction through, and how far its results may be off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...check import Call, Case, Dimension, Spec, Sums
from .eager import dot_interaction


@dataclass(frozen=True)
class _Products(Sums):
    """Products below the smallest normal number may be zero, and float16's results are spaced by 2^-24 there."""

    def errors(self, reference, call, exact):
        return [error + _smallest(call) for error in super().errors(reference, call, exact)]

    def gradients(self, reference, call, needed, grads, rounds):
        pairs = super().gradients(reference, call, needed, grads, rounds)
        return [pair and (pair[0], pair[1] + _smallest(call)) for pair in pairs]


def _smallest(call: Call) -> float:
    dtype = call.tensors[0].dtype
    number, computed = torch.finfo(dtype), torch.finfo(torch.promote_types(dtype, torch.float32))
    # Each product may lose its part below the smallest normal number; what Triton's interpreter rounds to bfloat16
    # there is off by up to 4 times that.
    return max((4 + call.tensors[1].shape[1] + call.tensors[0].shape[1]) * computed.tiny, number.tiny * number.eps)


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    """Rows and columns are the case's, and so are the features if it has `sizes`; else there are few and many features,
    and rows of the output padded to an alignment."""
    *leading, columns = case.shape
    rows, plain = math.prod(leading), Case(case.shape, case.dtype)

    def drawn(name: str, seed: int, shape: tuple[int, ...]) -> torch.Tensor:
        return (case if case.only in ("", name) else plain).tensor(seed, device, shape)

    of_spec = (4, 1), (26, 4), (0, 16), (1, 1), (9, 8)
    for features, pad_to in [(*case.sizes, 1)] if case.sizes else of_spec:
        tensors = drawn("dense", 1, (rows, columns)), drawn("sparse", 2, (rows, features, columns))
        yield Call(f"{case} {features} features padded to {pad_to}", tensors, (pad_to,))


def _cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(0, 5), (5, 0), (1, 1), (1, 1025), (3, 130), (9,), (2, 0, 3), (129, 4)]
    cases = [Case(shape, every_option=False) for shape in shapes]
    cases += [Case((7, 24), layout=layout, every_option=False) for layout in ("transposed", "strided", "expanded")]
    cases += [Case((7, 16), layout="misaligned", only=only, every_option=False) for only in ("", *names)]
    cases += [Case((19, 16)), Case((7, 3)), Case((3, 64)), Case((2, 130))]
    cases += [Case((13, 17), values=v, every_option=v == "special") for v in ("special", "tiny", "large")]
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        cases += [Case((7, 16), dtype), Case((5, 40), dtype, "misaligned", every_option=False)]
        cases += [Case((3, 17), dtype, values=values, every_option=False) for values in ("special", "tiny")]
    return cases


def _wide_cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(4099, 16), (8461, 16), (2049, 64), (1031, 128), (517, 1023), (26215, 4)]
    return [Case(shape, dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)]


SPEC = Spec(
    dot_interaction,
    _calls,
    scale=_Products(k=8.0),
    cases=_cases,
    dimensions=(
        Dimension(lambda n: Case((1, n)), large=512), Dimension(lambda n: Case((n, 3)), large=512),
        Dimension(lambda features: Case((2, 3), sizes=(features,)), large=70),
    ),
    wide_cases=_wide_cases,
)
