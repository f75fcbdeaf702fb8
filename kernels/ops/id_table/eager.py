"""The id table in plain PyTorch: a key's search goes bucket by bucket, for all keys of a call at once.

    hash   = mix(key + seed of its table)                            64 bits
    bucket = first + (hash >> 32) · buckets >> 32                    and on to the next one while it has no empty slot
    tag    = 3 + (hash mod 2^16) · 253 >> 16

Storage: tags uint8 [S] (0 empty, 1 erased, else a slot's tag), slots int64 [S, 2] (key, row), bucket_offsets
int64 [T + 1], seeds int64 [T]. Bucket b is slots 16·b … 16·b + 15; table t has buckets bucket_offsets[t] … of it.

Bytes of a look-up: key and table id are read, found and row written (8 + 4 + 1 + 8); a bucket's 16 tags and one slot
are read as two sectors of 32 bytes.
"""

import torch
from torch import Tensor

BUCKET_SLOTS = 16
EMPTY, ERASED, FIRST_TAG = 0, 1, 3


def mix(x: Tensor) -> Tensor:
    """The finalizer of MurmurHash3 on int64, which wraps round: a bijection."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = (x ^ _shifted(x, 33)) * (factor - (1 << 64))
    return x ^ _shifted(x, 33)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits with zeros shifted in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def first_bucket(keys: Tensor, seeds: Tensor, buckets: Tensor | int) -> Tensor:
    """Where each key's search begins: one of its table's buckets, of which there are fewer than 2^31."""
    return _shifted(mix(keys + seeds), 32) * buckets >> 32


def _tag(keys: Tensor, seeds: Tensor) -> Tensor:
    return (FIRST_TAG + ((mix(keys + seeds) & 0xFFFF) * (256 - FIRST_TAG) >> 16)).to(torch.uint8)


class _Search:
    """The keys that are still looked for, each in one bucket: index (among all keys), key, seed, bucket."""

    def __init__(self, tags: Tensor, bucket_offsets: Tensor, seeds: Tensor, keys: Tensor, table_ids: Tensor) -> None:
        tables, buckets = len(seeds), len(tags) // BUCKET_SLOTS
        keys, table_ids = keys.reshape(-1).long(), table_ids.reshape(-1).long()
        self.index = ((table_ids >= 0) & (table_ids < tables)).nonzero()[:, 0]
        table_ids, self.key = table_ids[self.index], keys[self.index]
        self.first, self.end = bucket_offsets[table_ids], bucket_offsets[table_ids + 1]
        self.seed = seeds[table_ids]
        self.bucket = self.first + first_bucket(self.key, self.seed, self.end - self.first)
        self.left = self.end - self.first
        self.keep((self.first >= 0) & (self.first < self.end) & (self.end <= buckets))

    def keep(self, mask: Tensor) -> None:
        for name, values in vars(self).items():
            setattr(self, name, values[mask])

    def next(self, mask: Tensor) -> None:
        """To the next bucket with the keys of the mask; those that have seen every bucket, and all others, are gone."""
        self.keep(mask)
        self.bucket = torch.where(self.bucket + 1 == self.end, self.first, self.bucket + 1)
        self.left = self.left - 1
        self.keep(self.left > 0)

    def slots(self) -> Tensor:
        """[keys, 16]: the indices of the bucket's slots."""
        return self.bucket[:, None] * BUCKET_SLOTS + torch.arange(BUCKET_SLOTS, device=self.bucket.device)


def find(tags: Tensor, slots: Tensor, bucket_offsets: Tensor, seeds: Tensor, keys: Tensor, table_ids: Tensor) -> Tensor:
    """The index of each key's slot; -1 for one that is not there."""
    where = torch.full((keys.numel(),), -1, dtype=torch.int64, device=keys.device)
    search = _Search(tags, bucket_offsets, seeds, keys, table_ids)
    while len(search.index):
        these = search.slots()
        equal = (tags[these] == _tag(search.key, search.seed)[:, None]) & (slots[these, 0] == search.key[:, None])
        hits = equal.any(1)
        where[search.index[hits]] = these[equal]
        search.next(~hits & ~(tags[these] == EMPTY).any(1))
    return where.view(keys.shape)


