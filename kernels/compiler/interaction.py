"""dot_interaction: the pairwise products of a row's vectors behind its dense vector.

    T = [dense; sparse]  [B, V, D]      Z = T Tᵀ      out = cat([dense, Z[:, i, j]], 1)      or      out = Z[:, i, j]

with each pair of two different vectors once. i and j are known when compiling, from literals or from buffers. Where
they are in another order than the op's, its columns are put into that. Zeros behind the pairs are the op's own. Where
something else is before the pairs, or the vectors are read by others too, the pairs alone are the op's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
    casts,
    dtype_of,
    in_dtype,
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
            if vectors is None:
                continue
            try:
                yield interaction(node, vectors, constants)
            except Miss:
                yield pairs_alone(node, vectors, constants)
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


@dataclass
class Pairs:
    """The pairs that are taken of the products [B, V, V]: the call and those before it, its indices i and j or one of
    both, i V + j; whether they are in dot_interaction's order, and whether each vector is paired with itself too."""

    gather: fx.Node
    before: list[fx.Node]
    indices: list[fx.Node]
    in_order: bool
    with_diagonal: bool


@dataclass
class Interaction:
    """cat([dense, pairs], 1) or cat([dense, pairs, zeros], 1): the call, and what else computes it.

    sparse: what is behind dense among the vectors, and the function that joins it, None where it is one part. count,
    width: of the vectors, dense among them. order: the pairs' indices, where these are in another order than the op's.
    columns: of out, where it ends in zeros; else 1. constants: the buffers whose values were looked at.
    """

    out: fx.Node
    nodes: list[fx.Node]
    dense: fx.Node
    sparse: list[fx.Node]
    joining: Callable | None
    count: int
    width: int
    order: list[fx.Node]
    columns: int
    constants: list[fx.Node]

    @property
    def note(self) -> str:
        note = ", pairs in an order of their own" if self.order else ""
        return note + (f", filled up to {self.columns} columns" if self.columns > 1 else "")

    def ordered(self, call: Callable, products: object, indices: list) -> object:
        """The op's products with the pairs in their order."""
        return call(in_order_of, products, indices, self.count, self.width) if self.order else products


def read(product: fx.Node, gram: tuple[fx.Node, list[fx.Node]], constants: Constants) -> Interaction:
    """The interaction that a product is of; Miss, with the condition that fails, if it is none."""
    vectors, between = gram
    first_read = len(constants.read)
    pairs = pairs_of(product, vectors, constants)
    out = only_reader(pairs.gather)
    first, zeros = dense_beside(out, pairs.gather)
    if pairs.with_diagonal:
        raise Miss("each vector is paired with itself, too", pairs.gather)
    if set(vectors.users) != {product, *between} or any(len(node.users) > 1 for node in between):
        raise Miss("the stacked vectors are read by others too", vectors)
    sparse, joining, nodes = parts(vectors, first)
    nodes = [*nodes, *zeros, vectors, *between, product, *pairs.before, pairs.gather, out]
    columns = value(out).shape[1] if zeros else 1  # the op fills up to a multiple of them
    order = [] if pairs.in_order else pairs.indices
    return Interaction(out, nodes, first, sparse, joining, *value(vectors).shape[1:], order, columns,
                       constants.read[first_read:])  # fmt: skip


def interaction(product: fx.Node, gram: tuple[fx.Node, list[fx.Node]], constants: Constants) -> Found:
    """What dot_interaction computes of an interaction."""
    one = read(product, gram, constants)
    vectors, sparse = gram[0], one.sparse
    dtype = dtype_of([product, one.out], [one.dense, *sparse])
    form = only_form(OP, vectors)
    options = backend_of(form, value(vectors).device)

    def build(call, dense, *others):
        together = others[0] if one.joining is None else call(one.joining, list(others[: len(sparse)]), 1)
        both = in_dtype(call, dtype, dense, one.dense), in_dtype(call, dtype, together, *sparse)
        products = call(dot_interaction, *both, *([one.columns] if one.columns > 1 else []), **options)
        return one.ordered(call, products, list(others[len(sparse) :]))

    note = f"{one.count} vectors of {one.width}{one.note}" + casts(dtype, one.dense, *sparse)
    inputs = [one.dense, *sparse, *one.order]
    return Found(OP, one.out, one.nodes, inputs, build, note, form, one.constants)


