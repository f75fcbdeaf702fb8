"""FBGEMM's table-batched embedding (TBE), a peer of what looks tables up and updates them, where it is installed.

It is set as somebody sets it who knows it: tables on the GPU, no cache, ids not checked in a kernel of its own
(bounds_check_mode NONE), and ids and offsets in its own order, feature by feature, made before they are timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import torch
from torch import Tensor

PACKAGE = "fbgemm_gpu"
NAME = "FBGEMM's TBE"
NEEDS: Mapping[str, str] = {NAME: PACKAGE}  # what a cell says that has this peer


def table_batch(
    tables: Tensor, row_offsets: Tensor, optimizer: str = "EXACT_SGD", state: Tensor | None = None, **options
) -> torch.nn.Module:
    """A TBE of float32 tables [R, D], one behind the other, as row_offsets [F + 1] has them; D a multiple of 4.

    Its weights are this very memory, and so is the optimizer's state, if there is one: what it writes is seen in the
    tables. options: of the optimizer (learning_rate, eps).

    module(ids, offsets) is [B, F · D], of ids [N] feature by feature and offsets [F · B + 1]; its backward updates.
    """
    training = importlib.import_module(f"{PACKAGE}.split_table_batched_embeddings_ops_training")
    common = importlib.import_module(f"{PACKAGE}.split_table_batched_embeddings_ops_common")
    configs = importlib.import_module(f"{PACKAGE}.split_embedding_configs")
    first, *ends = row_offsets.tolist()
    heights = [end - begin for begin, end in zip([first, *ends], ends, strict=False)]
    place = common.EmbeddingLocation.DEVICE, training.ComputeDevice.CUDA
    module = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(height, tables.shape[1], *place) for height in heights],
        optimizer=getattr(configs.EmbOptimType, optimizer),
        pooling_mode=common.PoolingMode.SUM,
        bounds_check_mode=common.BoundsCheckMode.NONE,
        stochastic_rounding=False,
        device=tables.device,
        **options,
    )
    module.weights_dev.data = tables.reshape(-1)
    if state is not None:
        module.momentum1_dev.data = state.reshape(-1)
    _lie_in(module.split_embedding_weights(), tables, row_offsets)
    if state is not None:
        _lie_in([states[0] for states in module.split_optimizer_states()], state, row_offsets)
    return module


def _lie_in(parts: list[Tensor], whole: Tensor, row_offsets: Tensor) -> None:
    """Raise unless each part is where `whole` has the table's rows: another version may lay them out otherwise."""
    for part, begin in zip(parts, row_offsets.tolist(), strict=False):
        if part.data_ptr() != whole[begin:].data_ptr():
            raise RuntimeError(f"{PACKAGE} lays its tables out otherwise")


def by_feature(indices: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and offsets as TBE wants them, of an id a feature and row, indices [B, F]."""
    ids = indices.t().reshape(-1)
    return ids, torch.arange(len(ids) + 1, device=ids.device)
