"""What Python decides once for all calls of a signature: what to allocate and to launch, which C++ then replays.

The first call of a signature, step by step. Steps 2 to 4 happen once an op and backend, 7 to 11 once a signature: a
later call of the same signature is 1, 5, the look-up of 6, and 12. For CPU tensors, and where `auto` is a function, 2
and the question of 3 come at each call.

     1  call.py           PublicFunction.__call__: is there an overload for this backend that was used before?
     2  call.py           _resolve: "auto" becomes a backend; refusals.py stands before what the core does not run
     3  loader.py         Loader.load: core.py builds and loads core.cpp and, for "cuda", the op's cuda.cu (build.py):
                          by g++ without its kernels (host_side.py), or whole by nvcc where the op is declared so
     4  loader.py         Loader.declare: the declaration goes to C++ (core.cpp, declare), which registers its kernels
     5  from_python.h     the arguments become those of a dispatcher call
        autograd.h        autocast casts; autograd notes what the backward will read, where a gradient is wanted
     6  compute.h         Compute: the signature (plan.h, describe) is looked up, and is new: ask_python. The length N
                          of ragged tensors is no part of it: varying.py
     7  plan.py           make_plan, which is the op fused_kernels::_plan_<name>.<backend>. signature.py checks the
                          arguments, and calls the op's own `check`; declaration.py computes the shapes of the outputs
     8  plan.py           record, where the op has a launcher in Python (triton_launch.py, cuda_launch.py): it runs
                          against stand-ins, and what it gives to device/launch.py or source_launch.py goes to
                          the Recorder (intercept.py), not to a GPU
     9  cubin.py          each kernel that it launches is compiled to a cubin (nvrtc.py, of CUDA source), or found in
                          build/cubins/
    10  driver.h          load: the cubin becomes a function of the driver
    11  plan.py → core.cpp  _return_plan: C++ keeps the outputs, the workspaces and the launches under the signature
    12  compute.h         outputs and workspaces are allocated, and driver.h launches (or the op's cuda.cu does, of
                          whose kernels each is compiled by nvrtc.py when it is first launched)
"""

from __future__ import annotations

import functools
import importlib
import math
import struct
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from ..device import source_launch
from ..dtypes import DTYPES
from . import cubin, input_errors, nvrtc
from .address import address
from .cubin_files import Compiled
from .declaration import BACKWARD, Declaration
from .intercept import recording
from .signature import Signature, flat
from .varying import Varying

SLOT, LITERAL, COMPUTED, SCALAR_FLOAT, SCALAR_DOUBLE, ELEMENTS, STRIDE = range(7)  # plan.h's Argument::Kind


class StandIn:
    """What a launcher may ask of a tensor, without one."""

    def __init__(self, slot: int, shape: Sequence[int], dtype: torch.dtype, aligned: bool = True) -> None:
        self.slot, self.dtype, self.aligned = slot, dtype, aligned
        self.shape = tuple(shape) if any(isinstance(size, Varying) for size in shape) else torch.Size(shape)
        self.itemsize = dtype.itemsize

    def numel(self) -> int:
        return math.prod(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dimension: int) -> int:
        return self.shape[dimension]

    def __len__(self) -> int:
        return self.shape[0]


class RaggedStandIn(StandIn):
    """For tensors of a list that are not all of length N: another call of the same plan has others."""

    def __init__(self, like: StandIn) -> None:
        self.slot, self.dtype, self.aligned, self.itemsize = like.slot, like.dtype, like.aligned, like.itemsize

    @property
    def shape(self) -> torch.Size:
        raise TypeError("a plan must not hang on how long a list's tensors are, unless all are alike")

    def dim(self) -> int:
        return 1


class ScalarStandIn:
    """A number that changes from call to call: a launcher can only hand it to a kernel."""

    def __init__(self, slot: int, double: bool) -> None:
        self.slot, self.double = slot, double

    def __float__(self) -> float:
        raise TypeError("a launcher must not compute with a number that changes from call to call: the kernel does")


