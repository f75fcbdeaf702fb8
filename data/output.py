"""A directory of results that is complete or not there: what a killed run leaves never looks finished."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data.cli import UserError

PARTIAL = ".partial"
# What a freshly made file system has in its root: a directory that holds nothing else is empty.
_NOT_CONTENT = {"lost+found"}


@contextmanager
def complete_directory(out: str | Path, last: str = "metadata.json") -> Iterator[Path]:
    """A directory to write in, whose content becomes that of `out` if the block ends well, and is removed otherwise.

    It lies inside `out`, so that `out` may be a mount point, a symbolic link or an existing empty directory, and what
    is written goes to the file system that the user chose. At the end its content moves up, the entry named `last`
    after all others: where that one stands, the rest is complete.

    A run that was killed leaves `out` with PARTIAL in it, which the next one removes. Raises UserError, before the
    block is entered, if `out` holds anything else, is no directory, or another run is writing in it; OSError if it
    cannot be written.
    """
    out = Path(out).resolve()
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: already exists and is not a directory; remove it or name another one")
    made = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    partial = out / PARTIAL
    with _locked(out):
        found = set(os.listdir(out)) - _NOT_CONTENT
        if found - {PARTIAL}:
            killed = f" (a run that was killed at its end left {PARTIAL} there)" if PARTIAL in found else ""
            raise UserError(f"{out}: already exists and is not empty{killed}; remove it or name another directory")
        if found:
            shutil.rmtree(partial)
        try:
            partial.mkdir()
            yield partial
            for path in sorted(partial.iterdir(), key=lambda path: path.name == last):
                path.rename(out / path.name)
            partial.rmdir()
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            if made and not os.listdir(out):
                out.rmdir()
            raise


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, which ends with the process that holds it, however that ends."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{directory}: another run is writing there; name another directory") from None
        yield
    finally:
        os.close(descriptor)
