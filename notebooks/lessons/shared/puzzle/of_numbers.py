"""Puzzles whose answer is a function of numbers. Whole numbers must be given exactly."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real

from lessons.shared.puzzle.reader import alone

EXACT = 1e-6  # of its size: what a number that is not whole may differ by


@dataclass(frozen=True)
class OfNumbers:
    """ours: the answer. cases: (what each is called, the arguments, what to think of if it is the first that fails).

    given: (the case's arguments) → what a function is called with, made anew for each call. unit: of the result.
    """

    ours: Callable
    cases: Sequence[tuple[str, tuple, str]]
    given: Callable[..., tuple] = lambda *arguments: copy.deepcopy(arguments)
    unit: str = ""
    wrong: Callable[[object, object], str] = lambda want, got: ""  # a hint for this mistake, before the case's

    def judge(self, name: str, answer: Callable) -> str:
        answer = alone(answer)
        for what, arguments, hint in self.cases:
            want = self.ours(*self.given(*arguments))
            try:
                got = _values(answer(*self.given(*arguments)), self.unit)
                difference = _difference(_values(want), got)
            except Exception as error:
                message = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
                raise AssertionError(f"{name}, case {what}: {message}\nHint: {hint}") from error
            if difference:
                raise AssertionError(
                    f"{name}, case {what}: {difference}\nHint: {self.wrong(_values(want), got) or hint}"
                )
        return f"{name}: {len(self.cases)} cases passed on paper"


def _values(result: object, unit: str = "") -> Real | list[Real]:
    """A number, or a list of them; a tensor's or an array's are taken out of it."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    if isinstance(result, tuple | list):
        values = [_values(item, unit) for item in result]
        if not any(isinstance(value, list) for value in values):
            return values
    if not isinstance(result, Real) or isinstance(result, bool):
        raise AssertionError(f"must return {_kind(unit)}; got {type(result).__name__}")
    return result


def flat(result: object) -> list[Real]:
    """The numbers of a result, in order."""
    values = _values(result)
    return values if isinstance(values, list) else [values]


def _kind(unit: str) -> str:
    return f"a number of {unit}" if unit else "a number"


def _difference(want: Real | list[Real], got: Real | list[Real]) -> str:
    """What is wrong, in words; "" if nothing is."""
    if isinstance(want, list) != isinstance(got, list):
        expected = f"{len(want)} numbers" if isinstance(want, list) else "one number"
        return f"expected {expected}, got {len(got) if isinstance(got, list) else 'one'}"
    if not isinstance(want, list):
        return "" if _same(want, got) else f"expected {_pair(want, got)}"
    if len(want) != len(got):
        return f"expected {len(want)} numbers, got {len(got)}"
    wrong = [k for k in range(len(want)) if not _same(want[k], got[k])]
    if not wrong:
        return ""
    worst = max(wrong, key=lambda k: abs(want[k] - got[k]) if math.isfinite(got[k]) else math.inf)
    return f"At [{worst}]: expected {_pair(want[worst], got[worst])}"


def _same(want: Real, got: Real) -> bool:
    if isinstance(want, int):
        return want == got
    return math.isclose(want, got, rel_tol=EXACT, abs_tol=EXACT * 1e-3)


def _pair(want: Real, got: Real) -> str:
    """"4, got 0"; of numbers that are not whole with the tolerance."""
    if isinstance(want, int):
        return f"{want}, got {int(got) if math.isfinite(got) and got == int(got) else got}"
    digits = next((d for d in (7, 10) if f"{want:.{d}g}" != f"{got:.{d}g}"), 17)
    return f"{want:.{digits}g}, got {got:.{digits}g} (tolerance {EXACT * abs(want):.2g})"
