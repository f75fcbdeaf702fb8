"""How long a notebook is to learn from: what it holds, and the minutes that this takes.

    words / 150 + lines of code / 10 + printed lines / 40 + (pictures + predictions) / 2 + 4 a puzzle

is about what readers took.
"""

from __future__ import annotations

import ast
import re
from dataclasses import asdict, dataclass
from pathlib import Path

MAX_MINUTES, MAX_LINES = 48, 20
ROUNDED_TO = 5  # minutes, in the READMEs
PUZZLE = "puzzle"  # the tag of a cell that the reader completes
PREDICTED = "predicted"  # so begins the name of what the reader fills in before the cell runs
MAGIC = re.compile(r"^[ \t]*[!%].*$", re.M)  # IPython's lines, which are no Python


@dataclass(frozen=True)
class Survey:
    """One notebook. words: of prose. lines: of code. longest: lines of its longest cell. printed: lines of stored text.
    pictures: stored ones, and those that prose shows."""

    notebook: str
    words: int
    cells: int
    lines: int
    longest: int
    printed: int
    pictures: int
    predictions: int
    puzzles: int

    @property
    def minutes(self) -> float:
        looked_at = self.pictures + self.predictions
        return self.words / 150 + self.lines / 10 + self.printed / 40 + looked_at / 2 + 4 * self.puzzles

    @property
    def rounded_minutes(self) -> int:
        """As the READMEs give them."""
        return ROUNDED_TO * round(self.minutes / ROUNDED_TO)

    @property
    def too_much(self) -> list[str]:
        """What is beyond the limits, in words."""
        found = []
        if self.minutes > MAX_MINUTES:
            found.append(f"{self.minutes:.0f} minutes, and {MAX_MINUTES} are meant")
        if self.longest > MAX_LINES:
            found.append(f"a cell of {self.longest} lines, and {MAX_LINES} are meant")
        return found


def asks(source: str) -> bool:
    """Whether a code cell asks for a prediction: it makes something `predicted…`, wherever the verdict on it comes."""
    nodes = list(ast.walk(ast.parse(MAGIC.sub("", source))))
    made = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    made += [n.name for n in nodes if isinstance(n, ast.FunctionDef)]
    return any(name.startswith(PREDICTED) for name in made)


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
        printed=sum(output.get("text", "").count("\n") for output in outputs),
        pictures=sum("image/png" in output.get("data", {}) for output in outputs) + prose.count("!["),
        predictions=sum(asks(cell.source) for cell in cells if cell.cell_type == "code"),
        puzzles=sum(PUZZLE in cell.metadata.get("tags", []) for cell in cells),
    )


def table(surveys: list[Survey]) -> str:
    """One line a notebook."""
    import pandas as pd

    rows = pd.DataFrame([asdict(each) | {"minutes": round(each.minutes)} for each in surveys])
    return rows.to_string(index=False)