def table_lookup(
    tags: Tensor, slots: Tensor, bucket_offsets: Tensor, seeds: Tensor, keys: Tensor, table_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """(found bool, rows int64) like keys: a key that is not there is False and row 0."""
    where = find(tags, slots, bucket_offsets, seeds, keys, table_ids)
    if not len(slots):
        return where >= 0, torch.zeros_like(where)
    rows = slots[where.clamp(min=0), 1]
    found = (where >= 0) & (rows > 0)
    return found, torch.where(found, rows, 0)


def table_claim_(
    tags: Tensor, slots: Tensor, bucket_offsets: Tensor, seeds: Tensor, keys: Tensor, table_ids: Tensor
) -> Tensor:
    """Give each key a slot, and return its index. A new key's row is -1 - the lowest position that it is given at."""
    storage = tags, slots, bucket_offsets, seeds
    new = (find(*storage, keys, table_ids) < 0).reshape(-1)
    position = _first_of_each(keys.reshape(-1).long(), table_ids.reshape(-1).long(), new)
    search = _Search(tags, bucket_offsets, seeds, keys.reshape(-1)[position], table_ids.reshape(-1)[position])
    while len(search.index):
        these = search.slots()
        empty = tags[these] == EMPTY
        # The n-th of the keys that are in one bucket gets the n-th empty slot, so that no two of them want the same.
        rank = _rank(search.bucket)
        claimed = empty & (empty.cumsum(1) == rank[:, None] + 1)
        got = claimed.any(1)
        chosen = these[claimed]
        slots[chosen, 0] = search.key[got]
        slots[chosen, 1] = -1 - position[search.index[got]]
        tags[chosen] = _tag(search.key, search.seed)[got]  # last: until then the slots are nobody's
        search.next(~got)
    return find(*storage, keys, table_ids)


def _first_of_each(keys: Tensor, table_ids: Tensor, among: Tensor) -> Tensor:
    """The lowest position of each pair (table, key), of the positions where `among` is True; ascending."""
    order = torch.argsort(keys, stable=True)
    order = order[torch.argsort(table_ids[order], stable=True)]
    order = order[among[order]]
    keys, table_ids = keys[order], table_ids[order]
    first = torch.ones_like(order, dtype=torch.bool)
    first[1:] = (keys[1:] != keys[:-1]) | (table_ids[1:] != table_ids[:-1])
    return order[first].sort().values


def _rank(groups: Tensor) -> Tensor:
    """How many elements before each one are of its group."""
    ordered, order = torch.sort(groups, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - torch.searchsorted(ordered, ordered)
    return rank


def table_erase_(
    tags: Tensor, slots: Tensor, bucket_offsets: Tensor, seeds: Tensor, keys: Tensor, table_ids: Tensor
) -> Tensor:
    """Free the keys' slots, and return their indices; -1 for a key that is not there."""
    where = find(tags, slots, bucket_offsets, seeds, keys, table_ids)
    gone = where[where >= 0]
    # No search has gone beyond a bucket that has an empty slot, so there a slot may become empty again.
    ends = (tags.view(-1, BUCKET_SLOTS) == EMPTY).any(1)
    tags[gone] = torch.where(ends[gone // BUCKET_SLOTS], EMPTY, ERASED).to(torch.uint8)
    return where


def expand_table_ids(
    offsets: Tensor, table_offsets: Tensor | None, num_tables: int, batch_size: int, num_elements: int
) -> Tensor:
    """int32 [num_elements]: the table t with begin[t] <= i < begin[t + 1], where begin[t] is offsets[first feature of t
    · batch_size]; -1 for an i that is in none."""
    device = offsets.device
    if table_offsets is None:
        table_offsets = torch.arange(num_tables + 1, device=device)
    most = max(len(offsets) - 1, 0) // max(batch_size, 1)
    begins = offsets[table_offsets.clamp(0, most) * max(batch_size, 0)].long()
    position = torch.arange(num_elements, device=device)
    table_ids = torch.searchsorted(begins, position, right=True) - 1
    inside = (position >= begins[0]) & (position < begins[-1])
    return torch.where(inside, table_ids.clamp(0, max(num_tables - 1, 0)), -1).int()


def get_table_range(offsets: Tensor, feature_offsets: Tensor) -> Tensor:
    """[T + 1], like offsets: offsets[feature_offsets[t] · B], with B = bags of all features / feature_offsets[T]."""
    bags = len(offsets) - 1
    features = feature_offsets[-1]
    batch_size = torch.where(features > 0, bags // features.clamp(min=1), 0)
    most = torch.where(batch_size > 0, bags // batch_size.clamp(min=1), 0)
    return offsets[feature_offsets.clamp(min=0).minimum(most) * batch_size]
