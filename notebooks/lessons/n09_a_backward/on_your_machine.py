"""The lesson's experiments on this machine, whatever it is: what its cells headed "On your machine" print."""

from __future__ import annotations

import re
from functools import partial

import torch
from torch import Tensor

from kernels import runtime
from kernels.inductor import split, triton_source
from kernels.inductor.parse import function_of
from kernels.ops.add_mul_activation.eager import add_mul_activation
from lessons.n09_a_backward.sum_launch import launch
from lessons.shared.timing import print_times

MEMORY = re.compile(r"tl\.(?:load|store|atomic_add)\(")


def sums(rows: int | None = None) -> None:
    """µs of the sum over rows by PyTorch; on a GPU of the lesson's steps too, which an interpreter would crawl in."""
    device = runtime.device()
    gpu = device.type == "cuda"
    x = torch.randint(-3, 4, (rows or (65536 if gpu else 8192), 512), device=device).float()
    functions = {"x.sum(0), over the rows": partial(x.sum, 0)}
    for step in ("sum_tiles", "sum_atomic", "sum_chunk") if gpu else ():
        functions[step] = partial(launch, step, x)
    print_times(functions)
    print_times({"x.sum(1), over the columns": partial(x.sum, 1)})


def generated(activation: str, rows: int = 65536) -> None:
    """What torch.compile writes for the backward of act(x + 0.5 · y + bias), of so many rows of 512: each kernel's
    pointers, and its loads and stores. No GPU is needed."""
    print(f"made here, torch {torch.__version__}")
    for line in lines_of(modules(activation, rows)[-1]):
        print(line)


def modules(activation: str, rows: int = 65536) -> list[str]:
    """The generated modules: the forward, the backward."""
    x, y, bias = (torch.empty(shape, requires_grad=True) for shape in ((rows, 512), (rows, 512), (512,)))
    return triton_source(partial(_layer, activation=activation), x, y, bias, backward=True)


def _layer(x: Tensor, y: Tensor, bias: Tensor, activation: str) -> Tensor:
    return add_mul_activation(x, bias, y, 0.5, activation)


def lines_of(module: str) -> list[str]:
    """Of each kernel of a generated module its pointers with their types, and the lines that access memory."""
    found = []
    for kernel in split(module):
        function = function_of(kernel.source)
        types = dict(re.findall(r"'(\w*ptr\d+)': '\*(\w+)'", kernel.source))
        found.append(f"{function.name}: {', '.join(f'{name} {kind}' for name, kind in types.items())}")
        found += [f"    {_short(line)}" for line in kernel.source.splitlines() if MEMORY.search(line)]
    return found


def _short(line: str) -> str:
    """Without the mask and what else the line says beside the address and the value."""
    return re.sub(r", (?:None|r0_mask|xmask|r0_mask & xmask)(?:, eviction_policy='\w+')?(?:, other=0\.0)?\)", ")",
                  line.strip())
