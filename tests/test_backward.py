"""model.backward: the recorder in small, the pictures with and without a record, the lesson's arithmetic."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from kernels.check import attempt, spec_of
from kernels.measure import records
from model.backward import __main__ as command
from model.backward import drawing, facts, here, puzzles, record
from model.backward.steps import launch

CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")


@pytest.fixture(scope="module")
def found():
    return record.record(CPU, [part for part in record.PARTS if part != "generated"], record.SMALL)


@interpreted
def test_everything_is_measured_in_small(found, tmp_path):
    assert {row["part"] for row in found["rows"]} == set(record.PARTS) - {"copy", "generated"}
    assert {row["match"] for row in found["rows"]} == {"ok"}
    assert all(row["us_p50"] > 0 for row in found["rows"] if row["part"] != "order")
    records.save(found | {"GPU": "a GPU"}, tmp_path)
    assert len(records.recorded(record.NAME, records.slug("a GPU"), tmp_path)) == len(found["rows"])


def test_a_wrong_result_has_no_time_and_a_failing_part_loses_no_other(monkeypatch):
    monkeypatch.setattr(record, "launch", lambda step, x, *rest: x.sum(0) + (step == "sum_tiles"))
    monkeypatch.setattr(record.Recorder, "chunks", lambda self: 1 / 0)
    recorder = record.Recorder(CPU, record.SMALL)
    recorder.measure(["step", "chunks", "copy"])
    wrong = [row for row in recorder.rows if row["match"] != "ok"]
    assert [row.get("step", row["match"]) for row in wrong] == [
        "sum_tiles", "FAILED: ZeroDivisionError: division by zero",
    ]  # fmt: skip
    assert "us_p50" not in wrong[0]
    assert len(recorder.rows) == len(facts.STEPS) + 1


def test_the_command_asks_for_a_gpu_and_saves_nothing_less(capsys, monkeypatch):
    monkeypatch.setattr("kernels.runtime.device", lambda: CPU)
    for arguments in ([], ["--save", "--only", "copy"], ["--only", "kopie"]):
        with pytest.raises(SystemExit, match="2"):
            command.main(arguments)
    assert "expected some of step" in capsys.readouterr().err
    assert command.main(["--device", "cpu", "--only", "copy"]) == 0


@interpreted
@pytest.mark.parametrize("step", facts.STEPS)
@pytest.mark.parametrize(("shape", "chunks"), [((37, 40), 3), ((5, 33), 5)])
def test_each_step_sums(step, shape, chunks):
    x = torch.randint(-3, 4, shape).float()
    assert torch.equal(launch(step, x, chunks, rows=4), x.sum(0))


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Where records are looked for: empty but for the ops'."""
    real = {name: records.load(name) for name in ("add_relu", "add_mul_activation")}
    folder = tmp_path / records.README_GPU
    folder.mkdir()
    for name, content in real.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.setattr(facts, "load", lambda name: records.load(name, results=tmp_path))
    monkeypatch.setattr(facts, "recorded", lambda name: records.recorded(name, results=tmp_path))
    return folder


@interpreted
@pytest.mark.parametrize("with_record", [False, True])
def test_pictures_and_tables(results, with_record, found, capsys):
    if with_record:
        (results / f"{record.NAME}.json").write_text(json.dumps(found))
    for draw in (
        drawing.draw_kept, drawing.draw_tile, drawing.draw_two_stage, drawing.draw_steps, drawing.draw_errors,
        drawing.draw_backward, drawing.draw_op,
    ):  # fmt: skip
        draw().canvas.draw()
    facts.print_steps({"sum_rows": 7})
    facts.print_backward({"relu": "me"})
    out = capsys.readouterr().out
    assert (facts.MISSING in out) == (not with_record)
    assert ("you said 7" in out) == with_record
    assert len(out.splitlines()) == (len(facts.STEPS) if with_record else 1) + 7


def test_what_the_ops_own_count_says():
    for activation in facts.KEPT:
        for name, size in (("float32", 4), ("bfloat16", 2)):
            counted = facts.backward("triton", activation, name)["bytes"]
            assert counted == pytest.approx(facts.NUMBERS * facts.backward_bytes("triton", activation, size), rel=1e-4)


@pytest.mark.parametrize(("rows", "programs"), [(2**10, 1), (2**24, 4), (2**25, 1), (2**25, 2)])
def test_ones_stop_where_float32_says(rows, programs):
    sums = np.cumsum(np.ones(rows // programs, np.float32), dtype=np.float32)[-1]
    assert np.float32(programs) * sums == facts.ones(rows, programs)


def test_chunks_are_more_exact():
    x = facts.draw(rows=8192)
    exact = x.sum(0, dtype=np.float64)
    errors = [np.median(np.abs(sums - exact)) for sums in (facts.one_after_another(x), facts.in_chunks(x))]
    assert errors[1] < errors[0] / 2


@pytest.mark.slow
def test_the_compiler_keeps_what_the_lesson_says():
    forward, backward = (here.lines_of(module) for module in here.modules("relu"))
    assert forward[0].endswith("out_ptr1 i1")
    assert "in_ptr0 i1" in backward[0]
    assert sum(not line.startswith(" ") for line in backward) == 3


def test_the_puzzles_own_answers(capsys):
    for name in puzzles.SPECS:
        assert not puzzles.attempt(name, lambda *numbers: 0)
    assert spec_of("add_relu/two_stage").launch
    assert not attempt("add_relu/bias_gradient", lambda *tensors: None)
    assert capsys.readouterr().out.count("not yet") == 3
