"""What `kernels.check` takes the look-ups through. They copy, so they are exact; gradients are sums of duplicates."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...check import Call, Case, Spec, Sums
from .eager import vocabulary

TEXTS, IMAGES, AUDIOS = 11, 5, 3  # rows of the table, the image and the audio
FIRST, IMAGE, AUDIO = -3, 4, 6  # the least id that is drawn; the tokens


@dataclass(frozen=True)
class _Copies(Sums):
    """Rows come out as they are, to the bit; of a gradient's sum the error is that of float32's roundings."""

    def errors(self, reference, call, exact):
        return [torch.zeros_like(result) for result in exact]


def _moved(tensor: Tensor, by: int, dtype: torch.dtype) -> Tensor:
    """Every element + by, as dtype, laid out in memory as the tensor is."""
    memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    return (memory + by).to(dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def ids(case: Case, seed: int, low: int, high: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Integers from low to high - 1, one a row of the case's shape."""
    shape = case.shape[:-1] or (1,)
    return _moved(case.integers(seed, high - low, device, shape), low, dtype)


def lookups(case: Case, device: torch.device) -> Iterator[Call]:
    """All four, with ids and indices on both sides of every edge; the last also with a modality or both turned off."""
    plain = Case(case.shape, case.dtype)

    def drawn(name: str, seed: int, rows: int) -> Tensor:
        return (case if case.only in ("", name) else plain).tensor(seed, device, (rows, case.shape[-1]))

    where = case if case.only in ("", "ids") else plain
    wide, narrow = torch.int64, torch.int32
    table, image, audio = drawn("table", 1, TEXTS), drawn("image", 2, IMAGES), drawn("audio", 3, AUDIOS)
    text = ids(where, 4, FIRST, TEXTS + 3, device, wide)
    both = ids(where, 5, FIRST, TEXTS + IMAGES + 3, device, narrow)
    indices = ids(case if case.only in ("", "multimodal_indices") else plain, 6, -2, IMAGES + 2, device, narrow)
    few = ids(where, 7, IMAGE - 2, AUDIO + 2, device, wide)
    for tensors, options in (
        ((both, table, image, None, None), ("image", 0, 0, 0)),
        ((text, table, None, None, None), ("text", 0, 0, 0)),
        ((both, None, image, None, None), ("deepstack", TEXTS, 0, 0)),
        ((few, table, image, audio, indices), ("multimodal", 0, IMAGE, AUDIO)),
        ((few, table, None, audio, indices), ("multimodal", 0, 0, AUDIO)),
        ((text, table, None, None, indices), ("multimodal", 0, 0, 0)),
        ((text.int(), table, image, audio, indices.long()), ("multimodal", 0, -1, -1)),
    ):
        yield Call(" ".join(map(str, (case, *options))), tensors, options)


SPEC = Spec(vocabulary, lookups, scale=_Copies())
