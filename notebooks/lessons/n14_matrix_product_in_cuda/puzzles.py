"""The puzzles of 14_matrix_product_in_cuda.ipynb: the text of a kernel, `product`, that computes out = x weightᵀ.

barriers    by tiles of 32×32 in shared memory
registers   by tiles of 64×64, of which a thread computes 4×4 elements
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels import runtime
from kernels.check import Call, Case, Spec, Sums
from kernels.check.host import programs
from kernels.check.host.programs import DoesNotCompile
from lessons.n14_matrix_product_in_cuda.product import Product
from lessons.shared.puzzle import Judge
from lessons.shared.puzzle.in_cuda import Wrong, ends_of, explain, hold_ends, not_on_host
from lessons.shared.puzzle.in_triton import checked
from lessons.shared.puzzle.judge import SECONDS

INSIDE = "x has M rows of K elements, the weight N rows of K, out M rows of N: which of them exist for this thread?"
GRID = "The launch is given: a block for each tile of out."
ENDS, MANY = 256, 70_000  # rows of x: of both ends, which are there, and in all
MANY_ROWS = "x has more rows than 16 bits count."
SHAPES = ((32, 64, 32), (3, 2, 4), (70, 37, 44), (64, 64, 96))


@dataclass(frozen=True)
class Puzzle:
    """side, threads: of the launch, as in Product. hint: what to think of where the result is wrong."""

    side: int
    threads: tuple[int, int]
    hint: str

    def judge(self, name: str, text: object) -> str:
        if not isinstance(text, str):
            raise Wrong(f"give the kernel's text; got {type(text).__name__}")
        product = Product(text, self.side, self.threads)
        spec = Spec(products, self._calls, scale=Sums(k=8.0), cases=lambda names: [*map(Case, SHAPES)])
        places = {"on the host": False}
        if runtime.device().type == "cuda" and runtime.nvcc():
            places["on the GPU"] = True
        try:
            runs = {place: _Runs(product, gpu) for place, gpu in places.items()}
            lines = [checked(name, run, spec, "cpu").replace("on cpu", place) for place, run in runs.items()]
        except DoesNotCompile as error:
            if hint := not_on_host(str(error)):
                raise Wrong(f"{error}\nHint: {hint}") from None
            raise
        self._hold_many(product)
        if not runs["on the host"].shared:
            raise Wrong("right, but nothing is read from shared memory\nHint: Keep the two tiles, a and b.")
        return "\n".join(lines)

    def _hold_many(self, product: Product) -> None:
        """That both ends of a large x are right, as far as they are found (kernels/check/host/ends.h)."""
        (call,) = self._calls(Case((ENDS, 4, 4)), torch.device("cpu"))
        x, weight = call.tensors
        text, poison = product.with_launch(), torch.full((ENDS, len(weight)), float("nan"))
        buffers = [ends_of(x, MANY), weight.numpy(), ends_of(poison, MANY)]
        outcome = programs.run(programs.build(text), buffers, (MANY, *weight.shape))
        sizes = [4 * MANY, weight.numel(), len(weight) * MANY]
        explained = partial(explain, outcome, text, sizes, lambda name: "", "")
        hold_ends(f"x {MANY:,}×4, weight 4×4", outcome, products(x, weight), explained, MANY_ROWS)

    def _calls(self, case: Case, device: torch.device) -> Iterator[Call]:
        M, N, K = (*case.shape, 1)[:3]
        generator = torch.Generator().manual_seed(0)
        x, weight = (torch.randn(rows, K, generator=generator) for rows in (M, N))
        yield Call(f"x {M}×{K}, weight {N}×{K}", (x, weight), hint=self.hint)


class _Runs:
    """A text as a function of tensors; each second run takes blocks and threads in the reverse order. shared: accesses
    of shared memory in the last run, on the host."""

    def __init__(self, product: Product, gpu: bool):
        self.product, self.gpu, self.runs, self.shared = product, gpu, 0, 0

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        outcome = self.product.on_host(x, weight, self.gpu, backwards=self.runs % 2 == 1)
        self.runs += 1
        if outcome.status != "ok":
            sizes = [x.numel(), weight.numel(), len(x) * len(weight)]
            raise Wrong(explain(outcome, self.product.with_launch(), sizes, lambda name: INSIDE, GRID))
        for name, before, after in zip(("x", "weight"), (x, weight), outcome.buffers, strict=False):
            if before.numpy().tobytes() != after[0].tobytes():
                raise Wrong(f"{name} was changed\nHint: A kernel may write to out only.")
        self.shared = outcome.shared
        return torch.from_numpy(outcome.buffers[-1][0]).view(len(x), len(weight))


def products(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T


PUZZLES = {
    "barriers": Puzzle(32, (32, 32), "Each step's tiles must be complete before one multiplies, and done with before "
                       "they are overwritten."),
    "registers": Puzzle(64, (16, 16), "The thread (threadIdx.x, threadIdx.y) has the rows 4 · threadIdx.y + i of the "
                        "tile, and the columns 4 · threadIdx.x + j, i and j from 0 to 3."),
}
attempt = Judge(PUZZLES, seconds=200 if runtime.device().type == "cuda" else SECONDS).attempt
