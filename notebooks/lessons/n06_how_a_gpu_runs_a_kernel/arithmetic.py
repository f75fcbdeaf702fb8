"""The arithmetic of a GPU's memory: sectors, bytes in flight."""

from __future__ import annotations

from lessons.shared.records import SECTOR, sms


def sectors(addresses: list[int]) -> int:
    """How many sectors a warp's reads of four bytes each touch; an address is a byte's, and a multiple of four."""
    return len({address // SECTOR for address in addresses})


def copy_rate(programs: int, block: int, latency_ns: float, limit: float) -> float:
    """GB/s of a copy by Little's law, at most `limit`: SMs · programs · block float32 are read in each latency, and as
    many bytes are written."""
    return min(limit, 2 * sms() * programs * 4 * block / latency_ns)
