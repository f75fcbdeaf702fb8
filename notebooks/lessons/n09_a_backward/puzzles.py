"""The puzzles of notebook 09: two in plain Python about a backward, and two kernels (kernel_puzzles.py).

kept_traffic   what is kept for the backward, bytes of a number → bytes a number that the forward moves, the backward
ones           so many ones, shared by so many programs → their sum in float32
"""

from __future__ import annotations

from lessons.n09_a_backward import arithmetic, kernel_puzzles
from lessons.shared.puzzle import Judge, OfNumbers

_BACKWARD = "The backward reads the gradient and what was kept, and writes two gradients."
_FORWARD = "The forward reads x and y, and writes out and what is kept of its own: out, x and y are there anyway."
_MASK = "A truth value has one byte, whatever a number has."
_ABSORBED = "16777216 + 1 is no float32: from there on, adding 1 changes nothing."
_TOGETHER = "Each program's own sum may stop at 16777216; their sums are large, and add up exactly."
# name → its cases: what each is called, the arguments, and what to think of if it is the first that fails.
CASES: dict[str, tuple[tuple[str, tuple, str], ...]] = {
    "kept_traffic": (
        ("out, float32", (0, 4), _BACKWARD),
        ("x and y, float32", (1, 4), f"{_BACKWARD} Here two tensors were kept."),
        ("the derivative, float32", (2, 4), _FORWARD),
        ("a mask, float32", (3, 4), _MASK),
        ("out, bfloat16", (0, 2), "A number of bfloat16 has two bytes."),
        ("x and y, bfloat16", (1, 2), "A number of bfloat16 has two bytes."),
        ("the derivative, bfloat16", (2, 2), _FORWARD),
        ("a mask, bfloat16", (3, 2), _MASK),
    ),
    "ones": (
        ("1024 ones, one program", (1024, 1), "So few add up exactly."),
        ("2^24 ones, one program", (2**24, 1), "Up to 2^24 = 16777216 every whole number is a float32."),
        ("2^25 ones, one program", (2**25, 1), _ABSORBED),
        ("2^25 ones, two programs", (2**25, 2), _TOGETHER),
        ("2^25 ones, 512 programs", (2**25, 512), _TOGETHER),
        ("2^28 ones, two programs", (2**28, 2), _TOGETHER),
        ("2^28 ones, eight programs", (2**28, 8), _TOGETHER),
    ),
}
PUZZLES = kernel_puzzles.PUZZLES | {
    "kept_traffic": OfNumbers(arithmetic.traffic, CASES["kept_traffic"], unit="bytes"),
    "ones": OfNumbers(arithmetic.ones, CASES["ones"]),
}
attempt = Judge(PUZZLES).attempt
