"""Puzzles whose answer is a function of numbers: what it is given and must give, and attempt(), which checks it.

Cases are (what, arguments, hint): what the case is called, and what to think of if it is the first that fails.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from kernels import check
from kernels.check import Call, Case, Spec


def spec(ours: Callable, cases: Sequence[tuple[str, tuple, str]]) -> Spec:
    """The puzzle that `ours` is the answer of; arguments are whole numbers, or lists of them."""

    def calls(case: Case, device: torch.device) -> Iterator[Call]:
        what, arguments, hint = cases[case.shape[0]]
        yield Call(what, tuple(torch.tensor(each, dtype=torch.float64) for each in arguments), hint=hint)

    return Spec(
        _of_numbers(ours),
        calls,
        cases=lambda names: [Case((number,)) for number in range(len(cases))],
        wide_cases=lambda names: [],
    )


def attempt(name: str, function: Callable, puzzle: Spec, closed: Path) -> bool:
    """Whether the reader's function is right; if not, why is printed, with the case and a hint. The functions of the
    file `closed` it may not call."""
    return check.attempt(
        name, _of_numbers(alone(function, closed)), spec=puzzle, device="cpu", isolated=False, kernels_only=False
    )


def alone(function: Callable, closed: Path) -> Callable:
    """The function; AssertionError if it calls one of that file."""

    @functools.wraps(function)
    def alone(*arguments):
        called = []

        def note(frame, event, _) -> None:
            if event == "call" and Path(frame.f_code.co_filename) == closed:
                called.append(frame.f_code.co_name)

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            found = function(*arguments)
        finally:
            sys.setprofile(before)
        if called:
            raise AssertionError(f"{closed.stem}.{called[0]} was called: this is what you are to write")
        return found

    return alone


def _of_numbers(function: Callable) -> Callable:
    """A function of tensors, for check: plain numbers go in, and one comes out, or several."""

    def of_tensors(*tensors: Tensor) -> Tensor:
        found = function(*(tensor.long().tolist() for tensor in tensors))
        try:
            if isinstance(found, tuple | list):
                return torch.tensor([float(each) for each in found], dtype=torch.float64)
            return torch.tensor(float(found), dtype=torch.float64)
        except (TypeError, ValueError):
            raise AssertionError(f"must return a number; got {type(found).__name__}") from None

    of_tensors.__signature__ = inspect.signature(function)
    return of_tensors
