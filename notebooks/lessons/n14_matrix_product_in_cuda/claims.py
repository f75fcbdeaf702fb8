"""14: its prose quotes what its cells print, and the record of the tile."""

from __future__ import annotations

from lessons.shared.claim import claim, quotes
from lessons.shared.records import FLOAT32, Record, tflop_per_s

NOTEBOOK = "14"
BANKS = Record("banks")
quotes(NOTEBOOK)


def _tile() -> tuple:
    """µs of the tile with conflicts and without, and percent of the peak; these are less than shared memory allows."""
    rows = [BANKS.one("banks", apart=apart) for apart in (32, 33)]
    shares = [100e12 * tflop_per_s(row) / FLOAT32 for row in rows]
    allowed = [100 * 32 * 32 / wavefronts / 128 for wavefronts in (8 + 8 * 32, 8 + 32)]
    assert shares[0] > 0.85 * allowed[0]
    assert all(share < most for share, most in zip(shares, allowed, strict=True))
    return *(row["us_p50"] for row in rows), *shares, *allowed


claim(
    NOTEBOOK,
    "The record of the H200 has the tile alone, at 2048³: {:,.0f} µs with rows 32 floats apart, and {:,.0f} µs with "
    "33. That is {:.1f} % and {:.1f} % of the peak, where shared memory allows {:.0f} % and {:.0f} %.",
    _tile,
)
