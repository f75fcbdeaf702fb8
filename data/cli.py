"""What the commands of data and model share: a user's mistake is one line on stderr, never a traceback."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
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


def is_first() -> bool:
    """Whether this process speaks for all that torchrun started: it is the only one, or the first rank."""
    return "TORCHELASTIC_RUN_ID" not in os.environ or os.environ["RANK"] == "0"


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()  # no other may set a signal's handler


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block SIGINT and SIGTERM call the handler, where they are not ignored. On another thread: nothing."""
    if not _on_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: theirs for number, theirs in before.items() if theirs is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, theirs in before.items():
            signal.signal(number, signal.SIG_DFL if theirs is None else theirs)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Within the block SIGINT and SIGTERM are only noted, and at its end they come.

    For calls into threading and concurrent.futures, whose locks are left in disorder if a handler raises within them.
    """
    noted = []
    try:
        with _handled(lambda number, _: noted.append(number)):
            yield
    finally:
        for number in noted:
            signal.raise_signal(number)


@contextmanager
def _signals_end(command: str) -> Iterator[None]:
    """Within the block SIGINT and SIGTERM end the process, saying so in one line.

    For imports, which leave nothing to tidy up: of what a handler raises within them C++ libraries abort.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        what = "interrupted" if number == signal.SIGINT else "terminated"
        if is_first():
            os.write(2, f"{command}: {what}\n".encode())
        os._exit(128 + number)

    with _handled(end):
        yield


def run(module: str) -> NoReturn:
    """What `python -m module` does: main() of the module. A command calls it before its imports, which take seconds."""
    name = module.removesuffix(".__main__")
    gc.disable()  # what imports make stays, and looking for garbage in it takes a sixth of their time
    with _signals_end(name):
        main = importlib.import_module(module).main
    gc.enable()
    sys.stdout.reconfigure(errors="backslashreplace")  # a terminal or file that takes ASCII alone gets "\u2192" for →
    with user_errors(name):
        status = main()
    sys.exit(status)


@contextmanager
def command_imports(package: str) -> Iterator[None]:
    """For the imports of a package, which `python -m package.command` imports before the command."""
    locating = sys.argv[:1] == ["-m"]  # sys.argv[0] is that while Python locates the module that it shall run
    with _signals_end(package) if locating else nullcontext():
        yield


@contextmanager
def user_errors(command: str) -> Iterator[None]:
    """End the process for a user's mistake, saying why in one line.

    UserError, OSError, MemoryError: status 2. Ctrl-C: 130. SIGTERM: 143; under torchrun, which sends both to all of its
    processes, the first one says so. Nobody reads what it prints any more: 141, as SIGPIPE ends other programs, without
    a word.
    """
    try:
        with sigterm_as_interrupt() if _on_main_thread() else nullcontext():
            yield
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails once more when it ends
        sys.exit(128 + signal.SIGPIPE)
    except UserError as error:
        message, status = str(error), 2
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        message, status = f"{file}{error.strerror or error}", 2
    except UnicodeEncodeError as error:  # Python takes any byte in a file's name, Parquet's library does not
        message, status = f"{error.object!r}: expected a path in UTF-8", 2
    except MemoryError as error:
        message, status = f"out of memory: {error}".removesuffix(": "), 2
    except Terminated:
        message, status = "terminated" if is_first() else None, 143
    except KeyboardInterrupt:
        message, status = "interrupted" if is_first() else None, 130
    else:
        return
    if message:
        print(f"{command}: {message}", file=sys.stderr)
    sys.exit(status)
