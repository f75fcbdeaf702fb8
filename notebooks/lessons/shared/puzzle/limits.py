"""An answer that does not end, or that would end the notebook's process, is a wrong one."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn
from unittest import mock

from lessons.shared.puzzle import reader

AGAIN = 0.1  # seconds: near the end of the stack, nothing can be called, and so no end be asked for
PATIENCE = 10  # seconds, with a library that does not come back; an import may take some


class TooLong(BaseException):
    """No Exception: what stands between, torch.compile too, does not catch it. line: the reader's that was running.
    let_go: called where what caught it lets it go.
    """

    def __init__(self, line: str, let_go: Callable[[], None]):
        super().__init__(line)
        self.line, self.let_go = line, let_go

    def __del__(self) -> None:
        self.let_go()


@contextmanager
def seconds(limit: float, own: Collection[str] = ()) -> Iterator[None]:
    """Raises TooLong in here after so many seconds, between two instructions of Python: in the main thread, where
    signals can be had. What catches it goes on until it lets the error go, and then gets another; at the end it is
    raised whoever caught it. own: the files of the reader's code.

    A loop in C that asks for no signal, such as sum(iter(int, 1)), goes on; so does one at the end of the stack.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    traced, asked, late, over = sys.gettrace(), [], [], False

    def stop(_, frame) -> None:
        asked.append(time.monotonic())
        if asked[-1] > asked[0] + PATIENCE:
            end(frame)
        end_in_own_code(frame)

    def end_in_own_code(frame) -> None:
        # Raised at the next instruction of the reader's own: a library that is cut off in its middle, with a mode of
        # torch's pushed, say, does not work again.
        while frame is not None:
            if reader.is_readers(frame, own):
                frame.f_trace_opcodes, frame.f_trace = True, trace
            frame = frame.f_back
        sys.settrace(trace)

    def trace(frame, *_) -> None:
        if not over and reader.is_readers(frame, own):  # which a caller's frame keeps, for a debugger to call
            end(frame)

    def end(frame) -> NoReturn:
        asked.clear()
        late.append(reader.line_that_runs(frame, own))
        raise TooLong(late[0], let_go)

    def let_go() -> None:
        if not over:
            end_in_own_code(sys._getframe(2))

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit, AGAIN)
    try:
        yield
        if late:  # and caught
            raise TooLong(late[0], let_go)
    except Exception as error:  # what was cut off may fail in its turn, and hide why
        if late:
            raise TooLong(late[0], let_go) from error
        raise
    finally:
        over = True
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
