"""Which files a file is built from: what a C++ file includes, what a Python module imports from this package."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from ..runtime import KERNELS


def included_files(source: Path, include: tuple[Path, ...]) -> list[Path]:
    """A C++ file and, in order of first mention, every file in `include` that it reaches by #include "…" or <…>."""
    files, waiting = [], [source]
    while waiting:
        file = waiting.pop(0)
        if file in files:
            continue
        files.append(file)
        waiting += directly_included(file, include)
    return files


def directly_included(source: Path, include: tuple[Path, ...]) -> list[Path]:
    """Those that it names itself."""
    files = []
    for named in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', source.read_text(), re.MULTILINE):
        files += [folder / named for folder in (source.parent, *include) if (folder / named).is_file()][:1]
    return files


def imported_files(source: Path) -> list[Path]:
    """A Python file and, in order of first mention, every module of this package that it reaches by imports; packages'
    __init__.py aside."""
    files, waiting = [], [source]
    while waiting:
        file = waiting.pop(0)
        if file in files:
            continue
        files.append(file)
        package = file.parent.relative_to(KERNELS.parent).parts if file.is_relative_to(KERNELS) else ()
        named = map(KERNELS.parent.joinpath, _imported(file.read_text(), package))
        waiting += [path for path in named if path.is_file()]
    return files


@cache
def _imported(source: str, package: tuple[str, ...]) -> tuple[str, ...]:
    """Where the modules of this package lie that this source imports, if they are modules: "kernels/runtime.py".

    package: the source's own, ("kernels", "dispatch"); () for a source elsewhere, whose relative imports are its own.
    """
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            origin = [*package[: len(package) + 1 - node.level]] if node.level else []
            origin = ".".join([*origin, *filter(None, [node.module])])
            names += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return tuple(f"{name.replace('.', '/')}.py" for name in names if name.startswith(f"{KERNELS.name}."))
