"""The puzzles of 22_a_model_without_python.ipynb: what each must give, and attempt(), which judges an answer.

    as_trained   counts [B, 13] → what training saw of them
    is_declared  declared sizes, shapes → whether the shapes are what was declared
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr

import numpy as np
import torch
from torch import Tensor

from lessons.shared.puzzle import Judge, Own
from lessons.shared.puzzle.reader import ask, unchanged

# ---------------------------------------------------------------------------------------------------------- as_trained


def as_trained(counts: Tensor) -> Tensor:
    """As lessons.shared.dlrm.read makes them of a file's rows."""
    return torch.where(counts > 0, counts, 0.0).log1p()


_NAN, _INF = torch.nan, torch.inf
_COLUMNS = 13
_COUNTS = (
    ("counts that are there", [[0.0, 1.0, 9.0]], "x becomes log(1 + x): torch.log1p."),
    ("two rows", [[0.0, 1.0, 9.0], [2.0, 0.0, 4.0]], "each row is made of its own counts, and of no other row's."),
    ("a count that is missing", [[3.0, _NAN, 5.0]], "read() filled a missing count with 0, and log(1 + 0) is 0."),
    ("counts below 0", [[-1.0, -2.0, 4.0]], "read() took the larger of x and 0 before the logarithm."),
    ("a large count", [[3e9, 0.0, 2.0]], "float32 holds it, and so must what you make of it."),
    ("counts that are no whole numbers", [[0.25, 0.5, 2.5]], "log(1 + x) is of x as it is, not of x rounded."),
    ("a count without a limit", [[_INF, -_INF, 2.0]],
     "read() took Inf for no missing count; nan_to_num puts a number in its place, unless you say posinf=torch.inf."),
    ("no rows", [], "a batch of 0 rows is a batch."),
)


_SHAPE = "each count gives one number, and that stays in its row and its column."
_TYPE = "the model computes in float32."


def _check_as_trained(answer: Callable) -> str:
    for name, values, hint in _COUNTS:
        rows = [row + [6.0] * (_COLUMNS - len(row)) for row in values]
        counts = torch.tensor(rows, dtype=torch.float32).reshape(-1, _COLUMNS)
        kept, want = counts.clone(), as_trained(counts)
        told = f"as_trained, case {name}: "
        got = ask(told, answer, (counts,), hint)
        assert isinstance(got, Tensor), f"{told}must return a tensor; got {type(got).__name__}"
        assert got.shape == want.shape, f"{told}shape: expected {[*want.shape]}, got {[*got.shape]}\nHint: {_SHAPE}"
        assert got.dtype == torch.float32, f"{told}dtype: expected float32, got {str(got.dtype)[6:]}\nHint: {_TYPE}"
        unchanged(told, "counts", counts, kept)
        wrong = (~torch.isclose(got, want, rtol=1e-6, atol=1e-7)).nonzero()
        if len(wrong):
            row, column = wrong[0].tolist()
            if torch.allclose(got, want, rtol=0.02, atol=1e-6):
                hint = "nearly right: is something rounded on the way, to bfloat16 or float16?"
            raise AssertionError(
                f"{told}of {kept[row, column]:g} expected {want[row, column]:g}, got {got[row, column]:g}\nHint: {hint}"
            )
    _check_exports(answer)
    return f"{len(_COUNTS)} cases passed on the CPU, and it can be exported for any number of rows"


def _check_exports(answer: Callable) -> None:
    program = _exported(answer, _rows(2, 1.0, -2.0))
    for rows in (0, 5):
        counts = _rows(rows, 3.0, 4.0)
        want, got = as_trained(counts), program.module()(counts)
        assert torch.allclose(got, want, rtol=1e-6, atol=1e-7), (
            f"as_trained, exported, then called with {rows} rows of other values: of 3 and 4 expected "
            f"{_first_two(want)}, got {_first_two(got)}\n"
            "Hint: a number that Python took out of a tensor is a constant of the graph."
        )


