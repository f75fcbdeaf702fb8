"""A folder, or a file and what lies beside it, is written completely or not at all."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data.cli import UserError


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to write into. It becomes `out` where all went well, and is removed where something did not.

    UserError: `out` is there already, or cannot be written.
    """
    with _partial(out) as partial:
        yield partial
        partial.chmod(0o755)
        os.replace(partial, out)


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """A folder to write a file of `out`'s name into, and others. All of them come to lie where `out` does.

    UserError: `out` is there already, or cannot be written.
    """
    with _partial(out) as partial:
        yield partial
        _check_new(out)  # another process may have been at the same, and files of two would be mixed
        # The file that readers open comes last: where it is, what it refers to is there too.
        for path in sorted(partial.iterdir(), key=lambda path: path.name == out.name):
            os.replace(path, out.parent / path.name)


@contextmanager
def _partial(out: Path) -> Iterator[Path]:
    """A folder on the file system that `out` is to be on; at the end it goes, with what is still in it."""
    _check_new(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {_cause(error)}") from None


def _check_new(out: Path) -> None:
    if out.exists():
        raise UserError(f"{out}: is there already; name another folder or file, or remove it")


def _cause(error: OSError) -> str:
    if isinstance(error, shutil.Error):  # of copytree: (from, to, "[Errno N] what: names") of each file
        *_, message = error.args[0][0]
        return re.sub(r"\[Errno \d+\] ([^:]*).*", r"\1", message)
    return error.strerror or str(error)
