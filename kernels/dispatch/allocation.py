"""Where an op's memory comes from: outputs and workspaces, of the C++ core and of the launchers in Python alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], Tensor]
_replacement: Allocate | None = None


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A contiguous tensor whose memory is not written."""
    if _replacement is not None:
        return _replacement(tuple(shape), dtype, device)
    return torch.empty(shape, dtype=dtype, device=device)


def is_replaced() -> bool:
    """Whether this is inside `replaced`."""
    return _replacement is not None


@contextmanager
def replaced(function: Allocate) -> Iterator[None]:
    """In here every allocation inside an op is function(shape, dtype, device): for tests, which put guards around it.

    What it returns must be contiguous, and its memory aligned to 16 bytes.
    """
    global _replacement
    before, _replacement = _replacement, function
    tell_core()
    try:
        yield
    finally:
        _replacement = before
        tell_core()


def tell_core() -> None:
    """The C++ core allocates by itself unless it is told to call `empty` (as fused_kernels::_allocate)."""
    from kernels.dispatch import extension

    if extension.core_is_loaded():
        torch.ops.fused_kernels._replace_allocations(_replacement is not None)
