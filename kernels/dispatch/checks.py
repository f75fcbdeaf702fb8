"""What the ops' checks are made of. Each raises with a message that names the op, the argument, what was expected and
what came: TypeError for a type or dtype, ValueError for a shape, a device, a value or memory that overlaps."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def is_tensor(op: str, name: str, value: object) -> None:
    """A tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor; got {type(value).__name__}")


def has_dtype(op: str, name: str, tensor: Tensor, dtypes: Sequence[torch.dtype] = FLOATING) -> None:
    """A dense tensor of one of the dtypes, with at least one dimension."""
    if tensor.layout != torch.strided:
        raise TypeError(f"{op}: {name} must be a dense tensor; got one of layout {plain(tensor.layout)}")
    if tensor.dtype not in dtypes:
        *others, last = map(plain, dtypes)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise TypeError(f"{op}: {name} must be {expected}; got {plain(tensor.dtype)}")
    if tensor.dim() == 0:
        raise ValueError(f"{op}: {name} must have at least one dimension; got a tensor of shape []")


def belongs_to(op: str, name: str, tensor: Tensor, other: str, to: Tensor, shape: Sequence[int]) -> None:
    """A dense tensor of the device and dtype of `to`, the argument `other`, and of this shape."""
    if tensor.layout != torch.strided:
        raise TypeError(f"{op}: {name} must be a dense tensor; got one of layout {plain(tensor.layout)}")
    if tensor.device != to.device:
        raise ValueError(f"{op}: {name} must be on {other}'s device, {to.device}; got {tensor.device}")
    if tensor.dtype != to.dtype:
        raise TypeError(f"{op}: {name} must have {other}'s dtype, {plain(to.dtype)}; got {plain(tensor.dtype)}")
    if tensor.shape != torch.Size(shape):
        raise ValueError(
            f"{op}: {name} must have shape {list(shape)}, for {other} of shape {list(to.shape)}; got "
            f"{list(tensor.shape)}"
        )


def is_beside(op: str, name: str, tensor: Tensor, first: Tensor) -> None:
    """A dense tensor on first's device."""
    if tensor.layout != torch.strided:
        raise TypeError(f"{op}: {name} must be a dense tensor; got one of layout {plain(tensor.layout)}")
    if tensor.device != first.device:
        raise ValueError(f"{op}: {name} must be on {first.device}; got {tensor.device}")


def is_one_of(op: str, name: str, value: object, known: Collection[str]) -> None:
    """A string out of `known`."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{op}: {name} must be one of {', '.join(known)}; got {value!r}")


def rises(op: str, name: str, tensor: Tensor, most: int) -> None:
    """Numbers [N] from 0 to `most`, none below the one before it; whoever asks waits for a GPU."""
    bad = (tensor < 0) | (tensor > most)
    bad[1:] |= tensor.diff() < 0
    if bad.any():
        position = int(bad.nonzero()[0])
        raise ValueError(
            f"{op}: {name} must rise from 0 to at most {most} and never fall; {name}[{position}] is "
            f"{int(tensor[position])}"
        )


def plain(value: object) -> str:
    """A dtype or layout without its "torch."."""
    return str(value).removeprefix("torch.")


def may_be_written(op: str, name: str, tensor: Tensor, others: dict[str, object], elementwise: bool) -> None:
    """Writing to the tensor must not change what is still to be read. Tensors that are not contiguous are copied before
    anything is written. Elementwise, another argument may be the tensor itself."""
    expanded = any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if expanded and tensor.numel():
        strides = tensor.stride()
        raise ValueError(f"{op}: {name} must not be expanded, since it is written to; its strides are {strides}")
    for other, value in others.items():
        if isinstance(value, Tensor) and _overlap(tensor, value):
            if elementwise and value.data_ptr() == tensor.data_ptr() and value.numel() == tensor.numel():
                continue
            if elementwise and value.shape == tensor.shape:
                raise ValueError(
                    f"{op}: {other} must be {name} itself or not overlap it; they share part of their memory"
                )
            raise ValueError(f"{op}: {other} must not overlap {name}, which is written to; they share memory")


def _overlap(a: Tensor, b: Tensor) -> bool:
    if not (a.is_contiguous() and b.is_contiguous() and a.numel() and b.numel() and a.device == b.device):
        return False
    start, other = a.data_ptr(), b.data_ptr()
    return start < other + b.nbytes and other < start + a.nbytes