def _exported(answer: Callable, example: Tensor) -> torch.export.ExportedProgram:
    """For any number of rows."""
    try:
        with redirect_stderr(io.StringIO()):  # where torch shows the graph so far
            sizes = ({0: torch.export.Dim("rows")},)
            return torch.export.export(_OneCall(answer), (example,), dynamic_shapes=sizes)
    except Exception as error:
        raise AssertionError(
            f"as_trained: the values are right, but torch.export says: {str(error).strip().splitlines()[0]}\n"
            "Hint: an `if` or a loop on a tensor's values, or on how many rows there are, is Python's and stays "
            "behind; so does NumPy."
        ) from error


def _rows(rows: int, first: float, second: float) -> Tensor:
    return torch.tensor([[first, second] + [_NAN] * (_COLUMNS - 2)]).repeat(rows, 1)


def _first_two(values: Tensor) -> str:
    return " and ".join(f"{value:g}" for value in values[0, :2].tolist()) if len(values) else "none"


class _OneCall(torch.nn.Module):
    def __init__(self, function: Callable):
        super().__init__()
        self._function = function

    def forward(self, counts: Tensor) -> Tensor:
        return self._function(counts)


# --------------------------------------------------------------------------------------------------------- is_declared


Declared = Mapping[str, Sequence["int | str"]]


