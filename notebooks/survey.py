"""How long a notebook is to learn from: what it holds, and the minutes that this takes.

    words / 150 + lines of code / 10 + printed lines / 40 + (pictures + predictions) / 2 + 4 a puzzle, 15 a capstone

is about what readers took. A kernel that a cell prints is read as code. The minutes are a report: nothing is written up
to them, and a notebook that takes longer than is meant is named as one.
"""

from __future__ import annotations

import ast
import re
from dataclasses import asdict, dataclass
from pathlib import Path

MEANT, MAX_LINES = 50, 20  # minutes at most, lines of a cell at most
PUZZLE = "puzzle"  # the tag of a cell that the reader completes
PREDICTED = "predicted"  # so begins the name of what the reader fills in before the cell runs
CAPSTONE = re.compile(r"\bcapstone\b", re.I)  # the prose between such a puzzle and the one before says so
KERNEL = re.compile(r"\btl\.(load|store)\b|__global__ void|\b(ld|st)\.global|\btt\.")  # a printed text with it is code
MAGIC = re.compile(r"^[ \t]*[!%].*$", re.M)  # IPython's lines, which are no Python


@dataclass(frozen=True)
class Survey:
    """One notebook. words: of prose. lines: of code. longest: lines of its longest cell. kernels: lines of printed
    kernels. printed: lines of other stored text. pictures: stored ones, and those that prose shows. puzzles: the
    capstones among them."""

    notebook: str
    words: int
    cells: int
    lines: int
    longest: int
    kernels: int
    printed: int
    pictures: int
    predictions: int
    puzzles: int
    capstones: int

    @property
    def minutes(self) -> float:
        read = self.words / 150 + (self.lines + self.kernels) / 10 + self.printed / 40
        looked_at = (self.pictures + self.predictions) / 2
        return read + looked_at + 4 * (self.puzzles - self.capstones) + 15 * self.capstones


def asks(source: str) -> bool:
    """Whether a code cell asks for a prediction: it makes something `predicted…`, wherever the verdict on it comes."""
    nodes = list(ast.walk(ast.parse(MAGIC.sub("", source))))
    names = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    names += [n.name for n in nodes if isinstance(n, ast.FunctionDef)]
    return any(name.startswith(PREDICTED) for name in names)


def survey(path: Path) -> Survey:
    """The notebook's figures, from its file."""
    import nbformat

    cells = nbformat.read(path, as_version=4).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = [[line for line in c.source.splitlines() if line.strip()] for c in cells if c.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    texts = [output.get("text", "") for output in outputs]
    kernels = sum(text.count("\n") for text in texts if KERNEL.search(text))
    puzzles = [n for n, cell in enumerate(cells) if PUZZLE in cell.metadata.get("tags", [])]
    between = [cells[a + 1 : b] for a, b in zip([-1, *puzzles], puzzles, strict=False)]
    return Survey(
        path.stem,
        words=len(re.findall(r"\w[\w'’.,-]*", prose)),
        cells=len(cells),
        lines=sum(map(len, code)),
        longest=max(map(len, code), default=0),
        kernels=kernels,
        printed=sum(text.count("\n") for text in texts) - kernels,
        pictures=sum("image/png" in output.get("data", {}) for output in outputs) + prose.count("!["),
        predictions=sum(asks(cell.source) for cell in cells if cell.cell_type == "code"),
        puzzles=len(puzzles),
        capstones=sum(any(CAPSTONE.search(c.source) for c in part if c.cell_type == "markdown") for part in between),
    )


def table(surveys: list[Survey]) -> str:
    """One line a notebook, and which are longer than is meant."""
    import pandas as pd

    rows = pd.DataFrame([asdict(entry) | {"minutes": f"{entry.minutes:.1f}"} for entry in surveys])
    return f"{rows.to_string(index=False)}\n{longer(surveys)}"


def longer(surveys: list[Survey]) -> str:
    """The sentence of the notebooks' README that names those that take longer than is meant."""
    names = [entry.notebook[:2] for entry in surveys if entry.minutes > MEANT]
    return f"Longer than the {MEANT} minutes that are meant at most: {', '.join(names) or 'none'}."
