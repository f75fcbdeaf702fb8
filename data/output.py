"""Results that are complete or not there, a directory or a file: what a killed run leaves never looks finished."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from data.cli import UserError

PARTIAL = ".partial"
# What a freshly made file system has in its root: a directory that holds nothing else is empty.
_LOCK = ".lock"
_NOT_CONTENT = {"lost+found", _LOCK}
# Errors of writing alone, which writers raise without the name of their file.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What flock says on a file system that has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def complete_directory(out: str | Path, last: str = "metadata.json") -> Iterator[Path]:
    """A directory to write in, whose content becomes that of `out` if the block ends well, and is removed otherwise.

    It lies inside `out`, so that `out` may be a mount point, a symbolic link or an existing empty directory, and what
    is written goes to the file system that the user chose. At the end its content moves up, the entry named `last`
    after all others: where that one stands, the rest is complete.

    A run that was killed leaves `out` with PARTIAL in it, which the next one removes. Raises UserError, before the
    block is entered, if `out` holds anything else, is no directory, or another run is writing in it; OSError if it
    cannot be written, naming `out` where there is no room for a file.
    """
    out = _resolved(out)
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: already exists and is not a directory; remove it or name another one")
    partial = out / PARTIAL
    with locked(out):
        left = partial.is_dir() and not partial.is_symlink()
        entries = sorted(set(os.listdir(out)) - _NOT_CONTENT - ({PARTIAL} if left else set()))
        if entries:
            holds = ", ".join(entries[:3]) + ", …" * (len(entries) > 3)
            killed = f" (a run that was killed at its end left {PARTIAL} there)" if left else ""
            raise UserError(
                f"{out}: already exists and is not empty: it holds {holds}{killed}; remove it or name another directory"
            )
        if left:
            shutil.rmtree(partial)
        moved: list[str] = []
        try:
            partial.mkdir()
            yield partial
            for path in sorted(partial.iterdir(), key=lambda path: path.name == last):
                path.rename(out / path.name)
                moved.append(path.name)
            partial.rmdir()
        except BaseException as error:
            for name in moved:
                with suppress(OSError):
                    (out / name).rename(partial / name)
            _remove(partial)
            _name_where_there_is_no_room(error, out)
            raise


def _resolved(out: str | Path) -> Path:
    try:
        return Path(out).resolve()
    except RuntimeError:  # so Python says it before 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(out)) from None


def _remove(directory: Path) -> None:
    """Where a library's thread goes on for a moment after the interruption, it adds files to what is being removed."""
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.05)


def _name_where_there_is_no_room(error: BaseException, out: Path) -> None:
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        message = f"{os.strerror(error.errno)}; what was written there is removed"
        raise OSError(error.errno, message, str(out)) from None


@contextmanager
def complete_file(out: str | Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the name `out` if the block ends well, and is removed otherwise.

    Until then whatever `out` is stays as it is. What a killed run left beside it is removed. Raises UserError if it is
    a directory; OSError, before the block is entered, if it cannot be written, and, naming `out`, where there is no
    room.
    """
    out = _resolved(out)
    if out.is_dir():
        raise UserError(f"{out}: is a directory; name a file")
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f".{glob.escape(out.name)}.*{PARTIAL}"):
        with suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails as long as its run lives
            left.unlink()
    partial = out.with_name(f".{out.name}.{os.getpid()}{PARTIAL}")
    try:
        with partial.open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, out)
    except OSError as error:
        _name_where_there_is_no_room(error, out)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def written_beside(path: Path, scratch: Path) -> Iterator[Path]:
    """A path to write to in directory `scratch`, which becomes `path` if the block ends well, and is removed otherwise.

    For a task that may be begun again while the first attempt, thought dead, still writes: each writes its own file.
    """
    partial = scratch / f"{path.name}.{uuid.uuid4().hex}{PARTIAL}"
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def locked(directory: Path) -> Iterator[Callable[[], None]]:
    """Hold the directory's lock, which ends with the process that holds it, however that ends.

    A directory that is not there is made, and removed if the block fails and nothing is in it. Gives a function that
    raises UserError if another directory has come in its place since. Where the file system has no locks, a warning on
    stderr says so.

    Raises UserError, before the block is entered, if another run holds it, in this process or another; OSError if the
    directory cannot be made or read.
    """
    is_new = not directory.exists()
    path, descriptor = _lock(directory)

    def check() -> None:
        if not _is(path, descriptor):
            raise UserError(f"{directory}: is no longer the folder that this run began in; nothing is written there")

    failed = True
    try:
        yield check
        failed = False
    finally:
        if _is(path, descriptor):  # else it is another run's by now
            if path != directory:
                path.unlink()
            if is_new and failed:
                with suppress(OSError):  # something is in it
                    directory.rmdir()
        with suppress(OSError):  # closing it releases nothing while a forked process has it open too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(directory: Path) -> tuple[Path, int]:
    """(what is locked, its descriptor): the directory, or on NFS, where a lock takes a file that can be written to, a
    file in it."""
    path = directory
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDONLY | os.O_DIRECTORY if path == directory else os.O_RDWR | os.O_CREAT
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileNotFoundError:  # another run has just removed the directory that it had made
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                print(f"{directory}: no locks on this file system: see that no other run writes there", file=sys.stderr)
                return path, descriptor
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise UserError(f"another run is writing in {directory}; wait for its end, or name another") from None
            if error.errno != errno.EBADF or path != directory:
                raise
            path = directory / _LOCK
        else:
            if _is(path, descriptor):
                return path, descriptor
            os.close(descriptor)  # its last holder has removed it since


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False