def pairs_alone(product: fx.Node, gram: tuple[fx.Node, list[fx.Node]], constants: Constants) -> Found:
    """The pairs alone, whatever the vectors come from and whatever reads the pairs: a part of what the op gives."""
    vectors, between = gram
    first_read = len(constants.read)
    pairs = pairs_of(product, vectors, constants)
    dtype = dtype_of([product], [vectors])
    count, width = value(vectors).shape[1:]
    form = only_form(OP, vectors)
    options = backend_of(form, value(vectors).device)

    def build(call, stacked, *indices):
        stacked = in_dtype(call, dtype, stacked, vectors)
        dense, sparse = call(torch.select, stacked, 1, 0), call(torch.narrow, stacked, 1, 1, count - 1)
        products = call(dot_interaction, dense, sparse, **options)
        return call(only_pairs, products, stacked, list(indices))

    note = f"{count} vectors of {width}, pairs alone"
    note += ", with the diagonal" if pairs.with_diagonal else "" if pairs.in_order else ", in an order of their own"
    note += casts(dtype, vectors)
    inputs = [vectors] if pairs.in_order else [vectors, *pairs.indices]
    nodes = [*(node for node in between if len(node.users) == 1), product, *pairs.before, pairs.gather]
    return Found(OP, pairs.gather, nodes, inputs, build, note, form, constants.read[first_read:])


def in_order_of(products: Tensor, indices: list[Tensor], count: int, width: int) -> Tensor:
    """dot_interaction's [B, W] of `count` vectors, with the pairs in the order of their indices."""
    place = place_of_pairs(indices, count)
    end = width + place.shape[0]
    return torch.cat([products[:, :width], products[:, width + place], products[:, end:]], 1)


def only_pairs(products: Tensor, vectors: Tensor, indices: list[Tensor]) -> Tensor:
    """The pairs of dot_interaction's [B, D + P] of vectors [B, V, D], in the order of their indices if there are any: i
    and j, or i V + j, with the diagonal or without it."""
    count, width = vectors.shape[1:]
    if not indices:
        return products[:, width:].contiguous()
    place = place_of_pairs(indices, count)
    if place.shape[0] * 2 == count * (count - 1):
        return products[:, width + place]
    squares = vectors.to(torch.promote_types(vectors.dtype, torch.float32)).square().sum(2).to(vectors.dtype)
    return torch.cat([products[:, width:], squares], 1)[:, place]


