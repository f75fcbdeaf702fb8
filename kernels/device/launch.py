"""How a launcher calls Triton kernels: launch.cuh's counterpart.

A launcher (an op's triton_launch.py) chooses the grid and the constants of a call. It imports no Triton:

    functions = triton_functions(f"{__package__}.triton_kernel")

    def forward(x, bias, out):
        functions.forward_kernel[(grid,)](x, bias, out, x.numel(), COLUMNS=len(bias), num_warps=4)

Positional arguments are run-time values; keywords are the kernel's constexprs, num_warps, num_stages and launch_pdl.
Called with tensors, the launcher imports Triton and launches. Under `recording` it is called with stand-ins, and what
it would launch goes to the recorder: kernels/dispatch/plan.py makes of it what C++ replays at every call of that
signature.
"""

from __future__ import annotations

import importlib
import os
import threading
from contextlib import nullcontext

import torch
from torch import Tensor

from .. import runtime
from ..dispatch import allocation
from ..dispatch.intercept import recorder

# By architecture, bytes of shared memory that a block may have: what `shared_memory` says where there is no such GPU to
# be asked (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
SHARED_MEMORY = {
    arch: kilobytes * 1024
    for kilobytes, archs in {64: (75,), 163: (80, 87), 99: (86, 89, 120, 121), 227: (90, 100, 103, 110)}.items()
    for arch in archs
}

# Held while the interpreter runs a kernel: it replaces functions of triton.language and puts them back, for all
# threads. A fork waits for it, so that a child's triton.language is whole and the lock its own.
INTERPRETING = threading.RLock()
os.register_at_fork(
    before=INTERPRETING.acquire, after_in_parent=INTERPRETING.release, after_in_child=INTERPRETING.release
)


class triton_functions:
    """The @triton.jit functions of a module, by name, without importing it before one is launched."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> _Function:
        return _Function(self._module, name)


class _Function:
    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __getitem__(self, grid: tuple[int, ...]):
        def launch(*arguments, **constants) -> None:
            if (records := recorder()) is not None:
                records.launch(self._module, self._name, grid, arguments, constants)
            else:
                kernel = getattr(importlib.import_module(self._module), self._name)
                with INTERPRETING if interpreted() else nullcontext():
                    kernel[grid](*arguments, **constants)

        return launch


def empty(shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> Tensor:
    """A workspace on like's device, its memory not written."""
    if (records := recorder()) is not None:
        return records.workspace(shape, dtype)
    return allocation.empty(shape, dtype, like.device)


def interpreted() -> bool:
    """Whether Triton's interpreter will run the kernels: its time goes by the program, not by the element."""
    if (records := recorder()) is not None:
        return records.interpreted
    return runtime.triton_mode() == "interpreted"


def begins_early() -> bool:
    """Whether a kernel may begin before the one before it in the stream has ended: programmatic dependent launch.

    From sm_90 on. Such a kernel is launched with launch_pdl=True, and calls triton.language.extra.cuda.gdc_wait before
    it reads or writes memory; launch.cuh says why.
    """
    if (records := recorder()) is not None:
        return records.arch >= 90
    return not interpreted() and torch.cuda.get_device_capability() >= (9, 0)


def architecture(device: torch.device | None = None) -> int:
    """90 for sm_90: of the GPU that launches are recorded for, of a CUDA device (default: the current one), and 90
    where there is none: a launch is then planned as for an H200."""
    if (records := recorder()) is not None:
        return records.arch
    if not _is_cuda(device):
        return 90
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def products_in(precision: str) -> str:
    """What float32 products are computed in where `precision` is asked for.

    Tensor cores take tf32 from sm_80 on. Before, Triton multiplies the numbers as they are: rounding would only lose.
    """
    return "ieee" if precision == "tf32" and architecture() < 80 else precision


def shared_memory(device: torch.device | None = None) -> int:
    """Bytes of shared memory that a block may have on the GPU that `architecture` speaks of."""
    records = recorder()
    if records.on_gpu if records is not None else _is_cuda(device):
        found = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
        if found:
            return found
    return SHARED_MEMORY.get(architecture(device), min(SHARED_MEMORY.values()))


def multiprocessors(device: torch.device | None = None) -> int:
    """How many the GPU has that `architecture` speaks of; where there is none, an H200's 132: a launch is then planned
    as for one."""
    records = recorder()
    if records.on_gpu if records is not None else _is_cuda(device):
        return torch.cuda.get_device_properties(device).multi_processor_count
    return 132


def _is_cuda(device: torch.device | None) -> bool:
    if device is not None:
        return device.type == "cuda"
    return not interpreted() and runtime.has_nvidia_driver() and torch.cuda.is_available()


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is not below n; 1 for 0."""
    return 1 << max(0, n - 1).bit_length()
