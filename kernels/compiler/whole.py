"""dlrm_forward: a whole DLRM, where nothing but its output is read and no gradient is wanted.

    bottom MLP, look-ups → [d; v_1 … v_F] → dot_interaction → top MLP

Its parts are found as for their own ops (mlp.py, look_ups.py, interaction.py). An MLP that something cuts, an ELU, say,
is one of the layers on this side of it, and the rest stays outside. Where the pairs are in another order than the op's,
the columns of the top's first weight are put into the op's order at each call, by a launch of their own. Where the
parts do not make up a model that fits into one kernel, or where that many rows are faster in parts, they are left to
their own ops, and a sentence says why.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .. import runtime
from ..device.launch import architecture, multiprocessors, shared_memory
from ..ops.dlrm.choice import MANY, most_rows, why_in_parts
from ..ops.dlrm.cuda_launch import design_of, shape_of
from ..ops.dlrm.op import dlrm_forward
from ..ops.dlrm.shape import Shape
from ..ops.dlrm.tile import TYPES, Tiles
from . import interaction, look_ups, mlp
from .constants import Constants
from .forms import at_most, backend_of, has_range
from .match import CAT, Declined, Found, Miss, arguments, aten, is_call, same_size, value, wants_gradient
from .view import View

OP = "dlrm_forward"
OUTSIDE = "outside of this graph"  # an input, or what another of the program's graphs has computed


def find(view: View, constants: Constants, may_replace: Callable) -> Iterator[Found | Declined]:
    """may_replace(view, found) raises Miss where replacing would change something else."""
    chains = [chain for chain in mlp.chains(view) if isinstance(chain, mlp.Chain)]
    by_out, by_input = {chain.out: chain for chain in chains}, {chain.layers[0].x: chain for chain in chains}
    for node in view.graph.nodes:
        try:
            if (vectors := interaction.gram(node)) is None:
                continue
        except Miss:  # of which interaction.py speaks
            continue
        try:
            pairs = interaction.interaction(node, vectors, constants)
        except Miss as miss:
            if not (value(vectors[0]).requires_grad and torch.is_grad_enabled()):
                yield from declined(miss, node, vectors, constants)
            continue
        try:
            match, why_in_parts = model(pairs, by_out, by_input)
            if wants_gradient(*match.inputs, *match.outs):
                continue  # training goes in parts, as it should
            may_replace(view, match)
            # A guard on the number of rows is had where all else holds alone.
            if why := why_not(value(match.inputs[0]), why_in_parts):
                raise Miss(why, pairs.out)
            yield match
        except Miss as miss:
            if not value(pairs.out).requires_grad:
                yield Declined(OP, miss.node or node, miss.reason)


def declined(miss: Miss, node: fx.Node, vectors: tuple, constants: Constants) -> Iterator[Declined]:
    """Why a product is none of a model's, where its pairs alone are an op's; elsewhere interaction.py speaks."""
    with suppress(Miss):
        interaction.pairs_alone(node, vectors, constants)
        yield Declined(OP, miss.node or node, miss.reason)


def why_not(dense: Tensor, why_in_parts: Callable[[int], str]) -> str:
    """Why a model of so many rows as dense has is not one kernel; "" where it is.

    why_in_parts(rows): by the op's own table (choice.py), which `model.fused` asks too. For an open number of rows
    torch.compile has a guard: the graph is for the rows up to which any number is one kernel, or for those beyond, and
    a batch of the others compiles once more. Where there is no guard to be had, in an exported program and in a range
    that mark_dynamic gave, rows are taken for few, unless all are beyond.
    """
    rows = dense.shape[0]
    if isinstance(rows, int):
        return (why := why_in_parts(rows)) and f"{rows:,} rows: {why}"
    if not (most := most_rows(why_in_parts, dense.device)):
        return why_in_parts(1)
    if most == math.inf:
        return ""
    is_few = not statically_known_true(rows > most) if has_range(rows) else at_most(rows, most, exported=True)
    return "" if is_few else f"more than {most:,} rows: {why_in_parts(most + 1)}"


def model(
    pairs: Found, by_out: dict[fx.Node, mlp.Chain], by_input: dict[fx.Node, mlp.Chain]
) -> tuple[Found, Callable[[int], str]]:
    """(the model around an interaction, why a number of rows of it goes in parts, "" where it does not); Miss, with the
    condition that fails, if there is none."""
    vector, *sparse = pairs.inputs
    # Pairs in an order of their own come with their indices.
    order = [node for node in sparse if value(node).dim() == 1]
    sparse = sparse[: len(sparse) - len(order)]
    if vector.op == "placeholder":
        raise Miss(f"the dense vector comes from {OUTSIDE}", vector)
    if vector not in by_out:
        raise Miss("the dense vector does not come from an MLP", vector)
    if pairs.out not in by_input:
        raise Miss("what the interaction gives does not go to an MLP", pairs.out)
    bottom, top = by_out[vector], by_input[pairs.out]
    looked_up, joining = look_ups_of(sparse)
    if len({look_up.bags for look_up in looked_up}) > 1:
        raise Miss("some look-ups have offsets, or the last one of them, and some have none", pairs.out)
    tables, indices = [look_up.table for look_up in looked_up], [look_up.ids for look_up in looked_up]
    bags, offsets = looked_up[0].bags, [look_up.offsets for look_up in looked_up if look_up.offsets is not None]
    dense, layers = bottom.layers[0].x, [*bottom.layers, *top.layers]
    check(dense, looked_up, offsets, layers)
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    shape = shape_of(*([value(node) for node in nodes] for nodes in (
        tables, indices, offsets, weights[: len(bottom.layers)], weights[len(bottom.layers) :]
    )))  # fmt: skip
    columns = shape.width + shape.pairs
    zeros = shape.top[0] - columns  # whose weights do nothing
    shape = replace(shape, bags=bags, top=(columns, *shape.top[1:]))
    device, dtype, precision = value(dense).device, value(dense).dtype, mlp.precision(value(top.out))
    gpu = architecture(device), shared_memory(device)

    def design(rows: int) -> Shape | Tiles | str:
        return design_of(shape, dtype, precision, *gpu, rows, multiprocessors(device))

    if isinstance(why := design(MANY), str):
        raise Miss(why, pairs.out)
    lists = [tables, indices, offsets, weights[: len(bottom.layers)], biases[: len(bottom.layers)],
             weights[len(bottom.layers) :], biases[len(bottom.layers) :]]  # fmt: skip
    activations = [chain.layers[at].activation for chain in (bottom, top) for at in (0, -1)]
    options = backend_of("cuda", device)

    def build(call, dense, *rest):
        rest, parts = iter(rest), []
        for group in lists:
            parts.append([next(rest) for _ in group])
        if zeros:
            parts[-2][0] = call(torch.narrow, parts[-2][0], 1, 0, columns)
        if order:
            parts[-2][0] = call(with_columns_in_order, parts[-2][0], list(rest), len(tables) + 1)
        parts[1] = id_columns(call, parts[1], looked_up)
        parts[2] = parts[2] or None
        return call(dlrm_forward, dense, *parts, *activations, precision, **options)

    nodes = [node for part in (*layers, *looked_up) for node in part.nodes]
    widths = ["-".join(map(str, sizes)) for sizes in (shape.bottom, shape.top)]
    note = f"{len(tables)} tables of width {shape.width}, bottom {widths[0]}, top {widths[1]}, {precision}"
    note += ", pairs in an order of their own" if order else ""
    inputs = [dense, *(node for group in lists for node in group), *order]
    found = Found(OP, top.out, [*nodes, *joining, *pairs.nodes], inputs, build, note, "cuda", pairs.constants)
    return found, lambda rows: why_in_parts(design(rows), rows)


def id_columns(call: Callable, ids: list, looked_up: list[LookUp]) -> list:
    """The ids [B] of each look-up, of those that lie in ids [B, n] their column.

    Inductor would compute each column of a result by a kernel of its own: so it is computed once, and its columns are
    views of that.
    """
    results, columns = {}, []
    for together, look_up in zip(ids, looked_up, strict=True):
        if look_up.column is None:
            columns.append(together)
        elif look_up.ids.op == "placeholder":  # which lies there already
            columns.append(call(torch.select, together, 1, look_up.column))
        else:
            if together not in results:
                results[together] = call(copied, together)
            columns.append(call(column_of, results[together], look_up.column))
    return columns


def copied(ids: Tensor) -> Tensor:
    """A result of its own, whose columns lie where `column_of` looks for them."""
    return ids.clone(memory_format=torch.contiguous_format)


def column_of(ids: Tensor, column: int) -> Tensor:
    """Column `column` of a copy [B, n]."""
    return ids.as_strided((ids.shape[0],), (ids.shape[1],), column)


def with_columns_in_order(weight: Tensor, indices: list[Tensor], count: int) -> Tensor:
    """The weight [N, D + pairs] of a layer behind pairs of `count` vectors, for dlrm_forward's order."""
    place = interaction.place_of_pairs(indices, count).to(weight.device)
    width = weight.shape[1] - place.shape[0]
    return weight.index_copy(1, width + place, weight[:, width:])


