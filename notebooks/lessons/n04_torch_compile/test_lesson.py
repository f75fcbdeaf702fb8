"""Lesson 04: graphs are counted, the records are read and drawn."""

import json
import sys

import pytest
import torch

from lessons.n04_torch_compile import dynamo_graphs, experiment, pictures, recorded


@pytest.fixture(autouse=True)
def closed():
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")


def test_a_break_is_counted_and_named():
    logits = 20 * torch.randn(64)
    assert len(dynamo_graphs.graphs_of(dynamo_graphs.bounded, logits).graphs) == 2
    assert len(dynamo_graphs.graphs_of(dynamo_graphs.bounded_where, logits).graphs) == 1
    assert dynamo_graphs.stops_at(dynamo_graphs.bounded, logits).endswith("if largest.item() > 10:")
    assert dynamo_graphs.stops_at(dynamo_graphs.bounded_where, logits) == ""
    for scale in (0.01, 1.0):
        torch.testing.assert_close(dynamo_graphs.bounded_where(scale * logits), dynamo_graphs.bounded(scale * logits))


def test_batches_are_served_by_graphs():
    found = dynamo_graphs.served([8, 6, 8])
    assert (found.rows(), found.ran) == (["8", "any"], [0, 1, 1])
    assert dynamo_graphs.served([8, 6, 8], mark=True).rows() == ["any"]


@pytest.mark.slow
def test_launches_are_recorded_in_small(monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    monkeypatch.setattr(experiment, "OPTIONS", {"default": {}, "not there": {"no_such_option": True}})
    found = experiment.launches(rows=64, tables=10, backward=False)
    assert "saved" in experiment.write_launches(found)
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["rows"] == found
    assert found[0]["tables_a_launch"] == [1] * 10
    assert found[0]["look_ups"] == 10
    assert "no such option" in found[1]["match"]


def test_what_is_saved_pays():
    found = recorded.pays("main")
    assert found.cold > found.warm > 0
    assert found.steps(found.cold) == pytest.approx(1e3 * found.cold / found.saved, abs=1)
    assert len(pictures.pays("main").axes[0].lines) == 3


def test_pictures_of_the_records():
    assert len(pictures.look_ups().axes) == 4
    assert len(pictures.steps().axes) == 3
    assert len(pictures.served([8, 6], {"default": (["8", "any"], [0, 1])}).axes[0].patches) == 2


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the launches of logits are of torch 2.13")
def test_launches_of_logits_are_those_recorded():
    for row in experiment.launches_of_logits():
        assert recorded.launches("2.13", row["what"]) == row
