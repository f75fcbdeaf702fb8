"""The tables that EmbeddingBags is made of, as a model has them: what they must be, and what they have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...dispatch import checks
from ...dispatch.address import address
from ...hooks import has_hooks

# The attributes of a module that would be lost, their neutral values, and what to do instead.
REFUSED = {
    "sparse": (False, "the gradient is dense: set sparse=False, or train by embedding_bags_sgd_ and its like, "
               "which make none"),
    "max_norm": (None, "rows are not renormalised: do that yourself, and set max_norm=None"),
    "scale_grad_by_freq": (False, "gradients are not scaled: set scale_grad_by_freq=False"),
}  # fmt: skip


@dataclass(frozen=True)
class Tables:
    """weights: F of [R_f, D], of one D, dtype and device, detached."""

    weights: list[Tensor]
    mode: str
    padding_idx: int | None
    requires_grad: bool

    def joined(self) -> Tensor:
        """A copy, [all rows, D]."""
        return torch.cat(self.weights)


def read(op: str, tables: object, mode: str | None, padding_idx: int | None) -> Tables:
    """What the tables have in common. Raises TypeError or ValueError for what they have not."""
    if isinstance(tables, Tensor | str | Mapping | nn.ModuleDict) or not hasattr(tables, "__iter__"):
        raise TypeError(
            f"{op}: tables must be a sequence of nn.Embedding, nn.EmbeddingBag or tensors; got {type(tables).__name__}"
        )
    tables = list(tables)
    if not tables:
        raise ValueError(f"{op}: tables must be one or more; got none")
    for f, table in enumerate(tables):
        _check(op, f"tables[{f}]", table)
    weights = [table if isinstance(table, Tensor) else table.weight for table in tables]
    for f, weight in enumerate(weights):
        checks.has_dtype(op, f"tables[{f}]", weight)
        if weight.dim() != 2 or weight.shape[1] != weights[0].shape[1]:
            expected = f"[R, {weights[0].shape[1]}], as tables[0] has" if weights[0].dim() == 2 else "[R, D]"
            raise ValueError(f"{op}: tables[{f}] must have shape {expected}; got {list(weight.shape)}")
        checks.belongs_to(op, f"tables[{f}]", weight, "tables[0]", weights[0], weight.shape)
        for other, before in enumerate(weights[:f]):
            if before is weight or (address(before) is not None and address(before) == address(weight)):
                raise ValueError(
                    f"{op}: tables[{f}] must not be tables[{other}] again, since each would have a copy of its own; "
                    "embedding_bags_apart takes one table for several features"
                )
    modules = {f: table for f, table in enumerate(tables) if isinstance(table, nn.Module)}
    modes = {f: table.mode for f, table in modules.items() if isinstance(table, nn.EmbeddingBag)}
    common_mode = _common(op, "mode", mode, modes) or "sum"
    checks.is_one_of(op, "mode", common_mode, ("sum", "mean", "max"))
    own = {f: table.padding_idx for f, table in modules.items()}
    if padding_idx is not None and (padding_idx := checks.integer(op, "padding_idx", padding_idx)) == -1:
        padding_idx = None
    padding = _common(op, "padding_idx", padding_idx, own)
    if padding is not None:
        for f, table in modules.items():
            if isinstance(table, nn.Embedding) and not table.weight.is_meta and table.weight[padding].any():
                raise ValueError(
                    f"{op}: tables[{f}] is an nn.Embedding, which gives row {padding}, its padding_idx: this must be "
                    "zeros, since bags leave it out"
                )
    gradients = {f: weight.requires_grad for f, weight in enumerate(weights) if f in modules}
    needs = _common(op, "requires_grad", None, gradients) if gradients else True
    return Tables([weight.detach() for weight in weights], common_mode, padding, needs)


def _check(op: str, name: str, table: object) -> None:
    """A plain module without what would be lost, or a tensor."""
    if isinstance(table, Tensor):
        return
    if type(table) not in (nn.Embedding, nn.EmbeddingBag):
        kind = type(table).__name__
        hint = ", a subclass, which may compute otherwise: give its weight" * isinstance(
            table, nn.Embedding | nn.EmbeddingBag
        )
        raise TypeError(f"{op}: {name} must be an nn.Embedding, an nn.EmbeddingBag or a tensor; got {kind}{hint}")
    if has_hooks(table) or "weight" not in table._parameters or table.weight._backward_hooks:
        raise ValueError(
            f"{op}: {name} must not have hooks, a forward of its own or a weight that is computed, since they would be "
            "lost: remove them, or give its weight"
        )
    for attribute, (neutral, instead) in REFUSED.items():
        if (value := getattr(table, attribute)) != neutral:
            raise ValueError(f"{op}: {name} must not have {attribute}={value}, since {instead}")


def _common(op: str, name: str, argument: object, of_tables: Mapping[int, object]) -> object:
    """The argument's value, or that of all tables, by their numbers; ValueError where one differs."""
    expected, owner = argument, f"the argument {name}"
    for f, value in of_tables.items():
        if argument is None and f == next(iter(of_tables)):
            expected, owner = value, f"tables[{f}]"
        if value != expected:
            raise ValueError(
                f"{op}: all tables must have one {name}; {owner} has {expected!r}, tables[{f}] has {value!r}"
            )
    return expected
