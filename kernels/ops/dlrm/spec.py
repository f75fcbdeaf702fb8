"""What `kernels.check` takes dlrm_forward and dlrm_forward_kept through, and how far their results may be off."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...check import Call, Case, Dimension, Spec
from ...check.comparison import double
from ...check.tf32 import EPS as TF32_EPS
from ...check.tf32 import AllRounded, rounded
from ..fused_mlp.packing import copied, views
from .eager import PAD_TO, dlrm_forward, dlrm_forward_kept

HEIGHTS = (37, 1, 8, 100)
# Widths of the bottom MLP between the dense features and D, of the top MLP behind its input, and the activations.
VARIANTS = (
    ((8,), (8, 1), ("relu", "relu", "relu", "sigmoid")),
    ((), (3,), ("relu", "identity", "relu", "leaky_relu")),
    ((5, 7), (9, 4, 2), ("silu", "tanh", "gelu", "gelu_tanh")),
)
BAGS = "", "open", "closed"
# Models that are computed in tiles: variant, D, F, bags, ids.
TILED = (
    (((24,), (40, 1), ("relu", "relu", "relu", "sigmoid")), 16, 17, "", torch.int64),
    (((70, 40), (24, 5), ("tanh", "identity", "silu", "relu")), 24, 9, "open", torch.int32),
)


def draw_layers(case: Case, seed: int, widths: Sequence[int], device) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and biases of an MLP of these widths."""
    pairs = list(itertools.pairwise(widths))
    weights = [case.tensor(seed + i, device, (b, a)) / math.sqrt(a) for i, (a, b) in enumerate(pairs)]
    return weights, [case.tensor(seed + 40 + i, device, (b,)) for i, (_, b) in enumerate(pairs)]


def draw_ids(rows: int, heights: Sequence[int], bags: str, dtype: torch.dtype, seed: int = 0) -> tuple[list, list]:
    """(indices, offsets): an id a row and table, or bags of 0 to 3, one in twenty of 13."""
    generator = torch.Generator().manual_seed(seed)
    indices, offsets = [], []
    for height in heights:
        count = rows
        if bags:
            lengths = torch.randint(4, (rows,), generator=generator)
            lengths[torch.rand(rows, generator=generator) < 0.05] = 13
            ends = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
            count = int(ends[-1])
            offsets.append((ends if bags == "closed" else ends[:-1]).to(dtype))
        indices.append(torch.randint(height, (count,), generator=generator).to(dtype))
    return indices, offsets


