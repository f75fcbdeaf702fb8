"""What a Triton kernel reads and writes, program by program, and drawn.

The kernel runs in a process of its own, through Triton's interpreter, on a GPU's machine too. Each tensor lies there
between two zones, so that an access beside it is seen like any other, and touches nothing that counts.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from . import fresh
from .interpreter import BASE, accesses
from .isolated import source_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ZONE = 4096  # elements before and behind a tensor; an access beyond is left out
SECONDS = 40  # of the process
SHOWN = 8  # columns beyond a tensor's end that are drawn at most
CHILD = f"import sys; from {__name__} import child; child(*sys.argv[1:])"
IMPORTED = f"{__name__}, triton.runtime.interpreter"


class Access(NamedTuple):
    """What one program accesses at once. what: load, store or atomic; offsets: of elements, from the tensor's first."""

    program: int
    what: str
    tensor: str
    offsets: list[int]


def accesses_of(kernel, grid: Sequence[int], *arguments, **constants) -> list[Access]:
    """The accesses of kernel[grid](*arguments, **constants), in the order of the programs; arguments: small contiguous
    tensors, descriptors of such, and numbers.

    Raises RuntimeError with the kernel's error. ValueError: a kernel that cannot be carried to another process.
    """
    return [Access(*row) for row in _asked(kernel, grid, arguments, constants)]


def late_accesses(kernel, first: int, *arguments, **constants) -> list[Access]:
    """What program number `first` of a large tensor would access. It loads zeros and writes nothing, so small tensors
    may stand for large ones. So far away no tensor is the nearest: an access is listed once for each argument that is
    a tensor, in their order, with its offsets from that one.

    Raises: as accesses_of.
    """
    return [Access(*row) for row in _asked(kernel, (1,), arguments, constants, first)]


def _asked(kernel, grid: Sequence[int], arguments: tuple, constants: dict, first: int | None = None) -> list:
    """What the other process wrote down."""
    name, source = source_of(kernel)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "solution.py").write_text(source)
        inputs = [_with_tensor(argument, Tensor.cpu) for argument in arguments]
        torch.save((name, tuple(grid), inputs, constants, first), Path(folder) / "call")
        interpreting = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        ended = fresh.run(CHILD, folder, imported=IMPORTED, started=interpreting, seconds=SECONDS)
        if ended.returncode == -signal.SIGALRM:
            raise RuntimeError(f"{name}: it does not end: stopped after {SECONDS} s")
        if ended.returncode:
            raise RuntimeError(f"{name}: {ended.stderr.strip().splitlines()[-1]}")
        return json.loads((Path(folder) / "accesses").read_text())


def child(folder: str) -> None:
    """In the other process: run the call, and write down its accesses."""
    import importlib.util

    from triton.runtime import interpreter

    name, grid, arguments, constants, first = torch.load(Path(folder) / "call", weights_only=False)
    spec = importlib.util.spec_from_file_location("solution", f"{folder}/solution.py")
    solution = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(solution)
    kernel, log = getattr(solution, name), []
    inputs = [_with_tensor(argument, _between_zones) for argument in arguments]
    tensors = _tensors(kernel.arg_names, inputs)
    with ExitStack() as stack:
        for (owner, attribute), replacement in _recorded(interpreter, tensors, log, first).items():
            stack.enter_context(mock.patch.object(owner, attribute, replacement))
        kernel[grid](*inputs, **constants)
    (Path(folder) / "accesses").write_text(json.dumps(log))


