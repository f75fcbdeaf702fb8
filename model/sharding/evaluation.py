"""The metrics of a model whose tables lie on several ranks: each predicts its rows, the first one scores all."""

from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from model.dlrm import DLRM
from model.evaluation import Metrics, predict, score
from model.sharding.batches import ShardedBatches
from model.sharding.exchange import Exchange
from model.sharding.ranks import Ranks


class _Own:
    """This rank's rows by the batch, and before each the exchange knows of all ranks' rows."""

    def __init__(self, batches: ShardedBatches, exchange: Exchange, ranks: Ranks, name: str):
        self.batches, self.exchange, self.num_rows = batches, exchange, batches.num_rows
        self.ranks, self.name = ranks, name

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for number, (counts, batch) in enumerate(self.batches, 1):
            self.exchange.counts = counts
            self.ranks.doing = f"in batch {number:,} of {self.name}"
            yield batch
            self.ranks.doing = f"between batches {number:,} and {number + 1:,} of {self.name}"
        self.ranks.wait_for_device()


def evaluate(
    ranks: Ranks, model: DLRM, batches: ShardedBatches, device: torch.device, *, name: str = "evaluation", **options
) -> Metrics:
    """`model.evaluation.evaluate` of all ranks' rows; the same on all ranks, which call it together."""
    parts: list | None = [None] * ranks.world if ranks.is_first else None
    own = predict(
        model, _Own(batches, model.sparse_arch.exchange, ranks, name), device,
        name=name if ranks.is_first else None, **options,
    )
    ranks.doing = f"after {name}"
    dist.gather_object(own, parts, dst=0, group=ranks.host)
    return ranks.of_first(lambda: score(*(np.concatenate(part) for part in zip(*parts, strict=True))))