def place_of_pairs(indices: list[Tensor], count: int) -> Tensor:
    """Where among dot_interaction's pairs of `count` vectors each of some pairs is, and behind them the vectors with
    themselves: int64 [pairs]. indices: i and j, or i V + j."""
    if len(indices) == 1:
        i, j = indices[0].long() // count, indices[0].long() % count
    else:
        i, j = indices[0].long() % count, indices[1].to(indices[0].device).long() % count
    high, low = torch.maximum(i, j), torch.minimum(i, j)
    return torch.where(high == low, count * (count - 1) // 2 + high, high * (high - 1) // 2 + low)


def pairs_of(product: fx.Node, vectors: fx.Node, constants: Constants) -> Pairs:
    count, width = value(vectors).shape[1:]
    if not isinstance(count, int) or not isinstance(width, int):
        raise Miss("how many vectors there are, or how wide they are, is no number", vectors)
    gather = only_reader(product)
    before = [gather] if is_flat(gather, count) else []
    gather = only_reader(gather) if before else gather
    indices = pair_indices(gather, len(before))
    numbers = [constants.integers(index) for index in indices]
    if len(numbers) == 1:
        (flat,) = numbers
        if any(not 0 <= index < count * count for index in flat):
            raise Miss("a pair's index is out of range", gather)
        numbers = [[index // count for index in flat], [index % count for index in flat]]
    in_order, with_diagonal = check_pairs(gather, *numbers, count)
    return Pairs(gather, before, indices, in_order, with_diagonal)


def is_flat(node: fx.Node, count: int) -> bool:
    """Whether a node is the products seen as [B, V V]."""
    flattens = is_call(node, aten.flatten.using_ints, aten.view.default, aten.reshape.default)
    return flattens and value(node).dim() == 2 and same_size(value(node).shape[1], count * count)


def pair_indices(gather: fx.Node, are_flat: bool) -> list[fx.Node]:
    """i and j of products[:, i, j], or i V + j of products.flatten(1)[:, i V + j]."""
    if are_flat and is_call(gather, aten.index_select.default) and gather.args[1] in (1, -1):
        return [gather.args[2]]
    if not is_call(gather, aten.index.Tensor):
        raise Miss(f"of the products {gather.target} is taken, not [:, i, j]", gather)
    indices = gather.args[1]
    if len(indices) != 3 - are_flat or indices[0] is not None or None in indices[1:]:
        raise Miss("the products are not indexed by [:, i, j]", gather)
    return list(indices[1:])


def dense_beside(out: fx.Node, pairs: fx.Node) -> tuple[fx.Node, list[fx.Node]]:
    """(the dense vector before the pairs, the zeros behind them, if there are any)."""
    if not is_call(out, *CAT) or arguments(out).get("dim", 0) not in (1, -1):
        raise Miss(f"the pairs go to {out.target}, not into cat([dense, pairs], 1)", out)
    joined = out.args[0]
    zeros = [part for part in joined[2:] if is_zeros(part)]
    if len(joined) != 2 + len(zeros) or len(zeros) > 1 or joined[1] is not pairs or joined[0] is pairs:
        raise Miss("cat has other parts than [dense, pairs], or in another order", out)
    if zeros and not isinstance(value(out).shape[1], int):
        raise Miss("how many zeros are behind the pairs is no number", out)
    return joined[0], zeros


def is_zeros(node: object) -> bool:
    """Whether a node is zeros [B, n] that nobody else reads."""
    return is_call(node, aten.zeros.default, aten.new_zeros.default) and len(node.users) == 1


def check_pairs(gather: fx.Node, i: list[int], j: list[int], count: int) -> tuple[bool, bool]:
    """Miss unless each two of `count` vectors are one pair, and perhaps each with itself. Whether the pairs are in
    dot_interaction's order, and whether each is with itself."""
    if len(i) != len(j) or any(not -count <= index < count for index in (*i, *j)):
        raise Miss("the pairs' indices differ in number, or one is out of range", gather)
    pairs = [(max(p % count, q % count), min(p % count, q % count)) for p, q in zip(i, j, strict=True)]
    wanted, diagonal = [(p, q) for p in range(count) for q in range(p)], [(p, p) for p in range(count)]
    with_diagonal = sorted(pairs) == sorted(wanted + diagonal)
    if count < 2 or not (with_diagonal or sorted(pairs) == wanted):
        raise Miss(f"the pairs are not each two of {count} vectors once", gather)
    return pairs == wanted, with_diagonal


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
        if not is_one_vector(first):
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


def is_one_vector(node: fx.Node) -> bool:
    """Whether a node is a vector [B, D] as [B, 1, D]."""
    if is_call(node, aten.unsqueeze.default):
        return node.args[1] in (1, -2)
    if not is_call(node, aten.view.default, aten.reshape.default):
        return False
    rows, one, columns = (*value(node).shape, 0, 0, 0)[:3]
    shape = value(node.args[0]).shape
    return value(node).dim() == 3 and same_size(one, 1) and len(shape) == 2 and all(
        map(same_size, shape, (rows, columns))
    )


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
