"""Where an op's memory comes from: outputs and workspaces, of the C++ core and of the launchers in Python alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

Allocate = Callable[[tuple[int, ...], torch.dtype, torch.device], Tensor]
_replacement: Allocate | None = None
_listeners: list[Callable[[bool], object]] = []  # whoever allocates by itself otherwise: the C++ core


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A contiguous tensor whose memory is not written."""
    if _replacement is not None:
        return _replacement(tuple(shape), dtype, device)
    return torch.empty(shape, dtype=dtype, device=device)


def tell(listener: Callable[[bool], object]) -> None:
    """Call listener(whether allocations are replaced) now, if they are, and whenever that changes."""
    _listeners.append(listener)
    if _replacement is not None:
        listener(True)


@contextmanager
def replaced(function: Allocate) -> Iterator[None]:
    """In here every allocation inside an op is function(shape, dtype, device): for tests, which put guards around it.

    What it returns must be contiguous, and its memory aligned to 16 bytes.
    """
    before = _replacement
    _replace(function)
    try:
        yield
    finally:
        _replace(before)


def _replace(function: Allocate | None) -> None:
    global _replacement
    _replacement = function
    for listener in _listeners:
        listener(function is not None)
