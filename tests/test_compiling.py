"""model.compiling: graphs are counted, the recorder runs through in small, the records are read and drawn."""

import json
import sys

import pytest
import torch

from model.compiling import drawing, facts, graphs, record

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def closed():
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")


def test_a_break_is_counted_and_named():
    logits = 20 * torch.randn(64)
    assert len(graphs.graphs_of(graphs.bounded, logits).graphs) == 2
    assert len(graphs.graphs_of(graphs.bounded_where, logits).graphs) == 1
    assert graphs.stops_at(graphs.bounded, logits).endswith("if largest.item() > 10:")
    assert graphs.stops_at(graphs.bounded_where, logits) == ""
    for scale in (0.01, 1.0):
        torch.testing.assert_close(graphs.bounded_where(scale * logits), graphs.bounded(scale * logits))


def test_batches_are_served_by_graphs():
    found = graphs.served([8, 6, 8])
    assert (found.rows(), found.ran) == (["8", "any"], [0, 1, 1])
    assert graphs.served([8, 6, 8], mark=True).rows() == ["any"]


def test_launches_are_recorded_in_small(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "OPTIONS", {"default": {}, "not there": {"no_such_option": True}})
    found = record.launches(rows=64, tables=10, backward=False)
    assert "saved" in record.write_launches(found)
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["rows"] == found
    assert found[0]["tables_a_launch"] == [1] * 10
    assert found[0]["look_ups"] == 10
    assert "no such option" in found[1]["match"]


@pytest.mark.slow
def test_times_are_recorded_in_small(monkeypatch):
    monkeypatch.setattr(record, "training_step", lambda chosen, device: (lambda: torch.ones(3).sum(), {}))
    rows = record.times(record.BY_NUMBER["04"], CPU, rounds=2, block=1)
    assert [row["variant"] for row in rows] == ["eager", "compiled"]
    assert [len(row["first_s"]) for row in rows] == [1, 2]
    assert all(len(row["ms"]) == 2 for row in rows)


def test_without_a_gpu_no_times(capsys, monkeypatch):
    monkeypatch.setattr(record.runtime, "device", lambda: CPU)
    with pytest.raises(SystemExit):
        record.main(["times"])
    assert "there is none here" in capsys.readouterr().err


def test_what_is_saved_pays(monkeypatch, capsys):
    import pandas as pd

    def nothing(name):
        raise FileNotFoundError(name)

    monkeypatch.setattr(facts.records, "recorded", nothing)
    facts.judge("main", 1000)
    assert drawing.pays("main") is None
    assert capsys.readouterr().out.count("no record yet") == 2
    rows = [
        {"step": "08", "variant": "eager", "first_s": [0.1], "ms": [3.0, 3.2]},
        {"step": "08", "variant": "compiled", "first_s": [10.0, 1.0], "ms": [2.0, 2.2]},
    ]
    monkeypatch.setattr(facts.records, "recorded", lambda name: pd.DataFrame(rows))
    found = facts.pays("main")
    assert found.cold == pytest.approx(9.9)
    assert found.steps(found.cold) == pytest.approx(9_900, abs=1)
    assert not found.none
    assert len(drawing.pays("main").axes[0].lines) == 3


def test_pictures_of_the_records():
    assert len(drawing.look_ups().axes) == 4
    assert len(drawing.steps().axes) == 3
    assert len(drawing.served([8, 6], {"default": (["8", "any"], [0, 1])}).axes[0].patches) == 2
