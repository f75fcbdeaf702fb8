"""Which files a file is built from: what a C++ file includes, what a Python module imports from kernels/."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from kernels.runtime import KERNELS


def included_files(source: Path, include: tuple[Path, ...]) -> list[Path]:
    """A C++ file and, in order of first mention, every file in `include` that it reaches by #include "…" or <…>."""
    found, waiting = [], [source]
    while waiting:
        file = waiting.pop(0)
        if file in found:
            continue
        found.append(file)
        for named in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', file.read_text(), re.MULTILINE):
            folders = (file.parent, *include)
            waiting += [folder / named for folder in folders if (folder / named).is_file()][:1]
    return found


def imported_files(source: Path) -> list[Path]:
    """A Python file and, in order of first mention, every module in kernels/ that it reaches by imports; packages'
    __init__.py aside."""
    found, waiting = [], [source]
    while waiting:
        file = waiting.pop(0)
        if file in found:
            continue
        found.append(file)
        waiting += [path for path in map(KERNELS.parent.joinpath, _imported(file.read_text())) if path.is_file()]
    return found


@cache
def _imported(source: str) -> tuple[str, ...]:
    """Where the modules of kernels/ lie that this source imports, if they are modules: "kernels/runtime.py"."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(f"{name.replace('.', '/')}.py" for name in names if name.startswith("kernels."))
