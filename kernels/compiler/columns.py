"""The columns of embedding_bags_apart's result, [B, F, D]: each look-up's own, and all of them side by side.

Where they all go into one cat or stack, it is the result itself that goes on: nothing is taken apart and copied
together again.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, fx

from .match import CAT, aten, is_call, name_of, same_size, value
from .view import SETS_GRADIENTS, example

OP = "embedding_bags_apart"


def column_of(out: Tensor, k: int, ids: Tensor | None = None) -> Tensor:
    """The result of look-up k, [B, D], as its own operator would give it: contiguous, and no view, if B is 1. ids: of
    another shape than [B], which the result has before D."""
    column = out.select(1, k)
    column = column if ids is None else column.view(*ids.shape, column.shape[1])
    return column.clone(memory_format=torch.contiguous_format)


def side_by_side(out: Tensor, ids: Tensor) -> Tensor:
    """All results of look-ups of ids [..., L], joined along their last dimension."""
    return out.flatten(1).view(*ids.shape, out.shape[1] * out.shape[2])


STACKS, CATS = (torch.stack, aten.stack.default), (torch.cat, torch.concat, torch.concatenate, *CAT)


def join_columns(graph: fx.Graph) -> None:
    """Where all columns of a result go side by side into one cat or stack, and nowhere else, they are not taken apart
    and copied together again."""
    changes = list(itertools.accumulate(name_of(node) == SETS_GRADIENTS for node in graph.nodes))
    region = dict(zip(graph.nodes, changes, strict=True))  # by how often it was set whether gradients are recorded
    for node in list(graph.nodes):
        if not is_call(node, *STACKS, *CATS) or not node.kwargs.keys() <= {"tensors", "dim"}:
            continue
        kwargs = dict(zip(("tensors", "dim"), node.args, strict=False)) | node.kwargs
        before, dim = kwargs["tensors"], kwargs.get("dim", 0)
        if not isinstance(before, list | tuple) or not isinstance(dim, int):
            continue
        tensors = list(before)
        for base in dict.fromkeys(filter(None, map(taken_from, before))):
            if not joins(node, dim, next(column for column in before if taken_from(column) is base)):
                continue
            if region[base] == region[node]:  # a view that is made without gradients is not written to with them
                tensors = with_whole(node, tensors, base)
        if len(tensors) == 1 < len(before):
            node.replace_all_uses_with(tensors[0])
            graph.erase_node(node)
        elif len(tensors) < len(before):
            node.args, node.kwargs = (tensors, dim), {}
        for gone in before:
            while isinstance(gone, fx.Node) and taken_from(gone) and not gone.users:
                gone, erased = gone.args[0], gone
                graph.erase_node(erased)


def taken_from(node: fx.Node) -> fx.Node | None:
    """The op's call whose column a node is: column_of's, or in ATen the clone of a select of it."""
    if is_call(node, column_of):
        return node.args[0]
    node = node.args[0] if is_call(node, aten.clone.default) else node
    if not is_call(node, aten.select.int) or node.args[1] != 1:
        return None
    base = node.args[0]
    return base if getattr(base.target, "_opname", "") == OP else None


def joins(node: fx.Node, dim: int, column: fx.Node) -> bool:
    """Whether a cat or stack along `dim` puts columns [B, D] side by side, [B, F, D] or [B, F D]. Of a column
    [..., D] of ids of another shape a cat along the last dimension does; so does one of [B, 1, D] along the second."""
    if (ids := ids_of(column)) is None:
        return dim in ((1, -2) if is_call(node, *STACKS) else (1, -1))
    return is_call(node, *CATS) and (dim in (ids.dim(), -1) or is_of_rows(ids, dim))


def is_of_rows(ids: Tensor, dim: int) -> bool:
    return ids.dim() == 2 and same_size(ids.shape[1], 1) and dim in (1, -2)


def ids_of(column: fx.Node) -> Tensor | None:
    """The ids whose shape a column has before D, where that is not [B]."""
    return example(column.args[2]) if is_call(column, column_of) and len(column.args) > 2 else None


def position(column: fx.Node) -> int | None:
    """Which of a result's columns it is; None of what is none."""
    if is_call(column, column_of):
        return column.args[1]
    return column.args[2] if is_call(column, aten.select.int) else None


def with_whole(node: fx.Node, tensors: list[fx.Node], base: fx.Node) -> list[fx.Node]:
    """What a cat or stack joins, with the whole result `base` in place of its columns, if these are all of them in
    their order. Nobody else may read them: what is joined may be written to."""
    which = [position(user) for user in base.users]
    if None in which or sorted(which) != list(range(len(base.args[0]))):
        return tensors
    columns = sorted(base.users, key=position)
    for k, column in enumerate(columns):
        if is_call(column, aten.select.int) and len(column.users) == 1 and column not in tensors:
            columns[k] = next(iter(column.users))
    start = tensors.index(columns[0]) if columns[0] in tensors else 0
    if tensors[start : start + len(columns)] != columns or any(list(column.users) != [node] for column in columns):
        return tensors
    ids = ids_of(columns[0])
    if ids is not None:
        dim = node.kwargs["dim"] if "dim" in node.kwargs else node.args[1]
        if not is_of_rows(ids, dim):
            with node.graph.inserting_before(node):
                base = node.graph.call_function(side_by_side, (base, columns[0].args[2]))
    elif is_call(node, *CATS):
        flatten = torch.flatten if "val" not in base.meta else aten.flatten.using_ints
        with node.graph.inserting_before(node):
            whole = node.graph.call_function(flatten, (base, 1))
        if "val" in base.meta:
            whole.meta["val"] = value(base).flatten(1)
        base = whole
    elif len(tensors) > len(columns):
        return tensors
    return [*tensors[:start], base, *tensors[start + len(columns) :]]
