"""The argument list of an overload: each argument's type, dtype and shape, and the errors for arguments that differ."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real

import torch
from torch import Tensor

from ..dtypes import FLOATING, INTEGERS
from . import checks
from .address import is_same, overlap

GROUPS = {"floating": FLOATING, "integer": INTEGERS}
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
# By an argument's type, what makes Python's own of its value, or raises.
PLAIN = {
    "int": checks.integer, "SymInt": checks.integer, "Length": checks.integer, "float": checks.real,
    "bool": checks.boolean,
}  # fmt: skip


class Size:
    """A size in a shape: a sum of products of numbers and letters, "F · B + 1"."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._terms = []  # the number and the letters of each product
        for product in text.split("+"):
            factors = [factor.strip() for factor in product.split("·")]
            numbers = [int(factor) for factor in factors if factor.isdigit()]
            self._terms.append((math.prod(numbers), [factor for factor in factors if not factor.isdigit()]))
        self.letters = [letter for _, letters in self._terms for letter in letters]
        self._is_letter = self.letters == [text]

    def _value(self, sizes: Mapping[str, int]) -> int:
        total = 0
        for number, letters in self._terms:
            for letter in letters:
                number = number * sizes[letter]
            total = total + number
        return total

    def fits(self, size: int, sizes: dict[str, int]) -> bool:
        """Whether it is this size; a letter that is new, one at most, is added to `sizes`."""
        if self._is_letter:
            return sizes.setdefault(self.text, size) == size
        new = [letter for letter in self.letters if letter not in sizes]
        if not new:
            return size == self._value(sizes)
        rest = self._value({**sizes, new[0]: 0})
        slope = self._value({**sizes, new[0]: 1}) - rest
        sizes[new[0]] = (size - rest) // slope if slope else 0
        return size >= rest and size == self._value(sizes)

    def plain(self, sizes: Mapping[str, object]) -> str:
        """The size, or the text with what is known of it."""
        if self.text == "..." and "..." in sizes:
            return ", ".join(map(str, sizes["..."]))
        if all(letter in sizes for letter in self.letters):
            return str(self._value(sizes))
        return re.sub(r"[^\W\d]+", lambda letter: str(sizes.get(letter[0], letter[0])), self.text)


class Dimensions:
    """The sizes of a tensor, "..., N"; condition: the argument that must be there for it, or ""."""

    def __init__(self, text: str, condition: str = "") -> None:
        self.condition = condition
        self.all = [Size(size) for size in text.split(", ")] if text else []
        self.letters = {letter for size in self.all for letter in size.letters}
        self._leading = "..." in self.letters
        self._own = self.all[1:] if self._leading else self.all

    def fits(self, tensor: Tensor, sizes: dict) -> bool:
        """Whether it is the tensor's; letters that are new are added to `sizes`."""
        shape = tensor.shape
        if self._leading:
            split = len(shape) - len(self._own)
            if split < 0 or sizes.setdefault("...", shape[:split]) != shape[:split]:
                return False
            shape = shape[split:]
        if len(shape) != len(self._own):
            return False
        return all([expected.fits(size, sizes) for size, expected in zip(shape, self._own, strict=True)])


@dataclass
class Argument:
    """One argument, or return: its type and name, "Tensor x", "Tensor? bias", "Tensor(a!) weights", "Number factor".

    shapes: those it may have, if they are declared. expected: its dtypes, or the argument that has its dtype; of a
    string its values. dtypes: where they are not another argument's.
    """

    type: str
    name: str
    shapes: Sequence[Dimensions] = ()
    expected: str = ""
    dtypes: Sequence[torch.dtype] = ()

    def __post_init__(self) -> None:
        self.is_tensor = self.type.startswith(("Tensor", "Ragged", "Number"))  # to torch, which a number is too
        self.is_list = self.is_tensor and self.type.endswith("[]")
        self.is_optional = self.type.endswith("?")

    def shape(self, named: Mapping[str, object]) -> Dimensions:
        """The shape that it must have beside these arguments."""
        for shape in self.shapes:
            if not shape.condition or named[shape.condition] is not None:
                break
        return shape


def flat(values: Iterable) -> list:
    """The values, with those in lists in their lists' places."""
    return [element for value in values for element in (value if isinstance(value, list) else (value,))]


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


def parse_shapes(text: str) -> list[Argument]:
    """The arguments of "x [..., N]: floating; bias? [N]: x; mode: sum | mean", each of the type that it shows."""
    arguments: dict[str, Argument] = {}
    for part in text.split(";"):
        pattern = r"(\w+)(\?)?(?: \[(.*?)\](?: \| \[(.*?)\] with (\w+))?)?(?:: (.+))?"
        match = re.fullmatch(pattern, " ".join(part.split()))
        if not match:
            raise ValueError(f"{part.strip()!r} says of no argument what it must be")
        name, optional, shape, other, condition, expected = match.groups("")
        shapes = [Dimensions(other, condition)] if condition else []
        shapes += [Dimensions(shape)] if "[" in part else []
        dtypes = ()
        if shapes and expected not in arguments:
            dtypes = GROUPS.get(expected) or tuple(getattr(torch, dtype) for dtype in expected.split(" | "))
        arguments[name] = Argument("Tensor" * bool(shapes) + optional, name, shapes, expected, dtypes)
    return [*arguments.values()]


