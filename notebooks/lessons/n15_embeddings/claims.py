"""15, Embeddings: the benchmark's records of the look-ups; what the notebook prints itself needs no claim."""

from __future__ import annotations

from lessons.shared.claim import claim, quotes
from lessons.shared.op_times import cell_us, limit_us

CELL = {"width": 16, "ids": "uniform", "part": "bandwidth", "form": "functional"}


def _ways(rows: int) -> tuple:
    """µs of eager with a column of ids each and with ids side by side, of combo_kernels, of our kernels."""
    side, combo, apart = (
        cell_us("embedding_bags_apart", name, rows=rows, **CELL)
        for name in ("eager", "torch.compile, combo_kernels", "cuda")
    )
    column, ours = (cell_us("embedding_bags", name, rows=rows, **CELL) for name in ("eager", "triton"))
    assert ours < apart < combo < min(column, side)
    assert (side < column / 2) if rows == 2048 else (side > 2 * column)
    return column, side, combo, apart, ours


def _ends() -> tuple:
    """Of few and many look-ups eager's better way, ours and what the bytes need; of bags eager's, ours and that."""
    (_, few_eager, *_, few), (many_eager, *_, many) = _ways(2048), _ways(65536)
    cell = {"rows": 16384, "ids": "zipf", "part": "ragged", "form": "functional"}
    eager, compiled, ours = (cell_us("embedding_bags", name, **cell) for name in ("eager", "torch.compile", "cuda"))
    assert ours < eager < compiled
    few_bytes, many_bytes = (limit_us("embedding_bags", rows=rows, **CELL) for rows in (2048, 65536))
    bytes_of_bags = limit_us("embedding_bags", **cell)
    assert few_bytes < few / 2
    assert bytes_of_bags < ours / 4
    return few_eager, few, few_bytes, many_eager, many, 100 * many_bytes / many, eager, ours, bytes_of_bags


quotes("15")
claim("15", "| 2048 | {:.0f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |", lambda: _ways(2048))
claim("15", "| 65536 | {:.0f} | {:,.0f} | {:.1f} | {:.1f} | {:.1f} |", lambda: _ways(65536))
claim(
    "15",
    "| 26 look-ups, 2048 rows | {:.1f} µs, eager, side by side | {:.1f} µs, one launch | latency: the bytes need "
    "{:.1f} µs | | 26 look-ups, 65536 rows | {:.0f} µs, eager, a column each | {:.1f} µs, one launch | memory, at "
    "{:.0f} % of a copy's rate | | bags, 16384 rows | {:.0f} µs, 26 `nn.EmbeddingBag` | {:.0f} µs, one launch in CUDA "
    "| not memory: the bytes need {:.0f} µs |",
    _ends,
)
