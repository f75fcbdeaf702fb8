"""How a function becomes a dispatcher op: one declaration an op (op.py), one C++ core for all (core.cpp)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from kernels.runtime import KERNELS

if TYPE_CHECKING:
    from kernels.dispatch.op import Op


def ops() -> list[str]:
    """The names of all ops: the folders of kernels/ops/ that have an op.py."""
    return sorted(path.parent.name for path in KERNELS.glob("ops/*/op.py"))


def find(name: str) -> Op:
    """The declaration of an op."""
    if name not in ops():
        raise ValueError(f"unknown op {name!r}: expected one of {', '.join(ops())}")
    return importlib.import_module(f"kernels.ops.{name}.op").OP