class Recorder:
    """The launches of one call, on one device, as kernels/device/launch.py reports them.

    workspaces: (shape, dtype) of each. launches: each a list of numbers, as `returned` takes it: function, grid (3),
    threads, bytes of shared memory, kind (cubin.PLAIN …), and kind and value of each argument. Sizes, grids and the
    values of kind COMPUTED may be Varying.
    """

    interpreted = False  # whether what is recorded would run in Triton's interpreter

    def __init__(self, slots: int, device: torch.device, arch: int) -> None:
        self._slots, self._device, self.arch = slots, device, arch
        self.on_gpu = device.type == "cuda"  # which is the current one while launches are recorded
        self.workspaces: list[tuple[Sequence[int], torch.dtype]] = []
        self.launches: list[list[int]] = []

    def workspace(self, shape: Sequence[int], dtype: torch.dtype) -> StandIn:
        self.workspaces.append((shape, dtype))
        self._slots += 1
        return StandIn(self._slots - 1, shape, dtype)

    def launch(self, module: str, name: str, grid: tuple[int, ...], arguments: tuple, constants: dict) -> None:
        constants = {name: int(value) if isinstance(value, Varying) else value for name, value in constants.items()}
        for constant, value in constants.items():
            if not isinstance(value, (bool, int, float, str, type(None))) or value in (math.inf, -math.inf):
                raise TypeError(f"the constant {constant} of {name} must be a number or a string; got {value!r}")
        types, values = [], []
        for argument in arguments:
            type_, *value = _argument(argument)
            types.append(type_)
            values += value
        kernel = cubin.Kernel(module, name, tuple(types), tuple(sorted(constants.items())), self.arch)
        function, compiled = _function(kernel, self._device)
        hidden = compiled.parameters - len(values) // 2
        values += [LITERAL, 0] * hidden  # Triton's own: pointers to scratch memory, which no kernel of ours has
        self._add(grid, function, compiled, values)

    def launch_source(self, source: source_launch.Source, grid: tuple[int, ...], arguments: tuple) -> None:
        function, compiled = _function(nvrtc.Kernel(source, self.arch), self._device)
        self._add(grid, function, compiled, [number for argument in arguments for number in _eight_bytes(argument)])

    def _add(self, grid: tuple[int, ...], function: int, compiled: Compiled, values: list) -> None:
        blocks = (*grid, 1, 1)[:3]
        if math.prod(blocks):
            self.launches.append([function, *blocks, compiled.threads, compiled.shared, compiled.kind, *values])


def _eight_bytes(argument: object) -> tuple[int, int]:
    """(kind, value) of a member of the struct that generated source takes."""
    if isinstance(argument, source_launch.Elements | source_launch.Stride):
        return ELEMENTS if isinstance(argument, source_launch.Elements) else STRIDE, argument.of.slot
    if isinstance(argument, StandIn):
        return SLOT, argument.slot
    if type(argument) is int:
        return LITERAL, argument
    raise TypeError(f"a launcher gave generated source an argument of type {type(argument).__name__}")


def _argument(argument: object) -> tuple:
    """(type, kind, value) of a kernel's argument; of None the type alone."""
    if isinstance(argument, StandIn):
        return f"*{DTYPES[argument.dtype].triton}" + ":16" * argument.aligned, SLOT, argument.slot
    if isinstance(argument, ScalarStandIn):
        return ("fp64", SCALAR_DOUBLE, argument.slot) if argument.double else ("fp32", SCALAR_FLOAT, argument.slot)
    if argument is None:
        return ("none",)
    if type(argument) is int or isinstance(argument, Varying):
        type_ = "i32" if -(2**31) <= argument < 2**31 else "i64"
        if isinstance(argument, Varying):  # what follows N is compiled for every N, whether 16 divides it or not
            return type_, COMPUTED, argument
        return type_ + ":16" * (argument % 16 == 0), LITERAL, argument
    if type(argument) is float:
        return "fp32", LITERAL, struct.unpack("<i", struct.pack("<f", argument))[0]
    raise TypeError(f"a launcher gave a kernel an argument of type {type(argument).__name__}")


