"""The generated kernel on this machine, whatever it is: what the cells headed "On your machine" print."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kernels import runtime
from kernels.inductor import split, triton_source
from kernels.inductor.machine_code import accesses, sass
from kernels.inductor.parse import function_of
from lessons.n07_read_the_generated_triton.layer_variants import VARIANTS, candidates, layer
from lessons.shared.timing import print_times


def times(rows: int | None = None) -> None:
    """µs of eager and of torch.compile, by turns."""
    device = runtime.device()
    rows = rows or (65536 if device.type == "cuda" else 2048)
    generator = torch.Generator(device).manual_seed(0)
    x, y, bias = (
        torch.randn(*shape, generator=generator, device=device) for shape in ((rows, 512), (rows, 512), (512,))
    )
    compiled = torch.compile(layer, dynamic=False)
    print_times({"eager": partial(layer, x, y, bias), "torch.compile": partial(compiled, x, y, bias)}, tolerance=1e-5)


def generate(function: Callable, *inputs: Tensor) -> None:
    """The kernels that torch.compile writes of a function for a GPU, which need not be here."""
    print(f"# made here, torch {torch.__version__}")
    for module in triton_source(function, *inputs):
        for kernel in split(module):
            if kernel.source:
                found = function_of(kernel.source)
                print(*kernel.source.splitlines()[found.lineno - 1 : found.end_lineno], sep="\n")


def compile_all(*variants: str) -> None:
    """What this Triton makes of a variant's candidates, for an H200, which need not be here."""
    print(f"made here, torch {torch.__version__}")
    for variant in variants or VARIANTS:
        for each in candidates(variant):
            found, lines = accesses(each.ptx), sass(each.cubin)
            widest = max(found["ld"])
            print(
                f"{variant}: XBLOCK {each.blocks['XBLOCK']}, {each.num_warps} warps: reads of {widest} bytes, "
                f"{each.registers} registers, {len(lines or [])} instructions"
            )
