"""No import circle in kernels/, model/ or data/, and no arrow up: what may know whom.

Counted is every import that stands in a module: at its top, inside a function, and under TYPE_CHECKING, where nothing
breaks but two files must be read to understand one. Inside of kernels/ imports are relative: pip installs that folder
under another name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Set
from pathlib import Path

import pytest

from kernels.runtime import KERNELS

ROOT = KERNELS.parent
# Each package, and whom it may know beside itself.
KNOWS = {"kernels": set(), "data": set(), "model": {"kernels", "data"}}


def modules(root: Path) -> dict[str, Path]:
    """The modules of the three packages by their dotted names; of a package its __init__.py."""
    paths = [path for package in KNOWS for path in sorted((root / package).rglob("*.py"))]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imported(name: str, path: Path, known: Set[str]) -> set[str]:
    """The modules among `known` that a module imports; of `from package import module` the module, not the package."""
    targets = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
            origin = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            origin = ".".join(filter(None, (origin, node.module)))
            inner = {f"{origin}.{alias.name}" for alias in node.names}
            targets |= inner & known or {origin}
            if not inner <= known:
                targets.add(origin)
    return (targets & known) - {name}


def circles(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """The groups of modules each of which reaches every other by imports (Tarjan's strongly connected components)."""
    index, low, stack, groups = {}, {}, [], []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return sorted(groups)


def graph_of(root: Path) -> dict[str, set[str]]:
    paths = modules(root)
    return {name: imported(name, path, paths.keys()) for name, path in paths.items()}


def test_no_module_reaches_itself_by_imports():
    graph = graph_of(ROOT)
    assert len(graph) > 100
    assert circles(graph) == []


@pytest.mark.parametrize("package", KNOWS)
def test_packages_know_only_what_lies_below(package):
    others = {"kernels", "data", "model", "lessons", "notebooks", "tests"} - KNOWS[package] - {package}
    for path in (ROOT / package).rglob("*.py"):
        if path.name.startswith(("test_", "conftest")):
            continue  # an op's tests may use what tests/ shares
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not {name.split(".")[0] for name in names} & others, (path, node.lineno)


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ("import kernels.b", "import kernels.a"),
        ("from kernels import b", "from kernels.a import x"),
        ("from kernels.b import x", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kernels import a"),
        ("from . import b", "def f():\n    from .a import x"),
    ],
)
def test_a_circle_is_found_however_it_is_written(tmp_path, there, back):
    (tmp_path / "kernels").mkdir()
    for name, text in (("__init__", ""), ("a", there), ("b", back), ("c", "import kernels.a\nimport kernels.b")):
        (tmp_path / "kernels" / f"{name}.py").write_text(text)
    assert circles(graph_of(tmp_path)) == [["kernels.a", "kernels.b"]]


# These stay in the repository, where the package is `kernels`: pyproject.toml leaves them out of the wheel.
REPOSITORY_ALONE = re.compile(
    r"(.*/)?(test_\w+|conftest)\.py|ops/\w+/bench\.py|measure/(?!__)\w+\.py|gpu_run/\w+\.py|check/contract/\w+\.py"
)
# As the whole of a string, or in code that another process runs.
MODULE, CODE = re.compile(r"kernels\.[\w.:]*"), re.compile(r"\b(from|import) kernels\b(?! )")


def absolute(source: str, repository_alone: bool) -> list[int]:
    """The lines that name the package: `from kernels… import`, `import kernels`, a module's name in a string.

    repository_alone: `import kernels`, which has no relative form, and such strings are allowed.
    """
    docstrings, lines = set(), []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(node.value)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module.split(".")[0] == "kernels":
            lines.append(node.lineno)
        elif isinstance(node, ast.Import) and not repository_alone:
            lines += [node.lineno for alias in node.names if alias.name.split(".")[0] == "kernels"]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not repository_alone:
            named = MODULE.fullmatch(node.value) or CODE.search(node.value)
            lines += [node.lineno] if named and node not in docstrings else []
    return sorted(lines)


def test_inside_of_kernels_imports_are_relative():
    names = {path.relative_to(KERNELS).as_posix(): path for path in KERNELS.rglob("*.py")}
    imports = {name: absolute(path.read_text(), bool(REPOSITORY_ALONE.fullmatch(name))) for name, path in names.items()}
    assert {name: lines for name, lines in imports.items() if lines} == {}


def test_what_names_the_package_is_found():
    source = '''"""from kernels import this"""
from kernels import a
from kernels.b import c
import kernels
import kernels.d as e
from . import f
g = "kernels.ops.h"
i = f"kernels.ops.{g}.j"
k = "a sentence on kernels.", "import kernels before Triton", "import kernels"
'''
    assert absolute(source, False) == [2, 3, 4, 5, 7, 8, 9]
    assert absolute(source, True) == [2, 3]
