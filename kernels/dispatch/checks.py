"""Checks of one value each. Every one raises with a message that names the op, the argument, what was expected and what
came: TypeError for a type or dtype, ValueError for a shape, a device, a value or memory that overlaps."""

from __future__ import annotations

import operator
import sys
from collections.abc import Collection, Mapping, Sequence
from numbers import Real

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import Parameter, ParameterList

from ..dtypes import FLOATING
from .address import overlap


def is_tensor(op: str, name: str, value: object) -> None:
    """A tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor; got {type(value).__name__}")


def are_tensors(op: str, name: str, value: object) -> None:
    """A list of tensors."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{op}: {name} must be a list of tensors; got {type(value).__name__}")
    for i, tensor in enumerate(value):
        is_tensor(op, f"{name}[{i}]", tensor)


def listed(value: object) -> object:
    """A sequence of tensors (a tuple, or nn.ParameterList, which is no Sequence) as the list that the dispatcher takes.
    Any other value is returned as it is, for `are_tensors` to refuse."""
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
    """Numbers [N] from 0 to `most`, none below the one before it. For a CUDA tensor this waits for the GPU."""
    falls = torch.cat([torch.zeros_like(tensor[:1], dtype=torch.bool), tensor.diff() < 0])
    bad = (tensor < 0) | (tensor > most) | falls
    if bad.any():
        position = int(bad.nonzero()[0])
        raise ValueError(
            f"{op}: {name} must rise from 0 to at most {most} and never fall; {name}[{position}] is "
            f"{int(tensor[position])}"
        )


def integer(op: str, name: str, value: object) -> int | torch.SymInt:
    """The value as an int, as C++ takes it. It may be one of NumPy's integers, or a tensor of one element, which torch
    truncates."""
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
    """Whether the tensor has a shape but no values: it is traced, on the device meta, or of a FakeTensorMode."""
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
    """A tensor whose elements have memory of their own. also: the other tensors that the call writes, by name. These
    must not overlap it, unless one of the two is not contiguous: a kernel writes to a copy of that one."""
    if tensor._is_zerotensor():
        raise ValueError(f"{op}: {name} must have memory, since it is written to; got a zero tensor: clone() it")
    expanded = any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if expanded and tensor.numel():
        strides = tensor.stride()
        raise ValueError(f"{op}: {name} must not be expanded, since it is written to; its strides are {strides}")
    for other, value in also.items():
        if tensor.is_contiguous() and value.is_contiguous() and overlap(tensor, value):
            raise ValueError(f"{op}: {other} must not overlap {name}, since both are written to; they share memory")
