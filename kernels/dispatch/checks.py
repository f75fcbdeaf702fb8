"""What the ops' checks are made of. Each raises with a message that names the op, the argument, what was expected and
what came: TypeError for a type or dtype, ValueError for a shape, a device, a value or memory that overlaps."""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import Parameter, ParameterList

from ..dtypes import FLOATING, INTEGERS
from .address import overlap

GROUPS = {"floating": FLOATING, "integer": INTEGERS}


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


class Shape:
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


@dataclass(frozen=True)
class Entry:
    """What one argument must be; without shapes it is no tensor."""

    name: str
    optional: bool
    shapes: tuple[Shape, ...]
    expected: str  # dtypes, or an argument that has the dtype; of a string its values
    dtypes: Sequence[torch.dtype]

    @classmethod
    def parse(cls, text: str, earlier: Collection[str]) -> Entry:
        pattern = r"(\w+)(\?)?(?: \[(.*?)\](?: \| \[(.*?)\] with (\w+))?)?(?:: (.+))?"
        match = re.fullmatch(pattern, " ".join(text.split()))
        if not match:
            raise ValueError(f"{text.strip()!r} says of no argument what it must be")
        name, optional, shape, other, condition, expected = match.groups("")
        shapes = [Shape(other, condition)] if condition else []
        shapes += [Shape(shape)] if "[" in text else []
        dtypes = ()
        if shapes and expected not in earlier:
            dtypes = GROUPS.get(expected) or tuple(getattr(torch, dtype) for dtype in expected.split(" | "))
        return cls(name, bool(optional), tuple(shapes), expected, dtypes)

    def shape(self, named: Mapping[str, object]) -> Shape:
        """The one that counts beside these arguments."""
        for shape in self.shapes:
            if not shape.condition or named[shape.condition] is not None:
                break
        return shape


class Arguments:
    """What an op's arguments must be, each by an entry: "x [..., N]: floating; bias [N]: x; activation: relu | silu".

        x [..., N]: floating                                a dense tensor of dtypes.FLOATING
        bias [N]: x                                         of x's dtype
        state [R, D]: float32 | float16                     of one of these dtypes
        offsets? [F · B + 1]: integer                       of dtypes.INTEGERS, or None
        indices [B, F] | [N] with offsets: integer          of the second shape if offsets is no None
        activation: relu | silu                             one of these strings
        audio: None                                         None, and nothing else
        batch_size                                          anything; a number may stand in shapes by its name

    A letter (or word) stands for a size, and "..." for the sizes before the others: what it is where it first comes it
    must be everywhere. All tensors lie on the first one's device. hints: what the message says besides where the
    argument of this name has another shape.
    """

    def __init__(self, text: str, **hints: str) -> None:
        self._hints = hints
        self._entries: list[Entry] = []
        for part in text.split(";"):
            self._entries.append(Entry.parse(part, [entry.name for entry in self._entries]))
        self._names = [entry.name for entry in self._entries]

    def __call__(self, op: str, *arguments) -> None:
        """Raise for the first argument that is not what it must be. arguments: in the entries' order; what comes after
        them is not looked at."""
        named, sizes, first = dict(zip(self._names, arguments, strict=False)), {}, None
        for entry in self._entries:
            value = named[entry.name]
            if value is None and entry.optional:
                continue
            if not entry.shapes:
                if entry.expected == "None":
                    is_absent(op, entry.name, value)
                elif entry.expected:
                    is_one_of(op, entry.name, value, entry.expected.split(" | "))
                elif isinstance(value, int | torch.SymInt):
                    sizes[entry.name] = value
                continue
            is_tensor(op, entry.name, value)
            first = first or entry
            is_beside(op, entry.name, value, named[first.name], first.name)
            if entry.dtypes:
                has_dtype(op, entry.name, value, entry.dtypes)
            elif value.dtype != named[entry.expected].dtype:
                raise TypeError(
                    f"{op}: {entry.name} must have {entry.expected}'s dtype, {plain(named[entry.expected].dtype)}; got "
                    f"{plain(value.dtype)}"
                )
            if not entry.shape(named).fits(value, sizes):
                self._raise_for_shape(op, entry, named)

    def _raise_for_shape(self, op: str, wrong: Entry, named: Mapping[str, object]) -> None:
        """Raise for an argument whose shape does not fit those of the arguments before it."""
        shape, sizes, because = wrong.shape(named), {}, ""
        for entry in self._entries[: self._entries.index(wrong)]:
            value, before = named[entry.name], len(shape.letters & sizes.keys())
            if entry.shapes and value is not None:
                entry.shape(named).fits(value, sizes)
            elif isinstance(value, int | torch.SymInt):
                sizes[entry.name] = value
            if not because and len(shape.letters & sizes.keys()) > before:
                what = f"of shape {list(value.shape)}" if entry.shapes else f"= {value}"
                because = f", for {entry.name} {what}"
        if shape.condition:
            because += f", since there are {shape.condition}"
        expected = ", ".join(filter(None, (size.plain(sizes) for size in shape.all)))
        got = list(named[wrong.name].shape)
        hint = f"; {self._hints[wrong.name]}" if wrong.name in self._hints else ""
        raise ValueError(f"{op}: {wrong.name} must have shape [{expected}]{because}; got {got}{hint}")


