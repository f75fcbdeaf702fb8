"""Recording what a Triton launcher would launch: the plan that C++ replays at every call of the same signature."""

from __future__ import annotations

import functools
import importlib
import math
import struct
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.dispatch import cubin, report
from kernels.dispatch.recording import recording

if TYPE_CHECKING:
    from kernels.dispatch.op import Op

TYPES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip
SLOT, LITERAL, SCALAR_FLOAT, SCALAR_DOUBLE = range(4)  # plan.h's Argument::Kind
# PyTorch's number of each dtype (c10::ScalarType), as _add_plan takes it.
SCALAR_TYPES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.bool: 11, torch.bfloat16: 15,
}  # fmt: skip


class StandIn:
    """What a launcher may ask of a tensor, without one."""

    def __init__(self, slot: int, shape: Sequence[int], dtype: torch.dtype, aligned: bool = True) -> None:
        self.slot, self.shape, self.dtype, self.aligned = slot, torch.Size(shape), dtype, aligned
        self.itemsize = dtype.itemsize

    def numel(self) -> int:
        return self.shape.numel()

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dimension: int) -> int:
        return self.shape[dimension]

    def __len__(self) -> int:
        return self.shape[0]


class ScalarStandIn:
    """A number that changes from call to call: a launcher can only hand it to a kernel."""

    def __init__(self, slot: int, double: bool) -> None:
        self.slot, self.double = slot, double

    def __float__(self) -> float:
        raise TypeError("a launcher must not compute with a number that changes from call to call: the kernel does")


class Recorder:
    """The launches of one call, on one device, as kernels/device/launch.py reports them."""

    def __init__(self, slots: int, device: torch.device, arch: int) -> None:
        self._slots, self._device, self.arch = slots, device, arch
        self.on_gpu = device.type == "cuda"  # which is the current one while launches are recorded
        self.workspaces: list[int] = []
        self.launches: list[int] = []

    def workspace(self, shape: Sequence[int], dtype: torch.dtype) -> StandIn:
        self.workspaces += allocation(shape, dtype)
        self._slots += 1
        return StandIn(self._slots - 1, shape, dtype)

    def launch(self, module: str, name: str, grid: tuple[int, ...], arguments: tuple, constants: dict) -> None:
        for constant, value in constants.items():
            if not isinstance(value, (bool, int, float, str, type(None))) or value in (math.inf, -math.inf):
                raise TypeError(f"the constant {constant} of {name} must be a number or a string; got {value!r}")
        types, values = [], []
        for argument in arguments:
            type_, *value = _argument(argument)
            types.append(type_)
            values += value
        kernel = cubin.Kernel(module, name, tuple(types), tuple(sorted(constants.items())), self.arch)
        function, made = _function(kernel, self._device)
        hidden = made.parameters - len(values) // 2
        values += [LITERAL, 0] * hidden  # Triton's own: pointers to scratch memory, which no kernel of ours has
        blocks = (*grid, 1, 1)[:3]
        if math.prod(blocks) == 0:
            return
        self.launches += [function, *blocks, made.threads, made.shared, made.kind]
        self.launches += [len(values) // 2, *values]


def allocation(shape: Sequence[int], dtype: torch.dtype) -> list[int]:
    """A tensor to be allocated, as _add_plan takes it."""
    return [SCALAR_TYPES[dtype], len(shape), *shape]


def _argument(argument: object) -> tuple:
    """(type, kind, value) of a kernel's argument; of None the type alone."""
    if isinstance(argument, StandIn):
        return f"*{TYPES[argument.dtype]}" + ":16" * argument.aligned, SLOT, argument.slot
    if isinstance(argument, ScalarStandIn):
        return ("fp64", SCALAR_DOUBLE, argument.slot) if argument.double else ("fp32", SCALAR_FLOAT, argument.slot)
    if argument is None:
        return ("none",)
    if type(argument) is int:
        type_ = "i32" if -(2**31) <= argument < 2**31 else "i64"
        return type_ + ":16" * (argument % 16 == 0), LITERAL, argument
    if type(argument) is float:
        return "fp32", LITERAL, struct.unpack("<i", struct.pack("<f", argument))[0]
    raise TypeError(f"a launcher gave a kernel an argument of type {type(argument).__name__}")


@functools.cache
def _function(kernel: cubin.Kernel, device: torch.device) -> tuple[int, cubin.Compiled]:
    """The kernel on this device: loaded once, for as long as the process lives."""
    made = cubin.compiled(kernel)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{kernel} is not loaded yet, and cannot be while a CUDA graph is captured: call the op once before, with "
            "arguments of the same kind"
        )
    load = torch.ops.fused_kernels._load_cubin
    return load(made.path, made.name, made.shared, made.parameters), made


def record(
    op: Op, form: str, arguments: Sequence, allocations: Sequence, arch: int = 90
) -> tuple[list[int], list[int]]:
    """(workspaces, launches) of the op's Triton launcher for such arguments, as _add_plan takes them.

    arch: 90 for sm_90, of tensors that are on no GPU; of others their GPU's own.
    """
    made = op.forms[form]
    device = made.first_tensor(arguments).device
    double = made.computes_in_double(arguments)
    slot, given = 0, []
    for i, (argument, value) in enumerate(zip(made.arguments, arguments, strict=True)):
        if argument.is_tensor:
            if isinstance(value, Tensor):
                on_host = i in made.scalars and value.device.type == "cpu"
                value = ScalarStandIn(slot, double) if on_host else _stand_in(slot, value)
            slot += 1
        given.append(value)
    if form == "_":
        outputs = [given[made.mutated[0]]]
    else:
        outputs = [StandIn(slot + i, shape, dtype) for i, (shape, dtype) in enumerate(allocations)]
    if op.reports and form in ("", "_"):
        outputs.append(StandIn(slot + len(outputs), (report.SIZE,), torch.int64))
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        arch = 10 * major + minor
    recorder = Recorder(slot + len(outputs), device, arch)
    with recording(recorder), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        launch(op, form, given, outputs)
    return recorder.workspaces, recorder.launches


def launch(op: Op, form: str, arguments: Sequence, outputs: Sequence) -> None:
    """Call the op's Triton launcher, with tensors or with stand-ins; outputs: with the report, if it takes one."""
    launcher = importlib.import_module(f"{op.package}.triton_launch")
    if form in ("", "_"):
        return launcher.forward(*arguments, *outputs)
    *arguments, needs = arguments
    gradients = [output if needed else None for output, needed in zip(outputs, needs, strict=True)]
    return launcher.backward(*arguments, *gradients)


def _stand_in(slot: int, tensor: Tensor) -> StandIn:
    """Of the tensor that the launch will get: contiguous, so that a copy, which is aligned, replaces what is not."""
    return StandIn(slot, tensor.shape, tensor.dtype, not tensor.is_contiguous() or tensor.data_ptr() % 16 == 0)
