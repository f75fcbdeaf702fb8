"""embedding_bags: look-ups in tables that lie apart. They are all declined, each with the first reason that holds.

kernels.embedding_bags reads tables that lie one behind the other. Laying a model's tables so at every call would copy
them, which costs more than the look-ups.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from kernels.compiler.match import Declined, arguments, aten, is_call, value
from kernels.compiler.view import View

OP = "embedding_bags"
APART = "the tables lie apart, and the op that reads several tables where they are does not exist yet"


def find(view: View) -> Iterator[Declined]:
    renormed = {view.origin[node] for node in view.graph.nodes if is_call(node, aten.embedding_renorm_.default)}
    groups: dict[str, list[fx.Node]] = {}
    for node in view.graph.nodes:
        reason_of = REASONS.get(node.target) if node.op == "call_function" else None
        if reason_of is not None:
            written = view.origin[node] in renormed
            reason = "max_norm, which writes to the table" if written else reason_of(node)
            groups.setdefault(reason, []).append(node)
    for reason, nodes in groups.items():
        yield Declined(OP, nodes[0], reason if len(nodes) == 1 else f"{reason}: {len(nodes)} look-ups")


def reason_of_bag(node: fx.Node) -> str:
    given = arguments(node)
    conditions = {
        f"mode {('sum', 'mean', 'max')[given['mode']]}": given["mode"] != 0,
        "scale_grad_by_freq": given["scale_grad_by_freq"],
        "sparse gradients, where the op's are dense": given["sparse"] and value(given["weight"]).requires_grad,
        "per_sample_weights": given["per_sample_weights"] is not None,
        "padding_idx": given.get("padding_idx") is not None,
        "include_last_offset, behind which there may be ids of no bag": given["include_last_offset"],
        APART: True,
    }
    return next(reason for reason, holds in conditions.items() if holds)


def reason_of_embedding(node: fx.Node) -> str:
    given = arguments(node)
    trains = value(given["weight"]).requires_grad
    dims = value(given["indices"]).dim()
    conditions = {
        "sparse gradients, where the op's are dense": given["sparse"] and trains,
        "padding_idx, whose row is returned and only has no gradient": given["padding_idx"] >= 0 and trains,
        "scale_grad_by_freq": given["scale_grad_by_freq"] and trains,
        f"ids of {dims} dimensions": dims != 1,
        APART: True,
    }
    return next(reason for reason, holds in conditions.items() if holds)


REASONS = {
    aten.embedding_bag.default: reason_of_bag,
    aten.embedding_bag.padding_idx: reason_of_bag,
    aten.embedding.default: reason_of_embedding,
}
