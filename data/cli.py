"""What the commands of data and model share: a user's mistake is one line on stderr, never a traceback."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import NoReturn


class UserError(ValueError):
    """A mistake in what a user asked for, or in a file that they named.

    The message is one line: the file and the place in it, what was expected and what was found.
    """


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line on stderr (and exit status 2)."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


class Terminated(KeyboardInterrupt):
    """SIGTERM: what tidies up after Ctrl-C tidies up after it."""


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Within the block SIGTERM raises Terminated in the main thread, which must be the one that enters it."""

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not stop the tidying up
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def user_errors(command: str) -> Iterator[None]:
    """End the process for a user's mistake, saying why in one line.

    UserError, OSError, MemoryError: status 2. Ctrl-C: 130. SIGTERM: 143.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    try:
        with sigterm_as_interrupt() if on_main_thread else nullcontext():
            yield
    except UserError as error:
        message, status = str(error), 2
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        message, status = f"{file}{error.strerror or error}", 2
    except MemoryError as error:
        message, status = f"out of memory: {error}".removesuffix(": "), 2
    except Terminated:
        message, status = "terminated", 143
    except KeyboardInterrupt:
        message, status = "interrupted", 130
    else:
        return
    print(f"{command}: {message}", file=sys.stderr)
    sys.exit(status)