def draw_model(
    case: Case, rows: int, inputs: int, width: int, features: int, variant, bags: str, device, ids, precision="ieee"
) -> Call:
    """A call of dlrm_forward with K = inputs, D = width and F = features. The case's layout is dense's and the tables',
    its values are dense's."""
    hidden, top, activations = variant
    plain = Case(case.shape, case.dtype)
    heights = [HEIGHTS[f % len(HEIGHTS)] for f in range(features)]
    tables = [
        Case(case.shape, case.dtype, case.layout).tensor(10 + f, device, (height, width))
        for f, height in enumerate(heights)
    ]
    indices, offsets = draw_ids(rows, heights, bags, ids)
    tensors = (
        case.tensor(1, device, (rows, inputs)), tables, [tensor.to(device) for tensor in indices],
        [tensor.to(device) for tensor in offsets], *draw_layers(plain, 100, (inputs, *hidden, width), device),
        *draw_layers(plain, 200, (width + features * (features + 1) // 2, *top), device),
    )
    name = f"{case} {features} tables, D = {width}, bags {bags or 'of one id'} {precision}"
    return Call(name, tensors, (*activations, precision))


def draw_tiled(case: Case, rows: int, number: int, device: torch.device) -> Call:
    """A call with one of TILED."""
    variant, width, features, bags, ids = TILED[number]
    return draw_model(case, rows, 13, width, features, variant, bags, device, ids, "tf32")


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    *leading, columns = case.shape
    rows, inputs = math.prod(leading), 1 + columns % 17
    if case.dtype.itemsize == 2:
        yield draw_tiled(case, rows, case.dtype == torch.bfloat16, device)
        return
    width, features = (4, 1, 8, 3, 16, 2)[columns % 6], (3, 1, 8, 5)[columns % 4]
    for number, (variant, bags) in enumerate(itertools.product(VARIANTS, BAGS)):
        if number % 4 == 0 or case.every_option:
            ids = (torch.int64, torch.int32)[number % 2]
            yield draw_model(case, rows, inputs, width, features, variant, bags, device, ids)
    if case.every_option and case.dtype == torch.float32:
        # A sigmoid makes 1 of what is infinite, for which there is no bound: then the model that ends with its sigmoid.
        yield from (draw_tiled(case, rows, number, device) for number in range(1 if case.values == "special" else 2))


@dataclass(frozen=True)
class Layers:
    """An error of k · eps of the magnitude: what comes out with absolute values everywhere, where an activation gives
    |z| + 1, which is more than any gives, and grows as fast as any.

    That grows by the sums of absolute values, layer by layer: with tf32 and halves, of which TILED are computed, it is
    thousands of times what any kernel is off by. There an error is at most TIMES the largest that rounding makes: of
    all operands to tf32, on GRIDS, for one row has one `out`, whose own error may be nothing. A half's roundings are
    coarser by its eps.
    """

    k: float = 8.0
    TIMES = 4
    GRIDS = (1.0, 1.25, 1.5, 1.75)

    def errors(self, reference, call: Call, exact: Sequence[Tensor]) -> list[Tensor]:
        (worst,) = self.worst(call)
        eps = torch.finfo(call.tensors[0].dtype).eps
        if eps < TF32_EPS and call.options[-1] != "tf32":
            return [worst]
        most = torch.zeros_like(worst)
        for (own,) in self.rounded(lambda *arguments: (dlrm_forward(*arguments),), call):
            _take_largest(most, own, exact[0])
        times = self.TIMES * max(1.0, eps / TF32_EPS)
        return [torch.minimum(worst, times * most.max()) if most.numel() else worst]

    def worst(self, call: Call) -> list[Tensor]:
        """What it may be off by, by the magnitude alone."""
        absolute = call.map(lambda tensor: tensor.double().abs() if tensor.is_floating_point() else tensor)
        tensors = [
            [bias + 1 for bias in value] if name.endswith("_biases") else value
            for name, value in zip(NAMES, absolute.tensors, strict=True)
        ]
        size = dlrm_forward(*tensors, *["identity"] * 4)
        eps = max(torch.finfo(call.tensors[0].dtype).eps, torch.finfo(torch.float32).eps)
        if call.options[-1] == "tf32":
            eps = max(eps, TF32_EPS)
        return [(self.k / 4 if eps >= TF32_EPS else self.k) * eps * size]

    def rounded(self, reference: Callable, call: Call) -> Iterator[Sequence[Tensor]]:
        """The reference's results in float64, the operands of its products rounded to tf32, on each of GRIDS."""
        arguments = call.map(double).arguments()
        for grid in self.GRIDS:
            with AllRounded(grid):
                yield reference(*arguments)


def _take_largest(most: Tensor, own: Tensor, exact: Tensor) -> None:
    """most becomes what own is off by, where that is more, and finite."""
    error = (own - exact).abs()
    torch.maximum(most, torch.where(error.isfinite(), error, 0.0), out=most)


NAMES = (
    "dense", "tables", "indices", "offsets", "bottom_weights", "bottom_biases", "top_weights", "top_biases",
)  # fmt: skip


def _cases(names: tuple[str, ...]) -> list[Case]:
    # On the host each model is a compilation: cases of as many columns share it.
    shapes = [(0, 5), (1, 13), (7, 3), (31, 24), (33, 4), (65, 2), (2, 50, 6)]
    cases = [Case(shape, every_option=False) for shape in shapes]
    cases += [Case((6, 24), layout=layout, every_option=False) for layout in ("transposed", "strided", "misaligned")]
    halves = [Case(shape, dtype) for dtype in (torch.bfloat16, torch.float16) for shape in ((37, 13), (128, 4))]
    return [*cases, Case((40, 24)), Case((40, 24), values="special"), *halves]


def _wide_cases(names: tuple[str, ...]) -> list[Case]:
    return [replace(case, every_option=False) for case in (Case((4099, 12)), Case((2048, 13)), Case((65536, 4)))]


# ---------------------------------------------------------------------------------------------------- dlrm_forward_kept

KEPT_WIDTHS, KEPT_TABLES = ((13, 256, 128, 64, 16), (61, 128, 64, 1)), 9
KEPT_ACTIVATIONS = ("relu", "relu", "relu", "identity"), ("identity", "leaky_relu", "identity", "relu")


def draw_kept(case: Case, device: torch.device, activations: Sequence[str] = KEPT_ACTIVATIONS[0]) -> Call:
    """A call of dlrm_forward_kept: of dlrm_forward's arguments those that it has, the weights in two buffers."""
    (inputs, *hidden, width), (_, *top) = KEPT_WIDTHS
    variant, rows = (hidden, top, activations), math.prod(case.shape[:-1])
    plain = draw_model(case, rows, inputs, width, KEPT_TABLES, variant, "", device, torch.int64, "tf32")
    dense, tables, indices, _, *layers = plain.tensors
    buffers = copied(*layers[:2]), copied(*layers[2:])
    options = *("-".join(map(str, widths)) for widths in KEPT_WIDTHS), *activations
    return Call(f"{case} {' '.join(activations)}", (dense, tables, indices, *buffers), options)


def _kept_calls(case: Case, device: torch.device) -> Iterator[Call]:
    for activations in KEPT_ACTIVATIONS[: 2 if case.every_option else 1]:
        yield draw_kept(case, device, activations)


@dataclass(frozen=True)
class Kept(Layers):
    """The same of each output, layer by layer. What the next product takes is kept as it takes it, or as it was."""

    TIMES = 3

    def errors(self, reference, call: Call, exact: Sequence[Tensor]) -> list[Tensor]:
        bounds = [torch.zeros_like(value) for value in exact]
        for grid, (out, *kept) in zip(self.GRIDS, self.rounded(dlrm_forward_kept, call), strict=True):
            for most, own, value in zip(bounds, (out, *(rounded(part, grid) for part in kept)), exact, strict=True):
                _take_largest(most, own, value)
        for most, columns in zip(bounds, _layers_of(call), strict=True):
            for layer in most.split(columns, 1):
                layer.fill_(self.TIMES * layer.max() if layer.numel() else 0.0)
        return [torch.minimum(worst, most) for worst, most in zip(self.worst(call), bounds, strict=True)]

    def worst(self, call: Call) -> list[Tensor]:
        absolute = call.map(lambda tensor: tensor.double().abs() if tensor.is_floating_point() else tensor)
        for buffer, widths in zip(absolute.tensors[3:], call.options, strict=False):
            for _, bias in views(buffer, widths):
                bias += 1
        sizes = dlrm_forward_kept(*absolute.tensors, *call.options[:2], *["identity"] * 4)
        return [self.k / 4 * TF32_EPS * size for size in sizes]


def _layers_of(call: Call) -> list[list[int]]:
    """The columns of each output, layer by layer; vector 0 and the pairs, and what these are filled up with."""
    (_, *bottom, width), (inputs, *top, outputs) = (map(int, widths.split("-")) for widths in call.options[:2])
    return [[outputs], bottom, [width], [width, inputs - width, -inputs % PAD_TO], top]


def _kept_cases(names: tuple[str, ...]) -> list[Case]:
    cases = [Case((rows, 3), every_option=rows == 65) for rows in (0, 1, 31, 32, 33, 65)]
    cases += [Case((9, 3), layout=layout, every_option=False) for layout in ("transposed", "strided", "misaligned")]
    return [*cases, Case((40, 3), values="special", every_option=False)]


def _wide_kept_cases(names: tuple[str, ...]) -> list[Case]:
    return [Case((rows, 3), every_option=False) for rows in (2048, 5003)]


ROWS = (Dimension(lambda rows: Case((rows, 3)), large=1024),)
SPECS = {
    "dlrm_forward": Spec(
        dlrm_forward, _calls, scale=Layers(), cases=_cases, wide_cases=_wide_cases, dimensions=ROWS
    ),
    "dlrm_forward_kept": Spec(
        dlrm_forward_kept, _kept_calls, outputs=("out", "bottom_values", "vector", "features", "top_values"),
        scale=Kept(), cases=_kept_cases, wide_cases=_wide_kept_cases,
        dimensions=(Dimension(lambda rows: Case((rows, 3)), large=600),),
    ),
}
