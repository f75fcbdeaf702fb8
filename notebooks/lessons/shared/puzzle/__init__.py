"""The judge of all puzzles: attempt(name, answer) prints that an answer is right, or "not yet: ", why, and a hint.

    judge.py         Judge, whose attempt() is a puzzle's last line; nothing that an answer does leaves it but a line
    limits.py        an answer that does not end, or that would end the process, is a wrong one
    reader.py        which code is the reader's: the line that failed, and what it may not call
    of_numbers.py    a puzzle whose answer is a function of numbers; drawn.py: asked with drawn ones, too
    in_pytorch.py    … a function of tensors; waits.py: whether the host waits in it, and how large its tensors are
    in_triton.py     … a Triton kernel; kernels_only.py: torch computes nothing; compiled.py: what the interpreter
                     allows and a GPU's compiler does not; beside.py: what it reads beside its tensors; shares.py:
                     which program stores what
"""

from lessons.shared.puzzle.beside import look_beside
from lessons.shared.puzzle.drawn import Drawn
from lessons.shared.puzzle.in_pytorch import InPyTorch
from lessons.shared.puzzle.in_triton import InTriton
from lessons.shared.puzzle.judge import Judge, Own
from lessons.shared.puzzle.of_numbers import OfNumbers
from lessons.shared.puzzle.waits import Quiet, TooLarge, Waits, gradient_of

__all__ = [
    "Drawn", "InPyTorch", "InTriton", "Judge", "OfNumbers", "Own", "Quiet", "TooLarge", "Waits", "gradient_of",
    "look_beside",
]  # fmt: skip
