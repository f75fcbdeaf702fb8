"""A schema in the words of its arguments, and the forms that an op's overloads have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# From a form's arguments by name: shape and dtype of an output or a gradient; of a list's gradient of each in it.
Allocation = tuple[Sequence[int], torch.dtype]
Shape = Callable[[Mapping[str, object]], Allocation | list[Allocation]]


def like(name: str, dtype_of: str = "") -> Shape:
    """Shape and dtype of the argument `name`. With `dtype_of`, another argument, `name` may be absent: its shape, [0]
    where it is, and the other's dtype."""
    if dtype_of:
        return lambda given: ((0,) if given[name] is None else given[name].shape, given[dtype_of].dtype)
    return lambda given: (given[name].shape, given[name].dtype)


def last_dimension(name: str) -> Shape:
    """[N] for the argument `name` of shape [..., N], and its dtype."""
    return lambda given: (given[name].shape[-1:], given[name].dtype)


@dataclass(frozen=True)
class Kept:
    """A floating output that is kept for the backward and has no gradient of its own."""

    shape: Shape

    def __call__(self, arguments: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
        return self.shape(arguments)


@dataclass(frozen=True)
class KeptShape:
    """A gradient with the shape of the argument `name` and another argument's dtype. The backward keeps the shape
    alone: the argument may be written to, or go, between forward and backward."""

    name: str
    dtype_of: str

    def __call__(self, arguments: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
        return arguments[f"{self.name}_shape"], arguments[self.dtype_of].dtype


@dataclass(frozen=True)
class KeptShapes(KeptShape):
    """The same for an argument that is a list of tensors, each of which gets a gradient. The list of integers has of
    each tensor how many dimensions it has, and its shape."""

    def __call__(self, arguments: Mapping[str, object]) -> list[tuple[Sequence[int], torch.dtype]]:
        numbers, shapes, dtype = list(arguments[f"{self.name}_shape"]), [], arguments[self.dtype_of].dtype
        while numbers:
            end = 1 + numbers[0]
            shapes.append((numbers[1:end], dtype))
            numbers = numbers[end:]
        return shapes


@dataclass(frozen=True)
class SavedBy:
    """What the backward reads, where the value of a string argument decides: names for each value; and, `wanted`,
    what it reads besides where the gradient of an argument is wanted: names for each of these."""

    argument: str
    saves: Mapping[str, Sequence[str]]
    wanted: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """What another op makes for the backward's kernels: function(backend, the backward's arguments by name) gives the
    Ragged tensors of these names."""

    names: Sequence[str]
    function: Callable[[str, Mapping[str, object]], Sequence[Tensor]]


# Torch's types, and four that torch never sees. A Number changes from call to call, and is a Tensor to torch. So is a
# Ragged: where it has one dimension, its length is N, which is another one in each call. A Length is such an N given as
# a number, a SymInt to torch. A Report is listed after the return values but is not returned: kernels report errors in
# it. Neither lengths nor strides of a Ragged[], a list of tensors of one dimension, make another signature: kernels get
# each one's, and a check may ask whether all are of length N, nothing else. N is a list's if no Ragged and no Length is
# there beside it, and its tensors are all of one length.
ARGUMENTS = (
    "Tensor", "Tensor?", "Tensor(a!)", "Tensor[]", "Number", "Ragged", "Ragged?", "Ragged[]", "str", "int", "SymInt",
    "Length", "float", "bool",
)  # fmt: skip
RETURNS = ("Tensor", "Report")


@dataclass(frozen=True)
class Argument:
    """One argument of a schema: "Tensor x", "Tensor? bias", "Tensor(a!) weights", "Number factor", "str activation"."""

    type: str
    name: str

    @property
    def is_number(self) -> bool:
        return self.type == "Number"

    @property
    def is_ragged(self) -> bool:
        """Whether it has N: a tensor as its length, or as a number."""
        return self.type.startswith(("Ragged", "Length"))

    @property
    def is_report(self) -> bool:
        return self.type == "Report"

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor to torch: a number is one too."""
        return self.is_number or self.type.startswith(("Tensor", "Ragged"))

    @property
    def is_list(self) -> bool:
        """Whether it is a list of tensors."""
        return self.is_tensor and self.type.endswith("[]")

    @property
    def is_optional(self) -> bool:
        return self.type.endswith("?")

    @property
    def is_mutated(self) -> bool:
        return "!" in self.type


def flat(values: Iterable) -> list:
    """The values, with those in lists in their lists' places."""
    return [each for value in values for each in (value if isinstance(value, list) else (value,))]


def parse(schema: str) -> tuple[list[Argument], list[Argument]]:
    """The arguments and the returns of "(Tensor x, str activation) -> Tensor out"."""

    def read(text: str, types: Sequence[str]) -> list[Argument]:
        text = text.strip()
        text = text[1:-1] if text.startswith("(") else text
        for part in filter(None, text.split(", ")):
            if not re.fullmatch(rf"({'|'.join(map(re.escape, types))}) \w+", part):
                raise ValueError(f"schema {schema}: {part!r} must be one of {', '.join(types)}, and a name")
        return [Argument(*part.split()) for part in text.split(", ") if part]

    arguments, _, returns = schema.partition(" -> ")
    return read(arguments, ARGUMENTS), read(returns, RETURNS)


class Form:
    """One of an op's overloads on each backend: functional, in place, or the backward.

    schema: what is defined; plan_schema: of the op in Python that plans its calls. scalars, mutated, ragged, lists:
    positions.
    """

    def __init__(self, name: str, arguments: list[Argument], returns: list[Argument]) -> None:
        self.name, self.arguments = name, arguments
        self.names = [argument.name for argument in arguments]
        self.scalars = [i for i, argument in enumerate(arguments) if argument.is_number]
        self.mutated = [i for i, argument in enumerate(arguments) if argument.is_mutated]
        self.ragged = [i for i, argument in enumerate(arguments) if argument.is_ragged]
        self.lists = [i for i, argument in enumerate(arguments) if argument.is_list]
        letters = iter("abcdefgh")
        plain = [re.sub("Number|Ragged", "Tensor", a.type.replace("(a!)", "")) for a in arguments]
        plain = [type_.replace("Length", "SymInt") for type_ in plain]
        types = [f"Tensor({next(letters)}!)" if a.is_mutated else t for a, t in zip(arguments, plain, strict=True)]
        written = ", ".join(map("{} {}".format, types, self.names))
        self.schema = f"({written}) -> ({', '.join(f'{r.type} {r.name}' for r in returns)})"
        self.plan_schema = f"({', '.join(map('{} {}'.format, plain, self.names))}) -> ()"

    def by_name(self, arguments: Sequence) -> dict[str, object]:
        """The arguments of a call by their names."""
        return dict(zip(self.names, arguments, strict=True))

    def tensors(self, arguments: Sequence) -> Iterator[tuple[int, Tensor]]:
        """(position, tensor) of the tensors in a call, those in lists too, scalars aside."""
        for i, value in enumerate(arguments):
            if isinstance(value, Tensor):
                if i not in self.scalars:
                    yield i, value
            elif i in self.lists and isinstance(value, list | tuple):
                yield from ((i, tensor) for tensor in value if isinstance(tensor, Tensor))

    def leading(self, arguments: Sequence) -> object:
        """The first argument, or of a list the first in it, whose device decides. ValueError: an empty list."""
        first = arguments[0]
        if 0 not in self.lists or not isinstance(first, list | tuple):
            return first
        if not first:
            raise ValueError(f"{self.name}: {self.names[0]} must have one tensor at least; got none")
        return first[0]

    def first_tensor(self, arguments: Sequence) -> Tensor:
        """The first of them, whose device is the call's."""
        for _, tensor in self.tensors(arguments):
            return tensor
        raise TypeError(f"{self.name}: {self.names[0]} must be a tensor; got {type(arguments[0]).__name__}")

    def computes_in_double(self, arguments: Sequence) -> bool:
        """Whether scalars must keep float64's digits."""
        return any(tensor.dtype == torch.float64 for _, tensor in self.tensors(arguments))
