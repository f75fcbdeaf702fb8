"""The kernels of out = x weightᵀ in float32, a file each: what they are launched with, read and counted.

    naive.cuh       a thread an element
    tile.cuh        32×32 elements a block, by way of shared memory; PAD: columns more of the weight's tile
    registers.cuh   64×64 a block, 4×4 a thread
    larger.cuh      128×128 a block, 8×8 a thread, which fetches four elements at once: K is a multiple of 4
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernels.check.host import programs
from kernels.check.host.programs import Outcome

ROOM = Path(__file__).parent


@dataclass(frozen=True)
class Product:
    """A kernel's text, the elements of out along a side of its block's tile, and its threads."""

    text: str
    side: int
    threads: tuple[int, int]

    def with_launch(self) -> str:
        """The text with launch(x, weight, out, M, N, K) behind it."""
        across, down = self.threads
        return f"""{self.text}
void launch(const float* x, const float* weight, float* out, int M, int N, int K) {{
    dim3 grid((N + {self.side - 1}) / {self.side}, (M + {self.side - 1}) / {self.side}), block({across}, {down});
    product<<<grid, block>>>(x, weight, out, M, N, K);
}}
"""

    def on_host(self, x: Tensor, weight: Tensor, gpu: bool = False, backwards: bool = False) -> Outcome:
        """A run that is looked at, access by access; its last buffer is out. gpu: there instead, by nvcc.

        DoesNotCompile: with the compiler's words."""
        M, (N, K) = len(x), weight.shape
        buffers = [x.numpy(), weight.numpy(), torch.full((M, N), float("nan")).numpy()]
        program = programs.build(self.with_launch(), gpu)
        return programs.run(program, buffers, (M, N, K), backwards=backwards)


def read(name: str, **macros: int) -> Product:
    """The kernel of this file; macros: what their names stand for."""
    text = (ROOM / f"{name}.cuh").read_text()
    for macro, value in macros.items():
        text = text.replace(macro, str(value))
    side, threads = {"registers": (64, (16, 16)), "larger": (128, (16, 16))}.get(name, (32, (32, 32)))
    return Product(text, side, threads)


def show(name: str) -> None:
    print(read(name).text.rstrip())


def count(name: str, size: int = 64) -> None:
    """Print what the warps of the kernel read of x and of the weight, of squares, counted on the CPU."""
    torch.manual_seed(0)
    x, weight = torch.randn(2, size, size)
    outcome = read(name, PAD=1).on_host(x, weight)
    for tensor, (reads, sectors, *_) in zip(("x", "weight"), outcome.counts, strict=False):
        print(f"{name}, {size}³: warps read {tensor} {reads:,} times, {sectors / reads:.1f} sectors each")