def is_declared(declared: Declared, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether there are rows B and ids N with which each shape is what was declared."""
    known: dict[str, int] = {}
    if declared.keys() != shapes.keys():
        return False
    for name, sizes in declared.items():
        if len(sizes) != len(shapes[name]):
            return False
        for size, number in zip(sizes, shapes[name], strict=True):
            if isinstance(size, str) and known.setdefault(size, number) != number:
                return False
            if isinstance(size, int) and size != number:
                return False
    return True


_ONE = {"counts": ("B", 13), "ids": ("B", 26)}
_BAGS = {"counts": ("B", 13), "ids": ("N",), "bag_of_id": ("N",)}
_PAIRS = {"chosen": ("F", "F"), "vectors": ("B", "F", 16)}
_SHAPES = (
    ("8 rows", _ONE, {"counts": (8, 13), "ids": (8, 26)}, True, "a letter may be any number."),
    ("5 rows, in a second call", _ONE, {"counts": (5, 13), "ids": (5, 26)}, True,
     "each call begins anew: what one call remembers must not reach the next."),
    ("0 rows", _ONE, {"counts": (0, 13), "ids": (0, 26)}, True, "0 is a number, too."),
    ("64 rows of ids beside 8 of counts", _ONE, {"counts": (8, 13), "ids": (64, 26)}, False,
     "a letter is the same number wherever it stands: remember the first."),
    ("no rows of counts beside 64 of ids", _ONE, {"counts": (0, 13), "ids": (64, 26)}, False,
     "0 is a number, too: a letter that is 0 must stay 0."),
    ("12 columns", _ONE, {"counts": (8, 12), "ids": (8, 26)}, False, "a number that is declared must be that number."),
    ("27 columns of ids", _ONE, {"counts": (8, 13), "ids": (8, 27)}, False,
     "a number that is declared must be that number."),
    ("a dimension too few", _ONE, {"counts": (8,), "ids": (8,)}, False,
     "how many sizes are declared, and how many dimensions are there? zip() ends with the shorter."),
    ("one row without its dimension", _ONE, {"counts": (13,), "ids": (26,)}, False,
     "how many sizes are declared, and how many dimensions are there? zip() ends with the shorter."),
    ("a dimension too many", _ONE, {"counts": (8, 13, 1), "ids": (8, 26)}, False,
     "how many sizes are declared, and how many dimensions are there? zip() ends with the shorter."),
    ("a dimension too many, and one too few", _ONE, {"counts": (8, 13, 8), "ids": (8,)}, False,
     "each input by itself: how many sizes are declared, and how many dimensions are there?"),
    ("ids by columns", _ONE, {"counts": (8, 13), "ids": (26, 8)}, False,
     "each size by itself: two shapes may have as many numbers, and be different."),
    ("no ids", _ONE, {"counts": (8, 13)}, False, "every name that is declared must be there, and no other."),
    ("an input too many", _ONE, {"counts": (8, 13), "ids": (8, 26), "offsets": (9,)}, False,
     "every name that is declared must be there, and no other."),
    ("other names", _ONE, {"dense": (8, 13), "ids": (8, 26)}, False,
     "every name that is declared must be there, and no other."),
    ("in another order", _ONE, {"ids": (8, 26), "counts": (8, 13)}, True,
     "an input is known by its name, not by its place."),
    ("two letters", _BAGS, {"counts": (2, 13), "ids": (70,), "bag_of_id": (70,)}, True,
     "B and N are two letters: each has a number of its own."),
    ("N as large as B", _BAGS, {"counts": (2, 13), "ids": (2,), "bag_of_id": (2,)}, True,
     "two letters may happen to be the same number."),
    ("N twice, and not the same", _BAGS, {"counts": (2, 13), "ids": (70,), "bag_of_id": (2,)}, False,
     "a letter is the same number wherever it stands: remember the first."),
    ("a letter in other places", _PAIRS, {"chosen": (27, 27), "vectors": (8, 27, 16)}, True,
     "a letter may stand anywhere, and twice in one shape."),
    ("F twice in one shape, and not the same", _PAIRS, {"chosen": (26, 27), "vectors": (8, 27, 16)}, False,
     "a letter is the same number wherever it stands, in one shape too."),
    ("F first, then second, and not the same", _PAIRS, {"chosen": (27, 27), "vectors": (8, 26, 16)}, False,
     "a letter is the same number wherever it stands, as a second size too."),
)


def _drawn() -> Iterator[tuple[str, Declared, dict[str, tuple[int, ...]], bool, str]]:
    """Cases that no table of answers has; in some of them one size is another."""

    def any_of(values: Sequence) -> object:
        return values[int(torch.randint(len(values), ()))]

    for k in range(60):
        letters = {letter: any_of(range(5)) for letter in "BNFK"}
        declared = {
            name: tuple(any_of([*letters, *letters, 1, 2, 3]) for _ in range(any_of((1, 2, 3))))
            for name in ("counts", "ids", "chosen")[: any_of((1, 2, 3))]
        }
        shapes = {name: [letters.get(size, size) for size in sizes] for name, sizes in declared.items()}
        if k % 2:
            shape = any_of([*shapes.values()])
            shape[any_of(range(len(shape)))] += 1
        shapes = {name: tuple(shape) for name, shape in shapes.items()}
        hint = "a letter is any number, the same wherever it stands; a number that is declared must be that number."
        yield f"{declared} and {shapes}", declared, shapes, is_declared(declared, shapes), hint


def _check_is_declared(answer: Callable) -> str:
    for name, declared, shapes, want, hint in (*_SHAPES, *_drawn()):
        told = f"is_declared, case {name}: "
        raised = "where the shapes are not as declared, return False." if not want else hint
        got = ask(told, answer, (dict(declared), dict(shapes)), raised)
        if isinstance(got, np.bool_) or (isinstance(got, Tensor) and got.dtype == torch.bool and not got.dim()):
            got = bool(got)
        assert isinstance(got, bool), f"{told}must return True or False; got {type(got).__name__}"
        assert got == want, f"{told}expected {want}, got {got}\nHint: {hint}"
    return f"{len(_SHAPES)} cases passed on paper"


PUZZLES = {
    "as_trained": Own(_check_as_trained),
    "is_declared": Own(_check_is_declared, seconds=20),
}
JUDGE = Judge(PUZZLES)
attempt, SOLVED = JUDGE.attempt, JUDGE.solved


def passed(name: str) -> Callable:
    """The reader's function, if it passed when it was last tried; else the lecture's."""
    return SOLVED.get(name, {"as_trained": as_trained, "is_declared": is_declared}[name])
