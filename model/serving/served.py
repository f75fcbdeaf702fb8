"""What serves a trained DLRM: raw counts and raw ids in, click probabilities out.

    counts [B, 13], ids [B, F]          → probabilities [B]        one id a feature
    counts [B, 13], ids [N], offsets    → probabilities [B]        bags of ids, whose embeddings are summed or averaged

Training reads counts and ids through `data.criteo` and the hashes of `model.hashing`; all of that is in here, so that
what serves the model sees what trained it. The ids of all features are in one `kernels.IdTable`, and a look-up in all
tables is one operation, so that the module can be exported with any batch size (`model.export`).
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import IdTable, expand_table_ids, table_lookup
from model.dlrm import DLRM
from model.hashing import Hash, TableHash

POOLINGS = ("none", "sum", "mean")
STORAGE = ("tags", "slots", "bucket_offsets", "seeds")  # of an IdTable


class Served(nn.Module):
    """A DLRM from raw inputs to probabilities.

    Args:
        dlrm: on the CPU, with batched tables (`DLRM.from_checkpoint` gives such a one).
        pooling: "none" for one id a feature; "sum" (what DLRM trains with) or "mean" for bags.

    An id that its feature does not know (missing, unknown, negative, larger than any) has row 0, which training gave to
    missing and unknown ids; with Hash.MODULUS every id has a row. An empty bag gives zeros.
    """

    def __init__(self, dlrm: DLRM, pooling: str = "none") -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}; got {pooling!r}")
        self.pooling, self.modulus = pooling, dlrm.config.hash is Hash.MODULUS
        self.features, self.hash_size = len(dlrm.config.cardinalities), dlrm.hash_size
        sparse = dlrm.sparse_arch
        self.dense_arch, self.interaction_arch, self.over_arch = dlrm.dense_arch, dlrm.interaction_arch, dlrm.over_arch
        self.heights_of_tables = tuple(sparse.tables.rows)  # each has a row for unknown ids
        self.register_buffer("rows", sparse.tables.weight.detach())
        self.register_buffer("first_rows", sparse.tables.starts)
        if self.modulus:
            self.register_buffer("moduli", sparse.moduli)
        else:
            self.known = [_known(of_feature) for of_feature in sparse.hashes]  # int64 [n] each, by their rows, from 1
            self._add_table()

    def forward(self, counts: Tensor, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        """The click probabilities, float32 [B].

        Args:
            counts: float32 [B, 13] as the log has them, NaN where one is missing; below 0 counts as 0.
            ids: int64 [B, F], or with offsets int64 [N], the ids of all bags.
            offsets: with pooling, int64 [F B + 1]: bag f B + b, feature f of row b, are the ids from offsets[f B + b]
                up to the next one; 0 first, N last, never falling. Others read nothing outside of ids.
        """
        embeddings = self._embeddings(ids, offsets, counts.shape[0])
        features = self.interaction_arch(self.dense_arch(as_trained(counts)), embeddings)
        return torch.sigmoid(self.over_arch(features).squeeze(1))

    def exactly(self, counts: Tensor, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        """`forward` with all that is computed in float64: what an export's error is measured against. → float64 [B]."""
        embeddings = self._embeddings(ids, offsets, counts.shape[0], torch.float64)
        dense, interaction, over = (
            copy.deepcopy(arch).double() for arch in (self.dense_arch, self.interaction_arch, self.over_arch)
        )
        return torch.sigmoid(over(interaction(dense(as_trained(counts.double())), embeddings)).squeeze(1))

    def _embeddings(
        self, ids: Tensor, offsets: Tensor | None, batch: int, dtype: torch.dtype | None = None
    ) -> Tensor:
        """[B, F, D]. dtype: in which they are added up, by default the tables'."""
        if self.pooling == "none":
            embeddings = F.embedding(self._rows(ids) + self.first_rows, self.rows)
            return embeddings if dtype is None else embeddings.to(dtype)
        return self._pooled(ids, offsets, batch, dtype)

    def _add_table(self) -> None:
        """What looks the known ids up."""
        for name, tensor in zip(STORAGE, IdTable(self.known).storage(), strict=True):
            self.register_buffer(name, tensor)
        heights = [len(ids) + 1 for ids in self.known]
        self.register_buffer("heights", torch.tensor(heights))
        self.register_buffer("feature", torch.arange(self.features, dtype=torch.int32))

    def _rows(self, ids: Tensor) -> Tensor:
        """ids int64 [B, F] → rows int64 [B, F], each of its feature's table; 0 for an unknown id."""
        ids = self._hashed(ids)
        return (ids + 1) % self.moduli if self.modulus else self._known_rows(ids)

    def _known_rows(self, ids: Tensor) -> Tensor:
        """The same, of the features' tables of ids."""
        return self._look_up(ids, self.feature.expand(ids.shape))

    def _hashed(self, ids: Tensor) -> Tensor:
        """As data.preprocess --hash-size did; a missing id stays missing."""
        return torch.where(ids >= 0, ids % self.hash_size, ids) if self.hash_size else ids

    def _pooled(self, ids: Tensor, offsets: Tensor, batch: int, dtype: torch.dtype | None = None) -> Tensor:
        """[B, F, D]"""
        ids = self._hashed(ids)
        feature = expand_table_ids(offsets, None, self.features, batch, ids.shape[0])
        safe = feature.clamp(min=0).long()
        rows = (ids + 1) % self.moduli[safe] if self.modulus else self._look_up(ids, feature)
        bounds = offsets.clamp(0, ids.shape[0]).cummax(0).values
        rows, table = rows + self.first_rows[safe], self.rows
        if dtype is not None:  # only what is looked up is converted: tables may fill half of the memory
            used, rows = rows.unique(return_inverse=True)
            table = table[used].to(dtype)
        bags = F.embedding_bag(rows, table, bounds, mode=self.pooling, include_last_offset=True)
        return bags.view(self.features, batch, self.rows.shape[1]).transpose(0, 1)

    def _look_up(self, ids: Tensor, feature: Tensor) -> Tensor:
        feature = feature.contiguous()
        _, rows = table_lookup(self.tags, self.slots, self.bucket_offsets, self.seeds, ids, feature)
        # Another table of ids may be put in this one's place; what it knows beyond the trained rows has none.
        return torch.where(rows < self.heights[feature.clamp(min=0)], rows, 0)


def as_trained(counts: Tensor) -> Tensor:
    """Raw counts [B, 13] as training had them."""
    return torch.log1p(torch.nan_to_num(counts, nan=0.0, posinf=torch.inf).clamp(min=0))


def _known(exact: nn.Module) -> Tensor:
    """The ids of a hash that knows some, by their rows, from 1."""
    return exact.state()["known"] if isinstance(exact, TableHash) else exact.known
