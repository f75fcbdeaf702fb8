"""torch.compile(model, backend="fused_kernels"): what of a model the ops compute, they compute; Inductor has the rest.

    Dynamo's graph ─ each call in ATen (view.py) ─ a pattern a file ─ what changes nothing else (replace.py) ─ Inductor

A match is exact: what is not certain is left as it is, and `explain` says which condition failed. This folder is a
composite: its patterns name the ops that they replace with.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

import torch
from torch import nn

from . import registration

if TYPE_CHECKING:
    from .explanation import Explanation

__all__ = ["as_on_gpu", "backend", "explain"]


def backend(
    gm: torch.fx.GraphModule, example_inputs: list, *, mode: str | None = None, options: Mapping | None = None
) -> Callable:
    """What torch.compile calls with each of Dynamo's graphs.

    Args:
        gm, example_inputs: the graph, which is changed, and what it is called with.
        mode, options: Inductor's, as torch.compile was given them.
    """
    return compiled(gm, example_inputs, torch._TorchCompileInductorWrapper(mode, options, None))


def compiled(gm: torch.fx.GraphModule, example_inputs: list, inner: Callable | str) -> Callable:
    """The graph, rewritten and compiled by the backend `inner`."""
    from torch._dynamo import lookup_backend

    from .cache import cacheable
    from .constants import Checked, static_inputs
    from .memory import InPlace
    from .replace import rewrite

    done = rewrite(gm, static_inputs(gm, example_inputs))
    with cacheable(gm.graph):
        function = lookup_backend(inner)(gm, example_inputs)
    if done.read:
        values = {position: example_inputs[position] for position in done.read}
        function = Checked(function, done.original, inner, values)
    if done.in_place:
        again = functools.partial(compiled, inner=inner)
        function = InPlace(function, done.original, again, sorted(done.in_place), example_inputs)
    return function


def as_on_gpu() -> AbstractContextManager[None]:
    """Replace, and explain, for tensors of a CPU what is replaced on a GPU like an H200: to look at it, and to test it,
    where there is none. The ops in a graph that was compiled within compute by their eager forms."""
    from . import forms

    return forms.as_on_gpu()


def explain(model: Callable, *inputs) -> Explanation:
    """What torch.compile(model, backend="fused_kernels") replaces in model(*inputs), and what it does not, and why.

    The model, a module as a copy where it can be copied, runs once on the inputs; nothing is compiled for it, and none
    of what torch.compile has compiled is lost.

    Args:
        model: a function or nn.Module. inputs: as it is called with.

    Returns an object with `.replaced`, the ops with the nodes that they stand for, and `.declined`, a sentence for each
    place that was nearly replaced; print shows both. Raises what torch.compile or the model itself raises.
    """
    from ..inductor.lower import fresh
    from .explanation import explain_with

    if isinstance(model, nn.Module):
        with suppress(Exception):  # what cannot be copied runs itself
            model = copy.deepcopy(model)

    def run(backend: Callable) -> None:
        with torch._dynamo.config.patch(recompile_limit=1 << 16):
            torch.compile(fresh(model), backend=backend)(*inputs)

    return explain_with(run)


registration.register(backend)
