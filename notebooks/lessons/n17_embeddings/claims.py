"""17, Embeddings: what the notebook does not measure itself, from the benchmark's records."""

from __future__ import annotations

from lessons.shared.claim import claim, quotes
from lessons.shared.op_times import cell_us


def _in_cuda() -> tuple:
    """µs of the bags that the notebook times, by the kernel that is taken by default, and faster than Triton's."""
    cell = {"rows": 16384, "width": 16, "ids": "zipf", "part": "ragged", "form": "functional"}
    triton, cuda = (cell_us("embedding_bags", name, **cell) for name in ("triton", "cuda"))
    assert cuda < triton
    return (cuda,)


quotes("17")
claim("17", "the CUDA kernel that it takes by default for bags is on record with {:.0f} µs.", _in_cuda)
claim(
    "17",
    "or the op that notebook 21's backend takes, {:.1f} µs for 2048 rows.",
    lambda: (cell_us("embedding_bags_apart", "cuda", rows=2048, width=16, ids="uniform", part="bandwidth"),),
)
