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
_BYTES = "Sector 0 holds bytes 0 to 31, and sector 1 holds bytes 32 to 63. "
_BETWEEN = "A sector between two lanes' addresses comes only if some lane reads from it."
_SAME = "If several lanes read from one sector, count it once. The order of the lanes does not matter."
_SHARE = "An SM's registers are shared by all threads of all its programs. Only whole programs fit."
_QUARTERS = "Each of an SM's four quarters has 16,384 registers. All 32 threads of a warp get theirs from one quarter."
# name → its cases: what each is called, the arguments, and what to think of if it is the first that fails.
CASES: dict[str, tuple[tuple[str, tuple, str], ...]] = {
    "sectors": (
        ("stride 1", ([4 * i for i in WARP],), _BYTES + _SAME),
        ("stride 2", ([8 * i for i in WARP],), "Half of each sector comes although no lane asks for it."),
        ("from byte 20 on", ([20 + 4 * i for i in WARP],),
         "The reads begin within a sector, so they also end within one."),
        ("stride 16", ([64 * i for i in WARP],), _BETWEEN),
        ("one address", ([4096] * 32,), _SAME),
        ("shuffled", ([4 * (i * 11 % 32) for i in WARP],), _SAME),
        ("two places", ([4 * i for i in range(16)] + [4096 + 4 * i for i in range(16)],), _BETWEEN),
        ("far apart", ([32 * (i * i * 7919 % 4099) for i in WARP],),
         "Each sector has a number. Count the different numbers, however far apart they are."),
    ),
    "room": (
        ("few registers", (128, 16), "An SM has room for 2048 threads. How many programs of 128 threads is that?"),
        ("96 registers", (128, 96), _SHARE),
        ("168 registers", (128, 168), _SHARE),
        ("small programs", (32, 16), "An SM has room for at most 32 programs, however small they are."),
        ("41 registers", (256, 41), "A thread gets registers in multiples of eight: 41 take as much room as 48."),
        ("42 registers", (256, 42), "A thread gets registers in multiples of eight: 42 take as much room as 48."),
        ("no room", (1024, 128), "If not even one program fits, the answer is 0: the launch fails."),
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