@functools.cache
def _function(kernel: cubin.Kernel | nvrtc.Kernel, device: torch.device) -> tuple[int, Compiled]:
    """The kernel on this device: loaded once, for as long as the process lives."""
    compiled = (nvrtc if isinstance(kernel, nvrtc.Kernel) else cubin).compiled(kernel)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{kernel} is not loaded yet, and cannot be while a CUDA graph is captured: call the op once before, with "
            "arguments of the same kind"
        )
    load = torch.ops.fused_kernels._load_cubin
    return load(compiled.path, compiled.name, compiled.shared, compiled.parameters), compiled


def make_plan(declaration: Declaration, backend: str, form: str, *arguments) -> None:
    """Steps 7 to 11: what the core calls for a signature that is new to it."""
    signature = declaration.forms[form]
    signature.check(arguments)
    if signature.mutated:
        signature.check_written(arguments)
    if declaration.fits and form not in BACKWARD:
        declaration.fits(backend, signature.by_name(arguments))
    length = length_of(signature, arguments)
    outputs = declaration.allocations(form, varied(signature, arguments, length))
    workspaces, launches = [], []
    if declaration.reports:
        device = signature.first_tensor(arguments).device
        torch.ops.fused_kernels._set_report(input_errors.tensor(device), device)
    if backend in declaration.launchers:
        workspaces, launches = record(declaration, form, arguments, outputs, length=length, backend=backend)
    torch.ops.fused_kernels._return_plan(*returned(outputs, workspaces, launches, length))


def record(
    declaration: Declaration, form: str, arguments: Sequence, allocations: Sequence, arch: int = 90,
    length: Varying | None = None, backend: str = "triton", recorder: type[Recorder] = Recorder,
) -> tuple[list, list]:
    """(workspaces, launches) of the op's launcher in Python for such arguments, as a Recorder has them.

    arch: 90 for sm_90, of tensors that are on no GPU; of others their GPU's own. length: as `varied` gives it.
    """
    signature = declaration.forms[form]
    device = signature.first_tensor(arguments).device
    double = signature.computes_in_double(arguments)
    slot, stand_ins = 0, []
    for i, (argument, value) in enumerate(zip(signature.arguments, arguments, strict=True)):
        if argument.is_list:
            slot += len(value)
            value = [_stand_in(slot - len(value) + k, tensor) for k, tensor in enumerate(value)]
            value = _varied_list(value, length) if i in signature.ragged else value
        elif argument.is_tensor:
            if isinstance(value, Tensor):
                on_host = i in signature.scalars and value.device.type == "cpu"
                value = ScalarStandIn(slot, double) if on_host else _stand_in(slot, value)
                if length is not None and _has_length(signature, i, value, length.value):
                    value.shape = (length,)
            slot += 1
        elif length is not None and _has_length(signature, i, value, length.value):
            value = length
        stand_ins.append(value)
    if form == "_":
        outputs = [stand_ins[signature.mutated[0]]]
    else:
        outputs = [StandIn(slot + i, shape, dtype) for i, (shape, dtype) in enumerate(allocations)]
    if declaration.reports and form in ("", "_"):
        outputs.append(StandIn(slot + len(outputs), (input_errors.SIZE,), torch.int64))
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        arch = 10 * major + minor
    records = recorder(slot + len(outputs), device, arch)
    with recording(records), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        launch(declaration, form, stand_ins, outputs, backend)
    return records.workspaces, records.launches


def launch(
    declaration: Declaration, form: str, arguments: Sequence, outputs: Sequence, backend: str = "triton"
) -> None:
    """Call the op's launcher, with tensors or with stand-ins; outputs: with the report, if it takes one."""
    launcher = importlib.import_module(declaration.launchers[backend])
    if form in ("", "_"):
        return getattr(launcher, declaration.launches)(*arguments, *outputs)
    *arguments, needs = arguments
    gradients = [output if needed else None for output, needed in zip(outputs, needs, strict=True)]
    return launcher.backward(*arguments, *gradients)


# ------------------------------------------------------------------------------------------------------------ ragged


