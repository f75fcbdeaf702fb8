"""Guard zones and poison: what a kernel writes beside a tensor, or leaves unwritten, or reads from where nothing is.

Every tensor that a checked function is given or allocates lies between two guard zones. The zones, and the memory of an
output before it is written, are filled with a 16-bit word that makes a NaN of every floating dtype: a value that is
read from there shows in the result. The words of inputs and of allocations differ, so that a kernel which reads and
writes past its last element writes another NaN than the one that was there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..dispatch import allocation

ZONE = 1 << 14  # bytes on either side, a multiple of every itemsize and of what a GPU aligns to
INPUT, OUTPUT = 0x7FFB, 0x7FFD  # quiet NaNs in float16 and bfloat16, and twice over in float32 and float64

_UNWRITTEN = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
_WRITTEN = {"zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full"}


@dataclass(frozen=True)
class Region:
    """Memory between guard zones: `nbytes` bytes from ZONE on in `buffer`, of elements of `itemsize` bytes."""

    buffer: Tensor
    nbytes: int
    itemsize: int
    word: int
    name: str

    @property
    def start(self) -> int:
        return self.buffer.data_ptr() + ZONE

    def written_beside(self) -> str:
        """What was written to the zones, in words; "" if nothing was."""
        parts = []
        for side, first in (("before its first", 0), ("after its last", ZONE + self.nbytes)):
            zone, pattern = self.buffer[first : first + ZONE], _pattern(self.word, first % 2, self.buffer.device)
            if torch.equal(zone, pattern):
                continue
            changed = (zone != pattern).nonzero().flatten()
            if first:
                offsets = changed // self.itemsize
                parts.append(f"{_elements(offsets)} {side}, the first {offsets[0] + 1} beyond it")
            else:
                offsets = (ZONE - 1 - changed) // self.itemsize
                parts.append(f"{_elements(offsets)} {side}, the nearest {offsets[-1] + 1} ahead of it")
        return "; ".join(parts)


@functools.cache
def _pattern(word: int, odd: int, device: torch.device) -> Tensor:
    """The bytes that a zone was filled with which begins at such a byte of the buffer."""
    pattern = torch.empty(ZONE, dtype=torch.uint8, device=device)
    pattern[odd::2], pattern[1 - odd :: 2] = word & 0xFF, word >> 8
    return pattern


def _elements(offsets: Tensor) -> str:
    count = len(offsets.unique())
    return f"{count} element{'s were' if count > 1 else ' was'} written"


class WrittenBeside(AssertionError):
    """A kernel wrote to memory beside its tensors."""


class Guard:
    """Makes tensors between guard zones, and says where one was written beside."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.working = False  # on a buffer of its own, which needs no zones

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A contiguous tensor of poison."""
        elements = torch.Size(shape).numel()
        buffer = self._buffer(elements * dtype.itemsize, dtype, device, OUTPUT, f"a workspace of shape {list(shape)}")
        strides = [torch.Size(shape[i + 1 :]).numel() for i in range(len(shape))]
        return _view(buffer, dtype, 0, shape, strides)

    def like(self, tensor: Tensor, *, written: bool) -> Tensor:
        """A tensor of the same values (of poison, unless they were written), strides and offset, with zones around."""
        storage = tensor.untyped_storage()
        word = INPUT if written else OUTPUT
        name = f"a tensor of shape {list(tensor.shape)}"
        buffer = self._buffer(storage.nbytes(), tensor.dtype, tensor.device, word, name)
        if written:
            buffer[ZONE : ZONE + storage.nbytes()] = _bytes(storage)
        return _view(buffer, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())

    def named(self, tensor: Tensor, name: str) -> Tensor:
        """The tensor, whose memory is called so in messages from now on."""
        start = tensor.untyped_storage().data_ptr()
        self.regions = [
            Region(r.buffer, r.nbytes, r.itemsize, r.word, name) if r.buffer.data_ptr() == start else r
            for r in self.regions
        ]
        return tensor

    def data(self, tensor: Tensor) -> Tensor:
        """The bytes between the zones, of a tensor that was made in here."""
        start = tensor.untyped_storage().data_ptr()
        region = next(r for r in self.regions if r.buffer.data_ptr() == start)
        return region.buffer[ZONE : ZONE + region.nbytes]

    def verify(self) -> None:
        """Raise WrittenBeside naming the first tensor that was written beside: how much, where."""
        for region in self.regions:
            if text := region.written_beside():
                raise WrittenBeside(f"the memory beside {region.name} was changed: {text}")

    def unwritten(self, tensor: Tensor) -> Tensor | None:
        """Where a tensor that was allocated in here still is poison, bit for bit; None of any other tensor."""
        start = tensor.untyped_storage().data_ptr()
        if not any(r.word == OUTPUT and r.buffer.data_ptr() == start for r in self.regions):
            return None
        if tensor.itemsize == 1 or not tensor.is_contiguous():
            return None
        words = tensor.detach().view(-1).view(torch.int16).view(tensor.numel(), tensor.itemsize // 2)
        return (words == OUTPUT).all(1).view(tensor.shape)

    def _buffer(self, nbytes: int, dtype: torch.dtype, device: torch.device, word: int, name: str) -> Tensor:
        self.working = True
        try:
            words = torch.full((ZONE + (nbytes + 1) // 2,), word, dtype=torch.int16, device=device)
        finally:
            self.working = False
        buffer = words.view(torch.uint8)
        self.regions.append(Region(buffer, nbytes, dtype.itemsize, word, name))
        return buffer


def _view(buffer: Tensor, dtype: torch.dtype, offset: int, shape, strides) -> Tensor:
    """A tensor on the buffer's memory behind the first zone, of its own: not a view in autograd's sense."""
    storage = buffer.untyped_storage()
    empty = torch.tensor([], dtype=dtype, device=buffer.device)
    return empty.set_(storage, ZONE // dtype.itemsize + offset, tuple(shape), tuple(strides))


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.tensor([], dtype=torch.uint8, device=storage.device).set_(storage)


def memory(tensor: Tensor) -> Tensor:
    """All bytes of the memory that the tensor is a view of, as a copy."""
    return _bytes(tensor.untyped_storage()).clone()


class _Allocations(TorchFunctionMode):
    """torch.empty and its like, called from Python, give tensors between guard zones."""

    def __init__(self, guard: Guard):
        super().__init__()
        self.guard = guard

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if self.guard.working or name not in _UNWRITTEN | _WRITTEN or "out" in (kwargs or {}):
            return result
        if type(result) is not Tensor or result.layout != torch.strided or result.is_meta or result.is_pinned():
            return result
        return self.guard.like(result, written=name in _WRITTEN).requires_grad_(result.requires_grad)


@contextmanager
def poisoned() -> Iterator[None]:
    """torch.empty gives NaN in here, inside C++ and custom ops too: what a kernel does not write shows."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@contextmanager
def guarded(guard: Guard | None = None) -> Iterator[Guard]:
    """What is allocated in here, by an op or by torch.empty and its like, is poisoned and lies between guard zones.

    Call verify() of the guard behind the block.
    """
    guard = Guard() if guard is None else guard
    with poisoned(), allocation.replaced(guard.empty), _Allocations(guard):
        yield guard
