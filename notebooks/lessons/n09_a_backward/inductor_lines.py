"""What torch.compile writes for forward and backward of act(x + 0.5 · y + bias): loads and stores; without a GPU, too.
"""

from __future__ import annotations

import re
from functools import partial

import torch
from torch import Tensor

from kernels.inductor import split, triton_source
from kernels.inductor.parse import function_of
from kernels.ops.add_mul_activation.eager import add_mul_activation

MEMORY = re.compile(r"tl\.(?:load|store|atomic_add)\(")


def modules(activation: str, rows: int = 65536) -> list[str]:
    """The generated modules: the forward, the backward."""
    x, y, bias = (torch.empty(shape, requires_grad=True) for shape in ((rows, 512), (rows, 512), (512,)))
    return triton_source(partial(_layer, activation=activation), x, y, bias, backward=True)


def _layer(x: Tensor, y: Tensor, bias: Tensor, activation: str) -> Tensor:
    return add_mul_activation(x, bias, y, 0.5, activation)


def lines_of(module: str) -> list[str]:
    """The pointers of each kernel of a generated module, with their types, and the lines that access memory."""
    lines = []
    for kernel in split(module):
        function = function_of(kernel.source)
        types = dict(re.findall(r"'(\w*ptr\d+)': '\*(\w+)'", kernel.source))
        lines.append(f"{function.name}: {', '.join(f'{name} {kind}' for name, kind in types.items())}")
        lines += [f"    {_short(line)}" for line in kernel.source.splitlines() if MEMORY.search(line)]
    return lines


def _short(line: str) -> str:
    """Without the mask and what else the line says beside the address and the value."""
    return re.sub(r", (?:None|r0_mask|xmask|r0_mask & xmask)(?:, eviction_policy='\w+')?(?:, other=0\.0)?\)", ")",
                  line.strip())
