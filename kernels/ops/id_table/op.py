"""The id table's ops: their declarations, and the public functions. The table itself is in table.py."""

import torch
from torch import Tensor

from kernels.dispatch import checks
from kernels.dispatch.op import Op
from kernels.ops.id_table import eager

INTEGERS = (torch.int32, torch.int64)


def check_keys(op: str, tags: Tensor, slots: Tensor, bucket_offsets: Tensor, seeds: Tensor, keys: Tensor,
               table_ids: Tensor) -> None:  # fmt: skip
    """Raise unless the storage is one, and keys and table_ids are integers of one shape, all on one device."""
    checks.has_dtype(op, "tags", tags, (torch.uint8,))
    for name, tensor in (("slots", slots), ("bucket_offsets", bucket_offsets), ("seeds", seeds)):
        checks.is_beside(op, name, tensor, tags)
        checks.has_dtype(op, name, tensor, (torch.int64,))
    size = len(tags) // eager.BUCKET_SLOTS * eager.BUCKET_SLOTS
    _has_shape(op, "tags", tags, (size,), "slots in whole buckets of 16")
    _has_shape(op, "slots", slots, (size, 2), "key and row of each tag")
    _has_shape(op, "bucket_offsets", bucket_offsets, (len(seeds) + 1,), "one more than seeds")
    _has_shape(op, "seeds", seeds, (len(seeds),), "a number for each table")
    for name, tensor in (("keys", keys), ("table_ids", table_ids)):
        checks.is_beside(op, name, tensor, tags)
        if tensor.dtype not in INTEGERS:
            raise TypeError(f"{op}: {name} must be int32 or int64; got {checks.plain(tensor.dtype)}")
    _has_shape(op, "table_ids", table_ids, keys.shape, "like keys")


def _has_shape(op: str, name: str, tensor: Tensor, shape: tuple[int, ...], why: str) -> None:
    if [*tensor.shape] != [*shape]:
        raise ValueError(f"{op}: {name} must have shape {list(shape)}, {why}; got {list(tensor.shape)}")


def check_expand(
    op: str, offsets: Tensor, table_offsets: Tensor | None, num_tables: int, batch_size: int, num_elements: int
) -> None:
    """Raise unless offsets and table_offsets fit the numbers."""
    _check_offsets(op, offsets)
    for name, value in (("num_tables", num_tables), ("batch_size", batch_size), ("num_elements", num_elements)):
        if value < 0:
            raise ValueError(f"{op}: {name} must not be negative; got {value}")
    if table_offsets is not None:
        _check_tables(op, "table_offsets", table_offsets, offsets)
        _has_shape(op, "table_offsets", table_offsets, (num_tables + 1,), "num_tables + 1 of them")
    elif len(offsets) != num_tables * batch_size + 1:
        raise ValueError(
            f"{op}: offsets must have shape [{num_tables * batch_size + 1}], num_tables · batch_size + 1; got "
            f"{list(offsets.shape)}"
        )


def check_range(op: str, offsets: Tensor, feature_offsets: Tensor) -> None:
    """Raise unless both are offsets."""
    _check_offsets(op, offsets)
    _check_tables(op, "feature_offsets", feature_offsets, offsets)


def _check_offsets(op: str, offsets: Tensor) -> None:
    checks.has_dtype(op, "offsets", offsets, INTEGERS)
    if offsets.dim() != 1 or not len(offsets):
        raise ValueError(f"{op}: offsets must have one dimension and an element; got shape {list(offsets.shape)}")


def _check_tables(op: str, name: str, tensor: Tensor, offsets: Tensor) -> None:
    checks.is_beside(op, name, tensor, offsets)
    checks.has_dtype(op, name, tensor, (torch.int64,))
    if tensor.dim() != 1 or not len(tensor):
        raise ValueError(f"{op}: {name} must have one dimension and an element; got shape {list(tensor.shape)}")


def _op(name: str, schema: str, check, outputs: dict) -> Op:
    return Op(
        name, schema, eager=getattr(eager, name), check=check, outputs=outputs, backends=("cuda", "cpp"), auto="cuda",
        package="kernels.ops.id_table",
    )  # fmt: skip


def _like_keys(dtype: torch.dtype):
    return lambda given: (given["keys"].shape, dtype)


_READ = "Tensor tags, Tensor slots, Tensor bucket_offsets, Tensor seeds, Tensor keys, Tensor table_ids"
_WRITTEN = _READ.replace("Tensor tags, Tensor slots", "Tensor(a!) tags, Tensor(a!) slots")

LOOKUP = _op(
    "table_lookup", f"({_READ}) -> (Tensor found, Tensor rows)", check_keys,
    {"found": _like_keys(torch.bool), "rows": _like_keys(torch.int64)},
)  # fmt: skip
CLAIM = _op("table_claim_", f"({_WRITTEN}) -> Tensor where", check_keys, {"where": _like_keys(torch.int64)})
ERASE = _op("table_erase_", f"({_WRITTEN}) -> Tensor where", check_keys, {"where": _like_keys(torch.int64)})
EXPAND = _op(
    "expand_table_ids",
    "(Tensor offsets, Tensor? table_offsets, int num_tables, SymInt batch_size, SymInt num_elements) -> Tensor out",
    check_expand,
    {"out": lambda given: ((given["num_elements"],), torch.int32)},
)
RANGE = _op(
    "get_table_range", "(Tensor offsets, Tensor feature_offsets) -> Tensor out", check_range,
    {"out": lambda given: (given["feature_offsets"].shape, given["offsets"].dtype)},
)  # fmt: skip
OPS = (LOOKUP, CLAIM, ERASE, EXPAND, RANGE)


def table_lookup(
    tags: Tensor, slots: Tensor, bucket_offsets: Tensor, seeds: Tensor, keys: Tensor, table_ids: Tensor,
    *, backend: str = "auto",
) -> tuple[Tensor, Tensor]:  # fmt: skip
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
) -> Tensor:  # fmt: skip
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
