"""DLRM, Meta's recommendation model (Naumov et al. 2019, https://arxiv.org/abs/1906.00091).

    dense [B, 13]  → DenseArch  → [B, D]    ┐
                                            ├→ InteractionArch → [B, I] → OverArch → logit [B]
    sparse [B, F]  → SparseArch → [B, F, D] ┘

B rows, F sparse features (one embedding table each), D the embedding width. The names are those of torchrec's
models/dlrm.py; the initial weights and the order of the interaction are those of facebookresearch/dlrm.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.cli import UserError
from model import fused
from model.arches import DenseArch, InteractionArch, OverArch
from model.checkpoints import first_line, load_whole
from model.config import DLRMConfig, Kernels
from model.hashing import Hash, ModulusHash, SortedHash, make_hash
from model.tables import BatchedTables, FusedTables, load_either_layout, separate_tables


def modulus_rows(ids: Tensor, moduli: Tensor) -> Tensor:
    """The rows that ids int64 [B, F] stand for, as each ModulusHash says. moduli: int64 [F]."""
    return (ids + 1) % moduli


class SparseArch(nn.Module):
    """Hash and embedding table for each of F features: ids → [B, F, D].

    Table f has cardinalities[f] + 1 rows, initialised uniformly in ±1/sqrt(rows), as facebookresearch/dlrm's create_emb
    does. With dense gradients each table is an `nn.Embedding`; with sparse ones they are `BatchedTables`, and with
    fused kernels, whose tables have no gradient, `FusedTables`. tables: in their place, and then none are made.
    """

    modulus_rows = staticmethod(modulus_rows)  # or the same compiled: `hashing_by`

    def __init__(
        self, config: DLRMConfig, vocabularies: Sequence[np.ndarray | Tensor] | None = None,
        tables: BatchedTables | None = None,
    ):
        super().__init__()
        self.hashes = nn.ModuleList(
            make_hash(config.hash, cardinality, None if vocabularies is None else vocabularies[f])
            for f, cardinality in enumerate(config.cardinalities)
        )
        fused = config.kernels is Kernels.FUSED
        batched = fused or config.sparse_gradients
        if config.hash is Hash.MODULUS and batched:
            # For all features at once. Not persistent: they follow from the cardinalities.
            moduli = torch.tensor([max(cardinality, 1) for cardinality in config.cardinalities])
            self.register_buffer("moduli", moduli, persistent=False)
        if tables is None:
            make = FusedTables if fused else BatchedTables if batched else separate_tables
            tables = make([cardinality + 1 for cardinality in config.cardinalities], config.embedding_dim)
        self.tables = tables
        self.register_load_state_dict_pre_hook(load_either_layout)

    def forward(self, sparse: Tensor, offsets: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """One id a feature, or bags of ids.

        Args:
            sparse: without offsets int64 [B, columns ≥ F], of which the first F columns are used (a small model runs on
                full batches); with offsets int64 [N], the ids of all bags.
            offsets: int64 [F B + 1], 0 first and N last: bag f B + b, feature f of row b, is
                sparse[offsets[f B + b] : offsets[f B + b + 1]] (the layout of torchrec's KeyedJaggedTensor).
                A bag's embeddings are summed; an empty bag gives zeros.
            batch_size: B, with offsets.

        The bags of a feature are a slice whose bounds the host must know, so offsets cost one device synchronisation.
        """
        if offsets is None:
            if isinstance(self.tables, BatchedTables):
                return self.tables(self.rows(sparse))
            rows = [hash_(sparse[:, f]) for f, hash_ in enumerate(self.hashes)]
            return torch.stack([table(row) for table, row in zip(self.tables, rows, strict=True)], dim=1)
        rows, bounds = self.rows_of_bags(sparse, offsets, batch_size)
        if isinstance(self.tables, BatchedTables):
            return self.tables.pooled(rows, offsets)
        pooled = []
        for f, table in enumerate(self.tables):
            own_offsets = offsets[f * batch_size : (f + 1) * batch_size + 1] - bounds[f]
            pooled.append(F.embedding_bag(rows[f], table.weight, own_offsets, mode="sum", include_last_offset=True))
        return torch.stack(pooled, dim=1)

    def rows(self, sparse: Tensor) -> Tensor:
        """The rows of `BatchedTables` that the ids of int64 [B, columns ≥ F] stand for: int64 [B, F]."""
        if isinstance(self.hashes[0], ModulusHash):
            return self.modulus_rows(sparse[:, : len(self.hashes)], self.moduli)
        return torch.stack([hash_(sparse[:, f]) for f, hash_ in enumerate(self.hashes)], dim=1)

    def rows_of_bags(self, sparse: Tensor, offsets: Tensor, batch_size: int) -> tuple[list[Tensor], list[int]]:
        """The rows that the ids of bags, int64 [N], stand for, by features, and where those of each begin and end."""
        bounds = self._bounds(sparse, offsets, batch_size)
        rows = [hash_(sparse[begin:end]) for hash_, (begin, end) in zip(self.hashes, pairwise(bounds), strict=True)]
        return rows, bounds

    def rows_on_cpu(self, sparse: Tensor) -> Tensor:
        """The same on a CPU, outside of what is compiled or exported: the ids a feature at a time."""
        if not isinstance(self.hashes[0], SortedHash):
            return self.rows(sparse)
        columns = np.ascontiguousarray(sparse[:, : len(self.hashes)].T.numpy())
        rows = [hash_.of_column(column) for hash_, column in zip(self.hashes, columns, strict=True)]
        return torch.from_numpy(np.stack(rows, axis=1))

    def table(self, feature: int) -> Tensor:
        """The weights of a feature's table, [rows, D], without gradients."""
        if isinstance(self.tables, BatchedTables):
            return self.tables.weight.detach().split(self.tables.rows)[feature]
        return self.tables[feature].weight.detach()

    def _bounds(self, values: Tensor, offsets: Tensor, batch_size: int) -> list[int]:
        """Where the ids of each feature begin and end in values: F + 1 numbers."""
        first_bags = torch.arange(len(self.hashes) + 1, device=offsets.device) * batch_size
        decreasing = (offsets.diff() < 0).any()
        *bounds, falls = torch.cat([offsets[first_bags], decreasing.long().unsqueeze(0)]).tolist()
        if falls or bounds[0] != 0 or bounds[-1] != values.numel():
            shape = "decreasing numbers" if falls else f"{bounds[0]} … {bounds[-1]}"
            raise ValueError(f"offsets: expected 0 … {values.numel()} (the number of ids), never falling, got {shape}")
        return bounds


@contextmanager
def hashing_by(model: nn.Module, rows: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
    """Within it the model's SparseArches call this in `modulus_rows`' place."""
    arches = [module for module in model.modules() if isinstance(module, SparseArch)]
    for arch in arches:
        arch.modulus_rows = rows
    try:
        yield
    finally:
        for arch in arches:
            del arch.modulus_rows


class DLRM(nn.Module):
    """The click model.

    Args:
        config: its shape; cardinalities must be known (`DLRMConfig.with_metadata`).
        vocabularies: for the index hashes, the known ids of each table: int64 [cardinality] each, most frequent first
            (`DLRMConfig.vocabularies`). The modulus hash needs none.
        sparse_arch: makes the sparse arch of config and vocabularies: where the tables are not all in this process,
            model.sharding's.

    Raises ValueError, naming the argument, for vocabularies that are absent or do not fit the cardinalities.
    """

    # What raw ids, but for missing ones, are taken modulo before the model gets them: as data.preprocess did for the
    # rows that it was trained on. 0: nothing.
    hash_size = 0
    # What the schema of those rows says, as `data.schema.schema_of` takes it; None: they are Criteo's.
    schema: dict | None = None

    def __init__(
        self, config: DLRMConfig, vocabularies: Sequence[np.ndarray | Tensor] | None = None,
        sparse_arch: Callable[..., SparseArch] = SparseArch,
    ):
        super().__init__()
        num_features = len(config.cardinalities)
        if not num_features:
            raise ValueError("cardinalities: expected one number a sparse feature, got none (see with_metadata)")
        if config.hash is Hash.MODULUS:
            vocabularies = None
        elif vocabularies is None:
            raise ValueError(f"vocabularies: hash {config.hash} needs the known ids of every table, got None")
        elif (lengths := tuple(map(len, vocabularies))) != config.cardinalities:
            raise ValueError(f"vocabularies: expected lengths {config.cardinalities} (cardinalities), got {lengths}")
        self.config = config
        dense_arch, interaction_arch, over_arch = DenseArch, InteractionArch, OverArch
        if config.kernels is Kernels.FUSED:
            dense_arch, interaction_arch = fused.FusedDenseArch, fused.FusedInteractionArch
            over_arch = fused.FusedOverArch
        self.dense_arch = dense_arch(config.bottom)
        self.sparse_arch = sparse_arch(config, vocabularies)
        self.interaction_arch = interaction_arch(config.interaction, num_features, config.embedding_dim)
        self.over_arch = over_arch(self.interaction_arch.out_features, config.top)

    @classmethod
    def from_checkpoint(cls, path: str | Path, kernels: Kernels = Kernels.EAGER) -> Self:
        """The model that `model.train` wrote, on the CPU, in eval mode and without gradients, by these kernels.

        UserError, naming the file, for what is no checkpoint of this version, or one of another model than it says.
        """
        state = load_whole(path)
        try:
            config = replace(DLRMConfig(**state["config"]["model"]), kernels=kernels, sparse_gradients=True)
            parameters = state["parameters"]
            known = None
            if config.hash is not Hash.MODULUS:
                known = [parameters[f"sparse_arch.hashes.{f}.known"] for f in range(len(config.cardinalities))]
            dlrm = cls(config, known)
            dlrm.load_state_dict(parameters)
            dlrm.hash_size, dlrm.schema = state["config"].get("hash_size", 0), state["config"].get("schema")
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"{path}: not a usable checkpoint: {first_line(error)}") from None
        return dlrm.eval().requires_grad_(False)

    def forward(self, dense: Tensor, sparse: Tensor, offsets: Tensor | None = None) -> Tensor:
        """The logits, float32 [B]; the probability of a click is their sigmoid.

        Args:
            dense: float32 [B, 13] (the weights' dtype, if the model was cast).
            sparse: int64 [B, ≥ F] ids, one a feature, or, with offsets, int64 [N], the ids of all bags.
            offsets: int64 [F B + 1], the bags' bounds, feature by feature; see `SparseArch.forward`.

        Raises ValueError for a wrong shape or dtype. Without offsets nothing here waits for the device.
        """
        self._check(dense, sparse, offsets)
        if offsets is None and type(self.sparse_arch) is SparseArch and fused.is_whole(self, dense):
            return fused.whole(self, dense, self.sparse_arch.rows(sparse)).squeeze(1)
        if offsets is None and type(self.sparse_arch) is SparseArch and fused.trains_whole(self, dense):
            return fused.train_whole(self, dense, self.sparse_arch.rows(sparse)).squeeze(1)
        if type(self.sparse_arch) is SparseArch and fused.looks_up(self, dense, offsets is not None):
            if offsets is None:
                rows = self.sparse_arch.rows(sparse)
            else:
                rows = torch.cat(self.sparse_arch.rows_of_bags(sparse, offsets, dense.shape[0])[0])
            return self.over_arch(fused.look_up(self, self.dense_arch(dense), rows, offsets)).squeeze(1)
        return self._logits(dense, self.sparse_arch(sparse, offsets, dense.shape[0]))

    def of_rows(self, dense: Tensor, rows: Tensor) -> Tensor:
        """`forward` of the ids of which these are the rows, as `SparseArch.rows` and `rows_on_cpu` give them."""
        return self._logits(dense, self.sparse_arch.tables(rows))

    def _logits(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        features = self.interaction_arch(self.dense_arch(dense), embeddings)
        return self.over_arch(features).squeeze(1)

    @torch.no_grad()
    def predict(self, dense: Tensor, sparse: Tensor, offsets: Tensor | None = None) -> Tensor:
        """The click probabilities, float32 [B], without gradients; the arguments are those of `forward`."""
        return torch.sigmoid(self(dense, sparse, offsets))

    def _check(self, dense: Tensor, sparse: Tensor, offsets: Tensor | None) -> None:
        inputs, features = self.config.bottom[0], len(self.config.cardinalities)
        dtype = next(self.over_arch.parameters()).dtype
        if dense.dim() != 2 or dense.shape[1] != inputs or dense.dtype != dtype:
            raise ValueError(f"dense: expected {dtype} [B, {inputs}], got {dense.dtype} {list(dense.shape)}")
        rows = dense.shape[0]
        if offsets is None:
            shape_fits = sparse.dim() == 2 and sparse.shape[0] == rows and sparse.shape[1] >= features
            if not shape_fits or sparse.dtype != torch.int64:
                expected = f"torch.int64 [{rows}, {features} or more]"
                raise ValueError(f"sparse: expected {expected}, got {sparse.dtype} {list(sparse.shape)}")
            return
        if sparse.dim() != 1 or sparse.dtype != torch.int64:
            raise ValueError(f"sparse: expected torch.int64 [N] with offsets, got {sparse.dtype} {list(sparse.shape)}")
        if offsets.dim() != 1 or offsets.numel() != features * rows + 1 or offsets.dtype != torch.int64:
            expected = f"torch.int64 [{features * rows + 1}] (features × rows + 1)"
            raise ValueError(f"offsets: expected {expected}, got {offsets.dtype} {list(offsets.shape)}")
