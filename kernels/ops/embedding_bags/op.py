"""embedding_bags: the declaration, and the public functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernels.dispatch import checks
from kernels.dispatch.op import Op, like
from kernels.ops.embedding_bags import eager

INTEGERS = (torch.int32, torch.int64)
MODES = ("sum", "mean", "max")
OUT_OF_RANGE = ("error", "zero", "count")


def check(
    op: str,
    tables: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    mode: str = "sum",
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
    out_of_range: str = "error",
) -> None:
    """Raise for what is wrong with types, dtypes, shapes and devices; of values the kernels take care."""
    checks.has_dtype(op, "tables", tables)
    if tables.dim() != 2:
        raise ValueError(f"{op}: tables must have shape [R, D]; got {list(tables.shape)}")
    for name, tensor in (("row_offsets", row_offsets), ("indices", indices), ("offsets", offsets)):
        if tensor is not None:
            checks.has_dtype(op, name, tensor, INTEGERS[1:] if name == "row_offsets" else INTEGERS)
            if tensor.device != tables.device:
                raise ValueError(f"{op}: {name} must be on tables's device, {tables.device}; got {tensor.device}")
    if row_offsets.dim() != 1 or not len(row_offsets):
        raise ValueError(f"{op}: row_offsets must have shape [F + 1]; got {list(row_offsets.shape)}")
    features = len(row_offsets) - 1
    if offsets is None:
        if indices.dim() != 2 or indices.shape[1] != features:
            raise ValueError(
                f"{op}: indices must have shape [B, {features}], for row_offsets of shape [{features + 1}]; got "
                f"{list(indices.shape)}"
            )
    else:
        if indices.dim() != 1:
            raise ValueError(f"{op}: indices must have shape [N], since there are offsets; got {list(indices.shape)}")
        bags = offsets.numel() - 1
        if offsets.dim() != 1 or bags < 0 or (bags % features if features else bags):
            raise ValueError(f"{op}: offsets must have shape [{features} · B + 1]; got {list(offsets.shape)}")
    checks.is_one_of(op, "mode", mode, MODES)
    checks.is_one_of(op, "out_of_range", out_of_range, OUT_OF_RANGE)
    if per_sample_weights is not None:
        checks.belongs_to(op, "per_sample_weights", per_sample_weights, "tables", tables, indices.shape)
        if mode != "sum":
            raise ValueError(f"{op}: mode must be sum, since there are per_sample_weights; got {mode}")


def _output(given: Mapping[str, object]) -> tuple[Sequence[int], torch.dtype]:
    tables, features = given["tables"], len(given["row_offsets"]) - 1
    offsets, indices = given["offsets"], given["indices"]
    rows = indices.shape[0] if offsets is None else (len(offsets) - 1) // max(features, 1)
    return (rows, features, tables.shape[1]), tables.dtype


OP = Op(
    "embedding_bags",
    "(Tensor tables, Tensor row_offsets, Tensor indices, Tensor? offsets, str mode, Tensor? per_sample_weights, "
    "int padding_idx, str out_of_range) -> Tensor out",
    eager=eager.embedding_bags,
    check=check,
    outputs={"out": _output},
    saves=("tables", "row_offsets", "indices", "offsets", "per_sample_weights"),
    gradients={"tables": like("tables"), "per_sample_weights": like("per_sample_weights")},
)


def embedding_bags(
    tables: Tensor,
    row_offsets: Tensor,
    indices: Tensor,
    offsets: Tensor | None = None,
    mode: str = "sum",
    per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
    out_of_range: str = "error",
    *,
    backend: str = "auto",
) -> Tensor:
    """Pooled look-ups in F tables → [B, F, D]."""
    padding = -1 if padding_idx is None else padding_idx
    return OP.call("eager", tables, row_offsets, indices, offsets, mode, per_sample_weights, padding, out_of_range)


def check_ids(device: torch.device | str | None = None, *, wait: bool = False) -> None:
    """Raise IndexError for an id that was out of range in a call that has finished."""


def out_of_range_count(device: torch.device | str | None = None) -> int:
    """How many ids were out of range in calls with out_of_range="count" that have finished."""
    return 0
