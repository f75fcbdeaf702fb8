"""TableEmbedding: from raw ids to pooled rows, as inference does it: IdTable's look-up, then the rows' own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...derived import Derived
from ...dispatch import checks
from ...dtypes import INTEGERS
from .op import expand_table_ids
from .table import IdTable

MODES = ("none", "sum", "mean")


class TableEmbedding(Derived):
    """Raw ids → rows of embedding tables, each summed or averaged by bag if that is wanted.

    Args:
        table: the ids of T tables.
        weights: for each table its rows [n, D], all of one D and floating dtype; row 0 stands for no id and is never
            read, so n may be 0.
        feature_tables: the table of each of F features, in any order; features may share one. Default: one each.
        mode: "none", "sum" or "mean".

    An id that its table does not have, or whose row lies beyond its weights, counts as zeros, and in a mean not at all.
    Sums are in float32 (float64 of float64), in the order of the keys. For inference: weights have no gradient.
    """

    def __init__(
        self,
        table: IdTable,
        weights: Sequence[Tensor],
        *,
        feature_tables: Sequence[int] | None = None,
        mode: str = "none",
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}; got {mode!r}")
        if len(weights) != table.num_tables or not weights:
            raise ValueError(f"weights must be {table.num_tables or 'some'} tensors, one a table; got {len(weights)}")
        for number, weight in enumerate(weights):
            checks.is_tensor("TableEmbedding", f"weights[{number}]", weight)
            checks.has_dtype("TableEmbedding", f"weights[{number}]", weight)
            if weight.dim() != 2 or weight.shape[1] != weights[0].shape[1] or weight.dtype != weights[0].dtype:
                raise ValueError(
                    f"weights[{number}] must be [n, D], of one D and dtype for all; got {list(weight.shape)}, "
                    f"{checks.plain(weight.dtype)}, beside {list(weights[0].shape)}, {checks.plain(weights[0].dtype)}"
                )
        features = [*range(table.num_tables)] if feature_tables is None else [*feature_tables]
        if unknown := [t for t in features if not 0 <= t < table.num_tables]:
            raise ValueError(f"feature_tables must be from 0 to {table.num_tables - 1}; got {unknown[0]}")
        self.table, self.mode = table, mode
        device = table.seeds.device
        rows = torch.cat([*weights])
        rows = rows if len(rows) else rows.new_zeros(1, rows.shape[1])  # there must be one to read for a miss
        self.weights = nn.Parameter(rows.to(device), requires_grad=False)
        heights = [len(w) for w in weights]
        first_rows = [0, *itertools.accumulate(heights)][:-1]
        self.derive("weights", heights=heights, first_rows=first_rows, feature_tables=features)

    def forward(self, keys: Tensor, offsets: Tensor | None = None) -> Tensor:
        """keys int32 or int64 → rows.

        Without offsets, in mode "none" only: keys [B, F] → [B, F, D]. With offsets int32 or int64 [F · B + 1], where
        bag f · B + b of the keys [N] begins: [N, D] in mode "none", else [B, F, D].

        On a GPU nobody waits to look at offsets: those that decrease, or do not go from 0 to N, read nothing outside
        and give misses, or another bag's rows. `check_offsets` looks at them.

        Raises:
            TypeError: what is no tensor, or no tensor of integers. ValueError: pooling without offsets; shapes that do
                not fit; on a CPU, if it is not compiled, offsets that decrease, or do not go from 0 to N, with the
                position.
        """
        for name, tensor in (("keys", keys), ("offsets", offsets)):
            if tensor is not None:
                checks.is_tensor("TableEmbedding", name, tensor)
                checks.has_dtype("TableEmbedding", name, tensor, INTEGERS)
        features = len(self.feature_tables)
        if offsets is None:
            if self.mode != "none":
                raise ValueError(f'mode "{self.mode}" needs offsets, which say where each bag begins')
            if keys.dim() != 2 or keys.shape[1] != features:
                raise ValueError(f"keys must be [B, {features}] without offsets; got {list(keys.shape)}")
            values, _ = self._rows(keys, self.feature_tables.expand(keys.shape))
            return values.to(self.weights.dtype)
        if keys.dim() != 1 or offsets.dim() != 1 or not features or (len(offsets) - 1) % features:
            raise ValueError(
                f"keys must be [N], and offsets [{features} · B + 1]; got {list(keys.shape)} and {list(offsets.shape)}"
            )
        if offsets.device.type == "cpu" and not torch.compiler.is_compiling():
            check_offsets(offsets, len(keys))
        batch_size = (len(offsets) - 1) // features
        # By feature, and from there to its table: so features need not be sorted by table.
        feature = expand_table_ids(offsets, None, features, batch_size, len(keys)).long()
        tables = torch.where(feature >= 0, self.feature_tables[feature.clamp(min=0)], -1)
        values, found = self._rows(keys, tables)
        if self.mode == "none":
            return values.to(self.weights.dtype)
        begins = offsets.long().clamp(0, len(keys)).cummax(0).values  # whatever they are, nothing is read outside
        sums = torch.segment_reduce(values, "sum", offsets=begins, initial=0)
        if self.mode == "mean":
            counts = torch.segment_reduce(found.to(values.dtype), "sum", offsets=begins, initial=0)
            sums = sums / counts.clamp(min=1)[:, None]
        return sums.view(features, batch_size, values.shape[1]).transpose(0, 1).contiguous().to(self.weights.dtype)

    def _rows(self, keys: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        """(values [..., D] in the dtype of sums, found [...]) of the keys of these tables, -1 for none."""
        found, rows = self.table(keys, tables)
        safe = tables.clamp(min=0)
        found = found & (rows < self.heights[safe])
        values = self.weights[torch.where(found, self.first_rows[safe] + rows, 0)]
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        return torch.where(found[..., None], values, 0), found


def check_offsets(offsets: Tensor, count: int) -> None:
    """Raise ValueError, with the position, unless offsets rise from 0 to count. It waits for a GPU."""
    falls = (offsets[1:] < offsets[:-1]).nonzero()
    if int(offsets[0]) != 0:
        raise ValueError(f"offsets[0] must be 0; got {int(offsets[0])}")
    if len(falls):
        at = int(falls[0])
        raise ValueError(f"offsets[{at + 1}] = {int(offsets[at + 1])} is below offsets[{at}] = {int(offsets[at])}")
    if int(offsets[-1]) != count:
        raise ValueError(f"offsets[{len(offsets) - 1}] must be the number of keys, {count}; got {int(offsets[-1])}")
