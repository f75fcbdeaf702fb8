"""The id table's ops: their declarations, and the public functions. The table itself is in table.py."""

import torch
from torch import Tensor

from ...dispatch.op import Op
from ...dispatch.signature import Signature
from . import eager

INTEGERS = (torch.int32, torch.int64)


KEYS = (
    f"tags [{eager.BUCKET_SLOTS} · buckets]: uint8; slots [{eager.BUCKET_SLOTS} · buckets, 2]: int64; "
    "bucket_offsets [T + 1]: int64; seeds [T]: int64; keys [...]: integer; table_ids [...]: integer"
)
BAGS = Signature.of(
    "expand_table_ids",
    "num_tables; batch_size; offsets [num_tables · batch_size + 1] | [bags + 1] with table_offsets: integer; "
    "table_offsets? [num_tables + 1]: int64",
)
RANGES = "offsets [bags + 1]: integer; feature_offsets [T + 1]: int64"


def check_expand(
    op: str, offsets: Tensor, table_offsets: Tensor | None, num_tables: int, batch_size: int, num_elements: int
) -> None:
    """Raise unless offsets and table_offsets fit the numbers, none of them negative."""
    for name, value in (("num_tables", num_tables), ("batch_size", batch_size), ("num_elements", num_elements)):
        if value < 0:
            raise ValueError(f"{op}: {name} must not be negative; got {value}")
    BAGS.check((num_tables, batch_size, offsets, table_offsets))


def _op(name: str, schema: str, shapes: str, outputs: dict, check=None) -> Op:
    return Op(
        name, schema, shapes=shapes, eager=getattr(eager, name), check=check, outputs=outputs,
        backends=("cuda", "cpp"), auto="cuda", package=__package__,
    )


def _like_keys(dtype: torch.dtype):
    return lambda named: (named["keys"].shape, dtype)


_READ = "Tensor tags, Tensor slots, Tensor bucket_offsets, Tensor seeds, Ragged keys, Ragged table_ids"
_WRITTEN = _READ.replace("Tensor tags, Tensor slots", "Tensor(a!) tags, Tensor(a!) slots")

LOOKUP = _op(
    "table_lookup", f"({_READ}) -> (Tensor found, Tensor rows)", KEYS,
    {"found": _like_keys(torch.bool), "rows": _like_keys(torch.int64)},
)
CLAIM = _op("table_claim_", f"({_WRITTEN}) -> Tensor where", KEYS, {"where": _like_keys(torch.int64)})
ERASE = _op("table_erase_", f"({_WRITTEN}) -> Tensor where", KEYS, {"where": _like_keys(torch.int64)})
EXPAND = _op(
    "expand_table_ids",
    "(Tensor offsets, Tensor? table_offsets, int num_tables, SymInt batch_size, Length num_elements) -> Tensor out",
    "",
    {"out": lambda named: ((named["num_elements"],), torch.int32)},
    check_expand,
)
RANGE = _op(
    "get_table_range", "(Tensor offsets, Tensor feature_offsets) -> Tensor out", RANGES,
    {"out": lambda named: (named["feature_offsets"].shape, named["offsets"].dtype)},
)
OPS = (LOOKUP, CLAIM, ERASE, EXPAND, RANGE)


def table_lookup(
    tags: Tensor, slots: Tensor, bucket_offsets: Tensor, seeds: Tensor, keys: Tensor, table_ids: Tensor,
    *, backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Which keys are in their tables, and their rows there.

    Args:
        tags, slots, bucket_offsets, seeds: an IdTable's storage (`IdTable.storage()`): uint8 [S], int64 [S, 2],
            int64 [T + 1], int64 [T], tags and slots aligned to 16 bytes.
        keys: int32 or int64 [...], any value.
        table_ids: int32 or int64, like keys: the table of each. One that is not from 0 to T - 1 is a miss.
        backend: "cuda", "cpp" (CPU tensors), "eager", or "auto": CUDA for a CUDA tensor; on a CPU C++ if there is a
            compiler, else eager.

    Returns:
        (found bool [...], rows int64 [...]): a key that is not there is False and row 0. The two do not hang on where
        in the storage a key lies, and every run gives the same.

    Raises:
        TypeError: a dtype. ValueError: a shape, a device, an unknown backend. RuntimeError: a backend this machine
            lacks, a storage that is not aligned.
    """
    return LOOKUP.call(backend, tags, slots, bucket_offsets, seeds, keys, table_ids)


def expand_table_ids(
    offsets: Tensor, table_offsets: Tensor | None, num_tables: int, batch_size: int, num_elements: int,
    *, backend: str = "auto",
) -> Tensor:
    """The table of each key of a batch of bags, int32 [num_elements].

    Args:
        offsets: int32 or int64 [F · B + 1], where each bag of keys begins, feature by feature, as in torchrec's
            KeyedJaggedTensor: bag f · B + b.
        table_offsets: int64 [T + 1]: table t is that of the features table_offsets[t] … table_offsets[t + 1] - 1, so
            features that share a table lie beside each other; None: of feature t alone.
        num_tables, batch_size, num_elements: T, B, the number of keys.

    A key outside every table's bags gets -1, which is a miss in `table_lookup`. Offsets that decrease give some table
    or -1; nothing is read outside them.

    Raises: as `table_lookup`.
    """
    return EXPAND.call(backend, offsets, table_offsets, num_tables, batch_size, num_elements)


def get_table_range(offsets: Tensor, feature_offsets: Tensor, *, backend: str = "auto") -> Tensor:
    """Where each table's keys begin among those of a batch, [T + 1], of offsets' dtype.

    Args:
        offsets: int32 or int64 [F · B + 1], as of `expand_table_ids`.
        feature_offsets: int64 [T + 1], the first feature of each table, and last F, from which B follows.

    Raises: as `table_lookup`.
    """
    return RANGE.call(backend, offsets, feature_offsets)
