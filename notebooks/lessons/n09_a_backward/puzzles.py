"""The puzzles of notebook 09: one in plain Python about what a backward moves, and two kernels (kernel_puzzles.py).

kept_traffic   what is kept for the backward, bytes of an element → bytes an element that forward and backward move
"""

from __future__ import annotations

from collections.abc import Callable

from lessons.n09_a_backward import arithmetic, kernel_puzzles, sum_kernels
from lessons.shared.puzzle import Judge, OfNumbers

_BACKWARD = "The backward reads the gradient and what was kept, and writes two gradients."
_FORWARD = "The forward reads x and y, and writes out. It also writes what is kept, unless that is out, x or y."
_MASK = "An element of the mask has one byte, whatever the dtype of out."
_HALF = "A bfloat16 element has two bytes."
# What each case is called, the arguments, and what to think of if it is the first that fails.
CASES = (
    ("out, float32", (0, 4), _BACKWARD),
    ("x and y, float32", (1, 4), f"{_BACKWARD} Here two tensors were kept."),
    ("the derivative, float32", (2, 4), _FORWARD),
    ("a mask, float32", (3, 4), _MASK),
    ("out, bfloat16", (0, 2), _HALF),
    ("x and y, bfloat16", (1, 2), _HALF),
    ("the derivative, bfloat16", (2, 2), _FORWARD),
    ("a mask, bfloat16", (3, 2), _MASK),
)
PUZZLES = kernel_puzzles.PUZZLES | {"kept_traffic": OfNumbers(arithmetic.traffic, CASES, unit="bytes")}
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt
_OURS = {
    "kept_traffic": arithmetic.traffic,
    "two_stage": sum_kernels.two_stage,
    "whole_backward": sum_kernels.whole_backward,
}


def passed(name: str) -> Callable:
    """The reader's function or kernel, if it passed when it was last tried; else the lecture's."""
    return JUDGE.solved.get(name, _OURS[name])
