"""embedding_bags_apart: the look-ups of several tables, each nn.EmbeddingBag's or nn.Embedding's, in one call.

    out = embedding_bags_apart([table, …], [ids, …], [offsets, …])      each look-up's result is a column of it

Look-ups go together that are alike, and where none needs another's result. Ids [B, L], which are B bags of L, become
ids and offsets as F.embedding_bag makes them. A look-up by itself is left to Inductor, which makes a gather of it, but
for an embedding with sparse=True: without gradients that says nothing, and yet Inductor leaves it to PyTorch's
operator, whose `index_select` of many short rows takes 20 times as long (embedding_bags_apart.json in
traces/results/h200: eager beside cuda).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, fx

from ..dtypes import FLOATING
from ..ops.embedding_bags_apart.op import embedding_bags_apart
from .columns import column_of
from .constants import written
from .forms import backend_of, only_form
from .match import Declined, Found, Miss, arguments, aten, is_call, name_of, same_size, value
from .view import SETS_GRADIENTS, View, example

OP = "embedding_bags_apart"
ALONE = "a look-up by itself, which its own operator does in one launch"
UNTRAINED = "no gradient comes back to it, where the op's would be zeros, which an optimizer may still act on"
WRITTEN = "what comes of it is written into another tensor, and no gradient is followed from there"
EXPORTED = "padding_idx, whose row has no gradient, which an exported program does not keep"
SPARSE = (
    "sparse gradients, where the op's are dense, as with sparse=False (embedding_bags_sgd_ and its like update tables "
    "without a gradient)"
)
MODES = ("sum", "mean", "max")


def find(view: View) -> Iterator[Found | Declined]:
    needs: dict[fx.Node, set[fx.Node]] = {}  # of each node, the look-ups that it is computed from
    renormed = {view.origin[node] for node in view.graph.nodes if is_call(node, aten.embedding_renorm_.default)}
    reached = has_gradients(next(iter(view.image)).graph, torch.is_grad_enabled())
    groups: dict[tuple, list[Group]] = {}
    declined: dict[str, list[fx.Node]] = {}
    for node in view.graph.nodes:
        needs[node] = set().union(*(needs[source] for source in node.all_input_nodes))
        read = READ.get(node.target) if node.op == "call_function" else None
        if read is None:
            continue
        needed, needs[node] = needs[node], needs[node] | {node}
        try:
            if view.origin[node] in renormed:
                raise Miss("max_norm, which writes to the table")
            kind, inputs, calls = read(node)
            check_tables(inputs)
            result = calls[-1]
            is_cut = any(is_call(reader, aten.detach_.default) for reader in result.users)
            is_missed = value(result).requires_grad and view.origin[result] not in reached
            miss_if({WRITTEN: is_missed and is_written(result), UNTRAINED: is_cut or is_missed})
            miss_if({EXPORTED: trained_padding(node) >= 0 and "val" in view.origin[node].meta})
        except Miss as miss:
            declined.setdefault(miss.reason, []).append(node)
            continue
        of_kind = groups.setdefault(kind, [])
        if not (of_kind and needed.isdisjoint(of_kind[-1].nodes)):
            of_kind.append(Group(kind))
        of_kind[-1].add(inputs, calls)
    for group in (group for of_kind in groups.values() for group in of_kind):
        if len(group.results) > 1 or is_sparse_embedding(group.nodes[0]):
            yield group.found()
        else:
            declined.setdefault(ALONE, []).append(group.nodes[0])
    for reason, nodes in declined.items():
        yield Declined(OP, nodes[0], reason if len(nodes) == 1 else f"{reason}: {len(nodes)} look-ups")


def has_gradients(graph: fx.Graph, is_on: bool) -> set[fx.Node]:
    """The nodes of Dynamo's graph that a gradient of the outputs comes to. An exported program's know of none.

    is_on: whether gradients are recorded where it begins. What a value tells is whether it requires one in the end:
    what was made without may have been written to.
    """
    (output,) = graph.find_nodes(op="output")
    recorded = set()
    for node in graph.nodes:
        is_on = node.args[0] if name_of(node) == SETS_GRADIENTS else is_on
        recorded |= {node} if is_on else set()
    reached, left = set(), list(output.all_input_nodes)
    while left:
        node = left.pop()
        results = example(node) if isinstance(example(node), tuple | list) else [example(node)]
        if node not in reached and any(isinstance(result, Tensor) and result.requires_grad for result in results):
            reached.add(node)
            left += gives_gradients_to(node) if node in recorded else []
    return reached


def gives_gradients_to(call: fx.Node) -> list[fx.Node]:
    """The inputs that a gradient of a call's result goes to. A custom operator may keep it from one: nobody tells."""
    name = name_of(call)
    if name in ("detach", "detach_") or name.endswith("_like") or name.startswith("new_"):
        return []
    if name in ("expand_as", "view_as", "reshape_as", "type_as", "to"):
        return call.all_input_nodes[:1]  # of the other only the shape, or the dtype, is looked at
    if name == "autograd_function_apply":
        backward, inputs = body(call, 1), call.args[2:]
        (output,) = backward.find_nodes(op="output")
        gets_one = [gradient is not None for gradient in output.args[0]]
    elif name == "tag_activation_checkpoint":
        within, inputs = body(call, 0), call.args[1:]
        reached = has_gradients(within, True)
        gets_one = [placeholder in reached for placeholder in within.find_nodes(op="placeholder")]
    else:
        return call.all_input_nodes
    return [node for node, gets in zip(inputs, gets_one, strict=False) if gets and isinstance(node, fx.Node)]


