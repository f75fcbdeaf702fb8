"""A generated module taken apart: its kernels, what was fused into each, and how often `call` launches it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

KINDS = {"poi": "pointwise", "red": "reduction", "per": "persistent reduction", "tem": "template"}
GEMMS = {"mm", "addmm", "bmm", "baddbmm"}


@dataclass(frozen=True)
class Kernel:
    """A kernel of a generated module: its own source ('' if it is a library's) and how often `call` launches it.

    kind: pointwise | reduction | persistent reduction | template | extern GEMM | extern.
    fused: the ATen operators that it computes, "aten.add", say.
    """

    name: str
    kind: str
    fused: tuple[str, ...]
    launches: int
    source: str


def split(source: str) -> list[Kernel]:
    """The kernels of one generated module: Triton's in order, then those of libraries."""
    lines, module = source.splitlines(), ast.parse(source)
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    launches = Counter(ast.unparse(call.func.value) for call in calls if call.func.attr == "run")
    kernels, library = [], {}
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("async_compile.triton("):
            name, text = (argument.value for argument in node.value.args)
            kernels.append(Kernel(name, kind_of(name), _fused(lines, node.lineno), launches[name], text))
    for call in sorted(calls, key=lambda call: call.lineno):
        if (name := ast.unparse(call.func)).startswith(("extern_kernels.", "torch.ops.", "aten.")):
            library.setdefault(name, []).append(_fused(lines, call.lineno))
    for name, fused in library.items():
        kind = "extern GEMM" if name.rpartition(".")[2] in GEMMS else "extern"
        kernels.append(Kernel(name, kind, tuple(dict.fromkeys(sum(fused, ()))), len(fused), ""))
    return kernels


def count(sources: Sequence[str]) -> dict[str, int]:
    """{kind: launches} of one call of each module."""
    counts = Counter()
    for kernel in (kernel for source in sources for kernel in split(source)):
        counts[kernel.kind] += kernel.launches
    return dict(counts)


def table(sources: Sequence[str]) -> pandas.DataFrame:
    """A row for each kernel: graph (the module's index), kernel, kind, launches, fused."""
    import pandas

    pairs = [(graph, kernel) for graph, source in enumerate(sources) for kernel in split(source)]
    rows = [(graph, k.name, k.kind, k.launches, " ".join(k.fused)) for graph, k in pairs]
    return pandas.DataFrame(rows, columns=["graph", "kernel", "kind", "launches", "fused"])


def kind_of(name: str) -> str:
    """The kind that a Triton kernel's name says: "pointwise" for triton_poi_fused_add_relu_0."""
    short = name.removeprefix("triton_").partition("_")[0]
    return KINDS.get(short, short)


def function_of(source: str) -> ast.FunctionDef:
    """The one function in a kernel's source."""
    (function,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return function


def metadata(function: ast.FunctionDef, dictionary: str, key: str) -> Any:
    """An entry of one of the dictionaries that Inductor's decorator takes: triton_meta or inductor_meta."""
    (decorator,) = (node for node in function.decorator_list if isinstance(node, ast.Call))
    (entries,) = (keyword.value for keyword in decorator.keywords if keyword.arg == dictionary)
    return next(ast.literal_eval(v) for k, v in zip(entries.keys, entries.values, strict=True) if k.value == key)


def _fused(lines: list[str], lineno: int) -> tuple[str, ...]:
    """The ATen operators that the comment above line `lineno` names."""
    for line in reversed(lines[: lineno - 1]):
        if match := re.search(r"# Topologically Sorted .*Original ATen: \[(.+)\]", line):
            return tuple(match[1].split(", "))
        if line.strip() and not line.lstrip().startswith("#"):
            break
    return ()