class Signature:
    """The arguments of one overload: of the functional op, the op in place, or the backward.

    shapes: what the arguments must be, besides their types:

        x [..., N]: floating                                a dense tensor of dtypes.FLOATING
        bias [N]: x                                         of x's dtype
        state [R, D]: float32 | float16                     of one of these dtypes
        offsets [F · B + 1]: integer                        of dtypes.INTEGERS
        indices [B, F] | [N] with offsets: integer          of the second shape if offsets is not None
        activation: relu | silu                             one of these strings
        audio: None                                         None, and nothing else
        batch_size                                          a number that may stand in shapes by its name

    A letter (or word) stands for a size, and "..." for the sizes before the others: what it is where it first comes it
    must be everywhere. All tensors lie on the first one's device. Arguments are checked in this order.

    hints: what the message says besides, where the argument of this name has another shape. check: called as
    check(name, *arguments) where all that is right; raises for what no shape says.
    scalars, mutated, ragged, lists: positions. schema: what is defined; plan_schema: of the op in Python that plans its
    calls.
    """

    def __init__(
        self, name: str, arguments: Sequence[Argument], returns: Sequence[Argument] = (), shapes: str = "",
        hints: Mapping[str, str] | None = None, check: Callable | None = None,
    ) -> None:
        self.name, self._hints, self._check = name, hints or {}, check
        types = {argument.name: argument.type for argument in arguments}
        self._declared = []
        for argument in parse_shapes(shapes) if shapes else ():
            if argument.name not in types:
                raise ValueError(f"{name}: shapes says what {argument.name} must be, which the schema does not have")
            if argument.shapes and types[argument.name].endswith("[]"):
                raise ValueError(f"{name}: shapes gives a shape to {argument.name}, a list of tensors: use check=")
            self._declared.append(replace(argument, type=types[argument.name]))
        declared = {argument.name: argument for argument in self._declared}  # in the order of `shapes`
        self.arguments = [declared.get(argument.name, argument) for argument in arguments]
        self.names = [*types]
        self.scalars = [i for i, argument in enumerate(arguments) if argument.type == "Number"]
        self.mutated = [i for i, argument in enumerate(arguments) if "!" in argument.type]
        self.ragged = [i for i, a in enumerate(arguments) if a.type.startswith(("Ragged", "Length"))]
        self.lists = [i for i, argument in enumerate(arguments) if argument.is_list]
        letters = iter("abcdefgh")
        plain = [re.sub("Number|Ragged", "Tensor", t.replace("(a!)", "")) for t in types.values()]
        plain = [type_.replace("Length", "SymInt") for type_ in plain]
        in_schema = [f"Tensor({next(letters)}!)" if i in self.mutated else type_ for i, type_ in enumerate(plain)]
        written = ", ".join(map("{} {}".format, in_schema, self.names))
        self.schema = f"({written}) -> ({', '.join(f'{r.type} {r.name}' for r in returns)})"
        self.plan_schema = f"({', '.join(map('{} {}'.format, plain, self.names))}) -> ()"

    @classmethod
    def of(cls, name: str, shapes: str) -> Signature:
        """The signature of a function that is no overload: "x [N]" is a tensor, "x? [N]" a tensor or None."""
        return cls(name, parse_shapes(shapes), shapes=shapes)

    def by_name(self, arguments: Sequence) -> dict[str, object]:
        """The arguments of a call by their names."""
        return dict(zip(self.names, arguments, strict=True))

    def tensors(self, arguments: Sequence) -> list[tuple[int, Tensor]]:
        """(position, tensor) of the tensors in a call, those in lists too, scalars aside."""
        tensors = []
        for i, value in enumerate(arguments):
            elements = value if i in self.lists and isinstance(value, list | tuple) else [value]
            if i not in self.scalars:
                tensors += [(i, element) for element in elements if isinstance(element, Tensor)]
        return tensors

    def first_tensor(self, arguments: Sequence) -> Tensor:
        """The first argument, or the first tensor in it, whose device is the call's. Raises TypeError for what is no
        tensor, ValueError for an empty list."""
        first, name = arguments[0], self.names[0]
        if 0 in self.lists:
            if isinstance(first, list | tuple) and not first:
                raise ValueError(f"{self.name}: {name} must have one tensor at least; got none")
            checks.are_tensors(self.name, name, first)
            return first[0]
        if not isinstance(first, Tensor):
            checks.is_tensor(self.name, name, first)
        return first

    def computes_in_double(self, arguments: Sequence) -> bool:
        """Whether scalars must keep float64's digits."""
        return any(tensor.dtype == torch.float64 for _, tensor in self.tensors(arguments))

    def with_plain(self, arguments: Sequence) -> list:
        """The arguments, with an int or a float for what C++ takes for one: NumPy's, a tensor of one element for an
        int. Raises TypeError for what it does not take; ValueError for a number that is too large."""
        return [
            PLAIN[argument.type](self.name, argument.name, value) if argument.type in PLAIN else value
            for argument, value in zip(self.arguments, arguments, strict=True)
        ]

    # ---------------------------------------------------------------------------------------------------------- checks

    def check(self, arguments: Sequence) -> None:
        """Raise for the first argument of a wrong type, then for the first of a wrong device, dtype, shape or value."""
        arguments = self.with_plain(arguments)
        for i, (argument, value) in enumerate(zip(self.arguments, arguments, strict=True)):
            if i in self.lists:
                checks.are_tensors(self.name, argument.name, value)
            elif i in self.scalars:
                self._check_scalar(argument.name, value, arguments)
            elif not isinstance(value, Tensor) and argument.is_tensor and not (argument.is_optional and value is None):
                checks.is_tensor(self.name, argument.name, value)
        if self._declared:
            self._check_declared(self.by_name(arguments))
        if self._check:
            self._check(self.name, *arguments)

    def _check_scalar(self, name: str, value: object, arguments: Sequence) -> None:
        if not isinstance(value, Tensor):
            if not isinstance(value, Real):
                raise TypeError(f"{self.name}: {name} must be a number or a 0-d tensor; got {type(value).__name__}")
            return
        if value.dim() or value.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"{self.name}: {name} must be a number, or a 0-d tensor of float32 or float64; got one of shape "
                f"{list(value.shape)} and dtype {checks.plain(value.dtype)}"
            )
        device = self.first_tensor(arguments).device
        if value.device.type != "cpu" and value.device != device:
            raise ValueError(f"{self.name}: {name} must be on the CPU or on {device}; got {value.device}")
        if value.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"{self.name}: {name} has no gradient: detach() it")

    def _check_declared(self, named: Mapping[str, object]) -> None:
        sizes, first = {}, None
        for argument in self._declared:
            name, value = argument.name, named[argument.name]
            if not argument.shapes:
                if argument.expected == "None":
                    checks.is_absent(self.name, name, value)
                elif argument.expected:
                    checks.is_one_of(self.name, name, value, argument.expected.split(" | "))
                elif isinstance(value, int | torch.SymInt):
                    sizes[name] = value
                continue
            if value is None:
                continue
            first = first or argument
            if value.layout != torch.strided or value.device != named[first.name].device:
                checks.is_beside(self.name, name, value, named[first.name], first.name)
            if argument.dtypes:
                if value.dtype not in argument.dtypes:
                    checks.has_dtype(self.name, name, value, argument.dtypes)
            elif value.dtype != (dtype := named[argument.expected].dtype):
                raise TypeError(
                    f"{self.name}: {name} must have {argument.expected}'s dtype, {checks.plain(dtype)}; got "
                    f"{checks.plain(value.dtype)}"
                )
            if not argument.shape(named).fits(value, sizes):
                self._raise_for_shape(argument, named)

    def _raise_for_shape(self, wrong: Argument, named: Mapping[str, object]) -> None:
        """Raise for an argument whose shape does not fit those of the arguments before it."""
        shape, sizes, because = wrong.shape(named), {}, ""
        for argument in self._declared[: self._declared.index(wrong)]:
            value, before = named[argument.name], len(shape.letters & sizes.keys())
            if argument.shapes and value is not None:
                argument.shape(named).fits(value, sizes)
            elif isinstance(value, int | torch.SymInt):
                sizes[argument.name] = value
            if not because and len(shape.letters & sizes.keys()) > before:
                what = f"of shape {list(value.shape)}" if argument.shapes else f"= {value}"
                because = f", for {argument.name} {what}"
        if shape.condition:
            because += f", since there are {shape.condition}"
        expected = ", ".join(filter(None, (size.plain(sizes) for size in shape.all)))
        got = list(named[wrong.name].shape)
        hint = f"; {self._hints[wrong.name]}" if wrong.name in self._hints else ""
        raise ValueError(f"{self.name}: {wrong.name} must have shape [{expected}]{because}; got {got}{hint}")

    def check_written(self, arguments: Sequence) -> None:
        """Raise if what the overload writes overlaps itself, or something else that it writes."""
        for i, position in enumerate(self.mutated):
            before = {self.names[other]: arguments[other] for other in self.mutated[:i]}
            checks.may_be_written(self.name, self.names[position], arguments[position], before)

    def as_before(self, arguments: Sequence, elementwise: bool) -> list:
        """The arguments, with a copy in place of each that is read and lies where the overload writes: what counts is
        its value before the call, as if the caller had cloned it. Compilers drop such clones: Inductor does, of a view
        of what the graph then writes. Elementwise, what is written may also be read, since that comes first."""
        written = [arguments[position] for position in self.mutated]

        def copied(value: object) -> object:
            if not isinstance(value, Tensor):
                return value
            own = [tensor for tensor in written if not (elementwise and is_same(value, tensor))]
            return value.clone() if any(overlap(value, tensor) for tensor in own) else value

        return [
            value if i in self.mutated else list(map(copied, value)) if isinstance(value, list) else copied(value)
            for i, value in enumerate(arguments)
        ]
