"""A schema in the words of its arguments, and the forms that an op's overloads have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# From a form's arguments by name: the shape and dtype of an output or a gradient.
Shape = Callable[[Mapping[str, object]], tuple[Sequence[int], torch.dtype]]


def like(name: str) -> Shape:
    """Shape and dtype of the argument `name`."""
    return lambda given: (given[name].shape, given[name].dtype)


def last_dimension(name: str) -> Shape:
    """[N] for the argument `name` of shape [..., N], and its dtype."""
    return lambda given: (given[name].shape[-1:], given[name].dtype)


TYPES = ("Tensor", "Tensor?", "Tensor(a!)", "str", "int", "SymInt", "float", "bool")


@dataclass(frozen=True)
class Argument:
    """One argument of a schema: "Tensor x", "Tensor? bias", "Tensor(a!) weights", "str activation"."""

    type: str
    name: str

    @property
    def is_tensor(self) -> bool:
        return self.type.startswith("Tensor")

    @property
    def is_optional(self) -> bool:
        return self.type.endswith("?")

    @property
    def is_mutated(self) -> bool:
        return "!" in self.type


def parse(schema: str) -> tuple[list[Argument], list[Argument]]:
    """The arguments and the returns of "(Tensor x, str activation) -> Tensor out"."""

    def read(text: str) -> list[Argument]:
        text = text.strip()
        text = text[1:-1] if text.startswith("(") else text
        for part in filter(None, text.split(", ")):
            if not re.fullmatch(rf"({'|'.join(map(re.escape, TYPES))}) \w+", part):
                raise ValueError(f"schema {schema}: {part!r} must be one of {', '.join(TYPES)}, and a name")
        return [Argument(*part.split()) for part in text.split(", ") if part]

    arguments, _, returns = schema.partition(" -> ")
    return read(arguments), read(returns)


class Form:
    """One of an op's overloads on each backend: functional, in place, or the backward.

    schema: what is defined; plan_schema: of the op in Python that plans its calls. scalars, mutated: positions.
    """

    def __init__(self, name: str, arguments: list[Argument], returns: list[Argument], scalars: Sequence[str]) -> None:
        self.name, self.arguments = name, arguments
        self.names = [argument.name for argument in arguments]
        self.scalars = [i for i, argument in enumerate(arguments) if argument.name in scalars]
        self.mutated = [i for i, argument in enumerate(arguments) if argument.is_mutated]
        letters = iter("abcdefgh")
        types = [a.type.replace("(a!)", f"({next(letters)}!)") if a.is_mutated else a.type for a in arguments]
        given = ", ".join(f"{type_} {name}" for type_, name in zip(types, self.names, strict=True))
        self.schema = f"({given}) -> ({', '.join(f'{r.type} {r.name}' for r in returns)})"
        read = ", ".join(f"{a.type.replace('(a!)', '')} {a.name}" for a in arguments)
        self.plan_schema = f"({read}) -> ()"

    def by_name(self, arguments: Sequence) -> dict[str, object]:
        """The arguments of a call by their names."""
        return dict(zip(self.names, arguments, strict=True))

    def tensors(self, arguments: Sequence) -> Iterator[tuple[int, Tensor]]:
        """(position, tensor) of the tensors in a call, scalars aside."""
        for i, value in enumerate(arguments):
            if isinstance(value, Tensor) and i not in self.scalars:
                yield i, value

    def first_tensor(self, arguments: Sequence) -> Tensor:
        """The first of them, whose device is the call's."""
        for _, tensor in self.tensors(arguments):
            return tensor
        raise TypeError(f"{self.name}: {self.names[0]} must be a tensor; got {type(arguments[0]).__name__}")

    def computes_in_double(self, arguments: Sequence) -> bool:
        """Whether scalars must keep float64's digits."""
        return any(tensor.dtype == torch.float64 for _, tensor in self.tensors(arguments))
