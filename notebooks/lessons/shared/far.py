"""A tensor as the last rows of a far larger one: a kernel that cuts an index to 32 bits or fewer, or takes it through a
float, does not find them."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

FAR = 2**32  # rows; all of a uint32's numbers
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)  # Linux's number


def behind(tensor: Tensor, first: int) -> Tensor:
    """The tensor behind so many rows, which nobody touches: on a CPU they have addresses and no memory."""
    shape = first + len(tensor), *tensor.shape[1:]
    if not first:
        return tensor
    if tensor.is_cuda:
        larger = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
    else:
        larger = torch.frombuffer(_memory(math.prod(shape) * tensor.itemsize), dtype=tensor.dtype).view(shape)
    larger[first:] = tensor
    return larger


def has_room(device: torch.device, *tensors: Tensor) -> bool:
    """Whether each of these has room behind FAR rows, all at once and once more."""
    nbytes = [FAR * math.prod(tensor.shape[1:]) * tensor.itemsize for tensor in tensors]
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0] > 1.2 * sum(nbytes)
    try:
        for size in nbytes:
            _memory(size).close()
    except OSError:  # a system that promises no memory that it does not have
        return False
    return True


def _memory(nbytes: int) -> mmap.mmap:
    return mmap.mmap(-1, nbytes, _FLAGS)
