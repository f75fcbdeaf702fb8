"""Numbers in the notebooks' prose: each belongs to a sentence of its lesson's claims.py, which computes it from the
records."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest

from kernels.measure.records import README_GPU, load
from lessons.shared.claim import CLAIMS, QUOTING, Claim, unprinted

nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
for room in sorted((NOTEBOOKS / "lessons").glob("n[0-9]*")):
    importlib.import_module(f"lessons.{room.name}.claims")
# The notebooks whose every quantity must be claimed.
COVERED = sorted({claim.notebook for claim in CLAIMS} - set(QUOTING))
# A number with a unit of measurement: what a record can contradict.
QUANTITY = re.compile(r"\d[\d,.]*\s*(?:µs|ms|s\b|×|%|[KMGT]?i?B(?:/s)?\b|TFLOP/s|rows/s)")


@functools.cache
def cells(notebook: str, kind: str) -> list:
    (path,) = NOTEBOOKS.glob(f"{notebook}_*.ipynb")
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


@functools.cache
def prose(notebook: str) -> str:
    """The Markdown cells in one line each, without code."""
    texts = [cell.source for cell in cells(notebook, "markdown")]
    text = re.sub(r"^( {4}|```)[^\n]*$", "", "\n\n".join(texts), flags=re.M)
    return re.sub(r"[^\S\n]*\n(?!\n)[^\S\n]*", " ", text)


def unclaimed(notebook: str) -> str:
    """The prose without the sentences that are claimed."""
    text = prose(notebook)
    for claim in CLAIMS:
        if claim.notebook == notebook:
            text = text.replace(claim.text(), "")
    return text


@functools.cache
def outputs(notebook: str) -> str:
    """What the cells are stored to have printed."""
    return "\n".join(output.get("text", "") for cell in cells(notebook, "code") for output in cell.outputs)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.notebook}: {claim.sentence[:60]}")
def test_a_sentence_says_what_was_recorded(claim: Claim):
    assert claim.text() in prose(claim.notebook)


@pytest.mark.parametrize("notebook", COVERED)
def test_every_quantity_is_claimed(notebook):
    assert QUANTITY.findall(unclaimed(notebook)) == []


@pytest.mark.parametrize("notebook", QUOTING)
def test_prose_quotes_what_the_notebook_prints(notebook):
    code = "\n".join(cell.source for cell in cells(notebook, "code"))
    assert unprinted(unclaimed(notebook), code, outputs(notebook)) == []


@pytest.mark.parametrize("notebook", QUOTING)
def test_the_outputs_are_of_the_run_that_was_recorded(notebook):
    try:
        rows = load(f"lecture_{notebook}")["rows"]
    except FileNotFoundError:
        pytest.skip(f"notebook {notebook}: nothing is recorded on {README_GPU} yet")
    times = [f"{row['us_p50']:,.1f} µs" for row in rows if row["name"] != "copy"]
    assert [time for time in times if time not in outputs(notebook)] == []
