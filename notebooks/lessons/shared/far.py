"""A tensor as the last rows of a far larger one: a kernel that cuts an index to 32 bits or fewer, or takes it through a
float, does not find them. And a launch's last programs, whose numbers are large."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from kernels import runtime

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


@contextmanager
def late_programs(first: int, count: int) -> Iterator[tuple[int]]:
    """The grid of a launch of first + count programs, whose number 16 bits need not hold. The interpreter, to which
    each costs time, runs the last `count` of them alone; these must be no more than `first`."""
    if not first or runtime.triton_mode() != "interpreted":
        yield (first + count,)
        return
    from triton.runtime.interpreter import InterpreterBuilder as Builder

    set_sizes, set_index = Builder.set_grid_dim, Builder.set_grid_idx

    def all_sizes(self, x: int, *others: int) -> None:
        set_sizes(self, first + x, *others)

    def late_index(self, x: int, *others: int) -> None:
        set_index(self, x, *others)
        if self.grid_idx[0] == x:  # or the last program comes first
            set_index(self, first + x, *others)

    with mock.patch.object(Builder, "set_grid_dim", all_sizes), mock.patch.object(Builder, "set_grid_idx", late_index):
        yield (count,)
