"""The rows of each step, and which of them are whose.

A split is read as so many shards side by side: runs of rows, each in an order of its own. A step has the next rows of
each, and the ranks divide them in the shards' order. So the steps of a run are the same whatever the number of ranks,
and each rank reads only the shards that its rows are in. How many rows a step has for each rank follows from the files'
footers: all ranks have equally many steps, and know of the last, smaller one.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from data.criteo import CRITEO, CriteoBatches
from data.rows import empty_arrays
from data.schema import Schema

Batch = tuple[Tensor, ...]  # labels, dense, sparse, and with lists offsets: as CriteoBatches gives them


class Step(NamedTuple):
    """counts: the rows of each rank. batch: this rank's."""

    counts: list[int]
    batch: Batch


class ShardedBatches:
    """This rank's rows of each step, in the place of the `CriteoBatches` of one process.

    path, shuffle, seed, schema: as CriteoBatches takes them. batch_size: rows a step, of all ranks together; a multiple
    of shards. Raises what CriteoBatches raises.
    """

    def __init__(
        self, path: str | Path, batch_size: int, *, shards: int, rank: int, world: int, shuffle: bool = False,
        seed: int = 0, schema: Schema = CRITEO,
    ):
        if batch_size % shards:
            raise ValueError(f"batch_size: expected a multiple of shards, {shards}, got {batch_size}")
        self.rank, self.world, self.of_shard = rank, world, batch_size // shards
        whole = CriteoBatches(path, batch_size, schema=schema)
        self.schema, self.files, self.digest, total = schema, whole.files, whole.digest, whole.num_rows
        self.sizes = [total * (shard + 1) // shards - total * shard // shards for shard in range(shards)]
        bounds = bounds_of([self.of_shard] * shards, world)
        self.full = [stop - start for start, stop in pairwise(bounds)]  # rows of a whole step
        first, last = rank * shards // world, -(-(rank + 1) * shards // world)
        self.own = {
            shard: CriteoBatches(
                path, self.of_shard, shuffle=shuffle, seed=seed, rank=shard, world_size=shards, schema=schema
            )
            for shard in range(first, last)
        }

    @property
    def num_rows(self) -> int:
        """Of all ranks."""
        return sum(self.sizes)

    @property
    def num_batches(self) -> int:
        """Steps, the same on all ranks."""
        return -(-max(self.sizes) // self.of_shard)

    def set_epoch(self, epoch: int) -> None:
        for shard in self.own.values():
            shard.set_epoch(epoch)

    def __iter__(self) -> Iterator[Step]:
        return self.batches_from(0)

    def batches_from(self, batch: int) -> Iterator[Step]:
        """The steps from this one on, counted from 0."""
        features = len(self.schema.sparse)
        streams = {shard: batches.batches_from(batch) for shard, batches in self.own.items()}
        for number in range(batch, self.num_batches):
            sizes = [min(max(size - number * self.of_shard, 0), self.of_shard) for size in self.sizes]
            bounds = bounds_of(sizes, self.world)
            begin, end = bounds[self.rank], bounds[self.rank + 1]
            parts, first = [], sum(sizes[: min(streams)])
            for shard, stream in streams.items():
                if sizes[shard]:  # read on, though none of the rows may be this rank's in a smaller step
                    low, high = (min(max(bound - first, 0), sizes[shard]) for bound in (begin, end))
                    parts.append(rows_of(next(stream), low, high, features))
                first += sizes[shard]
            counts = [stop - start for start, stop in pairwise(bounds)]
            yield Step(counts, joined(parts, features) if parts else no_rows(self.schema))


def bounds_of(sizes: Sequence[int], world: int) -> list[int]:
    """Where each rank's rows begin in a step that has `sizes` rows of the shards, and the end. Rank r's begin r / world
    of the way through the shards, so that it needs the same ones in each step."""
    bounds = []
    for rank in range(world + 1):
        shard, part = divmod(rank * len(sizes), world)
        bounds.append(sum(sizes[:shard]) + (sizes[shard] * part // world if part else 0))
    return bounds


def no_rows(schema: Schema) -> Batch:
    """A batch of none."""
    labels, dense, sparse = map(torch.from_numpy, empty_arrays(0, schema))
    if schema.lists:
        return labels, dense, torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    return labels, dense, sparse


def rows_of(batch: Batch, low: int, high: int, features: int) -> Batch:
    """Rows low to high of a batch of so many sparse features."""
    labels, dense, sparse, *offsets = batch
    if (low, high) == (0, len(labels)):
        return batch
    if not offsets:
        return labels[low:high], dense[low:high], sparse[low:high]
    bags, lengths = offsets[0].tolist(), _lengths(offsets[0], features)
    starts = [feature * len(labels) for feature in range(features)]
    ids = torch.cat([sparse[bags[start + low] : bags[start + high]] for start in starts])
    return labels[low:high], dense[low:high], ids, _offsets(lengths[:, low:high])


def joined(batches: Sequence[Batch], features: int) -> Batch:
    """The rows of all; bags go feature by feature."""
    if len(batches) == 1:
        return batches[0]
    labels, dense, sparse, *offsets = (list(parts) for parts in zip(*batches, strict=True))
    if not offsets:
        return torch.cat(labels), torch.cat(dense), torch.cat(sparse)
    lengths = [_lengths(of_batch, features) for of_batch in offsets[0]]
    by_feature = zip(
        *(ids.split(of_batch.sum(1).tolist()) for ids, of_batch in zip(sparse, lengths, strict=True)), strict=True
    )
    ids = torch.cat([part for parts in by_feature for part in parts])
    return torch.cat(labels), torch.cat(dense), ids, _offsets(torch.cat(lengths, dim=1))


def _lengths(offsets: Tensor, features: int) -> Tensor:
    """[F, b] of offsets [F b + 1]."""
    return offsets.diff().view(features, -1)


def _offsets(lengths: Tensor) -> Tensor:
    """The reverse."""
    ends = lengths.flatten().cumsum(0)
    return torch.cat([ends.new_zeros(1), ends])
