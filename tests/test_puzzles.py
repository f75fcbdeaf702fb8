"""Every puzzle of the lecture: its answer passes, and each wrong answer is turned down with the words that it deserves.

notebooks/solutions/NAME.py holds the answers of notebooks/NAME.ipynb, a section a puzzle, each the whole cell:

    # %% puzzle_id

tests/wrong_answers/NAME.py holds wrong ones, and unusual right ones, each the whole cell again, with a pattern of what
must be printed:

    # %% puzzle_id: what is done wrong -> pattern
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
for package in ("nbclient", "ipykernel"):
    pytest.importorskip(package)

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = sorted((ROOT / "notebooks" / "solutions").glob("*.py"))
WRONG = ROOT / "tests" / "wrong_answers"
ENOUGH = 5  # wrong answers a puzzle
PASSED = r"cases passed on|^right"


@dataclass(frozen=True)
class Answer:
    """A cell's text, and the pattern of what it must print."""

    puzzle: str
    what: str
    pattern: str
    source: str


def answers(path: Path) -> list[Answer]:
    """The sections of a file of answers."""
    found = []
    for section in re.split(r"^# %% ", path.read_text(), flags=re.M)[1:]:
        head, _, source = section.partition("\n")
        puzzle, _, rest = head.partition(":")
        what, _, pattern = rest.partition("->")
        found.append(Answer(puzzle.strip(), what.strip(), pattern.strip() or PASSED, source.strip()))
    return found


def printed(cell) -> str:
    outputs = cell.get("outputs", [])
    return "".join(output.get("text", "") for output in outputs if output.output_type == "stream")


@pytest.mark.slow
@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_answers(path):
    """The notebook runs once; each of its puzzles is tried as it stands, with all wrong answers, then answered. A cell
    that puts the answers together is right then."""
    from lecture import client_of  # of notebooks/

    client = client_of(ROOT / "notebooks" / f"{path.stem}.ipynb")
    right = {answer.puzzle: answer for answer in answers(path)}
    wrong = answers(WRONG / path.name)
    puzzles = [cell.id for cell in client.nb.cells if "puzzle" in cell.metadata.get("tags", [])]
    assert sorted(right) == sorted(puzzles)
    assert {answer.puzzle for answer in wrong} == set(puzzles)
    complaints = []

    def attempt(cell, index, answer):
        cell.source = answer.source
        client.execute_cell(cell, index)
        got = printed(cell)
        if not re.search(answer.pattern, got, flags=re.M):
            complaints.append(f"{answer.puzzle}, {answer.what}: expected {answer.pattern!r}, got: {got[:500]}")

    with client.setup_kernel():
        for index, cell in enumerate(client.nb.cells):
            if cell.cell_type != "code":
                continue
            if cell.id in right:
                attempt(cell, index, Answer(cell.id, "as it stands", "^not yet: ", cell.source))
                for answer in (answer for answer in wrong if answer.puzzle == cell.id):
                    attempt(cell, index, answer)
                attempt(cell, index, right[cell.id])
            else:
                client.execute_cell(cell, index)
                if "not yet: " in printed(cell):
                    complaints.append(f"{cell.id}, with all puzzles before it answered: {printed(cell)[:500]}")
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_there_are_enough_wrong_answers(path):
    given = answers(WRONG / path.name)
    for puzzle in {answer.puzzle for answer in answers(path)}:
        mine = [answer for answer in given if answer.puzzle == puzzle]
        wrong = [answer for answer in mine if answer.pattern != PASSED]
        assert len(wrong) >= ENOUGH, f"{puzzle}: {len(wrong)} wrong answers"
        assert len(mine) > len(wrong), f"{puzzle}: no unusual right answer"
