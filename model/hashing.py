"""From a 32-bit category id to the row of an embedding table: the lecture's three ways, and two for large tables.

Every table has cardinality + 1 rows, whichever way is taken. A hash maps int64 ids of any shape to int64 rows of the
same shape; ids are 0 … 2^32 - 1, or -1 (`MISSING`) where the value is missing.

    index_naive   row 0 = missing or unknown, the k-th id → row k; the ids are a Python list that every forward turns
                  into a tensor (the paper cut to be found in the profile)
    index         the same rows; the ids stay on the device
    sorted        row 0 = missing or unknown, the k-th smallest id → row k: exact at any cardinality, for it costs
                  log2(cardinality) comparisons an id instead of cardinality
    table         the rows of `index`, found in a hash table (kernels.IdTable): exact, and at any cardinality for about
                  two reads of memory an id
    modulus       (id + 1) mod cardinality: nothing to store or to compare, but ids collide, and row 0 is shared by real
                  ids too (the last row is never used)
"""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor, nn

from data.criteo import MISSING
from kernels import IdTable


class Hash(StrEnum):
    """How an id becomes a row."""

    INDEX_NAIVE = "index_naive"
    INDEX = "index"
    SORTED = "sorted"
    TABLE = "table"
    MODULUS = "modulus"


class ModulusHash(nn.Module):
    """(id + 1) mod cardinality; a cardinality of 0 sends everything to row 0."""

    def __init__(self, cardinality: int):
        super().__init__()
        self.cardinality = cardinality

    def forward(self, ids: Tensor) -> Tensor:
        """ids int64 [...] → rows int64 [...]."""
        return (ids + 1) % max(self.cardinality, 1)  # x mod 1 is 0

    def extra_repr(self) -> str:
        return f"cardinality={self.cardinality}"