def is_tensor(op: str, name: str, value: object) -> None:
    """A tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor; got {type(value).__name__}")


def are_tensors(op: str, name: str, value: object) -> None:
    """A list of tensors."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{op}: {name} must be a list of tensors; got {type(value).__name__}")
    for i, each in enumerate(value):
        is_tensor(op, f"{name}[{i}]", each)


def listed(value: object) -> object:
    """Any sequence of tensors as the list that the dispatcher takes: a tuple, say, or nn.ParameterList, which is no
    Sequence. What is none is left for `are_tensors` to refuse."""
    if type(value) is list:
        return value
    is_sequence = isinstance(value, Sequence | ParameterList) and not isinstance(value, str)
    return list(value) if is_sequence else value


def is_absent(op: str, name: str, value: object) -> None:
    """None."""
    if value is not None:
        raise ValueError(f"{op}: {name} must be None; got {type(value).__name__}")


def has_dtype(op: str, name: str, tensor: Tensor, dtypes: Sequence[torch.dtype] = FLOATING) -> None:
    """A dense tensor of one of the dtypes."""
    is_tensor(op, name, tensor)
    if tensor.layout != torch.strided:
        raise TypeError(f"{op}: {name} must be a dense tensor; got one of layout {plain(tensor.layout)}")
    if tensor.dtype not in dtypes:
        *others, last = map(plain, dtypes)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise TypeError(f"{op}: {name} must be {expected}; got {plain(tensor.dtype)}")


def belongs_to(op: str, name: str, tensor: Tensor, other: str, to: Tensor, shape: Sequence[int]) -> None:
    """A dense tensor of the device and dtype of `to`, the argument `other`, and of this shape."""
    is_beside(op, name, tensor, to, other)
    if tensor.dtype != to.dtype:
        raise TypeError(f"{op}: {name} must have {other}'s dtype, {plain(to.dtype)}; got {plain(tensor.dtype)}")
    if tensor.shape != torch.Size(shape):
        raise ValueError(
            f"{op}: {name} must have shape {list(shape)}, for {other} of shape {list(to.shape)}; got "
            f"{list(tensor.shape)}"
        )


def is_beside(op: str, name: str, tensor: Tensor, to: Tensor, other: str) -> None:
    """A dense tensor of the device of `to`, the argument `other`."""
    if tensor.layout != torch.strided:
        raise TypeError(f"{op}: {name} must be a dense tensor; got one of layout {plain(tensor.layout)}")
    if tensor.device != to.device:
        raise ValueError(f"{op}: {name} must be on {other}'s device, {to.device}; got {tensor.device}")