@dataclass
class LookUp:
    """A vector [B, D] of each row: what dlrm_forward takes of it, and the nodes that compute it.

    bags: Shape.bags. column: which of ids [B, n] are its own; None where ids have one dimension.
    """

    bags: str
    table: fx.Node
    ids: fx.Node
    column: int | None
    offsets: fx.Node | None
    nodes: list[fx.Node]


def look_ups_of(parts: list[fx.Node]) -> tuple[list[LookUp], list[fx.Node]]:
    """The look-ups of the vectors that are joined behind the dense one, each part [B, D] or [B, n, D], and the calls
    that join them."""
    columns, joining = before_split(parts)
    looked_up = []
    for part in columns:
        if value(part).dim() == 2:
            looked_up.append(look_up_of(part))
            continue
        several, calls = together(part)
        looked_up += several
        joining = [*joining, *calls]
    return looked_up, joining


def together(part: fx.Node) -> tuple[list[LookUp], list[fx.Node]]:
    """The look-ups of a part [B, n, D], and the calls that join them."""
    if is_call(part, aten.embedding.default):  # of several tables in one tensor, or of one
        return rows_of_one(part), []
    if is_call(part, aten.stack.default, *CAT) and arguments(part).get("dim", 0) in (1, -2):
        looked_up, calls = look_ups_of(list(part.args[0]))
    elif is_call(part, aten.unsqueeze.default) and part.args[1] in (1, -2):
        looked_up, calls = look_ups_of([part.args[0]])
    elif is_call(part, aten.view.default, aten.reshape.default) and is_call(part.args[0], *CAT):
        interaction.check_view(part, part.args[0])
        looked_up, calls = look_ups_of(list(part.args[0].args[0]))
        calls = [part.args[0], *calls]
    else:
        raise Miss(f"the vectors behind the dense one come from {source_of(part)}, not from look-ups", part)
    return looked_up, [*calls, part]