class IndexHash(nn.Module):
    """Row 0 for a missing or unknown id, row k for the k-th id (from 1).

    Costs one comparison with every known id: ids.numel() × cardinality of them, in eager mode with 5 bytes for each.

    Args:
        vocabulary: int64 [cardinality], the known ids, all different, without `MISSING`.

    `known` is a persistent buffer: row k of a trained table means nothing without the id it stands for, so both travel
    in one state_dict, and loading one brings back the ids that it was trained with. It is the same for `index` and
    `index_naive`, which can therefore load each other's state_dicts (`model.train --resume` asks for the same --hash).
    """

    known: Tensor
    rows: Tensor

    def __init__(self, vocabulary: Sequence[int] | Tensor):
        super().__init__()
        ids = _checked(vocabulary)
        self.register_buffer("known", ids)
        # Not persistent: 1 … cardinality, which the checkpoint need not say.
        self.register_buffer("rows", _rows(ids), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """ids int64 [...] → rows int64 [...]."""
        return _look_up(ids, self.known, self.rows)

    def extra_repr(self) -> str:
        return f"cardinality={self.known.numel()}"


class IndexNaiveHash(IndexHash):
    """`IndexHash` with its ids in a Python list, copied to the device in every forward: slow on purpose."""

    def __init__(self, vocabulary: Sequence[int] | Tensor):
        super().__init__(vocabulary)
        self.id_list = self.known.tolist()
        self.register_load_state_dict_post_hook(_read_id_list)

    def forward(self, ids: Tensor) -> Tensor:
        """ids int64 [...] → rows int64 [...]."""
        known = torch.tensor(self.id_list, dtype=torch.int64, device=ids.device)
        return _look_up(ids, known, _rows(known))


def _read_id_list(module: IndexNaiveHash, _incompatible_keys) -> None:
    module.id_list = module.known.tolist()


class SortedHash(nn.Module):
    """Row 0 for a missing or unknown id, row k for the k-th smallest id (from 1), found by bisection.

    Args:
        vocabulary: int64 [cardinality], the known ids in any order, all different, without `MISSING`.

    `known`, those ids in ascending order, is a persistent buffer, as that of `IndexHash` is.
    """

    known: Tensor

    def __init__(self, vocabulary: Sequence[int] | np.ndarray | Tensor):
        super().__init__()
        self.register_buffer("known", _checked(vocabulary, in_order=True))

    def forward(self, ids: Tensor) -> Tensor:
        """ids int64 [...] → rows int64 [...]."""
        if not self.known.numel():
            return torch.zeros_like(ids)
        ids = ids.contiguous()  # torch.searchsorted copies too, but with a warning
        position = torch.searchsorted(self.known, ids)
        is_known = self.known[position.clamp(max=self.known.numel() - 1)] == ids
        return torch.where(is_known, position + 1, 0)

    def of_column(self, ids: np.ndarray) -> np.ndarray:
        """`forward` on a CPU of so many ids that it pays to sort them: int64 [n] → [n], n < 2^31.

        Bisections for ids in ascending order go nearly the same way, where those for ids at random guess each branch:
        with 2,048 ids, and 160,000 that are known, the whole takes half the time of torch.searchsorted.
        """
        known = self.known.numpy()
        if not known.size:
            return np.zeros_like(ids)
        # One sort for the ids and where they stood: of 33 bits, for -1 is among them, and 31.
        keys = (ids << 31) | np.arange(len(ids))
        keys.sort()
        ids, places = keys >> 31, keys & ((1 << 31) - 1)
        position = known.searchsorted(ids)
        rows = np.empty_like(ids)
        rows[places] = np.where(known.take(position, mode="clip") == ids, position + 1, 0)
        return rows

    def extra_repr(self) -> str:
        return f"cardinality={self.known.numel()}"


class TableHash(IdTable):
    """The rows of `IndexHash`, row k for the k-th known id (from 1), found in a hash table.

    Args:
        vocabulary: int64 [cardinality], the known ids, all different, without `MISSING`.

    Its state_dict has the known ids, as that of `IndexHash` has, and the two load each other's.
    """

    STATE = ("known",)

    def __init__(self, vocabulary: Sequence[int] | np.ndarray | Tensor):
        super().__init__([_ids(vocabulary)])

    def forward(self, ids: Tensor) -> Tensor:
        """ids int64 [...] → rows int64 [...]."""
        _, rows = super().forward(ids)
        return rows

    def state(self) -> dict[str, Tensor]:
        """known, int64 [cardinality]: the ids by their rows."""
        known, _ = self.items(0)
        return {"known": known}

    def load(self, known: Tensor) -> None:
        """Know these ids instead, as many as before."""
        if known.shape != (self.sizes[0],):
            raise ValueError(f"known must have shape {self.sizes}; got {list(known.shape)}")
        ids = _ids(known)
        ends = torch.tensor([0, len(ids)]), torch.tensor([len(ids) + 1])
        super().load(ids, torch.arange(1, len(ids) + 1), *ends)

    def extra_repr(self) -> str:
        return f"cardinality={self.sizes[0]}"


def _ids(vocabulary: Sequence[int] | np.ndarray | Tensor) -> Tensor:
    """The vocabulary as int64 [cardinality]; ValueError if it is none, but for ids that it has twice."""
    ids = torch.as_tensor(vocabulary if isinstance(vocabulary, Tensor) else np.asarray(vocabulary, dtype=np.int64))
    if ids.dim() != 1:
        raise ValueError(f"vocabulary: expected ids of shape [cardinality], got shape {list(ids.shape)}")
    if len(ids) and (least := int(ids.min())) <= MISSING:
        raise ValueError(f"vocabulary: {MISSING} stands for a missing value, and {least} is not an id")
    return ids.long()


def _checked(vocabulary: Sequence[int] | np.ndarray | Tensor, in_order: bool = False) -> Tensor:
    """The same, its ids all different; in ascending order if that is asked for."""
    ids = _ids(vocabulary)
    ascending = np.sort(ids.cpu().numpy())  # several times as fast as torch.sort
    different = min(ascending.size, 1) + np.count_nonzero(np.diff(ascending))
    if different != ascending.size:
        raise ValueError(f"vocabulary: {ascending.size} ids, of which only {different} are different")
    return torch.from_numpy(ascending).to(ids.device) if in_order else ids.clone()


def _rows(known: Tensor) -> Tensor:
    return torch.arange(1, known.numel() + 1, dtype=torch.int32, device=known.device)


def _look_up(ids: Tensor, known: Tensor, rows: Tensor) -> Tensor:
    # At most one known id matches, so the sum is its row, or 0; int32 halves the memory traffic.
    return ((ids.unsqueeze(-1) == known) * rows).sum(-1, dtype=torch.int32).long()


def make_hash(kind: Hash, cardinality: int, vocabulary: Sequence[int] | Tensor | None = None) -> nn.Module:
    """The module for one table; all but `modulus` need the table's `vocabulary`, int64 [cardinality]."""
    if kind is Hash.MODULUS:
        return ModulusHash(cardinality)
    if vocabulary is None:
        raise ValueError(f"vocabulary: hash {kind} needs the known ids, got none")
    if len(vocabulary) != cardinality:
        raise ValueError(f"vocabulary: expected {cardinality} ids (the cardinality), got {len(vocabulary)}")
    return _EXACT[kind](vocabulary)


_EXACT = {
    Hash.INDEX_NAIVE: IndexNaiveHash, Hash.INDEX: IndexHash, Hash.SORTED: SortedHash, Hash.TABLE: TableHash
}
