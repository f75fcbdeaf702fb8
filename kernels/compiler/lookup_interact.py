"""lookup_interact: look-ups in one tensor of tables, and how what they give meets.

    embedding_bags(tables, row_offsets, ids, …)                                   ┐
    stack([F.embedding(ids[:, f], part) for f, part in tables.split(heights)], 1) ┘ → what interaction.py finds, or

    cat([dense, ((Σ T)² − Σ T²) / 2], 1)        T.flatten(1)        with T = [dense; sparse] [B, V, D]

The last two are looked for where one kernel of their kind was measured; sums of halves may be in float32.

Tables that are tensors of their own would have to be copied together: there the parts are left to their own ops, and so
they are where two kernels are faster (`why_in_two`), or where torch.autocast computes in halves of float32 tables.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..dispatch.op import NAMESPACE
from ..ops.lookup_interact import choice
from ..ops.lookup_interact.op import lookup_interact
from . import interaction, look_ups, mlp, whole
from .constants import Constants
from .forms import at_most, backend_of, has_range, runs
from .match import CAT, Declined, Found, Miss, arguments, aten, is_call, is_tensor, same_size, value, wants_gradient
from .view import View

OP = "lookup_interact"
FLATTENS = aten.flatten.using_ints, aten.view.default, aten.reshape.default
LOOKED_UP = {"mode": "sum", "per_sample_weights": None, "padding_idx": -1, "out_of_range": "error"}


def find(view: View, constants: Constants, may_replace: Callable) -> Iterator[Found | Declined]:
    """may_replace(view, found) raises Miss where replacing would change something else."""
    readers = {"dot": lambda node: interaction_of(node, constants)}
    readers |= {kind: BY_COLUMN[kind] for kind in sorted({kind for kind, _ in choice.MEASURED_BY_COLUMNS})}
    for kind, node in itertools.product(readers, view.graph.nodes):  # dot first, whose vectors are flat on their way
        try:
            one = readers[kind](node)
            looked_up = one and look_ups_of(one)
        except Miss:  # of which the patterns of its parts speak
            continue
        if not looked_up:
            continue
        try:
            match = found(one, looked_up, kind)
            may_replace(view, match)
            yield match
        except Miss as miss:
            yield Declined(OP, miss.node or one.out, miss.reason)


def interaction_of(node: fx.Node, constants: Constants) -> interaction.Interaction | None:
    """The interaction that a node begins, or is by a call of dot_interaction."""
    if is_op(node, "dot_interaction"):
        dense, sparse, columns = node.args
        count, width = value(sparse).shape[1:]
        return interaction.Interaction(node, [node], dense, [sparse], None, count + 1, width, [], columns, [])
    vectors = interaction.gram(node)
    return vectors and interaction.read(node, vectors, constants)


def flat_of(node: fx.Node) -> interaction.Interaction | None:
    """The vectors behind each other, [B, V D], where a node is that: T seen so, or the parts as a cat joined them."""
    if is_call(node, *CAT) and value(node).dim() == 2:
        parts = list(node.args[0])
        if arguments(node).get("dim", 0) not in (1, -1) or len(parts) < 2:
            return None
        first = value(parts[0])
        if len(parts) == 2 and is_seen_flat(parts[1], first):
            sparse = parts[1].args[0]
            _, features, width = value(sparse).shape
            return of_columns(node, [parts[1], node], parts[0], [sparse], 1 + features, width)
        if any(value(part).dim() != 2 or not same_size(value(part).shape[1], first.shape[1]) for part in parts):
            return None
        if any(is_call(user, *FLATTENS) and value(user).dim() == 3 for user in node.users):
            return None
        return of_columns(node, [node], parts[0], parts[1:], len(parts), first.shape[1])
    if not is_call(node, *FLATTENS) or value(node).dim() != 2 or (first := first_of(node.args[0])) is None:
        return None
    vectors = node.args[0]
    count, width = value(vectors).shape[1:]
    if len(vectors.users) > 1 or not same_size(value(node).shape[1], count * width):
        return None
    sparse, _, nodes = interaction.parts(vectors, first)
    return of_columns(node, [*nodes, vectors, node], first, sparse, count, width)


def is_seen_flat(node: fx.Node, dense: Tensor) -> bool:
    """Whether a node is vectors [B, F, D] behind each other, for dense [B, D]."""
    if not is_call(node, *FLATTENS) or value(node).dim() != 2 or len(node.users) > 1 or dense.dim() != 2:
        return False
    _, *shape = value(node.args[0]).shape
    is_3d, width = len(shape) == 2, dense.shape[1]
    return is_3d and same_size(shape[1], width) and same_size(value(node).shape[1], shape[0] * width)


def fm_of(node: fx.Node) -> interaction.Interaction | None:
    """cat([dense, ½ ((Σ T)² − Σ T²)], 1), where a node is that."""
    if not is_call(node, *CAT) or arguments(node).get("dim", 0) not in (1, -1) or len(node.args[0]) != 2:
        return None
    dense, half = node.args[0]
    half, narrowed = uncast(half)
    is_half = (is_call(half, aten.div.Tensor) and half.args[1] == 2) or (
        is_call(half, aten.mul.Tensor) and half.args[1] == 0.5
    )
    if not is_half or not is_call(half.args[0], aten.sub.Tensor) or arguments(half.args[0])["alpha"] != 1:
        return None
    difference = half.args[0]
    total, squares = square_of(difference.args[0]), summed(difference.args[1])
    vectors = total and summed(total)
    if vectors is None or squares is None or square_of(squares) is not vectors:
        return None
    between = [half, difference, *difference.args[:2], total, squares]
    if {*vectors.users} != {total, squares} or any(len(one.users) > 1 for one in between):
        return None
    wide, (vectors, widened) = value(vectors).dtype, uncast(vectors)
    dtype = value(vectors).dtype
    if widened and (wide != torch.promote_types(dtype, torch.float32) or len(vectors.users) > 1):
        return None
    if any(value(one).dtype != dtype or len(one.users) > 1 for one in narrowed) or first_of(vectors) is not dense:
        return None
    sparse, _, nodes = interaction.parts(vectors, dense)
    between = [*widened, *between, *narrowed]
    return of_columns(node, [*nodes, vectors, *between, node], dense, sparse, *value(vectors).shape[1:])


def uncast(node: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """(what a node casts, the node), or (the node, nothing)."""
    return (node.args[0], [node]) if is_call(node, aten.to.dtype) else (node, [])


BY_COLUMN = {"fm": fm_of, "flat": flat_of}


def of_columns(
    out: fx.Node, nodes: list[fx.Node], dense: fx.Node, sparse: list[fx.Node], count: int, width: int
) -> interaction.Interaction:
    return interaction.Interaction(out, nodes, dense, sparse, None, count, width, [], 1, [])


def first_of(vectors: object) -> fx.Node | None:
    """The first of the vectors that T [B, V, D] is made of; None where it is no such T."""
    if not isinstance(vectors, fx.Node) or not is_tensor(vectors) or value(vectors).dim() != 3:
        return None
    cat = vectors.args[0] if is_call(vectors, *FLATTENS) else vectors
    if not is_call(cat, aten.stack.default, *CAT):
        return None
    first = cat.args[0][0]
    return first.args[0] if value(first).dim() == 3 and first.args else first


def square_of(node: object) -> fx.Node | None:
    """What a node is the square of."""
    if is_call(node, aten.square.default) or (is_call(node, aten.pow.Tensor_Scalar) and node.args[1] == 2):
        return node.args[0]
    return node.args[0] if is_call(node, aten.mul.Tensor) and node.args[0] is node.args[1] else None


def summed(node: object) -> fx.Node | None:
    """What [B, V, D] a node is the sum of the vectors of."""
    if not is_call(node, aten.sum.dim_IntList) or value(node.args[0]).dim() != 3:
        return None
    named = arguments(node)
    is_plain = list(named["dim"] or ()) in ([1], [-2]) and not named["keepdim"] and named["dtype"] is None
    return node.args[0] if is_plain else None


def is_op(node: object, name: str) -> bool:
    """Whether a node is a call of one of this package's operators."""
    if not isinstance(node, fx.Node) or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return node.target.namespace == NAMESPACE and node.target._opname == name


