"""What the patterns of pointwise ops share: x, y [..., N] and bias [N], and neighbours that leave them a kernel."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import torch
from torch import fx

from .match import (
    Declined,
    Found,
    Miss,
    aten,
    dtype_of,
    is_call,
    is_row,
    is_tensor,
    same_shape,
    value,
)
from .view import View

PRODUCTS = (
    aten.linear.default, aten.addmm.default, aten.mm.default, aten.bmm.default, aten.matmul.default,
    aten.baddbmm.default,
)  # fmt: skip


def found_at(
    view: View, op: str, targets: Container[Callable], matcher: Callable[[fx.Node], Found | None]
) -> Iterator[Found | Declined]:
    """What `matcher` says of each call of the targets: a Found, None, or by a Miss why it nearly is one."""
    for node in view.graph.nodes:
        if node.op == "call_function" and node.target in targets:
            try:
                match = matcher(node)
            except Miss as miss:
                yield Declined(op, miss.node, miss.reason)
            else:
                if match is not None:
                    yield match


def sum_of(node: object) -> tuple[fx.Node, fx.Node] | None:
    """a and b, where a node is a + b, both tensors."""
    if is_call(node, aten.add.Tensor) and all(map(is_tensor, node.args)):
        if node.kwargs.get("alpha", 1) != 1:
            raise Miss(f"add has alpha={node.kwargs['alpha']}", node)
        return node.args
    return None


def bias_and_rest(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """(rest [..., N], bias, which `is_row`) where a node is their sum, in either order."""
    terms = sum_of(node)
    if terms is None:
        return None
    for rest, bias in (terms, terms[::-1]):
        dims = value(rest).dim()
        is_bias = dims > 1 and is_row(value(bias), value(rest).shape[-1], dims)
        if is_bias and same_shape(value(rest), value(node)):
            return rest, bias
    return None


def check(out: fx.Node, bias: fx.Node, *others: fx.Node) -> None:
    """Miss unless the dtypes are one, and the op would be a kernel without it, too.

    What stands beside pointwise calls the compiler fuses with these, and a product's kernel adds the bias itself: there
    a kernel more would cost more.
    """
    dtype_of([out], [bias, *others])
    for product in others:
        if is_call(product, *PRODUCTS):
            raise Miss(f"{product.target} is before it, whose kernel can add the bias", product)
    for neighbour in (*others, *out.users):
        if is_pointwise(neighbour):
            raise Miss(f"{neighbour.target} is beside it: the compiler makes one kernel of both", neighbour)


def is_pointwise(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags
