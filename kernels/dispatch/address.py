"""Where an argument lies in memory: the one place that asks a tensor for it."""

from __future__ import annotations

from torch import Tensor
from torch.compiler import is_compiling


def address(tensor: Tensor) -> int | None:
    """Of the tensor's first element; None where there is no memory.

    There is none of an empty tensor, one on the device meta, a fake or functional one, a zero tensor (of forward-mode
    derivatives), a sparse one, what torch.func's transforms wrap, and whatever torch.compile traces. Of a negative or
    conjugate view it is the memory that lies behind, which holds other numbers than the view shows.
    """
    if is_compiling():
        return None
    try:
        return tensor.data_ptr() or None
    except RuntimeError:
        return None
