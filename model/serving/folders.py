"""A folder is written completely or not at all."""

from __future__ import annotations

import os
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
    if out.exists():
        raise UserError(f"{out}: is there already; name another folder, or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        try:
            partial.chmod(0o755)
            yield partial
            os.replace(partial, out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from None
