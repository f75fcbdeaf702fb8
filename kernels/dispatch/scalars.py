"""Numbers that change from call to call, as the 0-d tensors that the overloads take."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor
from torch.nn import Parameter

PLAIN = frozenset((Tensor, Parameter))
_kept: dict[float, Tensor] = {}  # the tensors of numbers that were given


def with_tensors(scalars: Sequence[int], arguments: Sequence) -> list:
    """The arguments, with a 0-d tensor in place of each number at the positions `scalars`."""
    arguments = list(arguments)
    plain = type(arguments[0]) in PLAIN  # a tensor that is kept would not do beside fake ones
    for i in scalars:
        value = arguments[i]
        if type(value) is not float:
            if isinstance(value, Tensor) or not isinstance(value, Real):
                continue
            value = float(value)
        tensor = _kept.get(value) if plain else None
        arguments[i] = _as_tensor(value) if tensor is None else tensor
    return arguments


def _as_tensor(value: float) -> Tensor:
    with torch.inference_mode(False):  # it may be saved for a backward later
        tensor = torch.tensor(value, dtype=torch.float64, device="cpu")
    if type(tensor) is Tensor and value:  # not a fake one; and -0.0 would be found as 0.0
        if len(_kept) >= 1024:
            _kept.clear()
        _kept[value] = tensor
    return tensor
