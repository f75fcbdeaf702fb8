"""AOTAutograd's cache of compiled graphs, which a second process starts from, for graphs that call this package.

The cache keeps a graph only if it knows each function in it, by Inductor's unsafe_marked_cacheable_functions,
{"module.name": key}. A replaced graph calls functions of this package. What such a call becomes while it is traced
hangs on its arguments and the GPU, which are in the cache's own key, as torch's and Triton's versions are, and on the
rest that `key` is made of.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import fx

from .. import dispatch, runtime

SOURCES = (".py", ".cpp", ".cu", ".cuh", ".h")


@contextmanager
def cacheable(graph: fx.Graph) -> Iterator[None]:
    """Have torch keep what is compiled of the graph within this. Its setting is then as it was."""
    if not (names := functions_of(graph)):
        yield
        return
    from torch._inductor import config

    named = dict.fromkeys(sorted(names), key())  # in one order: torch's key has it
    with config.patch(unsafe_marked_cacheable_functions={**config.unsafe_marked_cacheable_functions, **named}):
        yield


def functions_of(graph: fx.Graph) -> set[str]:
    """The names of this package's functions that a graph calls."""
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    modules = [getattr(target, "__module__", None) or "" for target in targets]
    ours = zip(modules, targets, strict=True)
    return {f"{module}.{target.__name__}" for module, target in ours if module.startswith(f"{runtime.PACKAGE}.")}


def key() -> str:
    """What changes when a call of the package's functions might become another graph: its sources, what "auto" is on a
    CPU, which a missing compiler decides, and whether Triton is interpreted."""
    declared = [op for folder in dispatch.ops() for op in dispatch.declared(folder)]
    on_cpu = sorted((op.name, op.auto_on_cpu) for op in declared)
    return hashlib.sha256(repr((digest(runtime.KERNELS), on_cpu, runtime.triton_mode())).encode()).hexdigest()


@functools.cache
def digest(folder: Path) -> str:
    """The hash of all sources in a folder, but for what tests and measures them."""
    files = [file for file in folder.rglob("*") if file.suffix in SOURCES and not is_beside(file)]
    texts = [(str(file.relative_to(folder)), file.read_bytes()) for file in sorted(files)]
    return hashlib.sha256(repr(texts).encode()).hexdigest()


def is_beside(file: Path) -> bool:
    return file.name.startswith("test_") or file.name in ("bench.py", "conftest.py")
