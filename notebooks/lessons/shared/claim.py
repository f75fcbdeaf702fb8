"""What a notebook's prose says in numbers, computed from what was recorded: CLAIMS, one for each sentence.

    claim("17", "eager takes {:.0f} µs, the one launch {:.1f}.", lambda: (us("eager"), us("triton")))

The sentence, with its numbers filled in, must stand in the notebook. A comparison is an assert in the function. A
lesson's claims are in its claims.py. What a sentence says of an output above it is computed from the stored output.

    quotes("17")

A notebook that quotes needs no claim for what it prints itself: each number in its prose stands in one of its outputs.
"""

from __future__ import annotations

import functools
import json
import re
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
QUOTING: list[str] = []  # the numbers of the notebooks that quote
NUMBER = re.compile(r"(?<![\w.,])\d[\d,_]*(?:\.\d+)?(?![\d.]*\w)")
UNIT = re.compile(r"\s*(µs|ms|s\b|×|%|[KMGT]?i?B(?:/s)?\b|TFLOP/s|rows/s)")
# What is no quantity: code, addresses, headings' numbers, other notebooks.
NO_NUMBERS = re.compile(r"`[^`]*`|\]\([^)]*\)|^#+ [\d.]+|\b[Nn]otebooks? \d\d(?:(?:, | and | to )\d\d)*|\[\d\d\]", re.M)


def claim(notebook: str, sentence: str, values: Callable[[], tuple] = tuple) -> None:
    """Add a claim. Without values the sentence is arithmetic that the reader can follow, or a constant of the field."""
    CLAIMS.append(Claim(notebook, sentence, values))


def quotes(notebook: str) -> None:
    """Hold the notebook's prose to its own outputs, but for what is claimed."""
    QUOTING.append(notebook)


def unprinted(prose: str, code: str, outputs: str) -> list[str]:
    """The numbers of the prose that no output has, as they stand there.

    A number is printed if one in the outputs, rounded to as many decimals, is it; with a unit, one of this unit. A
    whole number without a unit may also stand in the code, which says how many there are, or be less than ten.
    """
    printed, known = _numbers(outputs), {value for value, *_ in _numbers(code)}

    def stands(value: float, decimals: int, unit: str) -> bool:
        near = 0.5001 * 10.0**-decimals
        if not unit and not decimals and (value < 10 or value in known):
            return True
        return any(abs(value - other) <= near and unit in ("", own) for other, _, own in printed)

    found = zip(NUMBER.finditer(text := NO_NUMBERS.sub(" ", prose)), _numbers(text), strict=True)
    return [f"{match[0]} {number[2]}".strip() for match, number in found if not stands(*number)]


def _numbers(text: str) -> list[tuple[float, int, str]]:
    """(value, decimals, unit) of each number."""
    numbers = []
    for match in NUMBER.finditer(text):
        digits, unit = match[0].replace(",", "").replace("_", ""), UNIT.match(text, match.end())
        numbers.append((float(digits), len(digits.partition(".")[2]), unit[1] if unit else ""))
    return numbers


@functools.cache
def printed(notebook: str, cell_id: str, *, on: str = "") -> str:
    """What is stored as printed by a cell of the notebook of this number. on: the GPU that it must have run on."""
    (path,) = NOTEBOOKS.glob(f"{notebook}_*.ipynb")
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    texts = {cell["id"]: "".join("".join(output.get("text", "")) for output in cell["outputs"]) for cell in cells}
    report = next(iter(texts.values()))
    assert on in report, f"its outputs are not of an {on}"
    return texts[cell_id]
