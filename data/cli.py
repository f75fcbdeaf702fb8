"""What the commands of data and model share: a user's mistake is one line on stderr, never a traceback."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class UserError(ValueError):
    """A mistake in what a user asked for, or in a file that they named.

    The message is one line: the file and the place in it, what was expected and what was found.
    """


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line on stderr (and exit status 2)."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


@contextmanager
def user_errors(command: str) -> Iterator[None]:
    """End the process for a UserError or OSError (status 2) or Ctrl-C (status 130), saying why in one line."""
    try:
        yield
    except UserError as error:
        message, status = str(error), 2
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        message, status = f"{file}{error.strerror or error}", 2
    except KeyboardInterrupt:
        message, status = "interrupted", 130
    else:
        return
    print(f"{command}: {message}", file=sys.stderr)
    sys.exit(status)
