"""load_inline for a machine without a GPU: the same text, built by g++ and run by programs.py.

PyTorch's part in it is torch_on_host.h: float32 tensors, the current stream, the check of a launch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from . import programs
from .programs import Outcome, Sparse


class Refused(RuntimeError):
    """The program did not come to its end, or gives no such tensor. outcome: what it came to; sizes: of its buffers."""

    def __init__(self, outcome: Outcome, sizes: Sequence[int]):
        super().__init__(f"{outcome.status}: {outcome.text}")
        self.outcome, self.sizes = outcome, sizes


def load_inline(
    name: str, cpp_sources: str, cuda_sources: str, functions: Sequence[str] = ("forward",)
) -> SimpleNamespace:
    """torch.utils.cpp_extension.load_inline, as far as it goes here: a module with forward(), for CPU tensors of
    float32. DoesNotCompile: with what the compiler says first."""
    if list(functions) != ["forward"]:
        raise ValueError(f"functions: expected ['forward']; got {list(functions)}")
    return SimpleNamespace(forward=Function(cuda_sources), __name__=name)


class Function:
    """forward() of a text; last: what its last run came to. A second run takes blocks and threads backwards."""

    def __init__(self, source: str):
        self.source, self.program = source, programs.build(source)
        self.last, self.runs = Outcome("ok"), 0

    def __call__(self, *arguments: Tensor | float) -> Tensor:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        integers = integers_of(arguments)
        out = torch.empty(tensors[0].shape)  # its poison, where a test has some, is the function's too
        copies = [torch.empty(tensor.numel()) for tensor in tensors]
        buffers = [_memory(tensor) for tensor in tensors] + [tensor.view(-1).numpy() for tensor in (out, *copies)]
        number, shape = self.run(buffers, integers, len(tensors))
        if shape != list(out.shape):
            raise Refused(Outcome("shape", f"the result has the shape {shape}, and x {list(out.shape)}"), [])
        if number >= 0:
            out.view(-1).copy_(torch.from_numpy(self.last.buffers[number][0]))
        return out

    def run(
        self, buffers: Sequence[np.ndarray | Sparse], integers: Sequence[int], inputs: int
    ) -> tuple[int, list[int]]:
        """(the buffer of the result, its shape): so many buffers are inputs. Refused: there is none."""
        self.last = programs.run(self.program, buffers, integers, backwards=self.runs % 2 == 1)
        self.runs += 1
        sizes = [buffer.numbers if isinstance(buffer, Sparse) else buffer.size for buffer in buffers]
        if self.last.status != "ok":
            raise Refused(self.last, sizes)
        number, contiguous, *shape = map(int, self.last.text.split())
        if (sizes[0] and number < inputs) or not contiguous:
            raise Refused(Outcome("shape", "the result is no contiguous tensor that forward() allocated"), sizes)
        for at, (before, after) in enumerate(zip(buffers[:inputs], self.last.buffers, strict=False)):
            parts = list(before.segments.values()) if isinstance(before, Sparse) else [before]
            if any(a.tobytes() != b.tobytes() for a, b in zip(parts, after, strict=True)):
                raise Refused(Outcome("changed", str(at)), sizes)
        return number, shape


def integers_of(arguments: Sequence[Tensor | float]) -> list[int]:
    """As torch_on_host.h reads them: of a tensor its buffer, first number, dimensions, sizes and strides."""
    integers, buffer = [], 0
    for argument in arguments:
        if isinstance(argument, Tensor):
            integers += [buffer, argument.storage_offset() % WIDE, argument.dim(), *argument.shape, *argument.stride()]
            buffer += 1
        elif isinstance(argument, float):
            integers += struct.unpack("q", struct.pack("d", argument))
        else:
            integers.append(int(argument))
    return integers


WIDE = 4  # numbers of 16 bytes


def _memory(tensor: Tensor) -> np.ndarray:
    """What lies from its first element to its last, and before it what its 16 bytes begin with."""
    if not tensor.numel():
        return np.zeros(0, np.float32)
    before = tensor.storage_offset() % WIDE
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((before + span,), (1,), tensor.storage_offset() - before).numpy()