@dataclass
class LookUps:
    """Look-ups in one tensor of tables: row_offsets, or the tables' heights; ids [B, n] of which the first columns are
    meant, or [N] with offsets, or ids [B] of each table; the calls."""

    tables: fx.Node
    row_offsets: fx.Node | None
    heights: list[int]
    ids: list[fx.Node]
    offsets: fx.Node | None
    nodes: list[fx.Node]


def look_ups_of(one: interaction.Interaction) -> LookUps | None:
    """What the vectors behind the dense one are looked up in; None, or Miss, where that is not one tensor."""
    (first, *others) = one.sparse
    if not others and is_op(first, "embedding_bags"):
        named = arguments(first)
        if any(named[name] != expected for name, expected in LOOKED_UP.items()):
            return None
        return LookUps(named["tables"], named["row_offsets"], [], [named["indices"]], named["offsets"], [first])
    looked_up, joining = whole.look_ups_of(one.sparse)
    parts = [part_of(look_up.table) for look_up in looked_up]
    if None in parts or any(look_up.bags or look_up.column is not None for look_up in looked_up):
        return None
    tables, heights, end = parts[0][0], [], 0
    for source, begin, height in parts:
        if source is not tables or begin != end:
            return None
        heights.append(height)
        end += height
    nodes = [*joining, *(node for look_up in looked_up for node in look_up.nodes)]
    return LookUps(tables, None, heights, columns_of([look_up.ids for look_up in looked_up]), None, nodes)


