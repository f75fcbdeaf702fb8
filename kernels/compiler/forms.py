"""Which form of an op would compute what a pattern found: the op itself says so, and where that is eager nothing is
replaced.

On a GPU a pattern asks what the op's own "auto" asks: device, dtype, precision and shape. On a CPU each op's "auto" is
eager: the operators that stand in the graph already.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import fx
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import StrictMinMaxConstraint, guard_or_false, statically_known_true

from .. import dispatch, runtime
from .match import Found, Miss, value

ON_CPU = "on a CPU its form is eager, which Inductor compiles as it stands"
declaration = functools.cache(dispatch.find)
_as_on_gpu: ContextVar[bool] = ContextVar("as_on_gpu", default=False)


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """`kernels.compiler.as_on_gpu`."""
    token = _as_on_gpu.set(True)
    try:
        yield
    finally:
        _as_on_gpu.reset(token)


def is_on_gpu(device: torch.device) -> bool:
    return device.type == "cuda" or _as_on_gpu.get()


def why_left(match: Found) -> str:
    """Why nothing is put in place of a match, "" where it is."""
    if is_on_gpu(value(match.outs[0]).device) or declaration(match.op).auto_on_cpu != "eager":
        return ""
    return f"{match.note}: {ON_CPU}"


def only_form(op: str, node: fx.Node) -> str:
    """The form of an op that has one for all tensors of a GPU. Miss where that does not run."""
    auto = declaration(op).auto
    return runs(auto if isinstance(auto, str) else declaration(op).backends[0], node)


def runs(form: str, node: fx.Node) -> str:
    """The form. Miss where it does not run on the node's GPU."""
    if value(node).device.type == "cuda" and (reason := runtime.why_not(form, "cuda")):
        raise Miss(f"its form {form} does not run here: {reason}", node)
    return form


def backend_of(form: str, device: torch.device) -> dict[str, str]:
    """What a replacement's call says of its backend: on a GPU the form that the op was asked for, which "auto" need not
    be while it is traced. Elsewhere nothing."""
    return {"backend": form} if device.type == "cuda" else {}


def at_most(size: int | torch.SymInt, limit: float, exported: bool = False) -> bool:
    """Whether a size is at most so much. For one that is open torch.compile has a guard then, and compiles once more
    for those beyond; an exported program is for all, and `exported` says which they are taken for."""
    if not limit or limit == math.inf:
        return bool(limit)
    if isinstance(size, int):
        return size <= limit
    if TracingContext.try_get() is None:
        return statically_known_true(size <= limit) or (exported and not statically_known_true(size > limit))
    return statically_known_true(size <= limit) if has_range(size) else guard_or_false(size <= limit)


def has_range(size: torch.SymInt) -> bool:
    """Whether mark_dynamic(…, min=, max=) gave a symbol of a size a range, of which a guard may leave nothing out."""
    ranged = set()
    for fake in size.node.shape_env.tracked_fakes or ():
        constraints = getattr(fake.symbolic_context, "constraint_sizes", None) or ()
        for length, constraint in zip(getattr(fake.fake, "shape", ()), constraints, strict=False):
            if isinstance(constraint, StrictMinMaxConstraint) and isinstance(length, torch.SymInt):
                ranged |= length.node.expr.free_symbols
    return not ranged.isdisjoint(size.node.expr.free_symbols)
