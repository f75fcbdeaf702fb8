"""What a run has measured so far, beside its record: traces/results/<gpu>/<op>.partial.json, which git ignores.

A run that is stopped, by Ctrl-C, a timeout or a lost machine, leaves it there. With --resume the next run takes from it
what is complete and measures the rest, if it is of the same machine, versions, options and code: a record is of one of
each. `records.save` removes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch

from .. import runtime
from .records import PARTIAL, RESULTS, as_json, in_words, path_of, read, write

VERSIONS = ("GPU", "driver", "torch", "triton", "CUDA", "Python")
CODE = (".py", ".cu", ".cuh", ".cpp", ".h")
Part = TypeVar("Part", dict, list)


class PartialRecord:
    """The parts of a record that are measured, in a file that is written after each.

    op: the record's name. code: folders, of which no source may differ. resume: whether to take the parts of a run that
    was stopped; else they are replaced when the first part is there. options: what else must be the same.
    """

    def __init__(
        self, op: str, code: Iterable[Path], results: Path = RESULTS, *, resume: bool = False, **options
    ) -> None:
        versions = runtime.versions()
        self.head = {"op": op, **{name: versions[name] for name in VERSIONS}, "machine": _machine(), **options}
        self.head["code_sha256"] = _sha256(code)
        self.path, self.parts = path_of(self.head, results, PARTIAL), {}
        if resume:
            self._resume()

    def part(self, name: str, measure: Callable[[], Part]) -> Part:
        """What the part gives, of JSON's types: from the file if it is complete there, or measured, and written."""
        if name in self.parts:
            print(f"# {self.head['op']}: {name}: from {in_words(self.path)}", flush=True)
        else:
            self.parts[name] = measure()
            write(self.path, as_json({**self.head, "parts": self.parts}, indent=1))
        return self.parts[name]

    def _resume(self) -> None:
        if not self.path.exists():
            print(f"# {self.head['op']}: no run was stopped: all is measured")
            return
        before = read(self.path)
        others = [name for name, value in json.loads(as_json(self.head)).items() if before.get(name) != value]
        if others:
            print(f"# {self.head['op']}: another {', '.join(others)} than in {in_words(self.path)}: all is measured")
        else:
            self.parts = before["parts"]


def _machine() -> str:
    """The GPU itself: two of a name are two machines."""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if torch.cuda.is_available() else ""


def _sha256(folders: Iterable[Path]) -> str:
    """Of the sources in the folders."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in CODE):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()
