"""Whether launches on this thread are recorded rather than made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_state = threading.local()


def recorder():
    """What records this thread's launches (plan.Recorder), or None."""
    return getattr(_state, "recorder", None)


@contextmanager
def recording(to) -> Iterator[None]:
    """In here launches go to to.launch(module, name, grid, arguments, constants), workspaces to
    to.workspace(shape, dtype)."""
    before, _state.recorder = recorder(), to
    try:
        yield
    finally:
        _state.recorder = before