def rows_of_one(node: fx.Node) -> list[LookUp]:
    """The n look-ups of an embedding of ids [B, n], in one table."""
    _, (table, ids), calls = look_ups.READ[node.target](node)
    count = value(ids).shape[1]
    if not isinstance(count, int):
        raise Miss("how many ids a row has is no number", node)
    if len(node.users) > 1:
        raise Miss("a look-up is read by others too", node)
    return [LookUp("", table, ids, column, None, calls) for column in range(count)]


def before_split(columns: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """The columns as they were before a cat joined them and a split took them apart again, and those calls."""
    splits = {column.args[0] if is_call(column, operator.getitem) else None for column in columns}
    (split, *more) = splits
    if more or not is_call(split, aten.split_with_sizes.default, aten.split.Tensor):
        return columns, []
    cat, dim = split.args[0], arguments(split)["dim"]
    if dim not in (1, -1) or not is_call(cat, *CAT) or arguments(cat).get("dim", 0) not in (1, -1):
        return columns, []
    joined = cat.args[0]
    if any(value(part).dim() != 2 for part in joined) or len(joined) != len(value(split)):
        return columns, []
    if not all(same_size(part.shape[1], value(one).shape[1]) for part, one in zip(value(split), joined, strict=True)):
        return columns, []
    return [joined[column.args[1]] for column in columns], [cat, split, *columns]


def look_up_of(column: fx.Node) -> LookUp:
    """The look-up whose result a vector [B, D] is."""
    call = column.args[0] if column.args and column.op == "call_function" else None
    node = call if isinstance(call, fx.Node) and call.target in BAGS else column
    if node.op != "call_function" or node.target not in look_ups.READ:
        raise Miss(f"a vector comes from {source_of(node)}, not from a look-up", column)
    try:
        (ids, mode, has_last, *_), inputs, calls = look_ups.READ[node.target](node)
    except Miss as miss:
        raise Miss(miss.reason, node) from None
    conditions = {
        "a look-up has ids of two dimensions": ids == "rows",
        f"mode {mode}": mode != "sum",
        "what is read of a look-up is not its bags": calls[-1] is not column,
        "a look-up is read by others too": len(column.users) > 1,
    }
    for reason, holds in conditions.items():
        if holds:
            raise Miss(reason, node)
    table, indices, *offsets = inputs
    return LookUp("" if ids == "one" else "closed" if has_last else "open", table, indices, None, *(offsets or [None]),
                  calls)  # fmt: skip


def source_of(node: fx.Node) -> str:
    return OUTSIDE if node.op == "placeholder" else str(node.target)


BAGS = (aten.embedding_bag.default, aten.embedding_bag.padding_idx)


def check(
    dense: fx.Node, looked_up: list[LookUp], offsets: list[fx.Node], layers: list[mlp.Layer]
) -> None:
    """Miss unless dlrm_forward takes these as they are."""
    tables, indices = [look_up.table for look_up in looked_up], [look_up.ids for look_up in looked_up]
    for layer in layers:
        if layer.bias is None or layer.norm is not None:
            raise Miss("a layer has no bias" if layer.norm is None else "a layer has a BatchNorm", layer.nodes[-1])
    for chain_inputs in (dense, *tables):
        if value(chain_inputs).dim() != 2:
            raise Miss(f"{value(chain_inputs).dim()} dimensions, where dlrm_forward takes two", chain_inputs)
    dtype = mlp.check_layers(dense, layers)
    floats = [dense, *tables, *(node for layer in layers for node in layer.inputs)]
    if dtype not in TYPES:
        raise Miss("not all is float32, float16 or bfloat16", dense)
    if any(value(node).dtype != dtype for node in floats):
        raise Miss(f"not all is {dtype}, in which the layers are computed", dense)
    if any(value(layer.bias).dim() > 1 for layer in layers):
        raise Miss("a bias of two dimensions", dense)
    for nodes, name in ((indices, "ids"), (offsets, "offsets")):
        if len({value(node).dtype for node in nodes}) > 1:
            raise Miss(f"the {name} differ in dtype", nodes[0])
    for node in offsets or indices:
        if not same_size(value(node).shape[0], value(dense).shape[0] + int(looked_up[0].bags == "closed")):
            raise Miss("there are not as many bags as rows of the dense features", node)
    if any(value(node).device != value(dense).device for node in (*tables, *indices, *offsets)):
        raise Miss("the tables and ids lie on several devices", dense)
    if value(dense).device.type == "cuda" and (reason := runtime.why_not("nvrtc", "cuda")):
        raise Miss(f"its kernel does not run here: {reason}", dense)