def is_written(result: fx.Node) -> bool:
    """Whether a result, or what is computed of it, is written into another tensor."""
    seen, left = set(), [result]
    while left:
        node = left.pop()
        if any(node not in written(reader) != [] for reader in node.users):
            return True
        left += node.users.keys() - seen
        seen |= node.users.keys()
    return False


def body(call: fx.Node, position: int) -> fx.Graph:
    """The graph that is an argument of a higher-order operator."""
    return getattr(call.graph.owning_module, call.args[position].target).graph


class Group:
    """Look-ups of one kind, which one call computes.

    kind: what the ids are, "one" a bag, "bags", or "rows" that are bags; the mode, include_last_offset; then what else
    must be alike. nodes, results: their calls, of which the last of each has the result.
    """

    def __init__(self, kind: tuple) -> None:
        self._kind = kind
        self.nodes: list[fx.Node] = []
        self.results: list[fx.Node] = []
        self._look_ups: list[tuple[list[fx.Node], list[fx.Node]]] = []

    def add(self, inputs: list[fx.Node], calls: list[fx.Node]) -> None:
        self.nodes += calls
        self.results.append(calls[-1])
        self._look_ups.append((inputs, calls))

    def of(self, positions: list[int]) -> Found:
        """Some of these look-ups alone."""
        some = Group(self._kind)
        for position in positions:
            some.add(*self._look_ups[position])
        return some.found()

    def found(self) -> Found:
        ids_are, mode, has_last, *_ = self._kind
        form, device = only_form(OP, self.results[0]), value(self.results[0]).device
        inputs = [inputs for inputs, _ in self._look_ups]
        count, lists = len(self.results), list(zip(*inputs, strict=True))  # tables, ids, and perhaps offsets
        rows, dims = [value(table).shape[0] for table in lists[0]], value(lists[1][0]).dim()
        paddings = [trained_padding(calls[0]) for _, calls in self._look_ups]
        function, more = (padded, [paddings]) if max(paddings) >= 0 else (embedding_bags_apart, [])

        def build(call, *inputs):
            tables, ids, *offsets = (list(inputs[start : start + count]) for start in range(0, len(inputs), count))
            shaped: list = [()] * count
            if ids_are == "rows":
                offsets = [[call(row_starts, ids[0])] * count]
            elif dims != 1:
                shaped = [(tensor,) for tensor in ids]
            if dims != 1:
                ids = [call(torch.flatten, tensor) for tensor in ids]
            out = call(function, tables, ids, *(offsets or [None]), mode, has_last, *more, **backend_of(form, device))
            if count == 1:  # all of the result: no column to copy
                return [call(rows_of, out, *shaped[0])]
            return [call(column_of, out, k, *shape) for k, shape in enumerate(shaped)]

        pooled = "one id each" if ids_are == "one" else f"bags, {mode}"
        tables = f"{count} tables" if count > 1 else "one table"
        note = f"{tables} of width {value(lists[0][0]).shape[1]}, {sum(rows)} rows, {pooled}"
        return Found(OP, self.results, self.nodes, [node for nodes in lists for node in nodes], build, note, form,
                     of=self.of)  # fmt: skip


