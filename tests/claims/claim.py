"""A sentence of a notebook, and where its numbers come from."""

from __future__ import annotations

import functools
import re
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
        """With its numbers. FileNotFoundError where nothing has been recorded that it could be computed from."""
        return self.sentence.format(*self.values())

    def unrecorded(self) -> str:
        """With a question mark in place of each number, as it stands in the notebook until there is a record."""
        return re.sub(r"\{[^}]*\}", "?", self.sentence)


CLAIMS: list[Claim] = []


def claim(notebook: str, sentence: str, values: Callable[[], tuple] = tuple) -> None:
    """Add a claim. Without values the sentence is arithmetic that the reader can follow, or a constant of the field."""
    CLAIMS.append(Claim(notebook, sentence, values))
