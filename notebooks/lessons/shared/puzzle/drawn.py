"""Puzzles of numbers that are also asked with arguments drawn at random, which no table made beforehand has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral

from lessons.shared.puzzle.of_numbers import OfNumbers, flat

DRAWN = 20


@dataclass(frozen=True)
class Drawn(OfNumbers):
    """draw: draw() → arguments. hint: what to think of where the first that fails is drawn.

    index: whether the result is a place in memory: then it must be an int, and 4.0 is none.
    """

    draw: Callable[[], tuple] = tuple
    hint: str = ""
    index: bool = False

    def judge(self, name: str, answer: Callable) -> str:
        def whole(*arguments):
            result = answer(*arguments)
            for value in flat(result):
                if not isinstance(value, Integral):
                    raise AssertionError(f"an index is an int; got {value!r}: / gives a float, // an int")
            return result

        arguments = [self.draw() for _ in range(DRAWN)]
        drawn = [(f"of {', '.join(map(str, values))}", values, self.hint) for values in arguments]
        asked = whole if self.index and callable(answer) else answer
        return OfNumbers.judge(replace(self, cases=[*self.cases, *drawn]), name, asked)