def rows_of(out: Tensor, ids: Tensor | None = None) -> Tensor:
    """out [N, 1, D] of one look-up, as ids have their dimensions. No copy, and to autograd no view, as an embedding's
    result is none: what was made without gradients may be written to where they are recorded."""
    shape = out.shape[:1] if ids is None else ids.shape
    return aten._unsafe_view(out, (*shape, out.shape[2]))


def is_sparse_embedding(node: fx.Node) -> bool:
    return is_call(node, aten.embedding.default) and bool(arguments(node)["sparse"])


def row_starts(ids: Tensor) -> Tensor:
    """The offsets of the rows of ids [B, L]: int [B]."""
    return torch.arange(0, ids.numel(), ids.shape[1], dtype=ids.dtype, device=ids.device)


class Padded(torch.autograd.Function):
    """The gradient of out [B, F, D] is zero where an id, of F times [B], is its table's padding."""

    @staticmethod
    def forward(ctx, out: Tensor, paddings: Sequence[int], *ids: Tensor) -> Tensor:
        ctx.save_for_backward(*ids)
        ctx.paddings = paddings
        return out.view_as(out)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        each = [ids == padding for ids, padding in zip(ctx.saved_tensors, ctx.paddings, strict=True)]
        return torch.where(torch.stack(each, 1)[:, :, None], 0, gradient), None, *[None for _ in each]


def padded(tables: list[Tensor], ids: list[Tensor], *options, backend: str = "auto") -> Tensor:
    """`embedding_bags_apart` of one id each, of tables whose padding's row gets no gradient: the last of the options,
    an id a table or -1."""
    *options, paddings = options
    return Padded.apply(embedding_bags_apart(tables, ids, *options, backend=backend), paddings, *ids)


# ------------------------------------------------------------------------------------------------------- the look-ups


def read_bag(node: fx.Node) -> tuple[tuple, list[fx.Node], list[fx.Node]]:
    """(kind, [table, ids, offsets], calls) of an embedding_bag; Miss, with the condition that fails."""
    kwargs, read = arguments(node), [user for user in node.users if user.users]
    trains = is_trained(kwargs["weight"], read)
    miss_if({
        "mode max, where the op has sum and mean": kwargs["mode"] == 2,
        "scale_grad_by_freq": kwargs["scale_grad_by_freq"] and trains,
        SPARSE: kwargs["sparse"] and trains,
        "per_sample_weights, which the op does not take": kwargs["per_sample_weights"] is not None,
        "padding_idx of bags, which the op would add": kwargs.get("padding_idx") is not None,
    })
    miss_if({
        "its result is not read": not read,
        "more is read of it than the bags": len(read) > 1 or any(user.args[1] for user in read),
    })
    table, ids, offsets, last = (
        kwargs["weight"], kwargs["indices"], kwargs["offsets"], bool(kwargs["include_last_offset"])
    )
    miss_if({f"offsets of {value(offsets).dim()} dimensions": value(offsets).dim() != 1})
    mode, calls = MODES[kwargs["mode"]], [node, *(user for user in node.users if user is not read[0]), read[0]]
    if (rows := rows_behind(ids, offsets)) is not None:
        kind = "rows", mode, last, *alike(table, rows), *map(expr, value(rows).shape)
        return kind, [table, rows], [ids, offsets, *calls]
    kind = "bags", mode, last, *alike(table, ids), value(offsets).dtype, expr(value(offsets).shape[0])
    return kind, [table, ids, offsets], calls


