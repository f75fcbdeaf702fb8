"""How long the notebooks are: what the survey counts, and what the READMEs say of it."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
from survey import MAX_LINES, Survey, asks, longer, survey, table  # noqa: E402  of notebooks/

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
ALL = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


@functools.cache
def surveys() -> list[Survey]:
    return [survey(path) for path in ALL]


def test_no_cell_is_long():
    assert {lesson.notebook: lesson.longest for lesson in surveys() if lesson.longest > MAX_LINES} == {}


def test_what_takes_longer_than_is_meant_is_named():
    assert longer(surveys()) in " ".join((NOTEBOOKS / "README.md").read_text().split())


@pytest.mark.parametrize("readme", [NOTEBOOKS.parent / "README.md", NOTEBOOKS / "README.md"], ids=["root", "notebooks"])
def test_the_readme_gives_each_its_minutes(readme):
    rows = re.findall(r"^\| \[[^]]*\]\((?:notebooks/)?(\w+)\.ipynb\) \| (\d+) \|", readme.read_text(), flags=re.M)
    assert {name: int(minutes) for name, minutes in rows} == {
        lesson.notebook: round(lesson.minutes) for lesson in surveys()
    }


def test_the_glossary_names_where_a_term_is_explained():
    text = (NOTEBOOKS / "README.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| \[\d\d\]\((\S+)\) \|$", text, flags=re.M)
    assert len(rows) >= 20
    for term, name in rows:
        prose = "\n".join(c.source for c in nbformat.read(NOTEBOOKS / name, 4).cells if c.cell_type == "markdown")
        explained = re.search(rf"(?<!\*)\*{re.escape(term)}(e?s)?\*(?!\*)", prose, re.I)
        assert explained, f"{name} does not explain *{term}*"


def test_what_is_counted(tmp_path):
    v4 = nbformat.v4
    picture = v4.new_output("display_data", data={"image/png": "aa=="})
    puzzle = v4.new_code_cell("a = 1\n\nb = 2", metadata={"tags": ["puzzle"]})
    printed = v4.new_output("stream", text="one\ntwo\n")
    drawing = v4.new_code_cell("\n".join(["predicted = None", *["draw()"] * 23]), outputs=[picture, printed])
    kernel = v4.new_output("stream", text="@triton.jit\ndef f(x):\n    tl.store(x, 0)\n")
    shown = v4.new_code_cell("show(f)", outputs=[kernel])
    text, last = (v4.new_markdown_cell(text) for text in ("# Four words of prose\n\n![](a.svg)", "The capstone."))
    capstone = v4.new_code_cell(puzzle.source, metadata=puzzle.metadata)
    nb = v4.new_notebook(cells=[text, puzzle, drawing, shown, last, capstone])
    nbformat.write(nb, tmp_path / "09_x.ipynb")
    counted = survey(tmp_path / "09_x.ipynb")
    counts = {"words": 7, "cells": 6, "lines": 29, "longest": 24, "kernels": 3, "printed": 2, "pictures": 2}
    assert counted == Survey("09_x", **counts, predictions=1, puzzles=2, capstones=1)
    assert counted.minutes == pytest.approx(7 / 150 + (29 + 3) / 10 + 2 / 40 + 3 / 2 + 4 + 15)
    long = replace(counted, notebook="10_y", words=6000)
    _, first, second, note = table([counted, long]).splitlines()
    assert first.split() == ["09_x", "7", "6", "29", "24", "3", "2", "2", "1", "2", "1", "23.8"]
    assert second.split()[-1] == "63.8"
    assert note == "Longer than the 50 minutes that are meant at most: 10."


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("predicted_us = None\nverdict('a', predicted_us, 1)", True),
        (
            "predicted = {'a': None}\nfor name, guess in predicted.items():\n    verdict(name, guess, 1)",
            True,
        ),
        ("!ls\npredicted_graphs, predicted_calls = None, None\nrecorded.show(predicted_graphs)", True),
        ("def predicted(rows):\n    return rows", True),
        ("verdict('the formula', formula(1), 1)", False),
        ("recorded.show(predicted_us)  # of the cell above", False),
    ],
)
def test_a_cell_that_asks_for_a_prediction(source, asked):
    assert asks(source) is asked


def test_each_prediction_that_prose_asks_for_has_its_cell():
    """In the notebooks: a cell that says **Predict**, and before the next such cell one that asks."""
    without = []
    for path in ALL:
        cells = nbformat.read(path, 4).cells
        says = [i for i, c in enumerate(cells) if c.cell_type == "markdown" and "**Predict**" in c.source]
        for begin, end in zip(says, [*says[1:], len(cells)], strict=True):
            if not any(c.cell_type == "code" and asks(c.source) for c in cells[begin:end]):
                without.append((path.stem, begin))
    assert without == []


def test_the_command():
    command = [sys.executable, NOTEBOOKS / "lecture.py", "--survey", "01", "02"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[0] for line in printed[:3]] == ["notebook", "01_dlrm_from_scratch", "02_where_the_time_goes"]
