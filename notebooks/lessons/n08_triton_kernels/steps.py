"""The steps from the generated kernel to the general one, and the forms of gelu: how each is launched and compiled."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from kernels.ops.add_mul_activation import triton_kernel as op
from lessons.n08_triton_kernels import pointwise_kernels
from lessons.shared.records import LANES

MULTIPLIER = 0.5
SHAPES = {"even": (65536, 512), "odd": (65535, 511)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARPS = 4
# What a kernel calls for its numbers.
BLOCKS = {
    "split": pointwise_kernels._block,
    "in_float32": pointwise_kernels._float32_block,
    "short": pointwise_kernels._short_block,
}
_TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


@dataclass(frozen=True)
class Step:
    """name: as tables call it. kernel: of pointwise_kernels.py or of the op. block: numbers a program; 0: what the
    op's launcher takes, 16 bytes a lane. constants: what the kernel takes besides COLUMNS and BLOCK. in_half: whether
    it is one for bfloat16, too."""

    name: str
    kernel: str
    block: int = 1024
    constants: Mapping[str, Any] = field(default_factory=dict)
    in_half: bool = False

    @cached_property
    def function(self):
        return getattr(pointwise_kernels, self.kernel, None) or getattr(op, self.kernel)

    @property
    def generated(self) -> bool:
        return self.kernel == "as_generated"

    def numbers(self, dtype: torch.dtype) -> int:
        """That a program computes."""
        return self.block or LANES * WARPS * 16 // dtype.itemsize

    def fixed(self, columns: int, dtype: torch.dtype) -> dict[str, Any]:
        """The kernel's constexprs."""
        block = {"XBLOCK" if self.generated else "BLOCK": self.numbers(dtype)}
        return {"COLUMNS": columns, **self.constants, **block}

    def launch(self, x: Tensor, bias: Tensor, y: Tensor, out: Tensor):
        fixed = self.fixed(x.shape[-1], x.dtype)
        grid = (-(-x.numel() // self.numbers(x.dtype)),)
        given = (x, y, bias, out) if self.generated else (x, bias, y, out, MULTIPLIER)
        return self.function[grid](*given, x.numel(), **fixed, num_warps=WARPS)

    def signature(self, dtype: torch.dtype) -> dict[str, str]:
        """Triton's types of the arguments that are no constexprs."""
        names = [name for name in self.function.arg_names if name not in self.fixed(1, dtype)]
        return {name: {"multiplier": "fp32", "elements": "i32", "xnumel": "i32"}.get(name, _TYPES[dtype])
                for name in names}


_SIGMOID = {"ACTIVATION": "sigmoid", "WIDE": False}
STEPS = (
    Step("as generated", "as_generated"),
    Step("names", "renamed"),
    Step("no hint", "unhinted"),
    Step("any multiplier", "cleaned"),
    Step("two ways", "split"),
    Step("float32 inside", "in_float32", in_half=True),
    Step("short sigmoid", "short", in_half=True),
    Step("general", "general", constants=_SIGMOID, in_half=True),
    Step("16 bytes a lane", "general", block=0, constants=_SIGMOID, in_half=True),
    Step("64-bit places", "general", block=0, constants=_SIGMOID | {"WIDE": True}, in_half=True),
)
GELUS = (
    Step("gelu by erf", "gelu_forms", constants={"FORM": "erf"}, in_half=True),
    Step("gelu, fitted", "gelu_forms", constants={"FORM": "fitted"}, in_half=True),
)
RELUS = ("maximum", "propagate_nan", "where")


def step(name: str) -> Step:
    (found,) = (each for each in (*STEPS, *GELUS) if each.name == name)
    return found


def moved(shape: tuple[int, int], dtype: torch.dtype) -> int:
    """Bytes of a step: x, y and bias read, the result written."""
    rows, columns = shape
    return (3 * rows * columns + columns) * dtype.itemsize


# ------------------------------------------------------------------------------------------------- their source's lines


def text(name: str, alone: bool = False) -> list[str]:
    """A kernel's lines, after its head; of one that calls another for its numbers that one's first, or alone."""
    function = step(name).function
    block = BLOCKS.get(function.fn.__name__)
    chosen = [each for each in (block, None if alone and block else function) if each]
    return [line for each in chosen for line in inspect.getsource(each.fn).splitlines()[2:]]


def print_change(before: str, after: str) -> None:
    """The lines that a step takes away and adds."""
    alone = all(step(name).function.fn.__name__ in BLOCKS for name in (before, after))
    print(f"{before} → {after}")
    for line in difflib.ndiff(text(before, alone), text(after, alone)):
        if line[0] in "+-":
            print(f"  {line[0]} {line[2:].strip()}" if alone else f"  {line}")
