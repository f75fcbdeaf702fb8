"""What a notebook's prose says in numbers, computed from what was recorded: CLAIMS, one for each sentence.

    claim("15", "eager takes {:.0f} µs, the one launch {:.1f}.", lambda: (us("eager"), us("triton")))

The sentence, with its numbers filled in, must stand in the notebook. A comparison is an assert in the function. A
lesson's claims are in its claims.py. What a sentence says of an output above it is computed from the stored output.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parents[2]


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


@functools.cache
def printed(notebook: str, cell_id: str, *, on: str = "") -> str:
    """What is stored as printed by a cell of the notebook of this number. on: the GPU that it must have run on."""
    (path,) = NOTEBOOKS.glob(f"{notebook}_*.ipynb")
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    texts = {cell["id"]: "".join("".join(output.get("text", "")) for output in cell["outputs"]) for cell in cells}
    report = next(iter(texts.values()))
    assert on in report, f"its outputs are not of an {on}"
    return texts[cell_id]