def is_one_of(op: str, name: str, value: object, known: Collection[str]) -> None:
    """A string out of `known`."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{op}: {name} must be one of {', '.join(known)}; got {value!r}")


def rises(op: str, name: str, tensor: Tensor, most: int) -> None:
    """Numbers [N] from 0 to `most`, none below the one before it; whoever asks waits for a GPU."""
    falls = torch.cat([torch.zeros_like(tensor[:1], dtype=torch.bool), tensor.diff() < 0])
    bad = (tensor < 0) | (tensor > most) | falls
    if bad.any():
        position = int(bad.nonzero()[0])
        raise ValueError(
            f"{op}: {name} must rise from 0 to at most {most} and never fall; {name}[{position}] is "
            f"{int(tensor[position])}"
        )


def integer(op: str, name: str, value: object) -> int | torch.SymInt:
    """The int that C++ takes it for: also NumPy's integers, and a tensor of one element, of which torch takes the
    number without what is behind the point."""
    if isinstance(value, torch.SymInt):
        return value
    try:
        number = int(value) if isinstance(value, Tensor) and value.numel() == 1 else int(operator.index(value))
    except (TypeError, ValueError, OverflowError):  # of a tensor, NaN or infinite
        raise TypeError(f"{op}: {name} must be an integer; got {type(value).__name__}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{op}: {name} must fit 64 bits; got {number}")
    return number


def real(op: str, name: str, value: object) -> object:
    """A number that a float holds."""
    if isinstance(value, torch.SymFloat | torch.SymInt):
        return value
    if not isinstance(value, Real):
        raise TypeError(f"{op}: {name} must be a number; got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{op}: {name} must fit a float; got {value}") from None


def boolean(op: str, name: str, value: object) -> object:
    """True or False."""
    if not isinstance(value, bool | torch.SymBool):
        raise TypeError(f"{op}: {name} must be True or False; got {type(value).__name__}")
    return value


def integers(op: str, name: str, values: object) -> list[int]:
    """The ints of a sequence, a list or a tensor say."""
    if isinstance(values, str) or not hasattr(values, "__iter__") or (isinstance(values, Tensor) and not values.dim()):
        raise TypeError(f"{op}: {name} must be a sequence of integers; got {type(values).__name__}")
    return [integer(op, f"{name}[{i}]", value) for i, value in enumerate(values)]


def a_device(op: str, name: str, value: object) -> torch.device:
    """A device, or what torch.device takes for one; None is the default one."""
    if value is None:
        return torch.get_default_device()
    try:
        return torch.device(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{op}: {name} must be a device; got {value!r}") from error


def are_not_negative(op: str, **numbers: object) -> None:
    """Numbers from 0 on, by name. A tensor's value is not looked at: on a GPU that would wait for it."""
    for name, value in numbers.items():
        if isinstance(value, Real) and not value >= 0:
            raise ValueError(f"{op}: {name} must not be negative or NaN; got {value}")


# The second is what AOTAutograd traces with; before torch 2.13 is_compiling() is False then.
WITHOUT_VALUES = ("fake_tensor", "FakeTensor"), ("functional_tensor", "FunctionalTensor")


def has_no_values(tensor: Tensor) -> bool:
    """Whether there are shapes alone: it is traced, on the device meta, or of a FakeTensorMode."""
    if is_compiling() or tensor.is_meta:
        return True
    if type(tensor) is Tensor or type(tensor) is Parameter:  # the usual ones, before what takes longer
        return False
    # To import their modules is to import Dynamo and Triton.
    return any(
        isinstance(tensor, getattr(sys.modules.get(f"torch._subclasses.{module}"), name, ()))
        for module, name in WITHOUT_VALUES
    )


def plain(value: object) -> str:
    """A dtype or layout without its "torch."."""
    return str(value).removeprefix("torch.")


def may_be_written(op: str, name: str, tensor: Tensor, also: Mapping[str, object]) -> None:
    """Each element must have a place of its own. also: what else the call writes, by name, which must lie elsewhere;
    where one is not contiguous a kernel writes to a copy of it."""
    if tensor._is_zerotensor():
        raise ValueError(f"{op}: {name} must have memory, since it is written to; got a zero tensor: clone() it")
    expanded = any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if expanded and tensor.numel():
        strides = tensor.stride()
        raise ValueError(f"{op}: {name} must not be expanded, since it is written to; its strides are {strides}")
    for other, value in also.items():
        if tensor.is_contiguous() and value.is_contiguous() and overlap(tensor, value):
            raise ValueError(f"{op}: {other} must not overlap {name}, since both are written to; they share memory")
