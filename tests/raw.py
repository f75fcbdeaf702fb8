"""Rows in Criteo's raw format, made up by the tests."""

from __future__ import annotations

import random


def raw_fields(rows: int, seed: int = 0, ids: int = 50) -> list[list[str]]:
    """Rows of 40 text fields: label, 13 counts, 26 categories; some empty."""
    draw = random.Random(seed)
    vocabulary = [[f"{draw.getrandbits(32):08x}" for _ in range(ids)] for _ in range(26)]

    def count() -> str:
        return "" if draw.random() < 0.2 else str(draw.randint(-2, 5000))

    def category(feature: int) -> str:
        return "" if draw.random() < 0.1 else vocabulary[feature][int(ids * draw.random() ** 2)]

    return [
        [str(int(draw.random() < 0.3)), *(count() for _ in range(13)), *(category(i) for i in range(26))]
        for _ in range(rows)
    ]


def tsv(rows: list[list[str]], end: str = "\n") -> bytes:
    return "".join("\t".join(row) + end for row in rows).encode()
