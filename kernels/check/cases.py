"""The inputs that every op must survive: shapes, dtypes, strides and special values, from one place for all ops.

Values are drawn on the CPU from a seed, so they are the same on every device. How an op's arguments are made of a case
stands in its spec.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .. import dtypes

FLOAT_DTYPES = dtypes.FLOATING
LAYOUTS = ("contiguous", "transposed", "strided", "expanded", "misaligned")
VALUES = ("normal", "special", "tiny", "large", "huge")


@dataclass(frozen=True)
class Case:
    """Tensors [..., N] of one shape and dtype: their layout in memory, and what their random values are.

    layout: contiguous | transposed | strided | expanded | misaligned (by one element).
    values: normal | special (NaN and Inf sprinkled in) | tiny (1e-6, and the dtype's smallest normal number) |
        large (to ±150) | huge (an eighth of the dtype's largest number, sprinkled in).
    only: the one argument that has this layout and these values, the others being contiguous and normal; "": all.
    every_option: whether `check` calls the function with each of the op's options, or with the first alone.
    sizes: the op's own sizes that are not the shape's, in place of those that its spec chooses: of features, say.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    layout: str = "contiguous"
    values: str = "normal"
    only: str = ""
    every_option: bool = True
    sizes: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = ["×".join(map(str, self.shape)), str(self.dtype).removeprefix("torch.")]
        parts += [self.layout] * (self.layout != "contiguous") + [self.values] * (self.values != "normal")
        parts += [self.only] * bool(self.only) + [f"sizes {', '.join(map(str, self.sizes))}"] * bool(self.sizes)
        return " ".join(parts)

    def tensor(self, seed: int, device: torch.device | str = "cpu", shape: tuple[int, ...] | None = None) -> Tensor:
        """Random numbers of this case; shape: instead of the case's (a bias, say). `seed` tells its tensors apart."""
        return self._laid_out(lambda shape: self._numbers(seed, shape), shape, device)

    def integers(
        self, seed: int, high: int, device: torch.device | str = "cpu", shape: tuple[int, ...] | None = None
    ) -> Tensor:
        """Random int64 from 0 to high - 1 in this case's layout: ids, say. The case's dtype and values do not count."""
        generator = torch.Generator().manual_seed(seed)
        return self._laid_out(lambda shape: torch.randint(high, shape, generator=generator), shape, device)

    def _laid_out(self, draw: Callable[[tuple], Tensor], shape: tuple[int, ...] | None, device) -> Tensor:
        shape = self.shape if shape is None else shape
        if not shape:
            return draw(shape).to(device)
        if self.layout == "transposed" and len(shape) > 1:
            return draw((*shape[:-2], shape[-1], shape[-2])).to(device).transpose(-1, -2)
        if self.layout == "strided":
            return draw((*shape[:-1], 2 * shape[-1])).to(device)[..., ::2]
        if self.layout == "expanded":
            return draw((1, *shape[1:])).to(device).expand(shape)
        if self.layout == "misaligned":
            return draw((torch.Size(shape).numel() + 2,)).to(device)[1:-1].view(shape)
        return draw(shape).to(device)

    def _numbers(self, seed: int, shape: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        where = torch.rand(shape, generator=generator)
        if self.values == "special":
            for low, value in ((0.0, torch.nan), (0.1, torch.inf), (0.2, -torch.inf)):
                values[(low <= where) & (where < low + 0.1)] = value
        elif self.values == "tiny":
            values = torch.where(where < 0.3, values * torch.finfo(self.dtype).tiny, values * 1e-6)
        elif self.values == "large":
            values *= 40
        elif self.values == "huge":
            values = torch.where(where < 0.3, values.sign() * (torch.finfo(self.dtype).max / 8), values)
        return values.to(self.dtype)


@dataclass(frozen=True)
class Call:
    """Arguments for one call: tensors first (or None, or lists of tensors), then numbers, names and 0-d tensors.

    hint: what to think of where this call is the first that fails: a puzzle's.
    """

    name: str
    tensors: tuple
    options: tuple = ()
    hint: str = ""

    def arguments(self) -> tuple:
        return (*self.tensors, *self.options)

    def map(self, function: Callable[[Tensor], Tensor]) -> Call:
        """The call with function(tensor) in place of every tensor."""
        return replace(self, tensors=_map(function, self.tensors), options=_map(function, self.options))

    def leaves(self) -> list[Tensor]:
        """The tensors among `tensors`, those in lists too; a None is left out."""
        tensors = []
        _map(tensors.append, self.tensors)
        return tensors

    def with_leaves(self, leaves: Iterable[Tensor]) -> Call:
        """The call with these in place of its leaves."""
        rest = iter(leaves)
        return replace(self, tensors=_map(lambda _: next(rest), self.tensors))


def _map(function: Callable, value):
    if isinstance(value, list | tuple):
        return type(value)(_map(function, part) for part in value)
    return function(value) if isinstance(value, Tensor) else value


def calls(
    case: Case,
    device: torch.device | str,
    shapes: Mapping[str, tuple[int, ...]],
    options: Iterable[tuple] = ((),),
) -> Iterator[Call]:
    """A call for each of the options, with random tensors of these names and shapes.

    None if case.only is not among the names. A 0-d tensor among the options goes along as it is.
    """
    if case.only and case.only not in shapes:
        return
    others = Case(case.shape, case.dtype)
    tensors = tuple(
        (case if case.only in ("", name) else others).tensor(seed, device, shape)
        for seed, (name, shape) in enumerate(shapes.items(), 1)
    )
    for chosen in options:
        yield Call(" ".join(map(str, (case, *chosen))), tensors, tuple(chosen))


def pointwise_cases(arguments: Sequence[str] = ()) -> list[Case]:
    """For ops on [..., N]: every width, layout and kind of value in float32, the other dtypes on a selection.

    arguments: the names of the op's tensors, each of which gets cases in which it alone is laid out or valued so: a
    kernel may look at one argument's layout and forget another's. Twelve cases are for each of an op's options, the
    rest for the first.
    """
    shapes = [  # 1023 is one below a multiple of every smaller power of two, whatever block somebody's own kernel takes
        (0, 5), (5, 0), (1, 1), (1, 7), (7, 1), (1000, 4), (1, 1023), (1, 4097), (3, 8), (3, 1025), (33, 129), (9,),
        (2, 3, 5), (2, 0, 3), (64, 512),
    ]
    cases = [Case(shape) for shape in shapes]
    cases += [Case((17, 24), layout=layout) for layout in ("transposed", "strided", "expanded", "misaligned")]
    cases += [Case((5, 1023), layout="misaligned"), Case((2, 3, 8), layout="transposed"), Case((9,), layout="strided")]
    cases += [Case((13, 40), values=values) for values in ("special", "tiny", "large")]
    for only in arguments:
        cases += [Case((17, 24), layout=layout, only=only) for layout in ("strided", "expanded", "misaligned")]
        cases += [Case((13, 40), values=values, only=only) for values in ("special", "huge")]
    for dtype in FLOAT_DTYPES[1:]:
        cases += [Case((3, 1025), dtype), Case((1, 7), dtype), Case((0, 5), dtype), Case((40, 16), dtype)]
        cases += [Case((17, 24), dtype, layout) for layout in ("transposed", "expanded", "misaligned")]
        cases += [Case((13, 40), dtype, values=values) for values in ("special", "tiny", "large")]
        for only in arguments[:1]:
            cases += [Case((17, 24), dtype, "misaligned", only=only), Case((13, 40), dtype, values="huge", only=only)]
    for_every_option = {Case((1, 7)), Case((3, 1025)), Case((17, 24), layout="strided")}
    for_every_option |= {Case((13, 40), values=values) for values in ("special", "tiny", "large")}
    for_every_option |= {Case((13, 40), dtype, values=v) for dtype in FLOAT_DTYPES[1:] for v in ("special", "large")}
    return [replace(case, every_option=case in for_every_option) for case in cases]


def wide_cases(arguments: Sequence[str] = ()) -> list[Case]:
    """Larger than one wave of small blocks, so that every path of a GPU kernel runs; too slow for the interpreter."""
    cases = [Case(shape, dtype) for shape in ((1031, 1024), (517, 1023), (262147, 4)) for dtype in FLOAT_DTYPES]
    return cases + [Case((1031, 1024), layout="misaligned", only=only) for only in ("", *arguments)]
