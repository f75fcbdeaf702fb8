"""What kernels report without anyone waiting for it: a few int64 numbers a device, in memory that the host can read.

A kernel that meets something wrong in its input (an id that a table does not have) cannot raise. It writes what it
found here, computes something harmless, and a later call raises, or whoever asks. On a GPU the numbers lie in pinned
host memory, which has one address for both; it is written only when something is wrong, and looking at it costs the
host a read of its own memory. It is a log and no value: no schema declares it, no graph holds it.

    CLAIMS  not 0 once something was found since the last `clear`; who makes it 1 writes the next four
    FOUND   three numbers, which say what and where
    KIND    0 while there is nothing; what kind of thing was found, and above its four bits a digest of the numbers
    COUNT   a counter of its own, which `clear` leaves alone

The numbers cross PCIe one by one, in any order. By the digest a + DIGEST_B b + DIGEST_C c, modulo 2**60, the host knows
whether those that it sees belong together. Kernels write with device/report.cuh and device/report.py; their atomic
operations are the device's own: few machines have atomic operations on host memory that the host takes part in.
"""

from __future__ import annotations

import os
import threading

import torch
from torch import Tensor

CLAIMS, FOUND, KIND, COUNT, SIZE = 0, 1, 4, 5, 6
DIGEST_B, DIGEST_C = 1_000_003, 998_244_353  # primes, so large that positions and ids seldom cancel each other
# Whether whoever launches a kernel that may report waits for it and looks at once.
WAITS = os.environ.get("FUSED_KERNELS_DEBUG", "0") not in ("", "0")

# By Tensor.get_device(), -1 for the CPU: the numbers, and a view of them that is quick to read.
_reports: dict[int, tuple[Tensor, memoryview]] = {}
_making, _adding = threading.Lock(), threading.Lock()


def tensor(device: torch.device) -> Tensor:
    """The device's numbers, int64 [SIZE], as a tensor of the CPU; a GPU's are pinned, and its kernels may have them.

    Raises RuntimeError if they are not there yet and a CUDA graph is being captured, which forbids allocating them.
    """
    index = -1 if device.type != "cuda" else torch.cuda.current_device() if device.index is None else device.index
    with _making:
        if index not in _reports:
            if index >= 0 and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("call the op once before a CUDA graph of it is captured: its report is made then")
            with torch.inference_mode(False):
                numbers = torch.tensor([0] * SIZE, dtype=torch.int64, device="cpu", pin_memory=index >= 0)
            _reports[index] = numbers, numbers.numpy().data
        return _reports[index][0]


def found(index: int) -> tuple[int, int, int, int] | None:
    """(kind, and the three numbers) of what was found on the device Tensor.get_device() = index, or None. Never waits:
    it sees what kernels have written by now."""
    report = _reports.get(index)
    if report is None or not report[1][KIND]:
        return None
    kind, (a, b, c) = report[1][KIND], report[1][FOUND : FOUND + 3]
    if (kind >> 4) % 2**60 != (a + DIGEST_B * b + DIGEST_C * c) % 2**60:
        return None
    return kind & 15, a, b, c


def clear(index: int) -> None:
    """Forget what was found: kernels may report again. Where a kernel claims the report in this moment, its claim may
    stay, unreported: call clear() again after waiting for all kernels."""
    if index in _reports:
        numbers = _reports[index][1]
        numbers[KIND] = 0
        numbers[CLAIMS] = 0


def count(index: int) -> int:
    """The device's counter, as far as kernels have written it."""
    return _reports[index][1][COUNT] if index in _reports else 0


def add(device: torch.device, number: int) -> None:
    """Add to the device's counter, from the host: no kernel may be counting meanwhile, other threads may be adding."""
    numbers = tensor(device)
    with _adding:
        numbers[COUNT] += number


def devices() -> list[int]:
    """The devices that have a report, as Tensor.get_device() numbers them."""
    return list(_reports)
