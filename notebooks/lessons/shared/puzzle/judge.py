"""Judge: a lesson's puzzles, and attempt(), the one way to try an answer."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from lessons.shared.puzzle import limits, reader

SECONDS = 50  # of one attempt


class Puzzle(Protocol):
    def judge(self, name: str, *answers: object) -> str:
        """What to print of answers that are right. Any exception says what is wrong: an AssertionError in words."""


@dataclass(frozen=True)
class Own:
    """A puzzle that is like no other: check(*answers) → what is right of them; an AssertionError says what is not.
    seconds: of one attempt; None: the judge's."""

    check: Callable[..., str]
    seconds: float | None = None

    def judge(self, name: str, *answers: object) -> str:
        return f"right: {self.check(*answers)}"


class Judge:
    """A lesson's puzzles, by name. solved: the answers that passed last; of several functions, their tuple."""

    def __init__(self, puzzles: Mapping[str, Puzzle], seconds: float = SECONDS):
        self.puzzles, self.seconds = puzzles, seconds
        self.solved: dict[str, object] = {}

    def attempt(self, name: str, *answers: object, seconds: float | None = None) -> bool:
        """A puzzle's last line: whether the answers are right; if not, why is printed, with the case and a hint.
        seconds: default: the puzzle's, or else the judge's.

        Nothing but Ctrl-C leaves it as an exception, and nothing in an answer ends the process: not even a loop that
        does not end, where it runs in the main thread, as a notebook's cells do.
        """
        self.solved.pop(name, None)
        own = reader.files_of(answers)
        seconds = seconds or getattr(self.puzzles.get(name), "seconds", None) or self.seconds
        try:
            with limits.seconds(seconds, own), limits.nothing_ends(), _quietly():
                text = self.puzzles[name].judge(name, *answers)
        except limits.TooLong as late:
            why = f"it does not end: stopped after {seconds:g} s{late.line}\nHint: Does each loop come to its end? "
            why += "If it would, it is slow: let a step do many elements."
        except SystemExit as end:
            why = f"it ends the process{reader.line_of(end, own)}\nHint: Return a result: the caller goes on."
        except Exception as error:
            why = reader.in_words(error, own)
        else:
            print(text)
            self.solved[name] = answers[0] if len(answers) == 1 else answers
            return True
        print(f"not yet: {why if why.startswith(name) else f'{name}: {why}'}")
        return False


@contextmanager
def _quietly() -> Iterator[None]:
    """No library's log between the cell and the verdict; the reader's random numbers go on where they were."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        logging.disable(before)
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
