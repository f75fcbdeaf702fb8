"""One problem on the way to the interaction, a kernel with a hole: its launch, and what it must give.

    place   vectors [B, V, D] → [B, D + V (V - 1) / 2]: the first vector, then t_i · t_j for j < i, row by row
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec, Sums
from kernels.ops.dot_interaction.eager import dot_interaction, width
from lessons.shared.puzzle import InTriton


def launch(kernel, vectors: Tensor) -> Tensor:
    """kernel[B](vectors, out, V, W, D, BLOCK): a program a row, BLOCK ≥ V lanes for its vectors; D a power of two."""
    rows, count, columns = vectors.shape
    wide = width(count - 1, columns)
    out = torch.empty(rows, wide, dtype=vectors.dtype, device=vectors.device)
    block = max(2, 1 << (count - 1).bit_length())
    kernel[(rows,)](vectors, out, count, wide, D=columns, BLOCK=block)
    return out


def interact(vectors: Tensor) -> Tensor:
    """The reference."""
    return dot_interaction(vectors[:, 0], vectors[:, 1:])


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, *_ = case.shape
    count = case.shape[1] if len(case.shape) > 1 else 1
    hint = "(1, 0), (2, 0), (2, 1), (3, 0), …: how many pairs come before those of i? And D numbers before all pairs."
    yield Call(f"{rows} rows, {count} vectors", (case.tensor(1, device),), hint=hint)


SHAPES = ((1, 2, 16), (2, 3, 16), (3, 6, 16), (2, 27, 16), (130, 3, 256))  # the last: more than 2^15 places of out
CASES = [*map(Case, SHAPES), Case((3, 6, 16), values="special")]
SPEC = Spec(interact, _calls, scale=Sums(k=4), cases=lambda names: CASES)
PUZZLES = {"pair_place": InTriton(SPEC, launch, __name__)}
