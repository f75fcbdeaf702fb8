"""dot_interaction: the pairwise products of a row's vectors behind its dense vector.

    T = [dense; sparse]  [B, V, D]      Z = T Tᵀ      out = cat([dense, Z[:, i, j]], 1)

with each pair of two different vectors once. i and j are known when compiling, from literals or from buffers. Where
they are in another order than the op's, its columns are put into that.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, fx

from ..ops.dot_interaction.op import dot_interaction
from .constants import Constants
from .forms import backend_of, only_form
from .match import (
    CAT,
    Declined,
    Found,
    Miss,
    arguments,
    aten,
    check_dtypes,
    is_call,
    only_reader,
    same_size,
    transposed,
    value,
)
from .view import View

OP = "dot_interaction"
EMPTY = "a tensor of one dimension is among the vectors: empty, and cat leaves it out"


def find(view: View, constants: Constants) -> Iterator[Found | Declined]:
    for node in view.graph.nodes:
        try:
            vectors = gram(node)
            if vectors is not None:
                yield interaction(node, vectors, constants)
        except Miss as miss:
            if miss.reason:
                yield Declined(OP, miss.node or node, miss.reason)


def gram(node: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """T [B, V, D], where a node is T Tᵀ of each row, and the nodes between; None where it is no such product."""
    if is_call(node, aten.einsum.default):
        equation, factors = node.args[0].replace(" ", ""), node.args[1]
        if len(factors) == 2 and factors[0] is factors[1] and is_gram(equation):
            return factors[0], []
        return None
    if not is_call(node, aten.bmm.default, aten.matmul.default) or value(node).dim() != 3:
        return None
    a, b = node.args
    if transposed(b, 3) is a:
        return a, [b]
    if any(is_call(reader, aten.index.Tensor) for reader in node.users):
        raise Miss("the product is TᵀT, of columns" if transposed(a, 3) is b else "the product is of two tensors")
    return None


def is_gram(equation: str) -> bool:
    """Whether it reads bid,bjd->bij, by whatever letters; Z is symmetric, so that bji is the same."""
    factors, _, out = equation.partition("->")
    first, _, second = factors.partition(",")
    if len(first) != 3 or len(second) != 3 or len({*first, *second}) != 4:
        return False
    (b, i, d), (b2, j, d2) = first, second
    return b == b2 and d == d2 and out in (b + i + j, b + j + i)


def interaction(product: fx.Node, gram: tuple[fx.Node, list[fx.Node]], constants: Constants) -> Found:
    vectors, between = gram
    gather = only_reader(product)
    i, j = pair_indices(gather)
    out = only_reader(gather)
    dense = dense_beside(out, gather)
    if set(vectors.users) != {product, *between} or any(len(node.users) > 1 for node in between):
        raise Miss("the stacked vectors are read by others too", vectors)
    sparse, joining, nodes = parts(vectors, dense)
    check_dtypes(dense, *sparse)
    count, width = value(vectors).shape[1:]
    if not isinstance(count, int) or not isinstance(width, int):
        raise Miss("how many vectors there are, or how wide they are, is no number", vectors)
    first_read = len(constants.read)
    form = only_form(OP, vectors)
    options = backend_of(form, value(vectors).device)
    in_order = check_pairs(gather, constants.integers(i), constants.integers(j), count)

    def build(call, dense, *others):
        together = others[0] if joining is None else call(joining, list(others[: len(sparse)]), 1)
        products = call(dot_interaction, dense, together, **options)
        return products if in_order else call(in_order_of, products, *others[len(sparse) :], count)

    note = f"{count} vectors of {width}" + ("" if in_order else ", pairs in an order of their own")
    inputs = [dense, *sparse] if in_order else [dense, *sparse, i, j]
    nodes = [*nodes, vectors, *between, product, gather, out]
    return Found(OP, out, nodes, inputs, build, note, form, constants.read[first_read:])


def in_order_of(products: Tensor, i: Tensor, j: Tensor, count: int) -> Tensor:
    """dot_interaction's [B, D + pairs] of `count` vectors, with the pairs in the order of i and j: [pairs] each."""
    width = products.shape[1] - i.shape[0]
    return torch.cat([products[:, :width], products[:, width + place_of_pairs(i, j, count)]], 1)


