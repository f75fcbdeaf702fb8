"""How a function becomes a dispatcher op: one declaration an op (op.py), one C++ core for all (core.cpp)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..runtime import KERNELS, PACKAGE

if TYPE_CHECKING:
    from .op import Op


def ops() -> list[str]:
    """The folders of kernels/ops/ that have an op.py: each an op's, named after it, or that of several (OPS)."""
    return sorted(path.parent.name for path in KERNELS.glob("ops/*/op.py"))


def declared(folder: str) -> list[Op]:
    """The declarations of a folder: OP of its op.py, or OPS."""
    module = importlib.import_module(f"{PACKAGE}.ops.{folder}.op")
    return list(module.OPS) if hasattr(module, "OPS") else [module.OP]


def names() -> list[str]:
    """The names of all ops."""
    return [op.name for folder in ops() for op in declared(folder)]


def find(name: str) -> Op:
    """The declaration of an op."""
    for folder in [name] if name in ops() else ops():
        for op in declared(folder):
            if op.name == name:
                return op
    raise ValueError(f"unknown op {name!r}: expected one of {', '.join(names())}")
