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
    assert cuda > 1.2 * triton
    return ()


def _a_program() -> tuple:
    """µs that a program of eight bags lasts if all SMs of an H200 are full, and of its 16 steps each."""
    lasts = Record("lecture_17").us("bags", name="BAGS 8", size=16384) * 132 * 32 / (16384 * 26 / 8)
    return lasts, lasts / 16


def _pooled_once() -> tuple:
    cell = {"rows": 16384, "width": 16, "ids": "zipf", "part": "ragged", "form": "functional"}
    return tuple(cell_us("embedding_bags", name, **cell) for name in ("eager", "torch.compile"))


quotes("17")
claim("17", "The library's Triton kernel is as fast as yours, and checks every id.", _bags)
claim("17", "Its CUDA kernel takes longer, so Triton's is the default.", _bags)
claim("17", "so on average each lasts {:.1f} µs at most, {:.2f} µs a step: likely", _a_program)
claim("17", "rows gathered and pooled by one `F.embedding_bag` take {:.0f} µs, and {:.0f} µs compiled.", _pooled_once)
claim(
    "17",
    "or the op that notebook 21's backend takes, {:.1f} µs for 2048 rows.",
    lambda: (cell_us("embedding_bags_apart", "cuda", rows=2048, width=16, ids="uniform", part="bandwidth"),),
)
