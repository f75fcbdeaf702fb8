"""How evenly pieces of tables fill the GPUs, and how many bytes a row of the batch sends."""

from __future__ import annotations

from collections.abc import Sequence

Piece = tuple[float, float, float, float]  # bytes held; and for a row of the batch: bytes read, of ids, of vectors
HEAD = "{} GPUs        the fullest   the busiest reads   bytes for a row of the batch: ids, vectors"


def loads(pieces: Sequence[Piece], owner: Sequence[int], gpus: int) -> tuple[list[float], list[float]]:
    """The bytes that each GPU holds, and those that it reads for a row of the batch. owner: the GPU of each piece."""
    held, read = [0.0] * gpus, [0.0] * gpus
    for (size, reads, *_), gpu in zip(pieces, owner, strict=True):
        held[gpu] += size
        read[gpu] += reads
    return held, read


def row(pieces: Sequence[Piece], owner: Sequence[int], gpus: int) -> str:
    """What HEAD says, of one way to cut."""
    held, read = loads(pieces, owner, gpus)
    ids, vectors = (sum(piece[place] for piece in pieces) for place in (2, 3))
    busiest = max(read) / (sum(read) / gpus)
    return f"{max(held) / 1e9:11.1f} GB {busiest:8.1f} × the mean {ids:28,.0f} {vectors:9,.0f}"
