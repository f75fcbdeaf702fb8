"""What a notebook's prose says in numbers, computed from what was recorded: CLAIMS, one for each sentence.

    claim("15", "eager takes {:.0f} µs, the one launch {:.1f}.", lambda: (us("eager"), us("triton")))

The sentence, with its numbers filled in, must stand in the notebook. A comparison is an assert in the function. A
lesson's claims are in its claims.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """notebook: its number. sentence: a format string. values: what fills it in; it may assert what the words say."""

    notebook: str
    sentence: str
    values: Callable[[], tuple]

    @functools.cache  # noqa: B019  there are some hundred claims, and all live to the end
    def text(self) -> str:
        """With its numbers. LookupError where a record lacks what it is computed from."""
        return self.sentence.format(*self.values())


CLAIMS: list[Claim] = []


def claim(notebook: str, sentence: str, values: Callable[[], tuple] = tuple) -> None:
    """Add a claim. Without values the sentence is arithmetic that the reader can follow, or a constant of the field."""
    CLAIMS.append(Claim(notebook, sentence, values))
