"""17, Embeddings: what the notebook does not measure itself, from the benchmark's records; and a tie."""

from __future__ import annotations

from lessons.shared.claim import claim, quotes
from lessons.shared.op_times import cell_us
from lessons.shared.records import LEAST, Record


def _bags() -> tuple:
    """The library's two kernels stand so in the benchmark, too."""
    own, triton, cuda = (
        Record("lecture_17").us("bags", name=name, size=16384)
        for name in ("BAGS 8", "embedding_bags", "embedding_bags, CUDA")
    )
    assert 1 / LEAST < triton / own < LEAST
    for rows in (2048, 16384):
        cell = {"rows": rows, "width": 16, "ids": "zipf", "part": "ragged", "form": "functional"}
        assert cell_us("embedding_bags", "cuda", **cell) > 1.2 * cell_us("embedding_bags", "triton", **cell)
    return (cuda / own,)


quotes("17")
claim("17", "The library's Triton kernel is as fast as yours, and checks every id.", lambda: _bags()[1:])
claim("17", "Its CUDA kernel takes {:.2f} × as long, so for bags say `backend=\"triton\"`.", _bags)
claim(
    "17",
    "or the op that notebook 21's backend takes, {:.1f} µs for 2048 rows.",
    lambda: (cell_us("embedding_bags_apart", "cuda", rows=2048, width=16, ids="uniform", part="bandwidth"),),
)