def place_of_pairs(i: Tensor, j: Tensor, count: int) -> Tensor:
    """Where among dot_interaction's pairs of `count` vectors each of the pairs i, j is: int64 [pairs]."""
    i, j = i.long() % count, j.to(i.device).long() % count
    high, low = torch.maximum(i, j), torch.minimum(i, j)
    return high * (high - 1) // 2 + low


def pair_indices(gather: fx.Node) -> tuple[fx.Node, fx.Node]:
    if not is_call(gather, aten.index.Tensor):
        raise Miss(f"of the products {gather.target} is taken, not [:, i, j]", gather)
    indices = gather.args[1]
    if len(indices) != 3 or indices[0] is not None or None in indices[1:]:
        raise Miss("the products are not indexed by [:, i, j]", gather)
    return indices[1], indices[2]


def dense_beside(out: fx.Node, pairs: fx.Node) -> fx.Node:
    if not is_call(out, *CAT) or arguments(out).get("dim", 0) not in (1, -1):
        raise Miss(f"the pairs go to {out.target}, not into cat([dense, pairs], 1)", out)
    joined = out.args[0]
    if len(joined) != 2 or joined[1] is not pairs or joined[0] is pairs:
        raise Miss("cat has other parts than [dense, pairs], or in another order", out)
    return joined[0]


def check_pairs(gather: fx.Node, i: list[int], j: list[int], count: int) -> bool:
    """Miss unless each two of `count` vectors are one pair; whether the pairs are in dot_interaction's order."""
    if len(i) != len(j) or any(not -count <= index < count for index in (*i, *j)):
        raise Miss("the pairs' indices differ in number, or one is out of range", gather)
    pairs = [(max(p % count, q % count), min(p % count, q % count)) for p, q in zip(i, j, strict=True)]
    wanted = [(p, q) for p in range(count) for q in range(p)]
    if sorted(pairs) != wanted:
        raise Miss(f"the pairs are not each two of {count} vectors once", gather)
    return pairs == wanted


def parts(vectors: fx.Node, dense: fx.Node) -> tuple[list[fx.Node], object, list[fx.Node]]:
    """What T [B, V, D] is made of behind `dense`, what joins that along dimension 1, None if it is one, and the nodes.

    Either cat([dense.unsqueeze(1), sparse, …], 1), or stack([dense, a, b, …], 1), or cat([dense, a, b, …], 1) seen as
    [B, V, D], with a, b [B, D].
    """
    if is_call(vectors, aten.view.default, aten.reshape.default) and is_call(vectors.args[0], *CAT):
        cat = vectors.args[0]
        check_view(vectors, cat)
        joined, joining, nodes = list(cat.args[0]), torch.stack, [cat]
    elif is_call(vectors, aten.stack.default) and arguments(vectors)["dim"] in (1, -2):
        joined, joining, nodes = list(vectors.args[0]), torch.stack, []
    elif is_call(vectors, *CAT) and arguments(vectors)["dim"] in (1, -2):
        first, *rest = vectors.args[0]
        if not is_call(first, aten.unsqueeze.default) or first.args[1] not in (1, -2):
            raise Miss("the first of the vectors is no dense.unsqueeze(1)", vectors)
        joining, nodes = (torch.cat if len(rest) > 1 else None), [first] if len(first.users) == 1 else []
        joined = [first.args[0], *rest]
    else:
        raise Miss(f"the vectors come from {vectors.target}, not from cat or stack", vectors)
    if joined[0] is not dense or value(dense).dim() != 2:
        raise Miss("the vector before the pairs is not the first of the vectors", vectors)
    if len(joined) == 1:
        raise Miss("there is no vector beside the dense one", vectors)
    if joining is not torch.stack and any(value(part).dim() != 3 for part in joined[1:]):
        raise Miss(EMPTY, vectors)
    return joined[1:], joining, nodes


def check_view(view: fx.Node, cat: fx.Node) -> None:
    """Miss unless the view [B, V, D] cuts where cat, along dimension 1, joined."""
    if value(cat).dim() != 2 or arguments(cat).get("dim", 0) not in (1, -1) or value(view).dim() != 3:
        raise Miss("the vectors are not joined along dimension 1", cat)
    if any(value(part).dim() != 2 for part in cat.args[0]):
        raise Miss(EMPTY, cat)
    only_reader(cat)
    rows, _, columns = value(view).shape
    if not same_size(rows, value(cat).shape[0]) or any(not same_size(value(p).shape[1], columns) for p in cat.args[0]):
        raise Miss("a view that cuts the vectors elsewhere than they were joined", view)
