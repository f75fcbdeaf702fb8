"""Where an argument lies in memory: the one place that asks a tensor for it."""

from __future__ import annotations

from torch import Tensor
from torch.compiler import is_compiling


def address(tensor: Tensor) -> int | None:
    """The address of the tensor's first element; None where there is no memory.

    There is none of an empty tensor, one on the device meta, a fake or functional one, a zero tensor (of forward-mode
    derivatives), a sparse one, what torch.func's transforms wrap, and whatever torch.compile traces. A negative or
    conjugate view has that of the memory that lies behind, which holds other numbers than the view shows.
    """
    if is_compiling():
        return None
    try:
        return tensor.data_ptr() or None
    except RuntimeError:
        return None


def with_memory(value: object) -> object:
    """The value, or a copy of a zero tensor, which some of PyTorch's operators read as if it had memory."""
    return value.clone() if isinstance(value, Tensor) and value._is_zerotensor() else value


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether one lies between the other's first and last element; False where one has no address."""
    if a.device != b.device:
        return False
    (start, end), (other, other_end) = _extent(a), _extent(b)
    return start < other_end and other < end


def is_same(a: Tensor, b: Tensor) -> bool:
    """Whether both are the same elements at the same addresses, in the same order."""
    same = (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
    return a is b or (same and address(a) is not None and address(a) == address(b))


def _extent(tensor: Tensor) -> tuple[int, int]:
    start = address(tensor)
    if start is None:
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.itemsize