def is_trained(table: fx.Node, results: list[fx.Node]) -> bool:
    """Whether a gradient of the table is recorded. Whoever asks about an exported program knows, by torch.no_grad."""
    recorded = torch.is_grad_enabled() or any(value(result).requires_grad for result in results)
    return value(table).requires_grad and recorded


def rows_behind(ids: fx.Node, offsets: fx.Node) -> fx.Node | None:
    """The ids [B, L] that F.embedding_bag, in a call of its own, has laid flat, with offsets for them; else None."""
    if not (is_call(ids, aten.view.default, aten.reshape.default) and is_call(offsets, aten.arange.start_step)):
        return None
    rows, kwargs = ids.args[0], arguments(offsets)
    shape, step = value(rows).shape, as_size(kwargs["step"])
    is_flat = len(shape) == 2 and kwargs["start"] == 0 and same_size(step, shape[1]) and len(ids.users) == 1
    is_whole = same_size(as_size(kwargs["end"]), value(ids).shape[0]) and len(offsets.users) == 1
    return rows if is_flat and is_whole else None


def as_size(number: int | fx.Node) -> int | torch.SymInt:
    return value(number) if isinstance(number, fx.Node) else number


def read_embedding(node: fx.Node) -> tuple[tuple, list[fx.Node], list[fx.Node]]:
    """(kind, [table, ids], calls) of an embedding; Miss, with the condition that fails."""
    kwargs = arguments(node)
    trains = is_trained(kwargs["weight"], [node])
    miss_if({
        SPARSE: kwargs["sparse"] and trains,
        "scale_grad_by_freq": kwargs["scale_grad_by_freq"] and trains,
        "its result is not read": not node.users,
    })
    table, ids = kwargs["weight"], kwargs["indices"]
    return ("one", "sum", False, *alike(table, ids), *map(expr, value(ids).shape)), [table, ids], [node]


def trained_padding(node: fx.Node) -> int:
    """The padding_idx of an embedding, whose row is returned and only has no gradient, where one is recorded; or -1."""
    is_one_id = is_call(node, aten.embedding.default)
    return arguments(node)["padding_idx"] if is_one_id and is_trained(arguments(node)["weight"], [node]) else -1


READ = {
    aten.embedding_bag.default: read_bag,
    aten.embedding_bag.padding_idx: read_bag,
    aten.embedding.default: read_embedding,
}


def miss_if(conditions: dict[str, bool]) -> None:
    for reason, holds in conditions.items():
        if holds:
            raise Miss(reason)


def check_tables(inputs: list[fx.Node]) -> None:
    """Miss unless the op takes such a table and such ids."""
    table, ids, *offsets = map(value, inputs)
    devices = {tensor.device for tensor in (table, ids, *offsets)}
    miss_if({
        f"a table of dtype {table.dtype}": table.dtype not in FLOATING,
        f"a table of {table.dim()} dimensions": table.dim() != 2,
        "the table, its ids and offsets lie on several devices": len(devices) > 1,
    })
    miss_if({
        "a table that is not contiguous, which would be copied": not table.is_contiguous(),
        "a table whose width is no number": not isinstance(table.shape[1], int),
    })
    only_form(OP, inputs[0])


def alike(table: fx.Node, ids: fx.Node) -> tuple:
    """What must be the same of tables that one call reads."""
    weight = value(table)
    return weight.dtype, weight.shape[-1], weight.device, value(ids).dtype


def expr(size: int | torch.SymInt) -> object:
    """A size as a number or as the expression of it: to compare two adds no guard."""
    return size.node.expr if isinstance(size, torch.SymInt) else size
