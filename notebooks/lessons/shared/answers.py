"""The answers to a lesson's puzzles: solutions.py has the right ones, wrong_answers.txt wrong and unusual ones.

solutions.py has a section a puzzle, the whole cell:

    # %% puzzle_id

wrong_answers.txt has a section an answer, headed by what is done, and by a pattern of what must be printed (without
one: what a right answer prints):

    # %% puzzle_id: what is done wrong -> pattern

Its text is the whole cell again, or edits of the solution. An edit within one line is "~ old ⇒ new", in the first line
that has the old text. Others are hunks with an empty line between them, each of lines that begin with "-" (what goes),
"+" (what comes) or a space (what stays, where the place would not be clear). An edit is made where its lines stand
first behind the edit before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LESSONS = Path(__file__).resolve().parent.parent
PASSED = r"cases passed on|^right"


@dataclass(frozen=True)
class Answer:
    """A cell's text, and the pattern of what it must print."""

    puzzle: str
    what: str
    pattern: str
    source: str


def solutions(room: Path) -> dict[str, Answer]:
    """The right answers of a lesson by puzzle."""
    return {answer.puzzle: answer for answer in _sections(room / "solutions.py")}


def others(room: Path) -> list[Answer]:
    """The wrong answers of a lesson, and the unusual right ones, as whole cells.

    Raises:
        ValueError: naming the answer whose edit fits nowhere, or whose puzzle has no solution.
    """
    right = solutions(room)
    answers = []
    for answer in _sections(room / "wrong_answers.txt"):
        if answer.puzzle not in right:
            raise ValueError(f"{room.name}: there is no puzzle {answer.puzzle!r}; got {', '.join(right)}")
        source = answer.source
        if source[:1] in ("-", "+", " ", "~"):
            try:
                source = edited(right[answer.puzzle].source, source)
            except ValueError as error:
                raise ValueError(f"{room.name}, {answer.puzzle}, {answer.what}: {error}") from error
        answers.append(Answer(answer.puzzle, answer.what, answer.pattern, source))
    return answers


def edited(text: str, edits: str) -> str:
    """The text with the edits made. ValueError: one whose lines do not stand in the rest of the text."""
    lines, result, position = text.splitlines(), [], 0
    for hunk in re.split(r"\n\n+|\n(?=~ )", edits.strip("\n")):
        if hunk.startswith("~ "):
            within, becomes = hunk.removeprefix("~ ").split(" ⇒ ")
            start = next((i for i, line in enumerate(lines) if i >= position and within in line), None)
            old = lines[start : start + 1] if start is not None else []
            new = [line.replace(within, becomes, 1) for line in old]
        else:
            marked = hunk.split("\n")
            old = [line[1:] for line in marked if line[0] in "- "]
            new = [line[1:] for line in marked if line[0] in "+ "]
            starts = range(position, len(lines) - len(old) + 1)
            start = next((start for start in starts if lines[start : start + len(old)] == old), None)
        if start is None:
            raise ValueError(f"these lines do not stand there:\n{hunk}")
        result += [*lines[position:start], *new]
        position = start + len(old)
    return "\n".join([*result, *lines[position:]])


def _sections(path: Path) -> list[Answer]:
    answers = []
    for section in re.split(r"^# %% ", path.read_text(), flags=re.M)[1:]:
        head, _, source = section.partition("\n")
        puzzle, _, rest = head.partition(":")
        what, _, pattern = rest.partition("->")
        answers.append(Answer(puzzle.strip(), what.strip(), pattern.strip() or PASSED, source.strip("\n")))
    return answers
