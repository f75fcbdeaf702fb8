"""model.make_op: the recorder in small, what is read of a record, the pictures with and without one, the 20 lines."""

import json

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from kernels.measure import records
from model.make_op import __main__, asking, drawing, facts, here, kernels, library, record

interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Where records are looked for: empty but for add_relu's."""
    real = records.load("add_relu")
    folder = tmp_path / records.README_GPU
    folder.mkdir()
    (folder / "add_relu.json").write_text(json.dumps(real))
    monkeypatch.setattr(facts, "load", lambda name: records.load(name, results=tmp_path))
    return folder


def made_up():
    rows = [
        {"part": "call", "name": name, "us_p20": n, "us_p50": n + 0.5, "us_p80": n + 1, "match": "ok"}
        for n, name in enumerate(facts.RUNGS)
    ]
    return {"op": facts.NAME, "rows": rows}


@pytest.mark.parametrize("with_record", [False, True])
def test_pictures(results, with_record):
    if with_record:
        (results / "make_op.json").write_text(json.dumps(made_up()))
    x, bias = torch.randn(4, 6), torch.randn(6)
    graphs = {"formula": asking.graph_of(lambda x, bias: torch.relu(x + bias), x, bias)}
    assert drawing.nodes(graphs["formula"]) == ["add", "relu"]
    figures = drawing.draw_path(), drawing.draw_places({"x": x, "x.T": x.T}), drawing.draw_graphs(graphs)
    rungs = drawing.draw_rungs(8.0)
    for figure in (*figures, rungs):
        figure.canvas.draw()
    waiting = sum("not recorded yet" in text.get_text() for text in rungs.axes[0].texts)
    assert waiting == (0 if with_record else 4)


def test_what_is_read_of_a_record(results):
    assert facts.rungs()["x + 1"] == facts.call("x + 1")
    with pytest.raises(FileNotFoundError):
        facts.times("call", "launcher")
    (results / "make_op.json").write_text(json.dumps(made_up()))
    assert facts.times("call", "launcher") == facts.Times(1.5, 1, 2)
    with pytest.raises(KeyError):
        facts.times("wall", "op")


@interpreted
def test_the_recorder_in_small(capsys):
    assert __main__.main(["--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    for part in record.PARTS:
        assert f"\n{part} " in f"\n{printed}"
    assert "FAILED" not in printed


@interpreted
def test_a_part_that_fails_leaves_the_others(monkeypatch):
    def fails(self):
        raise RuntimeError("no such op")

    monkeypatch.setattr(record.Recorder, "call", fails)
    rows = record.Recorder(torch.device("cpu"), record.SMALL).measure(("call", "wall"))
    assert [row["match"] for row in rows] == ["FAILED: RuntimeError: no such op", "ok", "ok"]


@interpreted
def test_a_wrong_result_has_no_time(monkeypatch):
    monkeypatch.setitem(library.IMPLEMENTATIONS, "kernel", lambda x, bias: torch.relu(x + bias) + 1)
    rows = record.Recorder(torch.device("cpu"), record.SMALL).measure(("wall",))
    found = {row["name"]: row for row in rows}
    assert found["op"]["match"].startswith("FAILED")
    assert "us_p50" not in found["op"]


@pytest.mark.parametrize("declare", [library.by_decorator, library.by_define])
def test_the_ops_pass_opcheck(declare):
    device = runtime.device()
    x, bias = (torch.randn(shape, device=device, requires_grad=True) for shape in ((3, 5), (5,)))
    torch.library.opcheck(declare("torch"), (x, bias))
    out = declare("torch")(x, bias)
    assert torch.equal(out, torch.relu(x + bias))
    assert torch.equal(kernels.add_relu(x.detach(), bias.detach()), out)


def test_on_your_machine(capsys):
    here.calls(2, 3)
    assert len(capsys.readouterr().out.splitlines()) == 4
