"""An answer that does not end, or that would end the notebook's process, is a wrong one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn
from unittest import mock

from lessons.shared.puzzle import reader

AGAIN = 0.5  # seconds, for an answer that catches everything
PATIENCE = 10  # seconds, with a library that does not come back; an import may take some


class TooLong(BaseException):
    """No Exception: what stands between, torch.compile too, does not catch it. line: the reader's that was running."""

    def __init__(self, line: str):
        super().__init__(line)
        self.line = line


@contextmanager
def seconds(limit: float, own: Collection[str] = ()) -> Iterator[None]:
    """Raises TooLong in here after so many seconds, between two instructions of Python: in the main thread, where
    signals can be had. own: the files of the reader's code.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    traced, asked, late = sys.gettrace(), [], []

    def stop(_, frame) -> None:
        # Raised at the next instruction of the reader's own: a library that is cut off in its middle, with a mode of
        # torch's pushed, say, does not work again.
        if asked:
            end(frame)
        asked.append(True)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        while frame is not None:
            if reader.is_readers(frame, own):
                frame.f_trace_opcodes, frame.f_trace = True, trace
            frame = frame.f_back
        sys.settrace(trace)

    def trace(frame, *_) -> None:
        if reader.is_readers(frame, own):
            end(frame)

    def end(frame) -> NoReturn:
        asked.clear()
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        late.append(reader.line_that_runs(frame, own))
        raise TooLong(late[-1])

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    except Exception as error:  # what was cut off may fail in its turn, and hide why
        if late:
            raise TooLong(late[0]) from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.settrace(traced)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def nothing_ends() -> Iterator[None]:
    """In here a notebook's exit() and quit() raise SystemExit, as sys.exit() does; else they stop its kernel later.
    os._exit() and os.abort() raise it too, but not in a process that is forked in here, which ends by them."""
    autocall = sys.modules.get("IPython.core.autocall")
    with ExitStack() as stack:
        for name in ("ExitAutocall", "ZMQExitAutocall") if autocall else ():
            stack.enter_context(mock.patch.object(getattr(autocall, name), "__call__", _exit))
        for name in ("_exit", "abort"):
            stack.enter_context(mock.patch.object(os, name, _exit_of(os.getpid(), getattr(os, name))))
        yield


def _exit(*arguments, **named) -> None:
    raise SystemExit


def _exit_of(process: int, function: Callable) -> Callable:
    """Raises SystemExit in this process, and is the function in others."""

    def exit(*arguments, **named) -> None:
        if os.getpid() == process:
            raise SystemExit
        function(*arguments, **named)

    return exit
