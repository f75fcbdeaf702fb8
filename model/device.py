"""Where training runs and what it computes in: the device, its precision, the CPU's threads."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from data.cli import UserError
from kernels import runtime
from model.config import Precision

AMPERE = (8, 0)  # the first compute capability with TF32 and bfloat16 in its tensor cores


def choose(device: str | torch.device | None) -> torch.device:
    """The device of that name, by default a GPU if there is one; UserError if there is none of that name."""
    if device is None:
        return runtime.device()
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise UserError(f"--device: expected cpu, cuda or cuda:N, got {device!r}") from None
    if chosen.type not in ("cpu", "cuda"):
        raise UserError(f"--device: expected cpu, cuda or cuda:N, got {device!r}")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {device}: this machine has {torch.cuda.device_count()} usable CUDA devices")
    return chosen


def check_precision(device: torch.device, precision: Precision) -> None:
    """Raise UserError if the device does not compute in this precision."""
    cuda = device.type == "cuda"
    if precision is Precision.TF32 and not cuda:
        raise UserError(f"--precision tf32: needs an NVIDIA GPU, this is the {device}; use fp32, or bf16")
    if precision is not Precision.FP32 and cuda and torch.cuda.get_device_capability(device) < AMPERE:
        name = torch.cuda.get_device_name(device)
        raise UserError(f"--precision {precision}: needs a GPU from Ampere on, this is a {name}; use fp32")


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager:
    """Within it the forward pass computes in the precision (TF32 is set for the process, by `settings`)."""
    if precision is Precision.BF16:
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


@contextmanager
def settings(threads: int, precision: Precision) -> Iterator[None]:
    """The process's number of CPU threads (0: torch's default) and its TF32 switch; at the end they are put back."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(threads or before[0])
    torch.set_float32_matmul_precision("high" if precision is Precision.TF32 else "highest")
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])


def to(device: torch.device, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors on the device."""
    if device.type == "cuda":
        return tuple(pinned(tensor).to(device, non_blocking=True) for tensor in tensors)
    return tensors


def pinned(tensor: Tensor) -> Tensor:
    """The tensor where a copy to the GPU is asynchronous: in pinned memory; one of a GPU is itself."""
    return tensor if tensor.is_cuda else tensor.pin_memory()