def part_of(table: fx.Node) -> tuple[fx.Node, int, int] | None:
    """(a tensor, first row, rows) that a table is some rows of; None of others."""
    if is_call(table, operator.getitem) and is_call(table.args[0], aten.split_with_sizes.default, aten.split.Tensor):
        split, k = table.args
        if arguments(split)["dim"] not in (0, -value(split.args[0]).dim()):
            return None
        source, before = split.args[0], [part.shape[0] for part in value(split)[:k]]
    elif is_call(table, aten.slice.Tensor):
        named = arguments(table)
        source, before = table.args[0], [named["start"] or 0]
        if named["dim"] not in (0, -value(source).dim()) or named["step"] != 1:
            return None
    else:
        return None
    numbers = [*before, height := value(table).shape[0]]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        return None
    return source, sum(before), height


def columns_of(ids: list[fx.Node]) -> list[fx.Node]:
    """ids [B, n], where the given ones are its first columns in order; else the given ones."""
    source = ids[0].args[0] if is_call(ids[0], aten.select.int) else None
    for column, one in enumerate(ids):
        if not is_call(one, aten.select.int) or one.args[0] is not source or value(source).dim() != 2:
            return ids
        if one.args[1] not in (1, -1) or one.args[2] != column:
            return ids
    return [source]


