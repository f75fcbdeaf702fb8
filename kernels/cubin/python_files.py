"""Which files of Python's a Triton kernel is made of."""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triton import JITFunction


def python_files(function: JITFunction) -> set[Path]:
    """The files of a Triton function that was compiled: its module's, and those of what this imports, and so on.

    What is installed counts in the function's own package alone. Triton itself lists less: not what a
    constexpr_function of the kernel's imports when it is called.
    """
    files: set[Path] = set()
    waiting = [sys.modules[function.__module__]]
    while waiting:
        module = waiting.pop()
        file = Path(getattr(module, "__file__", None) or "")
        is_own = module.__name__.partition(".")[0] == function.__module__.partition(".")[0]
        if file.suffix != ".py" or file in files or (_is_installed(file) and not is_own):
            continue
        files.add(file)
        waiting += [sys.modules[name] for name in _imported(module, file) if name in sys.modules]
        # A function of Triton's that came here in another way than by an import.
        waiting += [sys.modules[item.__module__] for item in vars(module).values() if hasattr(type(item), "cache_key")]
    return files


def _is_installed(file: Path) -> bool:
    folders = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return any(file.is_relative_to(folder) for folder in folders)


def _imported(module: ModuleType, file: Path) -> Iterator[str]:
    """Names of modules, and of what may be one, in its import statements."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), module.__package__)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
