"""What the pointwise ops share in Python: checking arguments, autocast, and how many elements a program takes."""

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kernels import runtime

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check(op: str, x: Tensor, bias: Tensor, y: Tensor | None = None) -> None:
    """Raise unless x is [..., N], bias [N], y like x, all of one device and one of DTYPES.

    Raises:
        TypeError: a dtype. ValueError: a shape or a device. Both name the argument, what was expected and what came.
    """
    if x.dtype not in DTYPES:
        raise TypeError(f"{op}: x must be float32, float16, bfloat16 or float64; got {_name(x.dtype)}")
    if x.dim() == 0:
        raise ValueError(f"{op}: x must have at least one dimension; got a tensor of shape []")
    for name, tensor, shape in (("bias", bias, x.shape[-1:]), ("y", y, x.shape)):
        if tensor is None:
            continue
        if tensor.device != x.device:
            raise ValueError(f"{op}: {name} must be on x's device, {x.device}; got {tensor.device}")
        if tensor.dtype != x.dtype:
            raise TypeError(f"{op}: {name} must have x's dtype, {_name(x.dtype)}; got {_name(tensor.dtype)}")
        if tensor.shape != shape:
            raise ValueError(
                f"{op}: {name} must have shape {list(shape)}, for x of shape {list(x.shape)}; got {list(tensor.shape)}"
            )


def check_in_place(op: str, x: Tensor, bias: Tensor, y: Tensor | None = None) -> None:
    """Raise ValueError if writing to x would change what is still to be read. y may be x itself."""
    if any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True)):
        raise ValueError(f"{op}: x must not be expanded, since it is written to; its strides are {x.stride()}")
    if y is not None and _overlap(x, y) and (y.data_ptr() != x.data_ptr() or y.shape != x.shape):
        raise ValueError(f"{op}: y must be x itself or not overlap it; it shares part of x's memory")
    if _overlap(x, bias) and (bias.data_ptr() != x.data_ptr() or bias.numel() != x.numel()):
        raise ValueError(f"{op}: bias must not overlap x, which is written to; it shares x's memory")


def apart_from(x: Tensor, bias: Tensor) -> Tensor:
    """The bias, copied if it lies in x's storage: for in-place code that reads it while writing x."""
    return bias.clone() if bias.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() else bias


def refuse_gradients(op: str, *tensors: Tensor) -> None:
    """Raise RuntimeError if autograd would need what the in-place op overwrites."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise RuntimeError(f"{op}_ has no gradient: call {op}, or {op}_ under torch.no_grad()")


def refuse_forward_mode(op: str, *tensors: Tensor) -> None:
    """Raise RuntimeError if a tensor has a forward-mode tangent, which would be lost without a word."""
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError(f'{op} has no forward-mode derivative: use backend="eager"')


def mark_written(x: Tensor) -> None:
    """Tell autograd that x was written to, as PyTorch's own in-place functions do: a backward that saved x raises."""
    if not x.is_inference():
        torch.autograd.graph.increment_version(x)


def check_are_tensors(op: str, **arguments: object) -> None:
    """Raise TypeError naming the first that is no tensor."""
    for name, argument in arguments.items():
        if not isinstance(argument, Tensor):
            raise TypeError(f"{op}: {name} must be a tensor; got {type(argument).__name__}")


def of_one_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors; if their dtypes differ under torch.autocast, cast to its dtype (float64 excepted, as in PyTorch)."""
    device = tensors[0].device.type
    if tensors[0].dtype == tensors[1].dtype == tensors[-1].dtype or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    castable = (torch.float32, torch.float16, torch.bfloat16)
    return tuple(tensor.to(dtype) if tensor.dtype in castable else tensor for tensor in tensors)


def on_device_of(x: Tensor):
    """A context in which Triton launches on x's GPU, and so on that GPU's current stream."""
    if x.is_cuda and x.get_device() != torch.cuda.current_device():
        return torch.cuda.device(x.device)
    return nullcontext()


def pointwise_block(elements: int, itemsize: int) -> int:
    """How many elements a Triton program of 4 warps takes.

    16 bytes a thread; up to 2^18 elements only 256, which keeps more programs busy for a shorter time (measured on an
    H200). The interpreter's time goes by the program, not by the element.
    """
    if runtime.triton_mode() == "interpreted":
        return 1024
    return 256 if elements <= 2**18 else 128 * 16 // itemsize


def _overlap(x: Tensor, other: Tensor) -> bool:
    """Whether the memory of two contiguous tensors overlaps. What is not contiguous is copied before x is written."""
    if not (x.is_contiguous() and other.is_contiguous() and x.numel() and other.numel()):
        return False
    start, other_start = x.data_ptr(), other.data_ptr()
    return start < other_start + other.nbytes and other_start < start + x.nbytes


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
