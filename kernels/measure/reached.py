"""What a definition is made of: its own code, and what it names, in its module and in those that it imports.

A definition is a statement of a module's top level. Code is taken as the compiler sees it: comments, formatting and
docstrings are not there; nor is what is printed, what an error says, and what checks an argument (dispatch/checks.py),
which passes it on or raises: no result hangs on these.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..dispatch.cuda_source import INCLUDE
from ..dispatch.included_files import directly_included
from ..runtime import KERNELS


class Name(NamedTuple):
    """A name in a file; "": all that the file defines."""

    file: Path
    name: str = ""


def reached(roots: Iterable[Name], within: tuple[Path, ...], met: set[Name] | None = None) -> set[str]:
    """The code of all definitions, and of all C++ files, that the roots lead to.

    within: the folders and files that are followed into. met: names that are not followed; gets those that were.
    Where code lies is no part of it: a function that moves to another file is the same.
    """
    code, met, waiting = set(), set() if met is None else met, [*roots]
    while waiting:
        at = waiting.pop()
        if at in met or not any(at.file.is_relative_to(place) for place in within):
            continue
        met.add(at)
        text = at.file.read_text()
        if at.file.suffix == ".py":
            own, names = _module(at.file, text).definition(at.name)
        else:
            own, names = {cpp(text)}, map(Name, directly_included(at.file, (KERNELS,)))
        code |= own
        waiting += names
    return code


@cache
def python(source: str) -> str:
    """All code of a module."""
    return "\n".join(map(_text, _Bare().visit(ast.parse(source)).body))


_HOST = re.compile(r"\n#ifdef CUDA_ON_HOST\n.*?\n#(?:else|endif)\n", re.DOTALL)
_CPP = re.compile(
    r"""(?P<keep>R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+')"""
    r"|//(?:\\\n|[^\n])*|/\*.*?\*/",
    re.DOTALL,
)


@cache
def cpp(source: str) -> str:
    """C++ code without comments and what is for a host alone, and with blanks and line breaks only where they part
    words or the preprocessor's lines."""
    code = _CPP.sub(lambda match: match["keep"] or " ", source).replace("\\\n", " ")
    lines = (" ".join(line.split()) for line in code.splitlines())
    joined = "".join(f"\n{line}\n" if line.startswith("#") else f"{line} " for line in lines if line)
    return re.sub(r" ?([()\[\]{},;]) ?", r"\1", _HOST.sub("", joined))


class _Bare(ast.NodeTransformer):
    """Leaves out docstrings, what is printed, what errors say, checks of arguments."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        out = isinstance(node.value, ast.Constant) or _called(node.value) == "print" or _checked(node.value) is not None
        return None if out else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        return None if _checked(node.value) == ast.unparse(node.targets) else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        return ast.Raise(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        return ast.Assert(self.visit(node.test))


def _called(node: ast.expr) -> str:
    """The function that the expression calls, or ""."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _checked(node: ast.expr) -> str | None:
    """The argument that the expression checks."""
    return ast.unparse(node.args[-1:]) if _called(node).startswith("checks.") else None


def _text(node: object) -> str:
    """A tree in words that are the same on every Python, as ast.dump's are not: an empty field is left out."""
    if isinstance(node, list):
        return f"[{' '.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
    return f"{type(node).__name__}({' '.join(f'{name}={_text(value)}' for name, value in fields)})"


_BESIDE = re.compile(r"""f['"]\{__package__\}\.(\w+)['"]""")  # a module whose functions are asked for by name


class _Module:
    """A file's definitions by name, and what its imports stand for."""

    def __init__(self, file: Path, source: str) -> None:
        self._file, self._package = file, file.parent.relative_to(KERNELS.parent).parts
        self._imported: dict[str, Name] = {}
        self._defined: dict[str, list[ast.stmt]] = {}
        for statement in _Bare().visit(ast.parse(source)).body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._imported |= self._imports(statement)
                continue
            # What binds nothing runs on import: it is a part of what it names of the file, or else of all.
            named = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} & self._defined.keys()
            for name in _bound(statement) or named or [""]:
                self._defined.setdefault(name, []).append(statement)

    @cache  # noqa: B019
    def definition(self, name: str) -> tuple[set[str], list[Name]]:
        """(the code that binds the name, what it leads to); of "" all code."""
        if name in self._imported:
            return set(), [self._imported[name]]
        chosen = [*({name, ""} if self._defined.get(name) else ())] if name else self._defined
        statements = [statement for key in chosen for statement in self._defined.get(key, ())]
        return {*map(_text, statements)}, [place for statement in statements for place in self._leads_to(statement)]

    def _leads_to(self, statement: ast.stmt) -> Iterator[Name]:
        for node in _evaluated(statement):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from self._imports(node).values()
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from (Name(KERNELS / header) for header in INCLUDE.findall(node.value))
            elif isinstance(node, ast.JoinedStr) and (beside := _BESIDE.fullmatch(ast.unparse(node))):
                yield Name(self._file.with_name(f"{beside[1]}.py"))
            elif isinstance(node, ast.Attribute):
                module = self._imported.get(getattr(node.value, "id", ""))
                if module and not module.name:
                    yield Name(module.file, node.attr)
            elif isinstance(node, ast.Name) and node.id in self._defined:
                yield Name(self._file, node.id)
            elif isinstance(node, ast.Name) and node.id in self._imported and self._imported[node.id].name:
                yield self._imported[node.id]

    def _imports(self, node: ast.Import | ast.ImportFrom) -> dict[str, Name]:
        """What it binds of this package, by the name that it has here."""
        if isinstance(node, ast.Import):
            return {}
        package = self._package[: len(self._package) + 1 - node.level] if node.level else ()
        origin = KERNELS.parent.joinpath(*package, *filter(None, (node.module or "").split(".")))
        home = origin / "__init__.py" if origin.is_dir() else origin.with_suffix(".py")
        modules = {alias: origin / f"{alias.name}.py" for alias in node.names}
        places = {
            alias.asname or alias.name: Name(module) if module.is_file() else Name(home, alias.name)
            for alias, module in modules.items()
        }
        return {name: place for name, place in places.items() if place.file.is_file()}


_module = cache(_Module)


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    nodes = [*ast.walk(statement)]
    local = {id(name) for node in nodes if isinstance(node, ast.comprehension) for name in ast.walk(node.target)}
    names = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    inner = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return inner | {name.id for name in names if id(name) not in local}


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree without annotations: they name what is not called."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _evaluated(child)
