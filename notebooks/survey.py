"""How long a notebook is to learn from: words, cells, pictures, puzzles, and the minutes that they take.

130 words and 12 lines of code a minute, 2 minutes a puzzle, is about what readers took.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

WORDS_A_MINUTE, LINES_A_MINUTE, MINUTES_A_PUZZLE = 130, 12, 2
MAX_MINUTES, MAX_LINES = 25, 20
PUZZLE = "puzzle"  # the tag of a cell that the reader completes


@dataclass(frozen=True)
class Survey:
    """One notebook. words: of prose. lines: of code. longest: lines of its longest cell. pictures: stored ones, and
    those that prose shows."""

    notebook: str
    words: int
    cells: int
    lines: int
    longest: int
    pictures: int
    puzzles: int

    @property
    def minutes(self) -> float:
        return self.words / WORDS_A_MINUTE + self.lines / LINES_A_MINUTE + self.puzzles * MINUTES_A_PUZZLE

    @property
    def too_much(self) -> list[str]:
        """What is beyond the limits, in words."""
        found = []
        if self.minutes > MAX_MINUTES:
            found.append(f"{self.minutes:.0f} minutes, and {MAX_MINUTES} are meant")
        if self.longest > MAX_LINES:
            found.append(f"a cell of {self.longest} lines, and {MAX_LINES} are meant")
        return found


def survey(path: Path) -> Survey:
    """The notebook's figures, from its file."""
    import nbformat

    cells = nbformat.read(path, as_version=4).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = [[line for line in c.source.splitlines() if line.strip()] for c in cells if c.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return Survey(
        path.stem,
        words=len(re.findall(r"\w[\w'’.,-]*", prose)),
        cells=len(cells),
        lines=sum(map(len, code)),
        longest=max(map(len, code), default=0),
        pictures=sum("image/png" in output.get("data", {}) for output in outputs) + prose.count("!["),
        puzzles=sum(PUZZLE in cell.metadata.get("tags", []) for cell in cells),
    )


def table(surveys: list[Survey]) -> str:
    """One line a notebook."""
    import pandas as pd

    rows = pd.DataFrame([asdict(each) | {"minutes": round(each.minutes)} for each in surveys])
    return rows.to_string(index=False)
