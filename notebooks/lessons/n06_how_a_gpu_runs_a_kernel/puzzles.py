"""The puzzles of notebook 06: two of a GPU's memory in plain Python, and a kernel (kernel_puzzles.py).

sectors   the byte addresses of a warp's 32 reads → how many sectors of 32 bytes they touch
room      a program's threads, a thread's registers → how many programs an SM has room for
"""

from __future__ import annotations

from collections.abc import Callable

from lessons.n06_how_a_gpu_runs_a_kernel import kernel_puzzles
from lessons.shared.occupancy import programs_an_sm
from lessons.shared.puzzle import Judge, OfNumbers
from lessons.shared.records import LANES, SECTOR

WARP = range(LANES)
_SAME = "Two lanes that read from one sector need it once, whatever the order of the lanes."
_SHARE = "An SM's registers are shared by all threads of all its programs; a part of a program has no room."
_QUARTERS = "An SM has four quarters with 16,384 registers each, and a warp of 32 threads lives in one of them."
# name → its cases: what each is called, the arguments, and what to think of if it is the first that fails.
CASES: dict[str, tuple[tuple[str, tuple, str], ...]] = {
    "sectors": (
        ("stride 1", ([4 * i for i in WARP],), "Sector 0 holds the bytes 0 to 31, sector 1 32 to 63. " + _SAME),
        ("stride 2", ([8 * i for i in WARP],), "Half of each sector is not asked for, and comes all the same."),
        ("from byte 20 on", ([20 + 4 * i for i in WARP],), "A warp that begins within a sector ends within one too."),
        ("stride 16", ([64 * i for i in WARP],), "The sectors between two lanes come only if a lane asks for them."),
        ("one address", ([4096] * 32,), _SAME),
        ("shuffled", ([4 * (i * 11 % 32) for i in WARP],), _SAME),
        ("two places", ([4 * i for i in range(16)] + [4096 + 4 * i for i in range(16)],),
         "The sectors between two lanes come only if a lane asks for them."),
        ("far apart", ([32 * (i * i * 7919 % 4099) for i in WARP],), "Sectors are counted by their number."),
    ),
    "room": (
        ("few registers", (128, 16), "How many such programs have 2048 threads?"),
        ("96 registers", (128, 96), _SHARE),
        ("168 registers", (128, 168), _SHARE),
        ("small programs", (32, 16), "An SM has room for 32 programs at most, however small."),
        ("41 registers", (256, 41), "A thread's registers are given out by eights: 41 take as much room as 48."),
        ("42 registers", (256, 42), "A thread's registers are given out by eights: 42 take as much room as 48."),
        ("no room", (1024, 128), "Where not even one program fits there is room for none: the launch fails."),
        ("a large program", (1024, 64), _SHARE),
        ("one warp of many registers", (32, 176), _QUARTERS),
        ("one warp of 96", (32, 96), _QUARTERS),
        ("two warps of 104", (64, 104), _QUARTERS),
    ),
}


def sectors(addresses: list[int]) -> int:
    """How many sectors a warp's reads of four bytes each touch; an address is a byte's, and a multiple of four."""
    return len({address // SECTOR for address in addresses})


_OURS = {"sectors": sectors, "room": programs_an_sm}
PUZZLES = {name: OfNumbers(ours, CASES[name]) for name, ours in _OURS.items()} | kernel_puzzles.PUZZLES
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt


def passed(name: str) -> Callable:
    """The reader's function, if it passed when it was last tried; else the lecture's."""
    return JUDGE.solved.get(name, _OURS[name])