def _tensors(names: Sequence[str], arguments: Sequence) -> dict[str, Tensor]:
    """Those of the arguments that are tensors or descriptors of one."""
    values = {name: getattr(value, "base", value) for name, value in zip(names, arguments, strict=False)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _with_tensor(argument: object, change: Callable[[Tensor], Tensor]) -> object:
    """change(the argument); of a descriptor, one of the changed tensor."""
    if dataclasses.is_dataclass(argument) and isinstance(getattr(argument, "base", None), Tensor):
        return dataclasses.replace(argument, base=change(argument.base))
    return change(argument) if isinstance(argument, Tensor) else argument


def _between_zones(tensor: Tensor) -> Tensor:
    return torch.cat([tensor.new_zeros(ZONE), tensor.flatten(), tensor.new_zeros(ZONE)])[ZONE:-ZONE].view(tensor.shape)


def _recorded(interpreter, tensors: dict[str, Tensor], log: list, first: int | None) -> dict:
    """The interpreter's accesses, written down before they are made; those beyond the zones are not made. first: the
    number of the first program, if it is a late one, whose accesses are written down wherever they are and not made."""
    builder, program_of = interpreter.InterpreterBuilder, interpreter.InterpreterBuilder.set_grid_idx

    def note(self, what: str, pointers, mask: np.ndarray | None) -> np.ndarray:
        """The mask, less what lies beyond the zones."""
        allowed = np.ones(pointers.data.shape, bool)
        if mask is not None:
            allowed &= mask.astype(bool)
        addresses = pointers.data.astype(np.int64)
        if first is not None:  # so far away that no tensor is the nearest
            for name, tensor in tensors.items():
                offsets = (addresses - tensor.data_ptr()) // tensor.itemsize
                log.append((first, what, name, offsets[allowed].ravel().tolist()))
            return np.zeros_like(allowed)
        # A descriptor's is its own tensor; else the nearest one: a lane that is left out may point anywhere.
        place, _ = pointers.attr.get(BASE, (int(addresses[allowed][0] if allowed.any() else addresses.flat[0]), None))

        def beside(name: str) -> int:
            start, size = tensors[name].data_ptr(), tensors[name].nbytes
            return max(start - place, place - start - size, 0)

        name = min(tensors, key=beside)
        tensor = tensors[name]
        offsets = (addresses - tensor.data_ptr()) // tensor.itemsize
        near = (offsets >= -ZONE) & (offsets < tensor.numel() + ZONE)
        x, y, z = (*self.grid_idx, 0, 0)[:3]
        across, down, *_ = (*self.grid_dim, 1, 1)
        program = int(x + across * (y + down * z))
        log.append((program, what, name, offsets[allowed & near].ravel().tolist()))
        return allowed & near

    def late_program(self, x: int, y: int, z: int):
        program_of(self, x, y, z)
        self.grid_idx = (x + (first or 0), y, z)

    patch = interpreter._patch_lang_tensor

    def patched(tensor, *rest):
        patch(tensor, *rest)
        # Triton 3.6 makes an int of an array of one number, which NumPy 2.4 does not.
        tensor.__index__ = lambda self: int(self.handle.data.item())

    return accesses(interpreter, note) | {
        (interpreter, "_patch_lang_tensor"): patched, (builder, "set_grid_idx"): late_program
    }


def draw_accesses(kernel, grid: Sequence[int], *arguments, **constants) -> Figure:
    """A panel for what is read of each tensor, and one for what is written: an element is a cell, its colour the
    program; grey is what several programs access, red what lies beside the tensor."""
    import matplotlib.pyplot as plt

    plain = getattr(kernel, "fn", kernel)
    names = plain.__code__.co_varnames[: plain.__code__.co_argcount]
    shapes = {name: tuple(tensor.shape) for name, tensor in _tensors(names, arguments).items()}
    log = accesses_of(kernel, grid, *arguments, **constants)
    panels: dict[tuple[str, str], dict[int, set[int]]] = {}
    for program, what, tensor, offsets in log:
        cells = panels.setdefault((tensor, "read" if what == "load" else "written"), {})
        for offset in offsets:
            cells.setdefault(offset, set()).add(program)
    heights = [max(1, int(np.prod(shapes[tensor][:-1]))) for tensor, _ in panels]
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(9, 0.5 + 0.28 * sum(heights) + 0.3 * len(panels)), squeeze=False,
        height_ratios=[height + 0.6 for height in heights], layout="constrained",
    )
    for ax, ((tensor, how), cells) in zip(axes[:, 0], panels.items(), strict=True):
        _draw_cells(ax, shapes[tensor], cells)
        ax.set_title(f"{tensor}, {how}", loc="left", fontsize=9)
    sides = [ax.get_xlim() for ax in axes[:, 0]]
    for ax in axes[:, 0]:
        ax.set_xlim(min(left for left, _ in sides), max(right for _, right in sides))
    used = [{program} for program in sorted({access.program for access in log})[:8]]
    if any(len(programs) > 1 for cells in panels.values() for programs in cells.values()):
        used.append({0, 1})
    figure.legend(
        handles=[plt.Rectangle((0, 0), 1, 1, color=_colour(programs)) for programs in used],
        labels=["several" if len(programs) > 1 else f"program {min(programs)}" for programs in used],
        loc="outside lower center", ncols=9, fontsize=8, frameon=False,
    )
    return figure


def _colour(programs: set[int]) -> tuple[float, ...] | str:
    from matplotlib import colormaps

    if len(programs) == 1:
        return colormaps["Set2"](min(programs) % 8)
    return "0.65" if programs else "white"


def _draw_cells(ax, shape: tuple[int, ...], cells: dict[int, set[int]]) -> None:
    """The tensor's rows, one below the other; what lies before or behind it continues its first or its last row."""
    from matplotlib.patches import Rectangle

    width, size = shape[-1], int(np.prod(shape))
    beside = [offset for offset in cells if not 0 <= offset < size]
    shown = [offset for offset in beside if -SHOWN <= offset < size + SHOWN]
    for offset in [*range(size), *shown]:
        row, column = divmod(min(max(offset, 0), size - 1), width)
        column += offset - min(max(offset, 0), size - 1)
        outside = not 0 <= offset < size
        edge = {"edgecolor": "0.4", "linewidth": 0.5}
        if outside:
            edge = {"edgecolor": "red", "linewidth": 1.5, "hatch": "//"}
        programs = cells.get(offset, set())
        ax.add_patch(Rectangle((column, row), 1, 1, facecolor=_colour(programs), zorder=1 + outside, **edge))
        if width <= 32:
            ax.text(column + 0.5, row + 0.5, offset, ha="center", va="center", size=7, zorder=3)
    if beside:
        ax.text(1.0, 1.02, f"{len(beside)} beside the tensor", color="red", ha="right", size=8, transform=ax.transAxes)
    before, behind = min([0, *shown]), max([0, *(offset - size + 1 for offset in shown)])
    ax.set(xlim=(before - 0.2, width + behind + 0.2), ylim=(size / width + 0.05, -0.05))
    ax.axis("off")
