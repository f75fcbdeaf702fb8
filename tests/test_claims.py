"""Numbers in the notebooks' prose: each belongs to a sentence of its lesson's claims.py, which computes it from the
records."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest

from lessons.shared.claim import CLAIMS, Claim

nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
for room in sorted((NOTEBOOKS / "lessons").glob("n[0-9]*")):
    importlib.import_module(f"lessons.{room.name}.claims")
# The notebooks whose every quantity must be claimed.
COVERED = sorted({claim.notebook for claim in CLAIMS})
# A number with a unit of measurement: what a record can contradict.
QUANTITY = re.compile(r"\d[\d,.]*\s*(?:µs|ms|s\b|×|%|[KMGT]?i?B(?:/s)?\b|TFLOP/s|rows/s)")


@functools.cache
def prose(notebook: str) -> str:
    """The Markdown cells in one line each, without code."""
    (path,) = NOTEBOOKS.glob(f"{notebook}_*.ipynb")
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    text = re.sub(r"^( {4}|```)[^\n]*$", "", "\n\n".join(cells), flags=re.M)
    return re.sub(r"[^\S\n]*\n(?!\n)[^\S\n]*", " ", text)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.notebook}: {claim.sentence[:60]}")
def test_a_sentence_says_what_was_recorded(claim: Claim):
    assert claim.text() in prose(claim.notebook)


@pytest.mark.parametrize("notebook", COVERED)
def test_every_quantity_is_claimed(notebook):
    text = prose(notebook)
    for claim in CLAIMS:
        if claim.notebook == notebook:
            text = text.replace(claim.text(), "")
    assert QUANTITY.findall(text) == []
