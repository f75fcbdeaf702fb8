"""How the parts of a DLRM may be written, by name: what backend="fused_kernels" looks for, and what only looks like it.

In each table the plain spellings come first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

HEIGHT = 7  # of the tables


# A table's look-up, of (table, ids [2 B], offsets [B]) as nn.EmbeddingBag takes them.
def one_id(table: Tensor, ids: Tensor, offsets: Tensor, **options) -> Tensor:
    return F.embedding(ids[: len(offsets)], table, **options)


def bags(table: Tensor, ids: Tensor, offsets: Tensor, **options) -> Tensor:
    return F.embedding_bag(ids, table, offsets, **{"mode": "sum", **options})


def with_last(table: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
    ends = torch.cat([offsets, offsets.new_full((1,), len(ids))])
    return F.embedding_bag(ids, table, ends, mode="sum", include_last_offset=True)


LOOK_UPS = {
    "bags": bags,
    "one_id": one_id,
    "last_offset": with_last,
    "ids_by_row": lambda t, i, o: F.embedding_bag(i.view(-1, 2), t, mode="sum"),
    "mean": lambda t, i, o: bags(t, i, o, mode="mean"),
    "int32": lambda t, i, o: bags(t, i.int(), o.int()),
    "max": lambda t, i, o: bags(t, i, o, mode="max"),
    "padded_bags": lambda t, i, o: bags(t, i, o, padding_idx=1),
    "padded_id": lambda t, i, o: one_id(t, i, o, padding_idx=1),
    "weighted": lambda t, i, o: bags(t, i, o, per_sample_weights=torch.linspace(0, 1, len(i), dtype=t.dtype)),
    "sparse": lambda t, i, o: bags(t, i, o, sparse=True),
    "by_frequency": lambda t, i, o: bags(t, i, o, scale_grad_by_freq=True),
    "norm_at_most": lambda t, i, o: one_id(t, i, o, max_norm=1.0),
    "two_ids_added": lambda t, i, o: F.embedding(i.view(-1, 2), t).sum(1),
    "scaled_table": lambda t, i, o: bags(t * 2, i, o),
    "rows_of_a_table": lambda t, i, o: bags(t[1:], i.clamp(max=HEIGHT - 2), o),
    "indexed": lambda t, i, o: t[i[: len(o)]],
    "selected": lambda t, i, o: t.index_select(0, i[: len(o)]),
    "one_hot": lambda t, i, o: F.one_hot(i[: len(o)], HEIGHT).to(t.dtype) @ t,
    "computed_ids": lambda t, i, o: bags(t, (i * 3 + 1) % HEIGHT, o),
    "shifted_offsets": lambda t, i, o: bags(t, i, torch.cat([o[:1], o[1:].clamp(min=1)])),
    "one_row_for_all": lambda t, i, o: bags(t, i, torch.zeros_like(o)),
}

LINEAR = {
    "linear": F.linear,
    "product": lambda x, w, b: x @ w.t() + b,
    "addmm": lambda x, w, b: torch.addmm(b, x, w.t()),
    "bias_first": lambda x, w, b: b + torch.matmul(x, w.T),
    "einsum": lambda x, w, b: torch.einsum("bi,oi->bo", x, w) + b,
    "no_bias": lambda x, w, b: F.linear(x, w),
    "product_alone": lambda x, w, b: x @ w.t(),
    "bias_twice": lambda x, w, b: F.linear(x, w, b) + b,
    "one_bias": lambda x, w, b: x @ w.t() + b[:1],
    "alpha": lambda x, w, b: torch.add(x @ w.t(), b, alpha=2),
    "beta": lambda x, w, b: torch.addmm(b, x, w.t(), beta=0.5),
    "scaled_weight": lambda x, w, b: F.linear(x, w * 0.5, b),
    "normalised_weight": lambda x, w, b: F.linear(x, F.normalize(w), b),
    "residual": lambda x, w, b: F.linear(x, w, b) + x.mean(1, keepdim=True),
    "three_dimensions": lambda x, w, b: F.linear(x.unsqueeze(1), w, b).squeeze(1),
    "columns": lambda x, w, b: (w @ x.t()).t() + b,
    "detached_weight": lambda x, w, b: F.linear(x, w.detach(), b),
}

ACTIVATIONS = {
    "relu": torch.relu,
    "F.relu": F.relu,
    "relu_": lambda x: x.relu_(),
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "threshold": lambda x: F.threshold(x, 0, 0),
    "tanh": torch.tanh,
    "clamp": lambda x: x.clamp(min=0),
    "maximum": lambda x: torch.maximum(x, x.new_zeros(())),
    "where": lambda x: torch.where(x > 0, x, 0),
    "gelu_by_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu6": F.relu6,
    "leaky": F.leaky_relu,
    "silu": F.silu,
    "threshold_one": lambda x: F.threshold(x, 1, 0),
    "hardtanh": lambda x: F.hardtanh(x, 0, 1),
    "softplus": F.softplus,
    "none": lambda x: x,
    "dropout": lambda x: F.dropout(torch.relu(x), 0.5),
    "no_dropout": lambda x: F.dropout(torch.relu(x), 0.5, training=False),
    "norm": lambda x: torch.relu(F.layer_norm(x, x.shape[1:])),
}


# From [x, v …], each [B, D], to T [B, V, D].
def split_again(vs):
    """As torchrec joins its look-ups [B, D]: [B, F, D]."""
    width = vs[0].shape[1]
    parts = torch.cat([v.to(v.dtype) for v in vs], 1).split([width] * len(vs), dim=1)
    return torch.cat(parts, 1).reshape(-1, len(vs), width)


JOINED = {
    "stack": lambda vs: torch.stack(vs, 1),
    "cat_and_view": lambda vs: torch.cat(vs, 1).view(len(vs[0]), -1, vs[0].shape[1]),
    "split_again": lambda vs: torch.cat([vs[0][:, None], split_again(vs[1:])], 1) if vs[1:] else vs[0][:, None],
    "unsqueezed": lambda vs: torch.cat([vs[0].unsqueeze(1), torch.stack(vs[1:], 1)], 1) if vs[1:] else vs[0][:, None],
    "each_unsqueezed": lambda vs: torch.cat([v.unsqueeze(1) for v in vs], 1),
    "reshape": lambda vs: torch.cat(vs, -1).reshape(-1, len(vs), vs[0].shape[1]),
    "stack_of_last": lambda vs: torch.stack(vs, -1).transpose(1, 2),
    "stack_across": lambda vs: torch.stack(vs).transpose(0, 1),
    "view_that_mixes": lambda vs: torch.stack(vs, 2).view(len(vs[0]), len(vs), -1),
}
ORDERS = {
    "dense_first": lambda x, vs: [x, *vs],
    "dense_last": lambda x, vs: [*vs, x],
    "dense_inside": lambda x, vs: [*vs[:1], x, *vs[1:]],
    "bags_backwards": lambda x, vs: [x, *vs[::-1]],
    "first_bag_twice": lambda x, vs: [x, vs[0], *vs],
    "dense_twice": lambda x, vs: [x, x, *vs],
    "dense_scaled": lambda x, vs: [x * 2, *vs],
    "sum_of_bags": lambda x, vs: [x, sum(vs)],
}
PRODUCTS = {
    "bmm": lambda t: torch.bmm(t, t.transpose(1, 2)),
    "matmul": lambda t: t @ t.mT,
    "einsum": lambda t: torch.einsum("bid,bjd->bij", t, t),
    "permuted": lambda t: torch.matmul(t, t.permute(0, 2, 1)),
    "of_halves": lambda t: t @ (t * 0.5).mT,
    "scaled": lambda t: t @ t.mT / 2,
    "of_normalised": lambda t: F.normalize(t, dim=2) @ F.normalize(t, dim=2).mT,
    "normalised_on_one_side": lambda t: t @ F.normalize(t, dim=2).mT,
    "baddbmm": lambda t: torch.baddbmm(t.new_ones(1, 1, 1), t, t.mT),
    "flipped": lambda t: t @ t.flip(1).mT,
    "plus_one": lambda t: t @ t.mT + 1,
    "relu": lambda t: torch.relu(t @ t.mT),
}
PAIRS = {
    "tril": lambda n: torch.tril_indices(n, n, -1),
    "triu": lambda n: torch.triu_indices(n, n, 1),
    "tril_swapped": lambda n: torch.tril_indices(n, n, -1).flip(0),
    "negative": lambda n: torch.tril_indices(n, n, -1) - n,
    "backwards": lambda n: torch.tril_indices(n, n, -1).flip(1),
    "with_itself": lambda n: torch.tril_indices(n, n, 0),
    "upper_with_itself": lambda n: torch.triu_indices(n, n, 0),
    "first_twice": lambda n: torch.tril_indices(n, n, -1)[:, [0, *range(n * (n - 1) // 2)]],
    "one_missing": lambda n: torch.tril_indices(n, n, -1)[:, 1:],
    "one_for_another": lambda n: torch.tril_indices(n, n, -1)[:, [*range(1, n * (n - 1) // 2), -1]],
    "all": lambda n: torch.cartesian_prod(torch.arange(n), torch.arange(n)).t(),
}
# How pairs are taken of the products Z [B, V, V]: the indices (i, j) are made in the graph, or lie in a buffer.
TAKEN = {
    "buffer": lambda z, pairs, buffer: z[:, buffer[0], buffer[1]],
    "literal": lambda z, pairs, buffer: z[:, torch.tensor(LISTS[pairs][z.shape[1]][0]),
                                          torch.tensor(LISTS[pairs][z.shape[1]][1])],
    "in_graph": lambda z, pairs, buffer: z[:, (at := PAIRS[pairs](z.shape[1]))[0], at[1]],
    "flat": lambda z, pairs, buffer: z.flatten(1)[:, buffer[0] * z.shape[1] + buffer[1]],
    "gathered": lambda z, pairs, buffer: z.flatten(1).index_select(1, buffer[0] % z.shape[1] * z.shape[1]
                                                                    + buffer[1] % z.shape[1]),
    "int32": lambda z, pairs, buffer: z[:, buffer[0].int(), buffer[1].int()],
    "rows_first": lambda z, pairs, buffer: z[:, buffer[0]][:, torch.arange(len(buffer[1])), buffer[1]],
    "written_buffer": lambda z, pairs, buffer: z[:, (at := buffer.clone().sub_(0))[0], at[1]],
}
LISTS = {name: {n: make(n).tolist() for n in range(2, 9)} for name, make in PAIRS.items()}
BESIDE = {
    "dense_first": lambda x, vs, pairs: [x, pairs],
    "pairs_first": lambda x, vs, pairs: [pairs, x],
    "bag_behind": lambda x, vs, pairs: [x, pairs, vs[0]],
    "bag_before": lambda x, vs, pairs: [vs[0], pairs],
    "alone": lambda x, vs, pairs: [pairs],
    "twice": lambda x, vs, pairs: [x, pairs, pairs],
    "dense_around": lambda x, vs, pairs: [x, pairs, x],
    "dense_halved": lambda x, vs, pairs: [x * 0.5, pairs],
    "bags_too": lambda x, vs, pairs: [x, *vs, pairs],
}


@dataclass
class Pass:
    """One forward: what it returns beside its result, and what is written to at its next place."""

    more: list[Tensor]
    later: list[Tensor]


def read(value: Tensor, run: Pass) -> Tensor:
    run.more.append(value.sum())
    return value


def returned(value: Tensor, run: Pass) -> Tensor:
    run.more.append(value)
    return value


def view_returned(value: Tensor, run: Pass) -> Tensor:
    run.more.append(value.view(-1)[:1])
    return value


def zeroed_later(value: Tensor, run: Pass) -> Tensor:
    run.later.append(value)
    return value


def hooked(value: Tensor, run: Pass) -> Tensor:
    if value.requires_grad:
        value.register_hook(lambda gradient: gradient * 2)
    return value


# What may happen to a value [B, N] at a place of the model.
EVENTS = {
    "read": read,
    "returned": returned,
    "view_returned": view_returned,
    "zeroed_later": zeroed_later,
    "hooked": hooked,
    "scaled": lambda v, run: v * 2,
    "scaled_in_place": lambda v, run: v.mul_(0.5),
    "relu_": lambda v, run: F.relu(v, inplace=True),
    "relu": lambda v, run: torch.relu(v),
    "shifted": lambda v, run: v + 1,
    "detached": lambda v, run: v.detach(),
    "cloned": lambda v, run: v.clone(),
    "viewed": lambda v, run: v.view(v.shape),
    "sliced": lambda v, run: v[:],
    "rows_without_the_first": lambda v, run: torch.cat([v[:1], v[1:]]),
    "transposed_twice": lambda v, run: v.t().t(),
    "contiguous": lambda v, run: v.contiguous(),
    "in_columns": lambda v, run: v.t().contiguous().t(),
    "double": lambda v, run: v.double().to(v.dtype),
    "bfloat16": lambda v, run: v.bfloat16().to(v.dtype),
    "flipped": lambda v, run: v.flip(0),
    "columns_flipped": lambda v, run: v.flip(1),
    "normalised": lambda v, run: F.normalize(v),
    "normed": lambda v, run: F.layer_norm(v, v.shape[1:]),
    "dropped": lambda v, run: F.dropout(v, 0.5),
    "not_dropped": lambda v, run: F.dropout(v, 0.5, training=False),
    "one_column_of_ones": lambda v, run: torch.cat([v[:, :-1], torch.ones_like(v[:, :1])], 1),
    "column_written": lambda v, run: v.index_fill(1, torch.tensor([0]), 1.0),
    "first_column_zeroed": lambda v, run: [v := v.clone(), v[:, 0].zero_()][0],
    "to_float64": lambda v, run: v.double(),
}
PLACES = ("dense", "hidden", "vector", "bag", "products", "interaction", "top_hidden", "out")
STAGES = ("bottom", "look_ups", "interaction", "top")


def by_checkpoint(function: Callable) -> Callable:
    return lambda *values: checkpoint(function, *values, use_reentrant=False)


def within(context: Callable) -> Callable:
    def wrap(function: Callable) -> Callable:
        def wrapped(*values):
            with context():
                return function(*values)

        return wrapped

    return wrap


AROUND = {
    "no_grad": within(torch.no_grad),
    "enable_grad": within(torch.enable_grad),
    "autocast": within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "no_autocast": within(lambda: torch.autocast("cpu", torch.bfloat16, enabled=False)),
    "checkpoint": by_checkpoint,
    "nothing": within(contextlib.nullcontext),
}
