"""What the kernels that look rows up reported of their input, as exceptions and a count (dispatch/input_errors.py)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...dispatch import checks, input_errors
from ...dispatch.op import Op
from ..embedding_bags_apart import eager as apart
from . import eager

# By what kernels report, the error, what it says of feature, position and value, and the op whose kernel it was.
ERRORS = {
    1: (IndexError, eager.bad_id, "embedding_bags"),
    2: (ValueError, lambda op, feature, *where: eager.bad_offset(op, *where), "embedding_bags"),
    3: (IndexError, apart.bad_id, apart.OP),
    4: (ValueError, apart.bad_offset, apart.OP),
    5: (IndexError, apart.bad_id, "dlrm_forward"),
    6: (ValueError, apart.bad_offset, "dlrm_forward"),
}


def check_ids(device: torch.device | str | None = None, *, wait: bool = False) -> None:
    """Raise IndexError for an id that was out of range, or ValueError for bad offsets, in an earlier call.

    It reads what the kernels have written so far, and waits for them only with `wait`. Nothing of it costs a
    synchronisation otherwise: call it beside a training loop's own, where the loss is read. With FUSED_KERNELS_DEBUG=1
    in the environment every call that is not captured does so itself, and the call that is wrong raises.

    device: default: every device that was used.
    """
    if device is None:
        devices = input_errors.devices()
    else:
        device = checks.a_device("check_ids", "device", device)
        devices = [-1 if device.type != "cuda" else torch.cuda.current_device() if device.index is None else
        device.index]
    for index in devices:
        if wait and index >= 0:
            if torch.cuda.is_current_stream_capturing():
                continue
            torch.cuda.synchronize(index)
        raise_for(index, "")
        if wait and index >= 0:
            input_errors.clear(index)


def out_of_range_count(device: torch.device | str | None = None) -> int:
    """How many ids were out of range, in all calls with out_of_range="count" that have finished. It does not wait.

    device: default: all together.
    """
    if device is None:
        return sum(map(input_errors.count, input_errors.devices()))
    device = checks.a_device("out_of_range_count", "device", device)
    if device.type != "cuda":
        return input_errors.count(-1)
    return input_errors.count(torch.cuda.current_device() if device.index is None else device.index)


def raise_for(device: int, when: str) -> None:
    """Raise what was reported of this device, once."""
    if (found := input_errors.found(device)) is None:
        return
    input_errors.clear(device)
    kind, *where = found
    error, sentence, op = ERRORS[kind]
    raise error(sentence(op, *where) + when)


def call(op: Op, backend: str, first: object, arguments: Sequence) -> Tensor:
    """The op's call, which raises first what an earlier one reported of the device of the tensor `first`; where nobody
    need wait for it, what this one reports, too."""
    if not isinstance(first, Tensor) or checks.has_no_values(first):
        return op.call(backend, *arguments)
    device = first.get_device()
    if input_errors.found(device) is not None:
        raise_for(device, " (in an earlier call)")
    out = op.call(backend, *arguments)
    if device < 0 or input_errors.WAITS:
        check_ids(first.device, wait=True)
    return out
