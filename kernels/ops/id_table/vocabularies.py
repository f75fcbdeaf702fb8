"""The ids that a table begins with, as whoever makes it gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...dispatch import checks
from ...dtypes import INTEGERS


def read(vocabularies: object) -> list[Tensor]:
    """For each table its ids, int32 or int64 [n]: of tensors themselves, of all else on the CPU.

    Raises TypeError, ValueError: naming the vocabulary, what it must be and what it is.
    """
    if isinstance(vocabularies, str | bytes | dict) or not hasattr(vocabularies, "__iter__"):
        kind = type(vocabularies).__name__
        raise TypeError(f"IdTable: vocabularies must be a sequence, of the ids of each table; got {kind}")
    return [_ids(f"vocabularies[{table}]", ids) for table, ids in enumerate(vocabularies)]


def _ids(name: str, ids: Sequence[int] | np.ndarray | Tensor) -> Tensor:
    if isinstance(ids, Tensor):
        dtype, shape = checks.plain(ids.dtype), list(ids.shape)
        if ids.is_meta:
            raise ValueError(f"IdTable: {name} must have values; got a tensor on the device meta")
    else:
        try:
            array = np.asarray(ids if isinstance(ids, np.ndarray | list | tuple | range) else list(ids))
        except (TypeError, ValueError) as error:
            got = f"{type(ids).__name__} ({error})"
            raise TypeError(f"IdTable: {name} must be ids, int32 or int64 [n]; got {got}") from None
        dtype, shape = str(array.dtype), list(array.shape)
    if len(shape) != 1:
        raise ValueError(f"IdTable: {name} must be ids, int32 or int64 [n]; got {dtype} of shape {shape}")
    if not shape[0]:
        return torch.empty(0, dtype=torch.int64, device="cpu")
    if dtype == "uint64":
        view = "view(torch.int64)" if isinstance(ids, Tensor) else 'view("int64")'
        raise TypeError(
            f"IdTable: {name} must be int32 or int64; got uint64, of which the same bits are ids too: give "
            f"{'numpy.asarray(…).' * isinstance(ids, list | tuple)}{view}, here and to every look-up"
        )
    if dtype not in map(checks.plain, INTEGERS):
        raise TypeError(f"IdTable: {name} must be int32 or int64; got {dtype}")
    return ids if isinstance(ids, Tensor) else torch.as_tensor(array, device="cpu")