def length_of(signature: Signature, arguments: Sequence) -> Varying | None:
    """N of a call: the length of the first Ragged tensor of one dimension, or the first Length; without one that of the
    first Ragged[] all of one length. None without any, or where N is 0 or at least 2^31, for which a plan is made as
    for any other size (compute.h decides alike)."""
    lists = [arguments[i] for i in signature.ragged if i in signature.lists]
    numbers = [
        len(value) if isinstance(value, Tensor) else value
        for value in (arguments[i] for i in signature.ragged if i not in signature.lists)
        if value is not None and not (isinstance(value, Tensor) and value.dim() != 1)
    ]
    numbers += [length for length in map(_common_length, lists) if length is not None]
    return Varying(numbers[0]) if numbers and 0 < numbers[0] < 2**31 else None


def _common_length(tensors: Sequence[Tensor | StandIn]) -> int | None:
    """The length of all of them; None if they have several, or other dimensions than one."""
    shapes = {tuple(tensor.shape) for tensor in tensors}
    return next(iter(shapes))[0] if len(shapes) == 1 and {*map(len, shapes)} == {1} else None


def _varied_list(stand_ins: list[StandIn], length: Varying | None) -> list[StandIn]:
    """Stand-ins for the tensors of a Ragged[]. Each one's length is N, or a number if the signature contains it; where
    the lengths differ, a launcher that asks for one raises."""
    common = _common_length(stand_ins)
    if common is None or (length is not None and common != length.value):
        return [RaggedStandIn(tensor) if tensor.dim() == 1 else tensor for tensor in stand_ins]
    if length is None:
        return stand_ins
    return [StandIn(tensor.slot, (length,), tensor.dtype, tensor.aligned) for tensor in stand_ins]


def varied(signature: Signature, arguments: Sequence, length: Varying | None) -> list:
    """The arguments, with a stand-in of shape [N] for each tensor whose length is N, and N for each number that is; and
    with stand-ins for all in a Ragged[]."""

    def with_length(position: int, value: object) -> object:
        if position in signature.lists and position in signature.ragged:
            return _varied_list([_stand_in(-1, tensor) for tensor in value], length)
        if length is None or not _has_length(signature, position, value, length.value):
            return value
        return StandIn(-1, (length,), value.dtype) if isinstance(value, Tensor) else length

    return [with_length(i, value) for i, value in enumerate(arguments)]


def _has_length(signature: Signature, position: int, value: object, length: int) -> bool:
    if position not in signature.ragged or value is None:
        return False
    return value == length if isinstance(value, int) else tuple(value.shape) == (length,)


def returned(outputs: list, workspaces: list, launches: list, length: Varying | None) -> tuple:
    """_return_plan's arguments. What varies goes as a program, and its number stands where a number would: k as
    -1 - k in a shape or a grid, which are never negative, and as it is in an argument of kind COMPUTED."""
    programs: list[Sequence[int]] = []

    def size(number: int | Varying) -> int:
        if not isinstance(number, Varying):
            return number
        programs.append(number.program)
        return -len(programs)

    groups = [len(output) if isinstance(output, list) else -1 for output in outputs]
    allocations = [*flat(outputs), *workspaces]
    shapes = [[size(number) for number in shape] for shape, _ in allocations]
    dtypes = [dtype for _, dtype in allocations]
    lists = []
    for function, *grid_and_more in launches:
        grid, more = grid_and_more[:3], grid_and_more[3:]
        values = [-1 - size(number) if isinstance(number, Varying) else number for number in more]
        lists.append([function, *map(size, grid), *values])
    conditions = [] if length is None else length.conditions
    return dtypes, shapes, groups, lists, programs, list(dict.fromkeys(conditions))


def _stand_in(slot: int, tensor: Tensor) -> StandIn:
    """For the tensor that the launch will get: contiguous, so that a copy, which is aligned, replaces what is not."""
    return StandIn(slot, tensor.shape, tensor.dtype, not tensor.is_contiguous() or (address(tensor) or 0) % 16 == 0)
