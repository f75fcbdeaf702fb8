"""Part IV's table: what it prints is what was recorded, and what its notebooks are stored to have printed."""

from __future__ import annotations

import pytest

from kernels.measure import records
from lessons.shared import main_step
from lessons.shared.claim import NOTEBOOKS, printed
from lessons.shared.measure import FOLDER

HEAD = {"GPU": "NVIDIA H200", "torch": "1", "triton": "2", "CUDA": "3"}


@pytest.fixture
def two_parts(monkeypatch, tmp_path):
    """A record of two notebooks, of which the second lacks a way."""
    parts = {"13": ("a", 8, ("m", "eager"), None, ("n", "mine")), "14": ("b", "few", *[("m", "eager")] * 2, ("m", "x"))}
    monkeypatch.setattr(main_step, "PARTS", parts)
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    rows = [("m", "eager", 8, 2000.04), ("m", "eager", "few", 3.0), ("n", "mine", 8, 0.5), ("n", "eager", 8, 9.0)]
    rows = [dict(zip(("part", "name", "size", "us_p50"), row, strict=True)) | {"match": "ok"} for row in rows]
    rows.append({"part": "m", "name": "x", "size": "few", "match": "FAILED: no"})
    for number in parts:
        records.save({"op": f"lecture_{number}"} | HEAD | {"rows": rows}, tmp_path)
    return rows


def table(capsys, notebook: str) -> list[list[str]]:
    main_step.show(notebook)
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_row_a_notebook_up_to_this_one(two_parts, capsys):
    about, columns, *rows = table(capsys, "13")
    assert " ".join(about) == "RECORDED on: NVIDIA H200, torch 1, triton 2, CUDA 3. µs on the GPU, 2,048 rows of `main`"
    assert columns == list(main_step.COLUMNS)
    assert rows == [["13", "a", "2,000.0", "–", "0.5"]]
    assert table(capsys, "14")[2:] == [*rows, ["14", "b", "3.0", "3.0", "–"]]


def test_what_is_being_recorded_counts_first(two_parts, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER, str(tmp_path / "run"))
    assert table(capsys, "13")[2][2] == "2,000.0"
    two_parts[0]["us_p50"] = 7.0
    records.save({"op": "lecture_13"} | HEAD | {"torch": "9", "rows": two_parts}, tmp_path / "run")
    about, _, *rows = table(capsys, "14")
    assert [row[2] for row in rows] == ["7.0", "3.0"]
    assert "torch 9, triton 2, CUDA 3; NVIDIA H200, torch 1" in " ".join(about)


@pytest.mark.parametrize("notebook", main_step.PARTS)
def test_a_notebook_shows_the_table_as_it_is_recorded(notebook, capsys):
    main_step.show(notebook)
    assert printed(notebook, "step").endswith(capsys.readouterr().out)


@pytest.mark.parametrize("notebook", main_step.PARTS)
def test_each_way_is_one_that_the_notebook_measures(notebook):
    (path,) = NOTEBOOKS.glob(f"{notebook}_*.ipynb")
    text = path.read_text()
    for name in {name for way in main_step.PARTS[notebook][2:] if way for name in way}:
        assert f'\\"{name}\\"' in text, name
