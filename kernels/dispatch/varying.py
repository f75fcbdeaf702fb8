"""N, the length of ragged tensors: it changes from call to call, and makes no new plan.

While a call is planned, a Varying stands for N. What Python computes with it is written down as a program, and C++ runs
the program again with the N of a later call (plan.h, run): so a plan's sizes, grids and arguments follow N. What Python
asks of it, by a comparison, holds for this N alone. It becomes a condition, and C++ takes the plan for another N only
if all conditions hold.

A program is a list of pairs (operation, value) in postfix order: values go onto a stack, an operation replaces the two
on top by its result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

CONSTANT, LENGTH, ADD, SUBTRACT, MULTIPLY, FLOOR_DIVIDE, MODULO, LESS, LESS_OR_EQUAL, EQUAL = range(10)  # plan.h


class Varying:
    """An integer that was computed from N. It is N itself by default.

    value: with the N of this call. conditions: programs that give 1; all that are computed from one N share the list.
    """

    __hash__ = None

    def __init__(
        self, value: int, program: tuple[int, ...] = (LENGTH, 0), conditions: list[tuple[int, ...]] | None = None
    ) -> None:
        self.value, self.program = value, program
        self.conditions = [] if conditions is None else conditions

    def _program_of(self, other: object) -> tuple[int, ...]:
        return other.program if isinstance(other, Varying) else (CONSTANT, operator.index(other))

    def _compare(self, operation: int, compare: Callable, left: object, right: object) -> bool:
        outcome = bool(compare(_value(left), _value(right)))
        program = (*self._program_of(left), *self._program_of(right), operation, 0)
        self.conditions.append(program if outcome else (*program, CONSTANT, 0, EQUAL, 0))
        return outcome

    def __lt__(self, other: object) -> bool:
        return self._compare(LESS, operator.lt, self, other)

    def __le__(self, other: object) -> bool:
        return self._compare(LESS_OR_EQUAL, operator.le, self, other)

    def __gt__(self, other: object) -> bool:
        return self._compare(LESS, operator.lt, other, self)

    def __ge__(self, other: object) -> bool:
        return self._compare(LESS_OR_EQUAL, operator.le, other, self)

    def __eq__(self, other: object) -> bool:
        return self._compare(EQUAL, operator.eq, self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        """The number itself, for what must have one: the plan is for this N alone then."""
        self._compare(EQUAL, operator.eq, self, self.value)
        return self.value

    __int__ = __index__

    def __neg__(self) -> Varying:
        return 0 - self

    def __repr__(self) -> str:
        return f"Varying({self.value})"

    def __str__(self) -> str:
        return str(int(self))  # what a name is made of holds for this N alone


def _value(number: object) -> int:
    return number.value if isinstance(number, Varying) else number


def _arithmetic(operation: int, compute: Callable) -> tuple[Callable, Callable]:
    def computed(varying: Varying, left: object, right: object) -> Varying:
        if not (isinstance(left, int | Varying) and isinstance(right, int | Varying)):
            return NotImplemented
        if operation in (FLOOR_DIVIDE, MODULO) and isinstance(right, Varying):
            bool(right)  # C++ must not divide by what is 0 for another N
        program = (*varying._program_of(left), *varying._program_of(right), operation, 0)
        return Varying(compute(_value(left), _value(right)), program, varying.conditions)

    return lambda self, other: computed(self, self, other), lambda self, other: computed(self, other, self)


_ARITHMETIC = {"add": ADD, "sub": SUBTRACT, "mul": MULTIPLY, "floordiv": FLOOR_DIVIDE, "mod": MODULO}
for _name, _operation in _ARITHMETIC.items():
    _forwards, _reflected = _arithmetic(_operation, getattr(operator, _name))
    setattr(Varying, f"__{_name}__", _forwards)
    setattr(Varying, f"__r{_name}__", _reflected)