def found(one: interaction.Interaction, looked_up: LookUps, kind: str) -> Found:
    """Miss, with the condition that fails, where look-ups and interaction stay apart."""
    dense, tables, out = one.dense, looked_up.tables, one.out
    check(one, looked_up, kind)
    dtype, device, precision = value(out).dtype, value(out).device, mlp.precision(value(out))
    features, trains = one.count - 1, wants_gradient(dense, tables, out)
    shape = features, one.width, dtype, precision, looked_up.offsets is not None, trains, device, kind
    # A guard on the number of rows is had where all else holds alone.
    least = choice.least_rows(*shape)
    if isinstance(least, str):
        raise Miss(least, out)
    if why := choice.why_in_two(measured(value(dense).shape[0], least), *shape):
        raise Miss(why, out)
    form = runs("cuda", out)
    heights, columns = looked_up.heights, one.columns
    is_cut = len(looked_up.ids) == 1 and looked_up.offsets is None and value(looked_up.ids[0]).shape[1] != features

    def build(call, dense, tables, *rest):
        rest = iter(rest)
        row_offsets = call(begins, tables, heights) if looked_up.row_offsets is None else next(rest)
        offsets = None if looked_up.offsets is None else next(rest)
        ids = [next(rest) for _ in looked_up.ids]
        indices = ids[0] if value(looked_up.ids[0]).dim() == 2 or offsets is not None else call(torch.stack, ids, 1)
        indices = call(torch.narrow, indices, 1, 0, features) if is_cut else indices
        arguments = dense, tables, row_offsets, indices, offsets, columns, precision, *([kind] if kind != "dot" else [])
        return one.ordered(call, call(lookup_interact, *arguments, **backend_of(form, device)), list(rest))

    ids_are = "one id each" if looked_up.offsets is None else "bags"
    note = f"{features} tables of width {one.width}, {ids_are}, {precision if kind == 'dot' else kind}{one.note}"
    optional = [node for node in (looked_up.row_offsets, looked_up.offsets) if node is not None]
    inputs = [dense, tables, *optional, *looked_up.ids, *one.order]
    return Found(OP, out, [*looked_up.nodes, *one.nodes], inputs, build, note, form, one.constants)


def check(one: interaction.Interaction, looked_up: LookUps, kind: str) -> None:
    """Miss unless lookup_interact takes these as they are."""
    dtype, rows = value(one.out).dtype, value(one.dense).shape[0]
    between = {dtype, torch.promote_types(dtype, torch.float32)} if kind == "fm" else {dtype}
    for node in (one.dense, looked_up.tables, *one.nodes):
        of_ends = node in (one.dense, looked_up.tables, one.out)
        dtypes = {dtype} if of_ends else between
        if is_tensor(node) and value(node).is_floating_point() and value(node).dtype not in dtypes:
            raise Miss(f"{value(node).dtype} beside {dtype}, as by torch.autocast: tables are not cast", node)
    if value(looked_up.tables).dim() != 2 or not value(looked_up.tables).is_contiguous():
        raise Miss("the tables are no contiguous matrix, and would be copied", looked_up.tables)
    if not all(isinstance(size, int) for size in (one.count, one.width)):
        raise Miss("how many vectors there are, or how wide they are, is no number", one.out)
    if len({value(ids).dtype for ids in looked_up.ids}) > 1:
        raise Miss("the ids differ in dtype", looked_up.ids[0])
    for ids in looked_up.ids if looked_up.offsets is None else ():
        if not same_size(value(ids).shape[0], rows):
            raise Miss("there are not as many ids as rows of the dense vector", ids)
    for node in looked_up.nodes:
        if is_call(node, aten.embedding.default) and look_ups.trained_padding(node) >= 0:
            raise Miss("padding_idx, whose row has no gradient", node)


def measured(rows: int | torch.SymInt, least: int) -> int:
    """A number of rows that stands for a batch: `least`, as many as were measured, or none for fewer. For an open
    number torch.compile has a guard; an exported program, and a range that mark_dynamic gave, are for few, too."""
    is_open = isinstance(rows, torch.SymInt) and has_range(rows) and not statically_known_true(rows >= least)
    return 0 if is_open or at_most(rows, least - 1, exported=True) else least


def begins(tables: Tensor, heights: list[int]) -> Tensor:
    """Where each table begins, and the last one ends: int64 [F + 1], without a copy from the host."""
    places = torch.arange(len(heights) + 1, device=tables.device)
    rows = torch.zeros_like(places)
    for table, height in enumerate(heights):
        rows = rows + height * (places > table)
    return rows
